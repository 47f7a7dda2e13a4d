//! The pages are looked at by man and mandoc, the completions by their shells, where these are
//! installed.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a failed unwrap is a failed test, and tests run programs"
)]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};

use super::*;

fn written() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write_all(dir.path()).unwrap();
    dir
}

/// Those that are made, and those that are written by hand.
fn all_pages(made: &Path) -> Vec<PathBuf> {
    let by_hand = Path::new(env!("CARGO_MANIFEST_DIR")).join("../man");
    let files = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = files(&made.join("man")).chain(files(&by_hand)).collect();
    pages.sort();
    pages
}

/// `None` where the program is not installed.
fn run(test: &str, program: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(args).env("LC_ALL", "C.UTF-8").output();
    match output {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("SKIPPED: {test}: needs {program}");
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn there_is_a_page_for_each_program_each_command_and_the_settings() {
    let dir = written();
    let pages = all_pages(dir.path());
    let names: BTreeSet<&str> =
        pages.iter().map(|page| page.file_name().unwrap().to_str().unwrap()).collect();
    for name in [
        "mpsgate.8",
        "mpsgate-status.8",
        "mpsgate-mps.8",
        "mpsgate-mps-stop.8",
        "mpsgate-mps-restart.8",
        "mpsgated.8",
        "mpsgate-runtime.8",
        "mpsgate-hook.8",
        "mpsgate.toml.5",
        "mpsgate-scheduler.8",
        "kubectl-inspect-cgpu.1",
    ] {
        assert!(names.contains(name), "{name} is not among {names:?}");
    }
    fn count(command: &clap::Command) -> usize {
        1 + command.get_subcommands().map(count).sum::<usize>()
    }
    let commands = commands().iter().map(|(command, _)| count(command)).sum::<usize>();
    assert_eq!(pages.len(), commands + 3, "{names:?}");
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap();
        let title = format!("\"mpsgate {}\" \"mpsgate\"", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&title), "{}: not of this version", page.display());
        for section in [".SH NAME", ".SH SEE ALSO"] {
            assert_eq!(text.matches(section).count(), 1, "{}: {section}", page.display());
        }
        let is_settings = page.extension().is_some_and(|number| number == "5");
        assert_eq!(text.contains(".SH EXIT STATUS"), !is_settings, "{}", page.display());
    }
}

#[test]
fn no_page_has_anything_that_man_or_mandoc_warns_of() {
    const NAME: &str = "no_page_has_anything_that_man_or_mandoc_warns_of";
    let dir = written();
    for page in all_pages(dir.path()) {
        let path = page.to_str().unwrap();
        let man = ["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", path];
        let Some(output) = run(NAME, "man", &man) else { break };
        assert!(output.status.success(), "{path}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{path}");
    }
    for page in all_pages(dir.path()) {
        let path = page.to_str().unwrap();
        let Some(output) = run(NAME, "mandoc", &["-T", "lint", "-W", "warning", path]) else {
            break;
        };
        let said = text(&output.stdout) + &text(&output.stderr);
        // Without a date the same source always gives the same page.
        let warnings: Vec<&str> =
            said.lines().filter(|line| !line.contains("missing date")).collect();
        assert_eq!(warnings, Vec::<&str>::new());
    }
}

#[test]
fn the_settings_page_has_every_key_with_its_default_and_its_reason() {
    let page = settings_page::render(SETTINGS).unwrap();
    let keys = SETTINGS.lines().filter(|line| {
        line.strip_prefix('#').is_some_and(|l| !l.starts_with(' ') && l.contains(" = "))
    });
    let mut count = 0;
    for key in keys {
        let (name, default) = key.trim_start_matches('#').split_once(" = ").unwrap();
        let heading = format!("{name}\\fR = {}", roff_text::escape(default));
        let (_, after) =
            page.split_once(&heading).unwrap_or_else(|| panic!("no {heading} in {page}"));
        let body = after.lines().nth(1).unwrap_or_default();
        assert!(!body.is_empty() && !body.starts_with('.'), "{name} has no text");
        count += 1;
    }
    assert!(count >= 19, "{count} keys");
}

#[test]
fn settings_of_another_form_are_an_error_with_a_line() {
    for (text, line) in [
        ("# t\n[a]\n# why\n#b = 1\nc = 2\n", 5),
        ("# t\n[a]\n#b\n", 3),
        ("# t\n#b = 1\n", 2),
        ("# t\n[a]\n# why\n[b]\n# why\n#c = 1\n", 4),
        ("# t\n[a]\n# why\n#b = 1\n# and then nothing\n", 5),
    ] {
        match settings_page::render(text) {
            Err(PagesError::Settings { line: found, .. }) => assert_eq!(found, line, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn text_is_never_taken_for_a_request() {
    assert_eq!(roff_text::escape(".B x"), "\\&.B x");
    assert_eq!(roff_text::escape("a\\fB -x"), "a\\efB \\-x");
    assert!(roff_text::escape("'x'").starts_with("\\(aq"));
}

#[test]
fn every_shell_reads_its_completions() {
    const NAME: &str = "every_shell_reads_its_completions";
    let dir = written();
    let completions = dir.path().join("completions");
    for (shell, flag, files) in [
        (
            "bash",
            "-n",
            [
                "mpsgate.bash",
                "mpsgated.bash",
                "mpsgate-scheduler.bash",
                "kubectl-inspect-cgpu.bash",
            ],
        ),
        ("zsh", "-n", ["_mpsgate", "_mpsgated", "_mpsgate-scheduler", "_kubectl-inspect-cgpu"]),
        (
            "fish",
            "--no-execute",
            [
                "mpsgate.fish",
                "mpsgated.fish",
                "mpsgate-scheduler.fish",
                "kubectl-inspect-cgpu.fish",
            ],
        ),
    ] {
        for file in files {
            let path = completions.join(file);
            let Some(output) = run(NAME, shell, &[flag, path.to_str().unwrap()]) else { break };
            assert!(output.status.success(), "{file}: {}", text(&output.stderr));
            assert_eq!(text(&output.stderr), "", "{file}");
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    let dir = written();
    let file = dir.path().join("completions/mpsgate.bash");
    for (words, at, wanted) in [
        ("mpsgate re", 1, &["reload"][..]),
        ("mpsgate mps ", 2, &["stop", "restart"]),
        ("mpsgate mps restart --y", 3, &["--yes"]),
        ("mpsgate status --output ", 3, &["table", "json"]),
    ] {
        // As bash does it: the words, the index of the one to complete, then the function.
        let last = words.rsplit(' ').next().unwrap_or_default();
        let script = format!(
            "source {}; COMP_WORDS=({words}); [[ -n '{last}' ]] || COMP_WORDS+=(''); COMP_CWORD={at}; \
             _mpsgate mpsgate '{last}' \"${{COMP_WORDS[{at}-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            file.display()
        );
        let name = "bash_completes_commands_and_options";
        let Some(output) = run(name, "bash", &["-c", &script]) else { return };
        let said = text(&output.stdout);
        let offered: BTreeSet<&str> = said.lines().collect();
        for word in wanted {
            assert!(offered.contains(word), "{words}: {word} is not among {offered:?}");
        }
    }
}

#[test]
fn no_help_is_wider_than_100_columns() {
    fn look(command: &mut clap::Command, wide: &mut Vec<String>) {
        for text in [command.render_help(), command.render_long_help()] {
            let lines = text.to_string();
            wide.extend(lines.lines().filter(|l| l.chars().count() > 100).map(str::to_owned));
        }
        for below in command.get_subcommands_mut() {
            look(below, wide);
        }
    }
    let mut wide = Vec::new();
    for (mut command, _) in commands() {
        look(&mut command, &mut wide);
    }
    assert!(wide.is_empty(), "{wide:#?}");
}
