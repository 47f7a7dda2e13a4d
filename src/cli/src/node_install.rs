//! `mpsgate node-install`: from a pod, puts onto its node what engines start there, and has
//! `configure` write their settings. For nodes that get no package.
//!
//! ```text
//! programs and settings of the image ─► (mount namespace of pid 1) ─► /usr/bin, /etc/mpsgate, each renamed
//! into place ─► what mpsgate configure ENGINE --write does ─► told, or done: the engine's restart
//! ```

mod node_runtime;
mod sandbox;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mpsgate_config::{Config, paths};
use mpsgate_edge::{ExitCode, print};

use crate::CliError;
use crate::args::{ConfigureArgs, Engine, NodeInstallArgs};
use crate::configure::engine_files;
use crate::error::{NodeInstallError, PACKAGED};
use crate::node_namespaces::enter_mounts;

/// What runs on the node itself: engines start the first two, `configure` is of the third.
const PROGRAMS: [&str; 3] = ["mpsgate-runtime", "mpsgate-hook", "mpsgate"];
const PROGRAMS_DIR: &str = "/usr/bin";
/// Kubelet notices within some seconds that a sandbox has ended, and ends what is left of the pod.
const SANDBOX_ENDS: Duration = Duration::from_secs(60);
/// The first words of settings that this command may replace.
pub(crate) const MARK: &str = "# Kept by mpsgate node-install.";

pub(crate) fn run(args: &NodeInstallArgs) -> Result<ExitCode, CliError> {
    let programs = PROGRAMS
        .iter()
        .map(|name| read(&args.from.join(name)).map(|bytes| (*name, bytes)))
        .collect::<Result<Vec<_>, _>>()?;
    let settings = args.settings.as_deref().map(read).transpose()?;
    enter_mounts(&args.mounts)?;
    if Path::new(PACKAGED).exists() {
        return Err(NodeInstallError::Packaged.into());
    }
    // Evaluated before anything is written: programs without their settings, or of another version
    // than these, would decide on containers by settings that nobody meant.
    let file = Path::new(paths::CONFIG_FILE);
    if settings.is_some() && fs::read(file).is_ok_and(|found| !found.starts_with(MARK.as_bytes())) {
        return Err(NodeInstallError::ForeignSettings { path: file.to_owned() }.into());
    }
    let programs: Vec<(PathBuf, &[u8])> = programs
        .iter()
        .map(|(name, bytes)| (Path::new(PROGRAMS_DIR).join(name), bytes.as_slice()))
        .collect();
    let settings = settings.map(|text| marked(text, args)).transpose()?;
    let targets = programs.iter().map(|(path, _)| path.as_path());
    targets.chain(settings.is_some().then_some(file)).try_for_each(engine_files::check_place)?;
    for (path, bytes) in &programs {
        put(path, bytes, 0o755)?;
    }
    let runtime = || Config::load(file).ok().map(|config| config.runtime.path);
    let before = runtime().filter(|_| file.exists());
    if let Some(text) = settings {
        if fs::read(file).ok().as_ref() != Some(&text) {
            forget_runtime()?;
        }
        put(file, &text, 0o644)?;
    }
    let Some(engine) = args.engine else { return Ok(ExitCode::Done) };
    let restarted = configure(engine, args)?;
    if restarted && before.is_some() && before != runtime() && sandbox::end() {
        print::answer(
            "This pod's sandbox was made for the handlers of before: it is ended, and kubelet makes it anew.\n",
        )?;
        std::thread::sleep(SANDBOX_ENDS);
    }
    Ok(ExitCode::Done)
}

/// The settings as they are written, which can be used.
fn marked(mut text: Vec<u8>, args: &NodeInstallArgs) -> Result<Vec<u8>, CliError> {
    if args.choose_runtime {
        text = choose_runtime(text, args)?;
    }
    let text = [MARK.as_bytes(), b" Change the chart's values instead.\n", &text].concat();
    Config::parse(&String::from_utf8_lossy(&text), Path::new(paths::CONFIG_FILE))?;
    Ok(text)
}

fn choose_runtime(text: Vec<u8>, args: &NodeInstallArgs) -> Result<Vec<u8>, CliError> {
    let engine = args.engine.map(|engine| {
        (engine, args.engine_config.as_deref().unwrap_or_else(|| Path::new(engine.usual_path())))
    });
    let (text, said) = node_runtime::chosen(String::from_utf8_lossy(&text).into_owned(), engine)?;
    if let Some(said) = said {
        print::answer(&said)?;
    }
    Ok(text.into_bytes())
}

fn read(path: &Path) -> Result<Vec<u8>, NodeInstallError> {
    fs::read(path).map_err(|source| NodeInstallError::Read { path: path.to_owned(), source })
}

/// Beside its place, then renamed: an engine may be running the old one just now.
fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CliError> {
    if fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(print::answer(&format!("As it has to be: {}\n", path.display()))?);
    }
    engine_files::replace_bytes(path, bytes, mode)?;
    Ok(print::answer(&format!("Written: {}\n", path.display()))?)
}

/// The runtime's link leads where the settings of before say. Without it mpsgate-runtime reads the
/// settings, until mpsgated makes it anew: so mpsgated's own container, which comes next, is
/// started by the runtime that is meant now.
fn forget_runtime() -> Result<(), CliError> {
    Ok(engine_files::remove(Path::new(paths::RUNTIME_LINK), &[])?)
}

/// Whether the engine was started anew.
fn configure(engine: Engine, args: &NodeInstallArgs) -> Result<bool, CliError> {
    let written =
        crate::configure::write(ConfigureArgs::write(engine, args.engine_config.clone()))?;
    let how = match engine {
        Engine::Docker => ["reload", "docker"],
        Engine::Podman => return Ok(false),
        Engine::Containerd | Engine::Crio => ["restart", engine.name()],
    };
    if written.stale {
        if !args.restart_engine {
            print::answer(&format!(
                "{} has not loaded this yet, and containers bypass mpsgate until then. On the node: systemctl {}\n",
                engine.name(),
                how.join(" ")
            ))?;
            return Ok(false);
        }
        systemctl(&how)?;
        print::answer(&format!("Done: systemctl {}\n", how.join(" ")))?;
    }
    written.keep()?;
    Ok(written.stale)
}

/// Through the engine's usual PATH, not the image's; what it says is ours.
pub(crate) fn systemctl(words: &[&str]) -> Result<(), NodeInstallError> {
    let failed = |source| NodeInstallError::Command {
        command: format!("systemctl {}", words.join(" ")),
        source,
    };
    let mut command = Command::new("systemctl");
    command.args(words).env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.stdin(std::process::Stdio::null());
    let status = command.status().map_err(|source| failed(Some(source)))?;
    if status.success() { Ok(()) } else { Err(failed(None)) }
}
