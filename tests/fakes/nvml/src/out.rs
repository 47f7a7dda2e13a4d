//! Stores through the caller's pointers, as NVML does it: null is an invalid argument, and what
//! does not fit is an insufficient size.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings as nvml;

use crate::state::{Card, Kind};
use crate::{Fault, INVALID_ARGUMENT};

const INSUFFICIENT_SIZE: Fault = nvml::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE;

/// # Safety
/// `target` is null or points to memory for a `T` that the caller owns.
pub(crate) unsafe fn store<T>(target: *mut T, value: T) -> Result<(), Fault> {
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the rest is this function's contract.
    unsafe { target.write(value) };
    Ok(())
}

/// # Safety
/// `target` is null or points to `length` bytes that the caller owns.
pub(crate) unsafe fn copy_string(
    text: &str,
    target: *mut c_char,
    length: c_uint,
) -> Result<(), Fault> {
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    let target = target.cast::<u8>();
    // SAFETY: the text and its terminator fit into `length`.
    unsafe {
        target.copy_from_nonoverlapping(text.as_ptr(), text.len());
        target.add(text.len()).write(0);
    }
    Ok(())
}

/// Fills `infos` with the card's processes of these kinds. `count` is the room on entry, and the
/// number of processes on return, also where the room does not suffice.
///
/// # Safety
/// `count` is null or points to an integer, and `infos` is null or points to that many entries.
pub(crate) unsafe fn copy_list(
    card: &Card,
    kinds: &[Kind],
    count: *mut c_uint,
    infos: *mut nvml::nvmlProcessInfo_t,
) -> Result<(), Fault> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let listed: Vec<_> =
        card.processes.iter().filter(|process| kinds.contains(&process.kind)).collect();
    let number = c_uint::try_from(listed.len()).map_err(|_| INVALID_ARGUMENT)?;
    // SAFETY: not null, and the caller's.
    let room = unsafe { count.replace(number) };
    if room < number {
        return Err(INSUFFICIENT_SIZE);
    }
    if infos.is_null() && number > 0 {
        return Err(INVALID_ARGUMENT);
    }
    for (place, process) in listed.into_iter().enumerate() {
        let info = nvml::nvmlProcessInfo_t {
            pid: process.pid,
            usedGpuMemory: process.used_mib.map_or(u64::MAX, |mib| mib << 20),
            gpuInstanceId: u32::MAX,
            computeInstanceId: u32::MAX,
        };
        // SAFETY: `place` is below `number`, which is at most the room.
        unsafe { infos.add(place).write(info) };
    }
    Ok(())
}
