//! Memory limits of cgroups, as r615's NVML has them. Built from NVIDIA's documentation and
//! `nvml.h` of CUDA 13.4; no real driver's answer was seen, and `tests/gpu` asks for it.

use std::ffi::{CStr, OsStr, c_char, c_ulonglong};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nvml_wrapper_sys::bindings as nvml;
use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};
use serde::{Deserialize, Serialize};

use crate::out::store;
use crate::state::{Card, Mig, State, change};
use crate::{Fault, INVALID_ARGUMENT, NOT_FOUND, answer, card};

const NOT_SUPPORTED: Fault = nvml::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;

/// What the driver offers; all optional.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {
    /// A file that a cgroup must have.
    needs: Option<PathBuf>,
    /// Hard limits are rounded up to multiples of this.
    round_mib: Option<u64>,
}

/// The limits of one cgroup in the file. One that was made anew under its path has none.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    soft_bytes: u64,
    hard_bytes: u64,
    inode: u64,
}

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
pub struct SetLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
pub struct GetLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

/// What both calls need: the card, what is offered, and a cgroup that can be limited, with its
/// inode.
struct Asked {
    card: Card,
    offer: Offer,
    cgroup: PathBuf,
    inode: u64,
}

/// # Safety
/// `cgroup` is null or a C string.
unsafe fn asked(device: nvmlDevice_t, call: &str, cgroup: *const c_char) -> Result<Asked, Fault> {
    let offer =
        crate::state()?.memory_limits.ok_or(nvml::nvmlReturn_enum_NVML_ERROR_FUNCTION_NOT_FOUND)?;
    let card = card(device, call)?;
    if cgroup.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, so it is a C string.
    let cgroup = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(cgroup) }.to_bytes()));
    if !cgroup.is_absolute() {
        return Err(INVALID_ARGUMENT);
    }
    if matches!(card.mig, Mig::Enabled) {
        return Err(NOT_SUPPORTED);
    }
    let inode = cgroup.metadata().map_err(|_| NOT_FOUND)?.ino();
    if offer.needs.as_ref().is_some_and(|file| !cgroup.join(file).exists()) {
        return Err(NOT_SUPPORTED);
    }
    Ok(Asked { card, offer, cgroup: cgroup.to_owned(), inode })
}

/// Writes `limits` back into the file, or takes them out of it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceSetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: *mut SetLimits,
) -> nvmlReturn_t {
    let set = || {
        if limits.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller owns the struct and its string.
        let (asked, soft_bytes, hard) = unsafe {
            let call = "nvmlDeviceSetMemoryLimits_v1";
            (asked(device, call, (*limits).name_space)?, (*limits).soft_limit, (*limits).hard_limit)
        };
        if soft_bytes > hard {
            return Err(INVALID_ARGUMENT);
        }
        let step = asked.offer.round_mib.unwrap_or(0) << 20;
        let hard_bytes =
            if step == 0 { hard } else { hard.checked_next_multiple_of(step).unwrap_or(hard) };
        let is_none = soft_bytes == 0 && hard == u64::MAX;
        let limits = Limits { soft_bytes, hard_bytes, inode: asked.inode };
        State::save_limits(&asked.card.uuid, &asked.cgroup, (!is_none).then_some(limits))
    };
    answer(set())
}

/// `limits`; without any, no soft one and no end of the hard one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryLimits_v1(
    device: nvmlDevice_t,
    limits: *mut GetLimits,
) -> nvmlReturn_t {
    let get = || {
        if limits.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: not null, and the caller owns the struct and its string.
        unsafe {
            let name_space = (*limits).name_space;
            let asked = asked(device, "nvmlDeviceGetMemoryLimits_v1", name_space)?;
            let known = asked.card.limits.get(&asked.cgroup);
            let known = known.filter(|limits| limits.inode == asked.inode);
            let (soft_limit, hard_limit) =
                known.map_or((0, u64::MAX), |known| (known.soft_bytes, known.hard_bytes));
            store(limits, GetLimits { name_space, soft_limit, hard_limit, current_used: 0 })
        }
    };
    answer(get())
}

/// Changes the file, and tells in `<file>.limits` that it did.
pub(crate) fn save(
    path: &Path,
    uuid: &str,
    cgroup: &Path,
    limits: Option<Limits>,
) -> Result<(), String> {
    let name = cgroup.display().to_string();
    let line = match limits {
        Some(limits) => {
            format!("set {uuid} {name} soft {} hard {}", limits.soft_bytes, limits.hard_bytes)
        }
        None => format!("clear {uuid} {name}"),
    };
    let value = limits.map(serde_json::to_value).transpose().map_err(|error| error.to_string())?;
    change(path, uuid, "limits", &line, |card| {
        if !card["limits"].is_object() {
            card["limits"] = serde_json::json!({});
        }
        if let Some(all) = card["limits"].as_object_mut() {
            // Removing a cgroup takes its limit along.
            all.retain(|other, _| *other != name && Path::new(other).exists());
            all.extend(value.map(|value| (name, value)));
        }
    })
}
