//! What several checks rest on: settings, NVML's cards, what mpsgated says and has written.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use mpsgate_api::{NodeSnapshot, Status};
use mpsgate_config::{Config, Manage, Origin, paths};
use mpsgate_edge::Remedy as _;
use mpsgate_gpu::{Card, GpuError, Nvml};
use mpsgate_host::format::{self, FormatError};
use mpsgate_policy::schedule::Word;

use super::trouble::{Known, Trouble, below, read};
use crate::daemon_call;
use crate::node_snapshot::{self, SnapshotError};

/// The list of enabled cards, below [`paths::STATE_DIR`], and the format that mpsgated writes.
pub(super) const ENABLED: &str = "managed.json";
const ENABLED_FORMAT: u32 = 1;
const CGROUPS: &str = "/sys/fs/cgroup";

/// Plain values, so that each check can be shown a broken node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) root: PathBuf,
    pub(super) euid: u32,
    pub(super) config: Known<(Config, Origin)>,
    pub(super) nvml: Known<NvmlFacts>,
    pub(super) daemon: Known<Status>,
    pub(super) snapshot: Known<Option<NodeSnapshot>>,
    /// UUIDs of the cards that `mpsgate enable` handed over.
    pub(super) enabled: Known<BTreeSet<String>>,
    pub(super) cgroup: Cgroup,
}

#[derive(Debug, Clone)]
pub(super) struct NvmlFacts {
    pub(super) driver: Known<String>,
    pub(super) simulated: bool,
    pub(super) cards: Known<Vec<Known<Card>>>,
    /// Whether it holds cgroups to memory limits.
    pub(super) limits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cgroup {
    V2 {
        /// Whether the kernel has this controller.
        dmem: bool,
    },
    /// v1 controllers beside a v2 tree without any.
    Hybrid,
    V1,
    None,
}

impl Node {
    pub(super) fn gather(root: &Path) -> Self {
        let config = Config::load_with_origin(&below(root, paths::CONFIG_FILE));
        let config = config.map_err(|error| Trouble::of(&error, error.hint()));
        let library = config.as_ref().map(|(config, _)| config.nvml.library.clone());
        let library = library.unwrap_or_else(|_| Config::default().nvml.library);
        Self {
            root: root.to_owned(),
            euid: nix::unistd::geteuid().as_raw(),
            config,
            nvml: nvml(root, &library),
            daemon: daemon_call::status(&below(root, paths::SOCKET))
                .map_err(|error| Trouble::of(&error, error.hint())),
            snapshot: snapshot(root),
            enabled: enabled(root),
            cgroup: cgroup(root),
        }
    }

    pub(super) fn below(&self, path: impl AsRef<Path>) -> PathBuf {
        below(&self.root, path)
    }

    /// The settings, or what holds without.
    pub(super) fn settings(&self) -> Config {
        self.config.as_ref().map(|(config, _)| config.clone()).unwrap_or_default()
    }

    pub(super) fn is_simulated(&self) -> bool {
        self.nvml.as_ref().is_ok_and(|nvml| nvml.simulated)
    }

    /// The cards that NVML could read.
    pub(super) fn cards(&self) -> impl Iterator<Item = &Card> {
        let cards = self.nvml.iter().filter_map(|nvml| nvml.cards.as_ref().ok());
        cards.flatten().filter_map(|card| card.as_ref().ok())
    }

    /// Whether the cards are shared without MPS, as far as mpsgated has said.
    pub(super) fn shares(&self) -> bool {
        self.daemon.as_ref().is_ok_and(|status| status.schedule == Word::Share)
    }

    /// UUIDs of the managed cards: the daemon knows best, then what it last wrote, then what
    /// it would start with.
    pub(super) fn managed(&self) -> BTreeSet<String> {
        if let Ok(status) = &self.daemon {
            let managed = status.cards.iter().filter(|card| card.managed);
            return managed.map(|card| card.uuid.clone()).collect();
        }
        if let Ok(Some(snapshot)) = &self.snapshot {
            let managed = snapshot.cards.iter().filter(|card| card.managed);
            return managed.map(|card| card.uuid.to_string()).collect();
        }
        let mut managed = self.enabled.clone().unwrap_or_default();
        match self.config.as_ref().map(|(config, _)| &config.gpus.manage) {
            Ok(Manage::Uuids(uuids)) => managed.extend(uuids.iter().cloned()),
            Ok(Manage::All) => managed.extend(self.cards().map(|card| card.uuid.clone())),
            Err(_) => {}
        }
        managed
    }
}

fn nvml(root: &Path, library: &Path) -> Known<NvmlFacts> {
    let failed = |error: GpuError| Trouble::of(&error, error.hint());
    let nvml = Nvml::load(below(root, library)).map_err(failed)?;
    let cards = nvml.cards().map_err(failed).map(|cards| {
        cards
            .into_iter()
            .map(|card| card.map_err(|error| Trouble::of(&error, error.hint())))
            .collect()
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
            let asked = limits.get(&card.uuid, Path::new(CGROUPS));
            !asked.is_err_and(|error| error.is_no_limits())
        })
    })
}

fn enabled(root: &Path) -> Known<BTreeSet<String>> {
    #[derive(serde::Deserialize)]
    struct Enabled {
        cards: BTreeSet<String>,
    }
    let path = below(root, paths::STATE_DIR).join(ENABLED);
    let Some(text) = read(&path)? else { return Ok(BTreeSet::new()) };
    let shown = path.display();
    let Enabled { cards } =
        format::read(text.as_bytes(), ENABLED_FORMAT).map_err(|error| match error {
            FormatError::Content(why) => Trouble {
                what: format!("{shown} is no list of cards: {why}"),
                hint: Some(format!(
                    "move it away and enable the cards again: mv {shown} {shown}.bad; mpsgate enable GPU"
                )),
            },
            FormatError::Other { found, known } => Trouble {
                what: format!("{shown} has format {found}, this mpsgate knows {known}"),
                hint: Some("install the mpsgate that wrote it".to_owned()),
            },
        })?;
    Ok(cards)
}

fn snapshot(root: &Path) -> Known<Option<NodeSnapshot>> {
    match node_snapshot::load(&below(root, paths::NODE_SNAPSHOT)) {
        Ok(snapshot) => Ok(Some(snapshot)),
        Err(SnapshotError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(Trouble::of(&error, error.hint())),
    }
}

fn cgroup(root: &Path) -> Cgroup {
    let has = |name: &str| below(root, CGROUPS).join(name).exists();
    if has("cgroup.controllers") {
        let controllers = read(&below(root, CGROUPS).join("cgroup.controllers"));
        let controllers = controllers.ok().flatten().unwrap_or_default();
        Cgroup::V2 { dmem: controllers.split_ascii_whitespace().any(|name| name == "dmem") }
    } else if has("unified/cgroup.controllers") {
        Cgroup::Hybrid
    } else if has("devices") {
        Cgroup::V1
    } else {
        Cgroup::None
    }
}
