//! Memory limits of cgroups, as r615's NVML has them. Built from NVIDIA's documentation, `nvml.h`
//! of CUDA 13.4 and the source of NVIDIA's open kernel modules; no real driver's answer was seen,
//! and `tests/gpu` asks for it.
//!
//! Two things count, and NVML asks whichever does. With `needs` in the file it is the kernel's
//! `dmem`. Without it the driver counts by itself, as `memacct.c` of 615.71.09 has it:
//!
//! - `memacctLimitsForGroupLocked`: the entry of the nearest directory upwards that has one counts,
//!   and alone. Here [`nearest`].
//! - `memacctTryChargeInternalLocked`: without any, memory is not charged. Here `charged_bytes`
//!   stays what the test wrote.
//! - `memacctGetLimits`: GET answers for that entry, and NOT_SUPPORTED without any.
//! - `memacctSetLimits`: SET at the root of the tree is NOT_SUPPORTED. SET below what is charged is
//!   refused, else what is charged stays. SET where there was nothing begins with nothing charged.
//!   SET to no limit leaves an entry, which hides those above it.
//! - `memacctRemoveGpu`: nothing but the end of the card ends an entry. Here [`save`] keeps it when
//!   its cgroup has gone.
//!
//! An entry is by the cgroup's address in the kernel there, and by its inode here: a test that
//! gives an entry the inode of another cgroup has that one at the address of the first. What code
//! NVML makes of the refusal (`NV_ERR_INVALID_LIMIT`) is not known; here it is INVALID_ARGUMENT.

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
    /// The kernel counts, and this is a file that a cgroup must have. Else the driver counts.
    needs: Option<PathBuf>,
    /// Hard limits are rounded up to multiples of this.
    round_mib: Option<u64>,
}

/// The limits of one cgroup in the file.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    soft_bytes: u64,
    hard_bytes: u64,
    inode: u64,
    /// Used by those whose limit this is. A test writes it.
    #[serde(default)]
    charged_bytes: u64,
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

/// The entry of a cgroup itself.
fn own(card: &Card, inode: u64) -> Option<(&PathBuf, Limits)> {
    let own = card.limits.iter().find(|(_, limits)| limits.inode == inode);
    own.map(|(path, limits)| (path, *limits))
}

/// The entry that counts where the driver does: of the cgroup, or of the nearest above it.
fn nearest(card: &Card, cgroup: &Path) -> Option<Limits> {
    let inode = |directory: &Path| Some(directory.metadata().ok()?.ino());
    cgroup.ancestors().find_map(|directory| Some(own(card, inode(directory)?)?.1))
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
        let by_driver = asked.offer.needs.is_none();
        let known = own(&asked.card, asked.inode);
        let charged_bytes = known.map_or(0, |(_, known)| known.charged_bytes);
        if by_driver && is_root(&asked.cgroup) {
            return Err(NOT_SUPPORTED);
        }
        if by_driver && charged_bytes > hard_bytes {
            return Err(INVALID_ARGUMENT);
        }
        let cgroup = known.map_or(&asked.cgroup, |(path, _)| path);
        let is_none = soft_bytes == 0 && hard == u64::MAX;
        let limits = Limits { soft_bytes, hard_bytes, inode: asked.inode, charged_bytes };
        let limits = if is_none && !by_driver { None } else { Some(limits) };
        State::save_limits(&asked.card.uuid, cgroup, limits, by_driver)
    };
    answer(set())
}

/// The root of a tree of cgroups has nothing to say who is in it, alone of all.
fn is_root(cgroup: &Path) -> bool {
    cgroup.join("cgroup.controllers").exists() && !cgroup.join("cgroup.events").exists()
}

/// `limits`; without any, no soft one and no end of the hard one where the kernel counts.
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
            let none = Limits { soft_bytes: 0, hard_bytes: u64::MAX, inode: 0, charged_bytes: 0 };
            let known = if asked.offer.needs.is_some() {
                own(&asked.card, asked.inode).map_or(none, |(_, own)| own)
            } else {
                nearest(&asked.card, &asked.cgroup).ok_or(NOT_SUPPORTED)?
            };
            store(
                limits,
                GetLimits {
                    name_space,
                    soft_limit: known.soft_bytes,
                    hard_limit: known.hard_bytes,
                    current_used: known.charged_bytes,
                },
            )
        }
    };
    answer(get())
}

/// Changes the file, and tells in `<file>.limits` that it did. `keeps`: entries whose cgroup has
/// gone, too.
pub(crate) fn save(
    path: &Path,
    uuid: &str,
    cgroup: &Path,
    limits: Option<Limits>,
    keeps: bool,
) -> Result<(), String> {
    let name = cgroup.display().to_string();
    let line = match limits {
        Some(Limits { soft_bytes: 0, hard_bytes: u64::MAX, .. }) | None => {
            format!("clear {uuid} {name}")
        }
        Some(limits) => {
            format!("set {uuid} {name} soft {} hard {}", limits.soft_bytes, limits.hard_bytes)
        }
    };
    let value = limits.map(serde_json::to_value).transpose().map_err(|error| error.to_string())?;
    change(path, uuid, "limits", &line, |card| {
        if !card["limits"].is_object() {
            card["limits"] = serde_json::json!({});
        }
        if let Some(all) = card["limits"].as_object_mut() {
            all.retain(|other, _| *other != name && (keeps || Path::new(other).exists()));
            all.extend(value.map(|value| (name, value)));
        }
    })
}
