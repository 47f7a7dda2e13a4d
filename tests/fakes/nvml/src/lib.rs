//! `libnvidia-ml.so.1` for tests and the demo: the NVML symbols that nvml-wrapper 0.13 needs for
//! mpsgate's calls, driven by a JSON file that is read anew in every call.
//!
//! The file is the one that `MPSGATE_FAKE_NVML` names, else `nvml.json` beside the library as it
//! was loaded. [`install`] puts both into a directory. Copy the library, do not link it: glibc
//! gives all names of one file the same handle, and so the `nvml.json` of the first.
//!
//! ```json
//! { "driver_version": "550.163.01",
//!   "cuda_driver_version": "12.4",
//!   "init_error": "DRIVER_NOT_LOADED",        optional: nvmlInit_v2 returns it
//!   "refuse_compute_mode": true,              optional: setting it gets NO_PERMISSION
//!   "memory_limits": {                        optional: as of r615; else the calls get FUNCTION_NOT_FOUND
//!     "needs": "dmem.max",                    optional: the kernel counts, and a cgroup without
//!                                             this file gets NOT_SUPPORTED; else the driver counts
//!     "round_mib": 128 },                     optional: hard limits are rounded up to this
//!   "cards": [{
//!     "uuid": "GPU-5d5ba0d6-…",               unique
//!     "index": 0, "minor": 0,                 indexes are 0, 1, 2 … in this order; minors unique
//!     "name": "Tesla T4",
//!     "memory_total_mib": 16384,
//!     "memory_used_mib": 0,                   NVML's `reserved` is always 0
//!     "compute_capability": "7.5",
//!     "mig": "unsupported",                   or "disabled", "enabled"
//!     "compute_mode": "DEFAULT",              or "EXCLUSIVE_THREAD", "PROHIBITED", "EXCLUSIVE_PROCESS"
//!     "pci_bus_id": "00000000:3B:00.0",
//!     "processes": [{ "pid": 1, "used_mib": 418, "kind": "compute" }],
//!                                             or "graphics", "mps"; used_mib null: not available
//!     "limits": { "/sys/fs/cgroup/a":         optional: written by the calls, with a line in <file>.limits
//!       { "soft_bytes": 0, "hard_bytes": 1073741824, "inode": 7,
//!         "charged_bytes": 0 } },             optional: what GET tells as in use
//!     "error": "GPU_IS_LOST",                 optional: what calls on this card return
//!     "error_in": ["nvmlDeviceGetName"]       optional: only these calls; else all, handles too
//! }]}
//! ```
//!
//! An error is NVML's constant without `NVML_ERROR_`. Nothing has a hidden default: an unknown or
//! missing key, or a file that is not there, makes every call return `UNKNOWN` and say why on
//! stderr. A new compute mode is written back (temporary file, rename) under a lock on
//! `<file>.lock`; who else edits the file while others set modes takes the same lock.
//!
//! A process of kind `mps` stands in the list of compute processes too, as `nvidia-smi` shows MPS
//! clients as `M+C`. That is built from NVIDIA's documentation and was not seen on a card.

// JUSTIFICATION: C functions with C pointers are what a shared library consists of. Every block is
// one store through a pointer that was checked for null, one C string, or `dladdr`.
#![expect(unsafe_code, reason = "a C library; see the justification above")]
#![allow(non_snake_case, reason = "NVML's names")]
#![allow(clippy::missing_safety_doc, reason = "the contract of every function is NVML's")]

mod install;
mod limits;
mod out;
mod state;

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use nvml_wrapper_sys::bindings as nvml;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use out::{copy_list, copy_string, store};
use state::{Card, ComputeMode, Kind, Mig, State};

pub use install::{EXAMPLE, install, library};
pub use limits::{
    GetLimits, SetLimits, nvmlDeviceGetMemoryLimits_v1, nvmlDeviceSetMemoryLimits_v1,
};

/// A code of NVML other than `NVML_SUCCESS`.
type Fault = nvmlReturn_t;

const INVALID_ARGUMENT: Fault = nvml::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
const NOT_FOUND: Fault = nvml::nvmlReturn_enum_NVML_ERROR_NOT_FOUND;

/// How often NVML was initialised and not shut down; NVML counts too.
static INITIALISED: AtomicU32 = AtomicU32::new(0);

fn answer(result: Result<(), Fault>) -> nvmlReturn_t {
    result.err().unwrap_or(nvml::nvmlReturn_enum_NVML_SUCCESS)
}

/// The file now, once NVML is initialised.
fn state() -> Result<State, Fault> {
    if INITIALISED.load(Ordering::SeqCst) == 0 {
        return Err(nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    }
    State::load()
}

/// A handle is the card's index plus one: never null, never followed.
fn handle(card: &Card) -> nvmlDevice_t {
    ptr::without_provenance_mut(card.index as usize + 1)
}

/// The card behind a handle, unless it is to fail in `call`.
fn card(device: nvmlDevice_t, call: &str) -> Result<Card, Fault> {
    let index = device.addr().checked_sub(1).ok_or(INVALID_ARGUMENT)?;
    let card = state()?.cards.into_iter().nth(index).ok_or(INVALID_ARGUMENT)?;
    card.fault_in(call)?;
    Ok(card)
}

/// Marks this library as a fake. Its presence is the message.
#[unsafe(no_mangle)]
pub extern "C" fn mpsgate_simulated_gpus() {}

/// Fails with `init_error`, or with `UNKNOWN` where the file is bad.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    answer(State::load().and_then(|state| {
        state.init_error.map_or(Ok(()), |error| Err(error.code()))?;
        INITIALISED.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }))
}

/// Undoes one initialisation.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    answer(
        INITIALISED
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1))
            .map(drop)
            .map_err(|_| nvml::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED),
    )
}

/// `driver_version`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(
    version: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the caller owns `length` bytes at `version`.
    answer(state().and_then(|state| unsafe { copy_string(&state.driver_version, version, length) }))
}

/// `cuda_driver_version` as 1000 times major plus 10 times minor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> nvmlReturn_t {
    // SAFETY: the caller owns the integer.
    answer(state().and_then(|state| unsafe {
        let (major, minor) = state.cuda_driver_version.parts();
        store(version, c_int::from(major) * 1000 + c_int::from(minor) * 10)
    }))
}

/// The number of `cards`, those that fail included.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> nvmlReturn_t {
    answer(state().and_then(|state| {
        let cards = c_uint::try_from(state.cards.len()).map_err(|_| INVALID_ARGUMENT)?;
        // SAFETY: the caller owns the integer.
        unsafe { store(count, cards) }
    }))
}

/// By `index`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    answer(state().and_then(|state| {
        let card = state.cards.iter().find(|card| card.index == index).ok_or(INVALID_ARGUMENT)?;
        card.fault_in("nvmlDeviceGetHandleByIndex_v2")?;
        // SAFETY: the caller owns the handle.
        unsafe { store(device, handle(card)) }
    }))
}

/// By `uuid`, whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut nvmlDevice_t,
) -> nvmlReturn_t {
    answer(state().and_then(|state| {
        if uuid.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller passes a C string.
        let uuid = unsafe { CStr::from_ptr(uuid) };
        let card = state.cards.iter().find(|card| card.uuid.as_bytes() == uuid.to_bytes());
        let card = card.ok_or(NOT_FOUND)?;
        card.fault_in("nvmlDeviceGetHandleByUUID")?;
        // SAFETY: the caller owns the handle.
        unsafe { store(device, handle(card)) }
    }))
}

/// `uuid`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: nvmlDevice_t,
    uuid: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the caller owns `length` bytes at `uuid`.
    answer(
        card(device, "nvmlDeviceGetUUID")
            .and_then(|card| unsafe { copy_string(&card.uuid, uuid, length) }),
    )
}

/// `index`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(
    device: nvmlDevice_t,
    index: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the caller owns the integer.
    answer(card(device, "nvmlDeviceGetIndex").and_then(|card| unsafe { store(index, card.index) }))
}

/// `minor`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMinorNumber(
    device: nvmlDevice_t,
    minor: *mut c_uint,
) -> nvmlReturn_t {
    // SAFETY: the caller owns the integer.
    answer(
        card(device, "nvmlDeviceGetMinorNumber")
            .and_then(|card| unsafe { store(minor, card.minor) }),
    )
}

/// `name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: nvmlDevice_t,
    name: *mut c_char,
    length: c_uint,
) -> nvmlReturn_t {
    // SAFETY: the caller owns `length` bytes at `name`.
    answer(
        card(device, "nvmlDeviceGetName")
            .and_then(|card| unsafe { copy_string(&card.name, name, length) }),
    )
}

/// `memory_total_mib` and `memory_used_mib`. The caller states the struct's version, as in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: nvmlDevice_t,
    memory: *mut nvml::nvmlMemory_v2_t,
) -> nvmlReturn_t {
    const VERSION: usize = size_of::<nvml::nvmlMemory_v2_t>() | (2 << 24);
    answer(card(device, "nvmlDeviceGetMemoryInfo_v2").and_then(|card| {
        if memory.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller owns the struct.
        let version = unsafe { (*memory).version };
        if version as usize != VERSION {
            return Err(nvml::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let (total, used) = (card.memory_total_mib << 20, card.memory_used_mib << 20);
        let filled =
            nvml::nvmlMemory_v2_t { version, total, reserved: 0, free: total - used, used };
        // SAFETY: as above.
        unsafe { store(memory, filled) }
    }))
}

/// `compute_capability`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: nvmlDevice_t,
    major: *mut c_int,
    minor: *mut c_int,
) -> nvmlReturn_t {
    answer(card(device, "nvmlDeviceGetCudaComputeCapability").and_then(|card| {
        let parts = card.compute_capability.parts();
        // SAFETY: the caller owns both integers.
        unsafe {
            store(major, parts.0.into())?;
            store(minor, parts.1.into())
        }
    }))
}

/// `mig`; the pending mode is the current one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    answer(card(device, "nvmlDeviceGetMigMode").and_then(|card| {
        let mode = match card.mig {
            Mig::Disabled => 0,
            Mig::Enabled => 1,
            Mig::Unsupported => return Err(nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED),
        };
        // SAFETY: the caller owns both integers.
        unsafe {
            store(current, mode)?;
            store(pending, mode)
        }
    }))
}

/// `compute_mode`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeMode(
    device: nvmlDevice_t,
    mode: *mut nvml::nvmlComputeMode_t,
) -> nvmlReturn_t {
    // SAFETY: the caller owns the integer.
    answer(
        card(device, "nvmlDeviceGetComputeMode")
            .and_then(|card| unsafe { store(mode, card.compute_mode.code()) }),
    )
}

/// Writes `compute_mode` back into the file, unless `refuse_compute_mode`.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetComputeMode(
    device: nvmlDevice_t,
    mode: nvml::nvmlComputeMode_t,
) -> nvmlReturn_t {
    answer(card(device, "nvmlDeviceSetComputeMode").and_then(|card| {
        if state()?.refuse_compute_mode {
            return Err(nvml::nvmlReturn_enum_NVML_ERROR_NO_PERMISSION);
        }
        let mode = ComputeMode::from_code(mode).ok_or(INVALID_ARGUMENT)?;
        State::save_compute_mode(&card.uuid, mode)
    }))
}

/// `pci_bus_id`; the numbers beside it are 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(
    device: nvmlDevice_t,
    pci: *mut nvml::nvmlPciInfo_t,
) -> nvmlReturn_t {
    answer(card(device, "nvmlDeviceGetPciInfo_v3").and_then(|card| {
        let mut info = nvml::nvmlPciInfo_t {
            busIdLegacy: [0; 16],
            domain: 0,
            bus: 0,
            device: 0,
            pciDeviceId: 0,
            pciSubSystemId: 0,
            busId: [0; nvml::NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE as usize],
        };
        // SAFETY: the buffer is ours and as long as stated; the caller owns the struct.
        unsafe {
            let length = nvml::NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE;
            copy_string(&card.pci_bus_id, info.busId.as_mut_ptr(), length)?;
            store(pci, info)
        }
    }))
}

/// `processes` of the kinds `compute` and `mps`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvml::nvmlProcessInfo_t,
) -> nvmlReturn_t {
    let kinds = [Kind::Compute, Kind::Mps];
    // SAFETY: the caller owns `count` entries at `infos`.
    answer(
        card(device, "nvmlDeviceGetComputeRunningProcesses_v3")
            .and_then(|card| unsafe { copy_list(&card, &kinds, count, infos) }),
    )
}

/// `processes` of the kind `graphics`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvml::nvmlProcessInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the caller owns `count` entries at `infos`.
    answer(
        card(device, "nvmlDeviceGetGraphicsRunningProcesses_v3")
            .and_then(|card| unsafe { copy_list(&card, &[Kind::Graphics], count, infos) }),
    )
}

/// `processes` of the kind `mps`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvml::nvmlProcessInfo_t,
) -> nvmlReturn_t {
    // SAFETY: the caller owns `count` entries at `infos`.
    answer(
        card(device, "nvmlDeviceGetMPSComputeRunningProcesses_v3")
            .and_then(|card| unsafe { copy_list(&card, &[Kind::Mps], count, infos) }),
    )
}
