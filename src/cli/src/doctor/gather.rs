//! Collects the facts. Reads files, asks NVML, the daemon and the control daemons, and runs the OCI
//! runtime and the MPS control binary to learn what they are. A fact that cannot be had is
//! [`Trouble`], never the end.

pub(super) mod host;
mod node;
mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use mpsgate_api::NodeSnapshot;
use mpsgate_config::{Config, ConfigError, Origin, paths};
use mpsgate_edge::Remedy as _;
use mpsgate_gpu::{Card, GpuError, Nvml};
use mpsgate_host::format::{self, FormatError};
use mpsgate_model::printable;
use mpsgate_mps::{LeaseDir, MpsDirectories, MpsError, MpsInstance, MpsState};

use super::facts::{Facts, Known, LeaseFacts, NvmlFacts, Settings, Trouble};
use crate::daemon;
use crate::snapshot::{self, SnapshotError};

/// Directory of the compute-mode leases, below [`paths::STATE_DIR`].
pub(super) const LEASES: &str = "compute-mode";
/// The list of enabled cards, below [`paths::STATE_DIR`], and the format that mpsgated writes.
pub(super) const ENABLED: &str = "managed.json";
const ENABLED_FORMAT: u32 = 1;
/// The ledger's file, below [`paths::LEDGER_DIR`].
pub(super) const LEDGER: &str = "ledger.json";
/// The default pipe directory of MPS (NVIDIA MPS documentation).
const DEFAULT_MPS: &str = "/tmp/nvidia-mps";
/// Largest number of a card's directory: what the longest socket path is computed with.
const LARGEST_CARD: u32 = 999;

/// All facts of the node below `root`.
pub(super) fn gather(root: &Path) -> Facts {
    let config = settings(root);
    let or_default = config.as_ref().map(|s| s.config.clone()).unwrap_or_default();
    let own_programs = programs::own(root);
    let control = programs::program(&below(root, &or_default.mps.control));
    let runtime = programs::runtime(root, &or_default.runtime.path, &own_programs);
    let (engines, doubts) = host::engines(root, &or_default.runtime.path);
    Facts {
        euid: nix::unistd::geteuid().as_raw(),
        nvml: nvml(root, &or_default.nvml.library),
        majors: node::majors(root),
        nodes: node::nodes(root),
        capabilities: programs::capabilities(root, &control),
        daemon: daemon::status(&below(root, paths::SOCKET)).map_err(|e| trouble(&e, e.hint())),
        ledger: ledger(root),
        enabled: enabled(root),
        snapshot: snapshot(root),
        runtime_link: runtime_link(root),
        cgroup: node::cgroup(root),
        dmem: node::dmem(root),
        pidfd: node::pidfd(),
        kernel: node::kernel(root),
        ipc_inode: node::ipc_inode(root),
        mps_states: mps_states(root, &control.path),
        leases: leases(root),
        sockets: sockets(root),
        open_files: node::open_files(root),
        default_mps: below(root, DEFAULT_MPS).exists(),
        module: host::module(root),
        mps_version: host::mps_version(root),
        engines,
        doubts,
        cpu_manager: host::cpu_manager(root),
        security: host::security(root),
        clock: host::clock(root),
        tokens: host::tokens(root),
        own_programs,
        control,
        runtime,
        config,
    }
}

/// `path` of the node whose root is `root`. A name without `/` stays what it is.
pub(super) fn below(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    path.as_ref()
        .strip_prefix("/")
        .map_or_else(|_| path.as_ref().to_owned(), |rest| root.join(rest))
}

fn trouble(error: &dyn Error, hint: Option<String>) -> Trouble {
    Trouble { what: printable::chain(error), hint }
}

/// An I/O error and the file that it is about.
fn io_trouble(action: &str, path: &Path, error: &io::Error) -> Trouble {
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    Trouble {
        what: format!("cannot {action} {}: {error}", path.display()),
        hint: denied.then(|| "run it with sudo, or as root".to_owned()),
    }
}

/// Reads a small file of `/proc`, `/sys` or `/run`; `None` where there is none.
fn read(path: &Path) -> Known<Option<String>> {
    match mpsgate_host::procfs::text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_trouble("read", path, &error)),
    }
}

fn settings(root: &Path) -> Known<Settings> {
    let (config, origin) = Config::load_with_origin(&below(root, paths::CONFIG_FILE))
        .map_err(|e: ConfigError| trouble(&e, Some(e.hint())))?;
    let file = match origin {
        Origin::Defaults => None,
        Origin::File(path) => Some(path),
    };
    Ok(Settings { config, file })
}

fn nvml(root: &Path, library: &Path) -> Known<NvmlFacts> {
    let failed = |e: GpuError| trouble(&e, e.hint());
    let nvml = Nvml::load(below(root, library)).map_err(failed)?;
    let cards = nvml.cards().map_err(failed).map(|cards| {
        cards.into_iter().map(|card| card.map_err(|e| trouble(&e, e.hint()))).collect()
    });
    Ok(NvmlFacts {
        driver: nvml.driver_version().map_err(failed),
        simulated: nvml.is_simulated(),
        limits: offers_limits(&nvml, &cards),
        cards,
    })
}

/// Whether the driver holds cgroups to memory limits. Its library may have the calls and the driver
/// none: a card is asked for the limit of the root, which nobody can have.
fn offers_limits(nvml: &Nvml, cards: &Known<Vec<Known<Card>>>) -> bool {
    let first = cards.iter().flatten().flatten().next();
    nvml.memory_limits().is_some_and(|limits| {
        first.is_none_or(|card| {
            let asked = limits.get(&card.uuid, Path::new(node::CGROUPS));
            !asked.is_err_and(|error| error.is_no_limits())
        })
    })
}

fn ledger(root: &Path) -> Known<Option<usize>> {
    let path = below(root, paths::LEDGER_DIR).join(LEDGER);
    let Some(text) = read(&path)? else { return Ok(None) };
    mpsgate_model::ledger_file::parse(text.as_bytes(), &path)
        .map(|(_, ledger)| Some(ledger.entries().len()))
        .map_err(|e| trouble(&e, Some(e.hint())))
}

fn enabled(root: &Path) -> Known<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct Enabled {
        cards: BTreeSet<String>,
    }
    let path = below(root, paths::STATE_DIR).join(ENABLED);
    let Some(text) = read(&path)? else { return Ok(BTreeSet::new()) };
    let bad = |why: String| Trouble {
        what: format!("{} is no list of cards: {why}", path.display()),
        hint: Some(format!(
            "move it away and enable the cards again: mv {0} {0}.bad; mpsgate enable GPU",
            path.display()
        )),
    };
    let Enabled { cards } =
        format::read(text.as_bytes(), ENABLED_FORMAT).map_err(|error| match error {
            FormatError::Content(error) => bad(error.to_string()),
            FormatError::Other { found, known } => Trouble {
                what: format!("{} has format {found}, this mpsgate knows {known}", path.display()),
                hint: Some("install the mpsgate that wrote it".to_owned()),
            },
        })?;
    Ok(cards)
}

fn snapshot(root: &Path) -> Known<Option<NodeSnapshot>> {
    match snapshot::load(&below(root, paths::NODE_SNAPSHOT)) {
        Ok(snapshot) => Ok(Some(snapshot)),
        Err(SnapshotError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(trouble(&error, Some(error.hint()))),
    }
}

fn runtime_link(root: &Path) -> Known<Option<PathBuf>> {
    let path = below(root, paths::RUNTIME_LINK);
    match std::fs::read_link(&path) {
        Ok(target) => Ok(Some(below(root, target))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_trouble("read the link", &path, &error)),
    }
}

fn mps_states(root: &Path, control: &Path) -> Known<BTreeMap<u32, Known<MpsState>>> {
    let directory = below(root, paths::MPS_DIR);
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(io_trouble("read", &directory, &error)),
    };
    let numbers = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    Ok(numbers.map(|card| (card, mps_state(&directory, card, control))).collect())
}

fn mps_state(directory: &Path, card: u32, control: &Path) -> Known<MpsState> {
    // The UUID only matters to a daemon that is started, and none is.
    let state = MpsDirectories::new(directory, card)
        .and_then(|dirs| MpsInstance::new(card, "", control, dirs).state());
    state.map_err(|error| trouble(&error, error.hint()))
}

fn leases(root: &Path) -> Known<Vec<Known<LeaseFacts>>> {
    let failed = |e: &MpsError| trouble(e, e.hint());
    let all = LeaseDir::new(below(root, paths::STATE_DIR).join(LEASES)).read_all();
    let all = all.map_err(|e| failed(&e))?;
    let fact = |lease: Result<mpsgate_mps::Lease, MpsError>| {
        let lease = lease.map_err(|e| failed(&e))?;
        Ok(LeaseFacts { uuid: lease.uuid, previous: lease.previous.as_str() })
    };
    Ok(all.into_iter().map(fact).collect())
}

fn sockets(root: &Path) -> Vec<PathBuf> {
    let card = below(root, paths::MPS_DIR).join(LARGEST_CARD.to_string());
    vec![below(root, paths::SOCKET), card.join("pipe/control_privileged")]
}
