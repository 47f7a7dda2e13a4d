//! Everything that blocks: NVML and the control daemons. Called only through
//! [`Daemon::blocking`](crate::daemon::Daemon::blocking), so that no answer waits for a driver.
//!
//! Decides nothing about grants. Bringing a card up, in this order, because a container that
//! bypasses MPS must find the card busy:
//!
//! ```text
//! fit? ─► compute mode: lease, EXCLUSIVE_PROCESS ─► control daemon: adopt or start
//!      ─► default limit set and read back ─► gate ─► ready ─► (server: at the first reserve)
//! ```

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mpsgate_config::paths::GATE_ORDERS;
use mpsgate_config::{Orphan, Schedule, Supervisor, Switch};
use mpsgate_gpu::{GpuError, Nvml, ProcessKind, ProcessList};
use mpsgate_host::{crash_point, procfs};
use mpsgate_model::Mib;
use mpsgate_mps::{
    Capabilities, ControlDaemon, HoldSpawner, Kept, MpsDirectories, MpsError, MpsInstance, Origin,
    OwnHolder, Spawner, UnitSpawner, choose_spawner, server_of,
};
use mpsgate_node::card::{CardId, Control, Ends, Trouble};

mod compute_mode;
pub(crate) mod control;
mod shared_hardware;

use self::control::{limit_default, mps_trouble, view};
use crate::error::chain;
use crate::settings_in_force::Settings;
use crate::{Paths, answer_files, process_end};

/// How long a control daemon may take to answer for the first time; it needs 5 ms (measured,
/// 550.163.01 without a GPU), and 0.1 s from 580 on, which looks at its card first (on an H200).
const CONTROL_LIMIT: Duration = Duration::from_secs(10);
/// What clients get to end by themselves when a card is taken back. None is left by then: a card
/// with grants is not taken back.
const QUIT_GRACE: Duration = Duration::from_secs(1);
/// Where systemd looks for the units' environment.
const SYSTEMCTL: &str = "/usr/bin/systemctl";

/// The drivers of this node.
#[derive(Debug)]
pub(crate) struct Hardware {
    settings: Arc<Settings>,
    paths: Paths,
    nvml: Mutex<Option<Arc<Nvml>>>,
    spawner: Box<dyn Spawner>,
    capabilities: Mutex<Option<Capabilities>>,
    kept: Mutex<Kept>,
}

/// What NVML sees.
#[derive(Debug)]
pub(crate) struct Inventory {
    pub(crate) simulated: bool,
    pub(crate) driver: Option<String>,
    pub(crate) cards: Vec<mpsgate_gpu::Card>,
    /// Cards that do not answer, by UUID where it is known.
    pub(crate) failed: Vec<(Option<String>, Trouble)>,
}

/// A card that is ready.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) mps: Arc<MpsInstance>,
    pub(crate) daemon: Arc<ControlDaemon>,
    /// The control daemon's directory, for the gate.
    pub(crate) pipe: Arc<OwnedFd>,
    pub(crate) simulated: bool,
    pub(crate) control: Control,
}

/// Why a card is not ready.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It cannot be shared under MPS.
    Unfit(Trouble),
    /// It may be, later.
    Failed(Trouble),
    /// Servers outlived their control daemon and hold the card.
    Orphans(Vec<u32>),
    /// Its control daemon runs and does not answer.
    Wedged(Arc<MpsInstance>, Arc<ControlDaemon>),
}

/// A card's gate, as it was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It was there.
    Serves,
    /// It was not, and was started.
    Started,
}

impl Hardware {
    pub(crate) fn new(settings: Arc<Settings>, paths: Paths) -> Self {
        let unit = UnitSpawner::new(SYSTEMCTL, paths.mps());
        let holder = HoldSpawner::new(paths.hold(), paths.mps().join(GATE_ORDERS));
        let spawner: Box<dyn Spawner> = match settings.now().mps.supervisor {
            Supervisor::Auto => {
                let own = OwnHolder {
                    program: paths.program.clone(),
                    control: settings.now().mps.control.clone(),
                    gate: paths.gate.clone(),
                    mps: paths.mps(),
                    unit: UnitSpawner::has_systemd().then(|| unit.clone()),
                    started: Mutex::default(),
                };
                choose_spawner(holder, unit, own)
            }
            Supervisor::Systemd => Box::new(unit),
            Supervisor::Holder => Box::new(holder),
        };
        Self {
            settings,
            paths,
            nvml: Mutex::new(None),
            spawner,
            capabilities: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    pub(crate) fn nvml(&self) -> Result<Arc<Nvml>, Trouble> {
        // The mutex guards no invariant: a panic elsewhere has broken nothing.
        let mut slot = self.nvml.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nvml) = slot.as_ref() {
            return Ok(Arc::clone(nvml));
        }
        let nvml =
            Arc::new(Nvml::load(&self.settings.now().nvml.library).map_err(|e| gpu_trouble(&e))?);
        *slot = Some(Arc::clone(&nvml));
        Ok(nvml)
    }

    /// All cards now. After a failure of NVML as a whole it is loaded anew: the driver may have
    /// been replaced.
    pub(crate) fn inventory(&self) -> Result<Inventory, Trouble> {
        let nvml = self.nvml()?;
        let found = nvml.cards().map_err(|error| {
            *self.nvml.lock().unwrap_or_else(PoisonError::into_inner) = None;
            gpu_trouble(&error)
        })?;
        let (mut cards, mut failed) = (Vec::new(), Vec::new());
        for card in found {
            match card {
                Ok(card) => cards.push(card),
                Err(error) => {
                    failed.push((error.uuid.clone(), gpu_trouble(&GpuError::from(error))));
                }
            }
        }
        Ok(Inventory {
            simulated: nvml.is_simulated(),
            driver: nvml.driver_version().ok(),
            cards,
            failed,
        })
    }

    /// Makes a managed card ready; safe to repeat.
    pub(crate) fn bring_up(&self, card: &CardId) -> Result<Ready, Fault> {
        let nvml = self.nvml().map_err(Fault::Failed)?;
        let uuid = card.uuid.as_str();
        let found = nvml.card(uuid).map_err(|error| Fault::Failed(gpu_trouble(&error)))?;
        shared_hardware::fits(&found, Schedule::Mps).map_err(Fault::Unfit)?;
        self.has_memory(card)?;
        self.keep_programs();
        self.take_compute_mode(&nvml, uuid, found.compute_mode).map_err(Fault::Failed)?;
        let capabilities = self.capabilities().map_err(Fault::Failed)?;
        let multiuser = self.multiuser(capabilities.multiuser).map_err(Fault::Failed)?;
        let mps = self.instance_of(card, multiuser).map_err(|e| Fault::Failed(mps_trouble(&e)))?;
        let (daemon, origin) = match self.ensure_running(&mps) {
            Ok(running) => running,
            Err(error) => return Err(not_running(mps, error)),
        };
        if daemon.replaced {
            log::warn!(
                uuid, pid = daemon.process.pid(), control:% = self.settings.now().mps.control.display(),
                hint = "when the card has no containers any more: mpsgate mps restart GPU";
                "the running control daemon is from before an upgrade of its program, and goes on"
            );
        }
        let failed = |error: MpsError| Fault::Failed(mps_trouble(&error));
        crash_point!("mps.answers");
        // Not a running server's: somebody may be being handed over.
        limit_default(&mps, card.default_limit).map_err(failed)?;
        crash_point!("mps.capped");
        self.keep_gate(&mps).map_err(failed)?;
        let ends = Ends::Doors(self.paths.mps().join(card.minor.to_string()).display().to_string());
        let pipe_dir = mps.dirs().pipe_dir();
        let pipe = mps.pipe().and_then(|pipe| pipe.ok_or(MpsError::NotRunning { pipe_dir }));
        let control = Control {
            pid: u32::try_from(daemon.process.pid()).unwrap_or_default(),
            adopted: origin == Origin::Adopted,
            multiuser,
            max_clients: self.max_clients(&nvml),
            ends,
            limit: card.default_limit,
            view: view(&mps),
        };
        Ok(Ready {
            pipe: Arc::new(pipe.map_err(failed)?),
            simulated: nvml.is_simulated(),
            control,
            mps: Arc::new(mps),
            daemon: Arc::new(daemon),
        })
    }

    /// Keeps open what starts of MPS execute and load, so that no container's lease makes them
    /// wait. Does not wait itself, also where a lease is there already: all cards pass here.
    pub(crate) fn keep_programs(&self) {
        let control = self.settings.now().mps.control.clone();
        let files = server_of(&control).into_iter().chain(cuda_library()).chain([control]);
        let files: Vec<PathBuf> = files.collect();
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).keep(&files);
    }

    /// Starts the card's gate where none serves. Safe to repeat.
    pub(crate) fn keep_gate(&self, mps: &MpsInstance) -> Result<Gate, MpsError> {
        let started = mps.ensure_gate(self.spawner.as_ref())?;
        if started {
            log::info!(uuid = mps.uuid(); "gate started");
        }
        Ok(if started { Gate::Started } else { Gate::Serves })
    }

    /// Whether one server takes clients of all uids.
    fn multiuser(&self, known: bool) -> Result<bool, Trouble> {
        match self.settings.now().mps.multiuser {
            Switch::On if !known => Err(Trouble::new(
                "mps.multiuser is \"on\", but this control program knows no -multiuser-server",
                "set mps.multiuser = \"auto\" in /etc/mpsgate/config.toml, or install a newer driver",
            )),
            Switch::On => Ok(true),
            Switch::Off => Ok(false),
            Switch::Auto => Ok(known),
        }
    }

    /// Adopts or starts the card's control daemon; ends what a dead one left, where the settings
    /// say so.
    fn ensure_running(&self, mps: &MpsInstance) -> Result<(ControlDaemon, Origin), MpsError> {
        match mps.ensure_running(self.spawner.as_ref(), CONTROL_LIMIT) {
            Err(MpsError::Orphans { .. }) if self.settings.now().mps.orphan == Orphan::Kill => {
                let ended = mps.end_orphans()?;
                log::warn!(uuid = mps.uuid(), servers:? = ended; "orphan server ended, as mps.orphan says");
                mps.ensure_running(self.spawner.as_ref(), CONTROL_LIMIT)
            }
            other => other,
        }
    }

    /// Whether no control daemon of the card lives: its clients, if it had any, have lost it.
    pub(crate) fn is_dead(&self, card: &CardId) -> bool {
        let found = self.instance_of(card, false).map(|mps| mps.find_running());
        matches!(found, Ok(Ok(None)))
    }

    /// Ends the card's control daemon, removes its files and restores its compute mode. Goes on
    /// after a failure and reports all of them.
    pub(crate) fn take_down(&self, card: &CardId) -> Result<(), Trouble> {
        let mut troubles = Vec::new();
        if let Err(trouble) = self.end_mps(card) {
            troubles.push(trouble);
        }
        if let Err(trouble) = self.restore_compute_mode(card.uuid.as_str()) {
            troubles.push(trouble);
        }
        let Some(first) = troubles.first() else { return Ok(()) };
        let hint = first.hint.clone();
        let whys: Vec<String> = troubles.into_iter().map(|trouble| trouble.why).collect();
        Err(Trouble::new(whys.join("; "), hint))
    }

    /// Ends the card's control daemon and its servers, and removes its files. The compute mode
    /// stays.
    pub(crate) fn end_mps(&self, card: &CardId) -> Result<(), Trouble> {
        let stopped = self
            .instance_of(card, false)
            .and_then(|mps| mps.stop(self.spawner.as_ref(), QUIT_GRACE))
            .map_err(|error| mps_trouble(&error))?;
        log::info!(
            uuid = card.uuid.as_str(), ended:? = stopped.daemon,
            servers_killed = stopped.servers_killed.len(); "control daemon stopped"
        );
        Ok(())
    }

    /// Why a card cannot be handed over now, to be shared so, if so: unfit, or in use by somebody
    /// else.
    pub(crate) fn objections(&self, uuid: &str, schedule: Schedule) -> Result<(), Objection> {
        let nvml = self.nvml().map_err(Objection::Failed)?;
        let failed = |error: GpuError| Objection::Failed(gpu_trouble(&error));
        let card = nvml.card(uuid).map_err(failed)?;
        shared_hardware::fits(&card, schedule).map_err(Objection::Unfit)?;
        let users: Vec<u32> = nvml
            .processes(uuid)
            .map_err(failed)?
            .into_iter()
            .filter(|process| process.kind != ProcessKind::Graphics)
            .map(|process| process.pid)
            .collect();
        if users.is_empty() { Ok(()) } else { Err(Objection::InUse(users)) }
    }

    /// Who uses the card, and how much of it.
    pub(crate) fn users(&self, uuid: &str) -> Result<ProcessList, Trouble> {
        self.nvml()?.process_list(uuid).map_err(|error| gpu_trouble(&error))
    }

    /// How the answers of cards name the control program.
    pub(crate) fn control_program(&self) -> String {
        answer_files::control(&self.settings.now().mps.control)
    }

    /// Servers of ours on the card, which `objections` reports as users.
    pub(crate) fn own_servers(&self, card: &CardId) -> Vec<u32> {
        let Ok(mps) = self.instance_of(card, false) else { return Vec::new() };
        mps.servers_alive().iter().filter_map(|server| u32::try_from(server.pid()).ok()).collect()
    }

    /// The control daemon of a card. Makes nothing.
    fn instance_of(&self, card: &CardId, multiuser: bool) -> Result<MpsInstance, MpsError> {
        let dirs = MpsDirectories::new(&self.paths.mps(), card.minor)?;
        let control = self.settings.now().mps.control.clone();
        Ok(MpsInstance::new(card.minor, card.uuid.as_str(), control, dirs)
            .with_multiuser(multiuser)
            .with_holder(self.paths.hold()))
    }

    /// What the control program can do: found out once.
    fn capabilities(&self) -> Result<Capabilities, Trouble> {
        // Held while probing: the cards come up at the same time, and one answer serves all.
        let mut slot = self.capabilities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = *slot {
            return Ok(known);
        }
        let control = &self.settings.now().mps.control;
        let found = Capabilities::probe(control, &self.paths.mps()).map_err(|e| mps_trouble(&e))?;
        log::info!(
            control:% = control.display(), multiuser = found.multiuser; "control program probed"
        );
        Ok(*slot.insert(found))
    }

    /// Clients of one server: 48, and 60 from CUDA 13.1 on (NVIDIA MPS documentation; the first
    /// version with 60 is told by third parties only).
    fn max_clients(&self, nvml: &Nvml) -> u32 {
        let configured = self.settings.now().mps.max_clients;
        if configured != 0 {
            return configured;
        }
        let version = nvml.cuda_driver_version().unwrap_or_default();
        let (major, minor) = version.split_once('.').unwrap_or_default();
        let version = (major.parse().unwrap_or(0_u32), minor.parse().unwrap_or(0_u32));
        if version >= (13, 1) { 60 } else { 48 }
    }

    /// Clients that a server takes, as the settings say now.
    pub(crate) fn clients(&self) -> Result<u32, Trouble> {
        Ok(self.max_clients(self.nvml()?.as_ref()))
    }

    /// The memory that a card of `total_mib` has to give.
    pub(crate) fn grantable(&self, total_mib: u64) -> Mib {
        Mib(mpsgate_gpu::advertised_mib(total_mib, self.settings.now().gpus.reserve_mib))
    }
}

/// The driver's CUDA library, which a server loads: it lies beside NVML's, which is loaded here.
fn cuda_library() -> Option<PathBuf> {
    let maps = procfs::text("/proc/self/maps").ok()?;
    let is_nvml = |file: &&Path| {
        let name = file.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("libnvidia-ml.so"))
    };
    Some(process_end::mapped(&maps).map(Path::new).find(is_nvml)?.with_file_name("libcuda.so.1"))
}

/// Why a card cannot be handed over.
#[derive(Debug)]
pub(crate) enum Objection {
    Unfit(Trouble),
    InUse(Vec<u32>),
    Failed(Trouble),
}

/// Why the card has no control daemon that answers.
fn not_running(mps: MpsInstance, error: MpsError) -> Fault {
    match error {
        MpsError::Orphans { pids, .. } => {
            Fault::Orphans(pids.into_iter().filter_map(|pid| u32::try_from(pid).ok()).collect())
        }
        MpsError::Wedged { .. } => match mps.find_running() {
            Ok(Some(daemon)) => Fault::Wedged(Arc::new(mps), Arc::new(daemon)),
            _ => Fault::Failed(mps_trouble(&error)),
        },
        _ => Fault::Failed(mps_trouble(&error)),
    }
}

/// The reason without the card's name, which the caller puts in front.
fn unfit_words(unfit: &mpsgate_gpu::Unfit) -> String {
    match unfit {
        mpsgate_gpu::Unfit::PreVolta { compute_capability: (major, minor), name, .. } => format!(
            "is a {name} of compute capability {major}.{minor}, and sharing needs 7.0 (Volta) or newer"
        ),
        mpsgate_gpu::Unfit::MigEnabled { .. } => "is in MIG mode".to_owned(),
        other => format!("cannot be shared: {other}"),
    }
}

pub(crate) fn gpu_trouble(error: &GpuError) -> Trouble {
    let hint = error.hint().unwrap_or_else(|| "nvidia-smi -q; dmesg | grep NVRM".to_owned());
    Trouble::new(chain(error), hint)
}
