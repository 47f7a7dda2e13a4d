//! The processes of a card: NVML's three process lists merged into one.

use std::collections::BTreeMap;

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

/// A process that holds a context on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    /// Process id in the host's pid namespace, wherever the caller runs: the driver has no other.
    pub pid: u32,
    /// Device memory in bytes. `None` where the driver does not know it. It may lack managed (UVM)
    /// memory.
    pub used_bytes: Option<u64>,
    /// The kind of its context.
    pub kind: ProcessKind,
}

/// The processes of a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessList {
    /// Each process once, by pid.
    pub processes: Vec<GpuProcess>,
    /// Whether the driver lists MPS clients of this card apart from other processes.
    pub tells_clients: bool,
    /// Device memory in use after the lists were read, in bytes, for all users together; without
    /// what driver and firmware keep for themselves (`nvmlMemory_v2_t`). `None` where NVML did not
    /// return it.
    pub used_bytes: Option<u64>,
}

/// The kind of a process's context. Ordered: a process in several lists has the greatest kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessKind {
    /// Only a graphics context.
    Graphics,
    /// A compute context of its own. The MPS server is one of these.
    Compute,
    /// A client of an MPS server.
    Mps,
}

/// The lists as NVML returned them, by kind.
pub(crate) type Lists = [(ProcessKind, Vec<ProcessInfo>); 3];

/// One entry per process, ordered by pid.
///
/// A process may be in several lists (`nvidia-smi` shows `C+G` and `M+C`). NVML gives its memory
/// per process and not per list, so the result has the larger figure and not the sum.
pub(crate) fn merge(lists: Lists) -> Vec<GpuProcess> {
    let mut by_pid = BTreeMap::<u32, GpuProcess>::new();
    for (kind, list) in lists {
        for info in list {
            let used_bytes = match info.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            by_pid
                .entry(info.pid)
                .and_modify(|known| {
                    known.kind = known.kind.max(kind);
                    known.used_bytes = known.used_bytes.max(used_bytes);
                })
                .or_insert(GpuProcess { pid: info.pid, used_bytes, kind });
        }
    }
    by_pid.into_values().collect()
}

/// Whether the driver's process lists have the layout that nvml-wrapper reads.
///
/// The 535 series before 535.98 fills 32 bytes per process where 24 were allocated: a larger
/// `nvmlProcessInfo_t` under the same `_v3` names (NVIDIA/nvidia-settings 39c3e28, reverted in
/// 0cb3bef; XuehaiPan/nvitop pull requests 79, 89, 94). Reading it would overrun the buffer, and
/// the pids would be wrong. 535.98 itself lacks the calls; 535.104.05 has them with the old layout.
pub(crate) fn lists_are_sound(driver_version: &str) -> bool {
    let mut numbers = driver_version.split('.').map(str::parse::<u32>);
    !matches!((numbers.next(), numbers.next()), (Some(Ok(535)), Some(Ok(0..98))))
}

/// How often a list is read again while processes keep appearing.
const ATTEMPTS: usize = 8;

/// Reads again while the buffer is too small.
///
/// The caller of NVML sizes the buffer by a first call; a process that starts before the second one
/// makes that `InsufficientSize`. nvml-wrapper 0.13 leaves no headroom in the MPS list.
pub(crate) fn retry_insufficient<T>(
    mut call: impl FnMut() -> Result<T, NvmlError>,
) -> Result<T, NvmlError> {
    let mut result = call();
    for _ in 1..ATTEMPTS {
        if !matches!(result, Err(NvmlError::InsufficientSize(_))) {
            break;
        }
        result = call();
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn counts_a_process_in_several_lists_once() {
        use ProcessKind::{Compute, Graphics, Mps};
        use UsedGpuMemory::{Unavailable, Used};

        let merged = merge([
            (Compute, vec![info(30, Used(7)), info(20, Used(5)), info(10, Unavailable)]),
            (Graphics, vec![info(30, Used(7)), info(40, Unavailable)]),
            (Mps, vec![info(20, Used(6)), info(10, Used(0))]),
        ]);

        let process = |pid, used_bytes, kind| GpuProcess { pid, used_bytes, kind };
        assert_eq!(
            merged,
            [
                process(10, Some(0), Mps),
                process(20, Some(6), Mps),
                process(30, Some(7), Compute),
                process(40, None, Graphics),
            ]
        );
    }

    #[test]
    fn only_the_first_drivers_of_535_have_process_lists_of_another_layout() {
        for version in ["535.43.02", "535.54.03", "535.86.05", "535.86.10"] {
            assert!(!lists_are_sound(version), "{version}");
        }
        for version in [
            "510.39.01",
            "530.41.03",
            "535.98",
            "535.104.05",
            "535.261.03",
            "550.54.14",
            "r999",
            "",
        ] {
            assert!(lists_are_sound(version), "{version}");
        }
    }

    #[test]
    fn asks_again_when_a_process_appeared_meanwhile() {
        let mut answers = vec![
            Ok(3),
            Err(NvmlError::InsufficientSize(Some(3))),
            Err(NvmlError::InsufficientSize(None)),
        ];
        let result = retry_insufficient(|| answers.pop().unwrap_or(Err(NvmlError::Unknown)));
        assert!(matches!(result, Ok(3)), "{result:?}");
    }

    #[test]
    fn gives_up_when_processes_appear_without_end() {
        let mut calls = 0;
        let result = retry_insufficient(|| {
            calls += 1;
            Err::<(), _>(NvmlError::InsufficientSize(None))
        });
        assert!(matches!(result, Err(NvmlError::InsufficientSize(None))), "{result:?}");
        assert_eq!(calls, ATTEMPTS);
    }

    #[test]
    fn asks_once_when_the_failure_is_another() {
        let mut calls = 0;
        let result = retry_insufficient(|| {
            calls += 1;
            Err::<(), _>(NvmlError::GpuLost)
        });
        assert!(matches!(result, Err(NvmlError::GpuLost)), "{result:?}");
        assert_eq!(calls, 1);
    }
}
