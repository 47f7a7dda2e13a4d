//! The handle: this file makes every call to NVML.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;

use mpsgate_model::ComputeMode;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, cuda_driver_version_major, cuda_driver_version_minor};

use crate::gpu_processes::{lists_are_sound, merge, retry_insufficient};
use crate::nvml_card::{of_nvml, to_nvml};
use crate::simulated::is_simulated;
use crate::{
    Card, CardAction, CardError, GpuError, GpuProcess, MigState, ProcessKind, ProcessList,
};

pub(crate) const BYTES_PER_MIB: u64 = 1 << 20;

/// NVML, initialised once and shut down on drop.
///
/// `Send` and `Sync`: NVML is thread-safe. After the driver was replaced or unloaded every call
/// fails; drop the handle and load again.
pub struct Nvml {
    nvml: nvml_wrapper::Nvml,
    simulated: bool,
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvml").field("simulated", &self.simulated).finish_non_exhaustive()
    }
}

impl Nvml {
    /// The driver's library, as the dynamic loader finds it.
    pub const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

    /// Loads and initialises NVML. `library` is a path, or a name without `/` that the dynamic
    /// loader looks up.
    ///
    /// # Errors
    /// [`GpuError::NoLibrary`], [`GpuError::LibraryUnavailable`], [`GpuError::NotNvml`],
    /// [`GpuError::Init`].
    pub fn load(library: impl AsRef<OsStr>) -> Result<Self, GpuError> {
        let library = library.as_ref();
        let path = || PathBuf::from(library);
        let nvml =
            nvml_wrapper::Nvml::builder().lib_path(library).init().map_err(
                |error| match error {
                    NvmlError::LibloadingError(error) if is_absent(library, &error) => {
                        GpuError::NoLibrary { library: path() }
                    }
                    NvmlError::LibloadingError(error) => {
                        GpuError::LibraryUnavailable { library: path(), source: error.into() }
                    }
                    source @ NvmlError::FailedToLoadSymbol(_) => {
                        GpuError::NotNvml { library: path(), source }
                    }
                    source => GpuError::Init { library: path(), source },
                },
            )?;
        let simulated = is_simulated(&nvml);
        Ok(Self { nvml, simulated })
    }

    /// Whether the loaded library invents its cards (tests, demo). Show that wherever cards are
    /// shown.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// Version of the NVIDIA driver, `550.163.01`.
    ///
    /// # Errors
    /// [`GpuError::System`].
    pub fn driver_version(&self) -> Result<String, GpuError> {
        self.nvml.sys_driver_version().map_err(cannot("read the driver version"))
    }

    /// Newest CUDA version that the driver serves, `13.0`.
    ///
    /// # Errors
    /// [`GpuError::System`].
    pub fn cuda_driver_version(&self) -> Result<String, GpuError> {
        let version =
            self.nvml.sys_cuda_driver_version().map_err(cannot("read the cuda driver version"))?;
        let major = cuda_driver_version_major(version);
        Ok(format!("{major}.{}", cuda_driver_version_minor(version)))
    }

    /// All cards of the node by index. A card that does not answer is an error in its place; the
    /// others are returned.
    ///
    /// # Errors
    /// [`GpuError::System`] when the cards cannot even be counted.
    pub fn cards(&self) -> Result<Vec<Result<Card, CardError>>, GpuError> {
        let count = self.nvml.device_count().map_err(cannot("count the cards"))?;
        Ok((0..count).map(|index| self.card_at(index)).collect())
    }

    /// The card with this UUID.
    ///
    /// # Errors
    /// [`GpuError::UnknownCard`], [`GpuError::MigInstance`], [`GpuError::Card`].
    pub fn card(&self, uuid: &str) -> Result<Card, GpuError> {
        let device = self.device(uuid)?;
        let index = device.index().map_err(on_card(uuid, CardAction::Read("index")))?;
        Ok(read_card(&device, index)?)
    }

    /// The card's compute mode: who may create contexts.
    ///
    /// # Errors
    /// As [`Nvml::card`].
    pub fn compute_mode(&self, uuid: &str) -> Result<ComputeMode, GpuError> {
        let mode = self.device(uuid)?.compute_mode();
        Ok(of_nvml(mode.map_err(on_card(uuid, CardAction::Read("compute mode")))?))
    }

    /// Changes the card's compute mode. Needs root of the host; lasts until reboot or driver
    /// unload. Existing contexts stay.
    ///
    /// # Errors
    /// As [`Nvml::card`].
    pub fn set_compute_mode(&self, uuid: &str, mode: ComputeMode) -> Result<(), GpuError> {
        let set = self.device(uuid)?.set_compute_mode(to_nvml(mode));
        Ok(set.map_err(on_card(uuid, CardAction::SetComputeMode(mode)))?)
    }

    /// Every process with a context on the card, once each, by pid.
    ///
    /// # Errors
    /// As [`Nvml::card`], and [`GpuError::UnsoundProcessLists`]. A driver that keeps no list of
    /// graphics or MPS processes for this card reports none of them; a missing list of compute
    /// processes is always an error.
    pub fn processes(&self, uuid: &str) -> Result<Vec<GpuProcess>, GpuError> {
        self.process_list(uuid).map(|list| list.processes)
    }

    /// The same, and whether the driver lists MPS clients apart from other processes.
    ///
    /// # Errors
    /// As [`Nvml::processes`].
    pub fn process_list(&self, uuid: &str) -> Result<ProcessList, GpuError> {
        let driver_version = self.driver_version()?;
        if !lists_are_sound(&driver_version) {
            return Err(GpuError::UnsoundProcessLists { driver_version });
        }
        let device = self.device(uuid)?;
        let on = |property| on_card(uuid, CardAction::Read(property));
        let compute = retry_insufficient(|| device.running_compute_processes())
            .map_err(on("compute processes"))?;
        let graphics =
            none_if_unsupported(retry_insufficient(|| device.running_graphics_processes()))
                .map_err(on("graphics processes"))?;
        let mps = retry_insufficient(|| device.mps_running_compute_processes());
        let tells_clients = !matches!(mps, Err(NvmlError::NotSupported));
        let mps = none_if_unsupported(mps).map_err(on("mps processes"))?;
        let processes = merge([
            (ProcessKind::Compute, compute),
            (ProcessKind::Graphics, graphics),
            (ProcessKind::Mps, mps),
        ]);
        let used_bytes = device.memory_info().ok().map(|memory| memory.used);
        Ok(ProcessList { processes, tells_clients, used_bytes })
    }

    /// The wrapper's own handle.
    pub(crate) fn wrapped(&self) -> &nvml_wrapper::Nvml {
        &self.nvml
    }

    pub(crate) fn device(&self, uuid: &str) -> Result<Device<'_>, GpuError> {
        // NVML would return a handle of the instance, and its properties are not a card's.
        if uuid.starts_with("MIG-") {
            return Err(GpuError::MigInstance { uuid: uuid.to_owned() });
        }
        self.nvml.device_by_uuid(uuid).map_err(|error| match error {
            NvmlError::NotFound | NvmlError::InvalidArg | NvmlError::NulError(_) => {
                GpuError::UnknownCard { uuid: uuid.to_owned() }
            }
            source => on_card(uuid, CardAction::Open)(source).into(),
        })
    }

    fn card_at(&self, index: u32) -> Result<Card, CardError> {
        let device = self.nvml.device_by_index(index).map_err(|source| CardError {
            index: Some(index),
            uuid: None,
            action: CardAction::Open,
            source,
        })?;
        read_card(&device, index)
    }
}

fn read_card(device: &Device<'_>, index: u32) -> Result<Card, CardError> {
    let failed = |uuid: Option<&str>, property: &'static str| {
        let uuid = uuid.map(str::to_owned);
        move |source| CardError {
            index: Some(index),
            uuid,
            action: CardAction::Read(property),
            source,
        }
    };
    let uuid = device.uuid().map_err(failed(None, "uuid"))?;
    let on = |property| failed(Some(&uuid), property);

    let memory = device.memory_info().map_err(on("memory"))?;
    let compute_capability = device
        .cuda_compute_capability()
        .and_then(|capability| Ok((unsigned(capability.major)?, unsigned(capability.minor)?)))
        .map_err(on("compute capability"))?;
    Ok(Card {
        index,
        minor: device.minor_number().map_err(on("minor number"))?,
        name: device.name().map_err(on("name"))?,
        memory_total_mib: memory.total / BYTES_PER_MIB,
        memory_used_mib: memory.used.div_ceil(BYTES_PER_MIB),
        compute_capability,
        mig: mig_state(device).map_err(on("mig mode"))?,
        compute_mode: of_nvml(device.compute_mode().map_err(on("compute mode"))?),
        pci_bus_id: device.pci_info().map_err(on("pci address"))?.bus_id,
        uuid,
    })
}

fn mig_state(device: &Device<'_>) -> Result<MigState, NvmlError> {
    match device.mig_mode() {
        Ok(mode) if mode.current == 0 => Ok(MigState::Disabled),
        Ok(_) => Ok(MigState::Enabled),
        Err(NvmlError::NotSupported) => Ok(MigState::Unsupported),
        Err(error) => Err(error),
    }
}

fn unsigned(number: i32) -> Result<u32, NvmlError> {
    u32::try_from(number).map_err(|_| NvmlError::UnexpectedVariant(number.cast_unsigned()))
}

fn none_if_unsupported<T>(list: Result<Vec<T>, NvmlError>) -> Result<Vec<T>, NvmlError> {
    match list {
        Err(NvmlError::NotSupported) => Ok(Vec::new()),
        other => other,
    }
}

fn cannot(action: &'static str) -> impl FnOnce(NvmlError) -> GpuError {
    move |source| GpuError::System { action, source }
}

fn on_card(uuid: &str, action: CardAction) -> impl FnOnce(NvmlError) -> CardError {
    move |source| CardError { index: None, uuid: Some(uuid.to_owned()), action, source }
}

/// Whether the loader found no file of that name, rather than one that it cannot use. Only the
/// words of glibc's error show that.
fn is_absent(library: &OsStr, error: &dyn std::error::Error) -> bool {
    let words =
        format!("{}: cannot open shared object file: No such file or directory", library.display());
    error.to_string().contains(&words)
}
