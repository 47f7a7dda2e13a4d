//! `mpsgate node-remove`: on the node itself, takes away what `node-install` put there, so that
//! nothing breaks that runs.
//!
//! ```text
//! package? daemon? grants? leases? ─► refused, nothing was changed
//! engines' settings ─► as they were ─► told, or done: the engine's restart
//! who still calls mpsgate-runtime? ─► a link to the real runtime takes its place, else it goes
//! programs, settings of the chart, state ─► gone
//! ```
#![expect(
    clippy::disallowed_methods,
    reason = "node-remove takes away files of mpsgate's own, by their fixed names, and does it here"
)]

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use mpsgate_config::{Config, find_runtime, paths};
use mpsgate_edge::{ExitCode, print};
use mpsgate_model::GrantKey;
use serde::Deserialize;

use crate::args::{Engine, NodeRemoveArgs};
use crate::configure;
use crate::error::{NodeRemoveError, PACKAGED};
use crate::node_install::{MARK, systemctl};
use crate::{CliError, daemon_call};

/// Where containerd's shims keep what a container was made with: its own, Docker's, and that of
/// k3s.
const TASKS: [&str; 3] = [
    "/run/containerd/io.containerd.runtime.v2.task",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task",
    "/run/k3s/containerd/io.containerd.runtime.v2.task",
];
/// In a bundle, the files that name the runtime (runc.WriteRuntime and WriteOptions of containerd
/// 1.4 to 2.1).
const NAMED_IN: [&str; 2] = ["runtime", "options.json"];
/// Leases of compute modes: a file for each card.
const LEASES: &str = "/var/lib/mpsgate/compute-mode";

pub(crate) fn run(args: &NodeRemoveArgs) -> Result<ExitCode, CliError> {
    if args.callers {
        let lines: String = callers().iter().map(|path| format!("{}\n", path.display())).collect();
        print::answer(&lines)?;
        return Ok(ExitCode::Done);
    }
    if let Some(objection) = objection(args.force) {
        return Err(objection.into());
    }
    let real = real_runtime();
    let mut loaded = true;
    for engine in Engine::value_variants() {
        loaded &= put_back(*engine, args.restart_engine)?;
    }
    let callers = callers();
    if callers.is_empty() && loaded {
        remove(Path::new(paths::RUNTIME))?;
    } else {
        let Some(real) = real.ok().flatten() else {
            return Err(NodeRemoveError::NoRuntime(configured()).into());
        };
        leave_link(&real)?;
        let why = match callers.len() {
            0 => "an engine has not loaded its settings yet".to_owned(),
            1 => "1 container goes on that was started through it".to_owned(),
            many => format!("{many} containers go on that were started through it"),
        };
        print::answer(&format!(
            "{path} is a link to {} now: {why}.\nWhen that is over: rm {path}\n",
            real.display(),
            path = paths::RUNTIME
        ))?;
    }
    remove(Path::new(paths::HOOK))?;
    let settings = Path::new(paths::CONFIG_FILE);
    if fs::read(settings).is_ok_and(|text| text.starts_with(MARK.as_bytes())) {
        remove(settings)?;
        // With a file of somebody else in it, it stays.
        let _ = fs::remove_dir(settings.parent().unwrap_or(settings));
    }
    for directory in [paths::STATE_DIR, paths::RUN_DIR] {
        let path = Path::new(directory);
        match fs::remove_dir_all(path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(file("remove", path)(source).into());
            }
            Err(_) => {}
            Ok(()) => print::answer(&format!("Removed: {directory}\n"))?,
        }
    }
    // Last: until here the same command can be given again.
    remove(Path::new(COMMAND))?;
    Ok(ExitCode::Done)
}

/// This program, where `node-install` put it.
const COMMAND: &str = "/usr/bin/mpsgate";

/// What speaks against it.
fn objection(force: bool) -> Option<NodeRemoveError> {
    if Path::new(PACKAGED).exists() {
        return Some(NodeRemoveError::Packaged);
    }
    if let Ok(status) = daemon_call::status(Path::new(paths::SOCKET)) {
        let cards = status.cards.iter().filter(|card| card.managed).count();
        return Some(NodeRemoveError::Running { cards, grants: status.grants.len() });
    }
    if force {
        return None;
    }
    if let Some(containers) = granted() {
        return Some(NodeRemoveError::Grants(containers));
    }
    let cards = names(Path::new(LEASES)).join(", ");
    (!cards.is_empty()).then_some(NodeRemoveError::Leases(cards))
}

/// Containers of the ledger that mpsgated left. A ledger that cannot be read is not taken for
/// empty.
fn granted() -> Option<String> {
    let path = Path::new(paths::LEDGER_DIR).join("ledger.json");
    let text = fs::read(&path).ok()?;
    let ledger: Option<serde_json::Value> = serde_json::from_slice(&text).ok();
    let Some(entries) = ledger.as_ref().and_then(|ledger| ledger.get("entries")?.as_array()) else {
        return Some(format!("{} cannot be read", path.display()));
    };
    let name = |entry: &serde_json::Value| {
        let user = entry.pointer("/grant/user").and_then(|user| user.as_str());
        let key = entry.pointer("/grant/key").and_then(|key| GrantKey::deserialize(key).ok());
        let id = entry.pointer("/grant/key/container_id").and_then(|id| id.as_str());
        let id = || id.unwrap_or("one without a name").to_owned();
        key.map_or_else(id, |key| key.name(user))
    };
    let containers: Vec<String> = entries.iter().map(name).collect();
    (!containers.is_empty()).then(|| containers.join(", "))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}

/// Puts an engine's settings back; whether its daemon has loaded that.
fn put_back(engine: Engine, restart: bool) -> Result<bool, CliError> {
    if !Path::new(paths::CONFIGURE_DIR).join(engine.name()).is_dir() {
        return Ok(true);
    }
    if !configure::put_back(engine, Path::new(paths::CONFIGURE_DIR))? {
        return Ok(true);
    }
    let how = match engine {
        Engine::Docker => ["reload", "docker"],
        Engine::Podman => return Ok(true),
        Engine::Containerd | Engine::Crio => ["restart", engine.name()],
    };
    if restart {
        systemctl(&how)?;
        print::answer(&format!("Done: systemctl {}\n", how.join(" ")))?;
    } else {
        print::answer(&format!(
            "{} still has the settings of before. On the node: systemctl {}\n",
            engine.name(),
            how.join(" ")
        ))?;
    }
    Ok(restart)
}

/// What was started through mpsgate-runtime and goes on: containerd's bundles, and processes named
/// conmon. Whoever started them calls the program that they were made with for as long as they
/// live.
fn callers() -> Vec<PathBuf> {
    let below = |directory: &Path| -> Vec<PathBuf> {
        fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let namespaces = TASKS.iter().flat_map(|tasks| below(Path::new(tasks)));
    let bundles = namespaces.flat_map(|namespace| below(&namespace));
    let names_ours = |bundle: &PathBuf| {
        NAMED_IN.iter().any(|name| {
            fs::read(bundle.join(name)).is_ok_and(|text| contains(&text, paths::RUNTIME))
        })
    };
    let conmons = below(Path::new("/proc")).into_iter().filter(|process| {
        fs::read(process.join("comm")).is_ok_and(|name| name == b"conmon\n")
            && fs::read(process.join("cmdline")).is_ok_and(|line| {
                line.split(|byte| *byte == 0).any(|word| word == paths::RUNTIME.as_bytes())
            })
    });
    bundles.filter(names_ours).chain(conmons).collect()
}

fn contains(text: &[u8], word: &str) -> bool {
    text.windows(word.len()).any(|part| part == word.as_bytes())
}

/// The runtime that containers are run by, as mpsgated linked it, or else by the settings.
fn real_runtime() -> Result<Option<PathBuf>, CliError> {
    if let Ok(real) = fs::canonicalize(paths::RUNTIME_LINK) {
        return Ok(Some(real));
    }
    let shim = fs::metadata(paths::RUNTIME).ok();
    Ok(find_runtime(&configured(), shim.as_ref()))
}

fn configured() -> PathBuf {
    Config::load(Path::new(paths::CONFIG_FILE)).unwrap_or_default().runtime.path
}

/// Renamed into place: at no moment is there none.
fn leave_link(real: &Path) -> Result<(), NodeRemoveError> {
    let place = Path::new(paths::RUNTIME);
    let beside = place.with_extension("link");
    let _ = fs::remove_file(&beside);
    std::os::unix::fs::symlink(real, &beside).map_err(file("make", &beside))?;
    fs::rename(&beside, place).map_err(file("replace", place))
}

fn remove(path: &Path) -> Result<(), CliError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(file("remove", path)(source).into())
        }
        Err(_) => Ok(()),
        Ok(()) => Ok(print::answer(&format!("Removed: {}\n", path.display()))?),
    }
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NodeRemoveError {
    let path = path.to_owned();
    move |source| NodeRemoveError::File { action, path, source }
}
