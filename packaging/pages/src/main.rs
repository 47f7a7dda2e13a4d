//! `mpsgate-pages DIR`: writes `DIR/man` and `DIR/completions` (`make man`).
//!
//! Pages and completions of `mpsgate`, `mpsgated`, `mpsgate-gate`, `mpsgate-scheduler` and
//! `kubectl-inspect-cgpu` are made from the types that parse their arguments, mpsgate.toml(5) from
//! the settings file that is shipped: none of them can say what is not so. The pages of
//! `mpsgate-runtime` and `mpsgate-hook`, which have no such types, are written by hand in
//! `packaging/man`.

mod command_page;
mod roff_text;
mod settings_page;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_complete::Shell;
use mpsgate_model::printable::chain;

/// Why nothing, or not all, was written.
#[derive(Debug, thiserror::Error)]
enum PagesError {
    /// The command line.
    #[error("usage: mpsgate-pages DIR")]
    Usage,
    /// A file.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The shipped settings have a form that is not understood.
    #[error("config/config.toml, line {line}: {what}")]
    Settings {
        /// Where.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
}

/// The settings file that is shipped.
const SETTINGS: &str = include_str!("../../../config/config.toml");
/// Completions, each under the name that its shell looks for.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), PagesError> {
    let directory = std::env::args_os().nth(1).ok_or(PagesError::Usage)?;
    write_all(Path::new(&directory))
}

fn write_all(directory: &Path) -> Result<(), PagesError> {
    let (man, completions) = (directory.join("man"), directory.join("completions"));
    for directory in [&man, &completions] {
        std::fs::create_dir_all(directory)
            .map_err(|source| PagesError::Write { path: directory.clone(), source })?;
    }
    for (name, text) in pages()? {
        write(&man.join(name), text.as_bytes())?;
    }
    for (mut command, _) in commands() {
        let name = command.get_name().to_owned();
        for shell in SHELLS {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command, &name, &mut script);
            write(&completions.join(file_name(shell, &name)), &script)?;
        }
    }
    Ok(())
}

/// The command lines, each with its section of the manual.
fn commands() -> [(clap::Command, u8); 5] {
    [
        (mpsgate_cli::command(), 8),
        (mpsgate_daemon::command(), 8),
        (mpsgate_gate::command(), 8),
        (mpsgate_scheduler::command(), 8),
        (mpsgate_inspect::command(), 1),
    ]
}

/// Every page that is made, by file name.
fn pages() -> Result<Vec<(String, String)>, PagesError> {
    let mut pages = Vec::new();
    for (command, number) in commands() {
        pages.extend(command_page::all(command, number));
    }
    pages.push(("mpsgate.toml.5".to_owned(), settings_page::render(SETTINGS)?));
    Ok(pages)
}

/// Where the shell's own function looks: bash-completion by the command's name, zsh with an
/// underscore.
fn file_name(shell: Shell, command: &str) -> String {
    match shell {
        Shell::Zsh => format!("_{command}"),
        Shell::Fish => format!("{command}.fish"),
        _ => format!("{command}.bash"),
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), PagesError> {
    std::fs::write(path, bytes)
        .map_err(|source| PagesError::Write { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
