//! What stands round mpsgate: the driver's module, engines, kubelet, security modules, clock, keys.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use mpsgate_config::paths;
use mpsgate_edge::Remedy as _;
use mpsgate_host::door::Kind;

use super::{ENABLED, LEDGER, below, io_trouble, read, trouble};
use crate::args::Engine;
use crate::configure::standing;
use crate::doctor::facts::{Clock, EngineFacts, KeyFile, Known, Security, Trouble, Ways};

/// The token keys' directory, below [`paths::STATE_DIR`], and their file. Only who they belong to
/// is looked at.
pub(in crate::doctor) const TOKENS: &str = "tokens";
const KEYS: &str = "keys.json";
/// kubelet's checkpoint of its CPU manager.
const CPU_MANAGER: &str = "/var/lib/kubelet/cpu_manager_state";
/// What the driver's kernel module says of itself.
pub(in crate::doctor) const MODULE: &str = "/proc/driver/nvidia/version";
/// A label is shorter: `system_u:object_r:container_file_t:s0`.
const LABEL_BYTES: usize = 512;

pub(super) fn module(root: &Path) -> Known<Option<String>> {
    let path = below(root, MODULE);
    let Some(text) = read(&path)? else { return Ok(None) };
    // `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr 8 …`, the open one with
    // `for x86_64` between: the first word that is numbers and dots.
    let number =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let first = text.lines().next().unwrap_or_default();
    first.split_whitespace().find(number).map(|word| Some(word.to_owned())).ok_or_else(|| Trouble {
        what: format!("{} names no version: {first}", path.display()),
        hint: None,
    })
}

/// Drivers from 580 on write `CUDA MPS Control binary version: 13000` when they start.
pub(super) fn mps_version(root: &Path) -> Option<String> {
    let cards = std::fs::read_dir(below(root, paths::MPS_DIR)).ok()?.flatten();
    cards.filter_map(|card| read(&card.path().join("log/control.log")).ok().flatten()).find_map(
        |log| {
            let (_, rest) = log.rsplit_once("binary version:")?;
            rest.split_whitespace().next().map(str::to_owned)
        },
    )
}

/// And why others may run.
pub(super) fn engines(root: &Path, runtime: &Path) -> (Vec<EngineFacts>, BTreeSet<String>) {
    // A process that is not known may be any of them, and is told of once.
    let (mut engines, mut doubts) = (Vec::new(), BTreeSet::new());
    for engine in [Engine::Containerd, Engine::Docker, Engine::Podman, Engine::Crio] {
        let (found, doubted) = standing::of(engine, root, runtime);
        doubts.extend(doubted);
        engines.extend(found.into_iter().map(|standing| EngineFacts {
            name: engine.name(),
            version: standing.version,
            in_use: standing.in_use,
            ways: match standing.said {
                Ok(said) => {
                    Ok(Ways { round: said.round, through: said.through, stale: said.stale })
                }
                Err(error) => Err(trouble(&error, error.hint())),
            },
        }));
    }
    (engines, doubts)
}

pub(super) fn cpu_manager(root: &Path) -> Known<Option<String>> {
    #[derive(serde::Deserialize)]
    struct State {
        #[serde(rename = "policyName")]
        policy: String,
    }
    let path = below(root, CPU_MANAGER);
    let Some(text) = read(&path)? else { return Ok(None) };
    serde_json::from_str(&text).map(|state: State| Some(state.policy)).map_err(|error| Trouble {
        what: format!("{} names no policy: {error}", path.display()),
        hint: None,
    })
}

pub(super) fn security(root: &Path) -> Security {
    let word =
        |path: &str| read(&below(root, path)).ok().flatten().map(|text| text.trim().to_owned());
    let selinux = word("/sys/fs/selinux/enforce").map(|enforce| enforce == "1");
    let mut client_types = BTreeMap::new();
    if selinux.is_some() {
        let cards = std::fs::read_dir(below(root, paths::MPS_DIR)).into_iter().flatten().flatten();
        let clients = cards
            .map(|card| card.path().join(Kind::Container.directory()))
            .filter(|path| path.is_dir());
        client_types.extend(clients.map(|path| (path.clone(), selinux_type(&path))));
    }
    Security {
        selinux,
        apparmor: word("/sys/module/apparmor/parameters/enabled").as_deref() == Some("Y"),
        client_types,
    }
}

/// The third part of a label.
fn selinux_type(path: &Path) -> Option<String> {
    let mut bytes = [0_u8; LABEL_BYTES];
    let length = rustix::fs::lgetxattr(path, "security.selinux", &mut bytes).ok()?;
    let label = String::from_utf8_lossy(bytes.get(..length)?).into_owned();
    label.split(':').nth(2).map(|part| part.trim_end_matches('\0').to_owned())
}

pub(super) fn clock(root: &Path) -> Clock {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let state = below(root, paths::STATE_DIR);
    let files = [
        below(root, paths::LEDGER_DIR).join(LEDGER),
        below(root, paths::NODE_SNAPSHOT),
        state.join(ENABLED),
        state.join(TOKENS).join(KEYS),
    ];
    let written = |path: PathBuf| {
        let time = std::fs::metadata(&path).ok()?.modified().ok()?;
        Some((path, seconds(time)))
    };
    Clock {
        now: seconds(SystemTime::now()),
        newest: files.into_iter().filter_map(written).max_by_key(|(_, time)| *time),
    }
}

/// Never the contents.
pub(super) fn tokens(root: &Path) -> Known<Vec<KeyFile>> {
    let directory = below(root, paths::STATE_DIR).join(TOKENS);
    let file = directory.join(KEYS);
    let mut found = Vec::new();
    for (path, allowed) in [(directory, 0o700), (file, 0o600)] {
        match std::fs::symlink_metadata(&path) {
            Ok(metadata) => {
                let mode = metadata.mode() & 0o7777;
                found.push(KeyFile { path, uid: metadata.uid(), mode, allowed });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_trouble("look at", &path, &error)),
        }
    }
    Ok(found)
}
