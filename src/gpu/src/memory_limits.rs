//! Memory limits of cgroups, which drivers from r615 on enforce for all processes below a
//! directory.
//!
//! nvml-wrapper 0.13 does not have the two calls, so they are looked up in the library that it has
//! loaded. Their layout is that of `nvml.h` of CUDA 13.4; the example in NVIDIA's MPS documentation
//! (r615, memory partitioning) names other fields and does not compile.

// JUSTIFICATION (3 blocks): calling C functions that the wrapper does not wrap: one look-up each,
// and the calls.
#![expect(unsafe_code, reason = "calls of C functions; see the justification above")]

use std::ffi::{CString, c_char, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nvml_wrapper::error::{NvmlError, nvml_try};

use crate::nvml::BYTES_PER_MIB;
use crate::{GpuError, LimitAction, Nvml};

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no limit.
const MAX: c_ulonglong = c_ulonglong::MAX;

/// `nvmlSetMemoryLimits_v1_t`. Bytes.
#[repr(C)]
struct SetLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`. Bytes.
#[repr(C)]
struct GetLimits {
    name_space: *const c_char,
    soft_limit: c_ulonglong,
    hard_limit: c_ulonglong,
    current_used: c_ulonglong,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<SetLimits>() == 24 && size_of::<GetLimits>() == 32);

type Set = unsafe extern "C" fn(*mut c_void, *mut SetLimits) -> c_uint;
type Get = unsafe extern "C" fn(*mut c_void, *mut GetLimits) -> c_uint;

/// The driver's limit of a cgroup on one card. Bytes, because the driver may round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Memory that is reserved for it. mpsgate sets none.
    pub soft_bytes: u64,
    /// The most that it may use; `u64::MAX` where no limit is set.
    pub hard_bytes: u64,
    /// What it uses now.
    pub used_bytes: u64,
}

impl MemoryLimit {
    /// Whether it limits nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.hard_bytes == MAX && self.soft_bytes == 0
    }
}

/// The driver's memory limits, where it has them: see [`Nvml::memory_limits`].
pub struct MemoryLimits<'n> {
    nvml: &'n Nvml,
    set: Set,
    get: Get,
}

impl Nvml {
    /// The memory limits of cgroups. `None` where the library has no such calls, as before r615.
    #[must_use]
    pub fn memory_limits(&self) -> Option<MemoryLimits<'_>> {
        let library = &self.wrapped().lib().__library;
        // SAFETY: the types are those of `nvml.h` of CUDA 13.4, and `_v1` in a name of NVML stands
        // for one layout for good. The pointers are kept no longer than the library, which `self`
        // owns.
        let (set, get) = unsafe {
            let set = library.get::<Set>(b"nvmlDeviceSetMemoryLimits_v1\0").ok()?;
            (*set, *library.get::<Get>(b"nvmlDeviceGetMemoryLimits_v1\0").ok()?)
        };
        Some(MemoryLimits { nvml: self, set, get })
    }
}

impl MemoryLimits<'_> {
    /// Limits all processes of a cgroup, and of those below it, to `mib` of one card in sum.
    /// `cgroup` is a directory of cgroup v2. Needs root of the host. The driver may round: read it
    /// back.
    ///
    /// Never sets a soft limit: the memory that it reserves stays lost in every ancestor if the
    /// directory is removed before it is cleared (NVIDIA MPS documentation, r615).
    ///
    /// # Errors
    /// [`GpuError::MemoryLimit`], and as [`Nvml::card`].
    pub fn set(&self, uuid: &str, cgroup: &Path, mib: u64) -> Result<(), GpuError> {
        self.write(LimitAction::Set { mib }, uuid, cgroup, mib.saturating_mul(BYTES_PER_MIB))
    }

    /// Removes the limit of a cgroup. Where the kernel has `dmem`, removing the directory does
    /// that, too; where the driver counts by itself, its entry stays (r615's `memacct.c`).
    ///
    /// # Errors
    /// As [`MemoryLimits::set`].
    pub fn clear(&self, uuid: &str, cgroup: &Path) -> Result<(), GpuError> {
        self.write(LimitAction::Clear, uuid, cgroup, MAX)
    }

    /// The limit of a cgroup. Needs no privilege.
    ///
    /// # Errors
    /// As [`MemoryLimits::set`].
    pub fn get(&self, uuid: &str, cgroup: &Path) -> Result<MemoryLimit, GpuError> {
        let device = self.nvml.device(uuid)?;
        let failed = failed(LimitAction::Read, uuid, cgroup);
        let path = match c_path(cgroup) {
            Ok(path) => path,
            Err(error) => return Err(failed(error)),
        };
        let mut limits =
            GetLimits { name_space: path.as_ptr(), soft_limit: 0, hard_limit: 0, current_used: 0 };
        // SAFETY: the handle is NVML's own, the struct has the layout of the call's version, and
        // both it and its string live until the call returns.
        let code = unsafe { (self.get)(device.handle().cast(), &raw mut limits) };
        nvml_try(code).map_err(failed)?;
        Ok(MemoryLimit {
            soft_bytes: limits.soft_limit,
            hard_bytes: limits.hard_limit,
            used_bytes: limits.current_used,
        })
    }

    fn write(
        &self,
        action: LimitAction,
        uuid: &str,
        cgroup: &Path,
        hard_limit: c_ulonglong,
    ) -> Result<(), GpuError> {
        let device = self.nvml.device(uuid)?;
        let failed = failed(action, uuid, cgroup);
        let path = match c_path(cgroup) {
            Ok(path) => path,
            Err(error) => return Err(failed(error)),
        };
        let mut limits = SetLimits { name_space: path.as_ptr(), soft_limit: 0, hard_limit };
        // SAFETY: as in `get`.
        let code = unsafe { (self.set)(device.handle().cast(), &raw mut limits) };
        nvml_try(code).map_err(failed)
    }
}

fn c_path(cgroup: &Path) -> Result<CString, NvmlError> {
    Ok(CString::new(cgroup.as_os_str().as_bytes())?)
}

fn failed(action: LimitAction, uuid: &str, cgroup: &Path) -> impl FnOnce(NvmlError) -> GpuError {
    move |source| GpuError::MemoryLimit {
        action,
        uuid: uuid.to_owned(),
        cgroup: cgroup.to_owned(),
        source,
    }
}
