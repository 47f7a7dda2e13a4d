//! Why Slurm is not told what it wants.

use std::path::PathBuf;

/// Why a task is refused, or nothing is ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlurmError {
    /// The job's cgroup does not hold.
    #[error("{} can be opened, and is no GPU of the job's: Slurm does not close devices to its jobs", .0.display())]
    Open(PathBuf),
    /// Nobody says which job.
    #[error("SLURM_JOB_ID names no job")]
    NoJob,
}

impl SlurmError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Open(_) => "cgroup.conf: ConstrainDevices=yes; slurm.conf: TaskPlugin=task/cgroup (docs/slurm.md)",
            Self::NoJob => "slurmd calls it: slurm.conf, Epilog=/usr/libexec/mpsgate/slurm-epilog",
        }
        .to_owned()
    }
}
