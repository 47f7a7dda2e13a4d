//! Which real runtime the node's settings get where nobody named one: NVIDIA's, where the node has
//! it.
//!
//! A handler that runs nvidia-container-runtime is led through mpsgate only where that is
//! `runtime.path`. Left alone, whoever may choose it as a RuntimeClass has every card; led to runc,
//! pods that need the driver's files would lose them. To all other containers NVIDIA's is runc. A
//! node without it has runc. What was chosen stays as long as it is there, because a handler that
//! is led names it no more.

use std::path::{Path, PathBuf};

use mpsgate_config::{Config, paths};
use mpsgate_configure::{Options, Version, containerd};

use crate::CliError;
use crate::args::Engine;
use crate::configure::engine_files::DISK;

const NVIDIA: &str = "nvidia-container-runtime";
/// Where the GPU operator's toolkit pod puts it.
const OPERATOR: &str = "/usr/local/nvidia/toolkit/nvidia-container-runtime";
/// Its settings, which can name a runtime below it.
const TOOLKIT: &str = "/etc/nvidia-container-runtime/config.toml";

/// What is seen of the node.
struct Found {
    /// What the engine's handlers run.
    programs: Vec<String>,
    /// `runtime.path` of the settings until now.
    before: Option<PathBuf>,
    /// NVIDIA's settings.
    toolkit: String,
    /// Whether there is a file.
    is_file: fn(&Path) -> bool,
}

/// The settings with the runtime that was chosen, and a sentence. As they are where they name one,
/// or where it is runc.
pub(super) fn chosen(
    text: String,
    engine: Option<(Engine, &Path)>,
) -> Result<(String, Option<String>), CliError> {
    let file = Path::new(paths::CONFIG_FILE);
    Config::parse(&text, file)?;
    let found = Found {
        programs: engine.map(programs).unwrap_or_default(),
        before: Config::load(file).ok().map(|config| config.runtime.path),
        toolkit: std::fs::read_to_string(TOOLKIT).unwrap_or_default(),
        is_file: Path::is_file,
    };
    let Some(program) = choose(&found) else { return Ok((text, None)) };
    let with = with_path(&text, &program);
    // A second path is no TOML: the one that is there counts.
    if Config::parse(&with, file).is_err() {
        return Ok((text, None));
    }
    let said = format!(
        "runtime.path: {program}, which this node has (another one: config.runtime.path of the chart)\n"
    );
    Ok((with, Some(said)))
}

/// What the engine's handlers run, as far as its files say it. CRI-O's usual paths are looked at
/// anyway.
fn programs((engine, path): (Engine, &Path)) -> Vec<String> {
    let options = Options {
        name: "mpsgate".to_owned(),
        shim: paths::RUNTIME.to_owned(),
        runtime: "runc".to_owned(),
        // Every file counts: a handler that one of them names is one that may be used.
        engine: Some(Version(2, 1)),
        ..Options::default()
    };
    match engine {
        Engine::Containerd => {
            let found = containerd::programs(&DISK, path, &options).unwrap_or_default();
            found.programs.into_values().collect()
        }
        Engine::Docker | Engine::Podman | Engine::Crio => Vec::new(),
    }
}

fn choose(seen: &Found) -> Option<String> {
    let below_it = seen
        .toolkit
        .lines()
        .map(str::trim)
        .any(|line| !line.starts_with('#') && line.contains("mpsgate-runtime"));
    if below_it {
        // It would run us, and we it.
        return None;
    }
    let is_nvidias = |path: &&Path| path.file_name().is_some_and(|name| name == NVIDIA);
    let named = seen.programs.iter().map(Path::new).chain(seen.before.as_deref());
    let search = paths::RUNTIME_SEARCH.iter().map(|directory| Path::new(directory).join(NVIDIA));
    let usual: Vec<PathBuf> = search.collect();
    let named = named.filter(is_nvidias).filter(|path| path.is_absolute() && (seen.is_file)(path));
    let found = named
        .chain(usual.iter().map(PathBuf::as_path))
        .chain([Path::new(OPERATOR)])
        .find(|path| (seen.is_file)(path))?;
    let is_usual = usual.iter().any(|path| path == found);
    Some(if is_usual { NVIDIA.to_owned() } else { found.to_string_lossy().into_owned() })
}

fn with_path(text: &str, program: &str) -> String {
    let line = format!("path = {program:?}\n");
    match text.split_once("[runtime]\n") {
        Some((before, after)) if before.is_empty() || before.ends_with('\n') => {
            format!("{before}[runtime]\n{line}{after}")
        }
        _ => format!("{}\n\n[runtime]\n{line}", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(programs: &[&str], before: Option<&str>, is_file: fn(&Path) -> bool) -> Found {
        Found {
            programs: programs.iter().map(ToString::to_string).collect(),
            before: before.map(PathBuf::from),
            toolkit: "[nvidia-container-runtime]\nruntimes = [\"runc\", \"crun\"] # not mpsgate\n"
                .to_owned(),
            is_file,
        }
    }

    #[test]
    fn nvidias_is_taken_where_the_node_has_it_and_what_was_taken_stays() {
        let nowhere: fn(&Path) -> bool = |_| false;
        let in_bin: fn(&Path) -> bool =
            |path| path == Path::new("/usr/bin/nvidia-container-runtime");
        let operators: fn(&Path) -> bool = |path| path == Path::new(OPERATOR);
        let own: fn(&Path) -> bool = |path| path == Path::new("/opt/nv/nvidia-container-runtime");
        for (found, expected) in [
            (found(&[], None, nowhere), None),
            (found(&["runc", "/usr/bin/nvidia-container-runtime"], None, nowhere), None),
            (found(&["runc"], None, in_bin), Some(NVIDIA)),
            (found(&["/usr/bin/nvidia-container-runtime"], Some("runc"), in_bin), Some(NVIDIA)),
            (found(&["runc"], None, operators), Some(OPERATOR)),
            (
                found(&["/opt/nv/nvidia-container-runtime"], None, own),
                Some("/opt/nv/nvidia-container-runtime"),
            ),
            // Its handler runs us by now.
            (
                found(&["/usr/bin/mpsgate-runtime"], Some("/opt/nv/nvidia-container-runtime"), own),
                Some("/opt/nv/nvidia-container-runtime"),
            ),
            (found(&[], Some("/opt/nv/nvidia-container-runtime"), nowhere), None),
            (found(&["/opt/nv/kata-runtime"], None, own), None),
        ] {
            assert_eq!(
                choose(&found).as_deref(),
                expected,
                "{:?} {:?}",
                found.programs,
                found.before
            );
        }
    }

    #[test]
    fn one_that_runs_mpsgate_itself_is_never_taken() {
        let mut below =
            found(&[], None, |path| path == Path::new("/usr/bin/nvidia-container-runtime"));
        below.toolkit = "  runtimes = [\"/usr/bin/mpsgate-runtime\"]\n".to_owned();
        assert_eq!(choose(&below), None);
    }

    #[test]
    fn the_settings_get_the_path_and_an_own_one_makes_them_no_settings() {
        let path = |text: &str| {
            Config::parse(&with_path(text, "nvidia-container-runtime"), Path::new("x"))
                .map(|config| config.runtime.path)
        };
        for text in ["", "[gpus]\nmanage = \"all\"\n", "[runtime]\n\n[gpus]\nmanage = \"all\"\n"] {
            assert_eq!(path(text).ok(), Some(PathBuf::from(NVIDIA)), "{text}");
        }
        assert!(path("[runtime]\npath = \"crun\"\n").is_err());
    }
}
