//! `[slurm]`.

use std::path::PathBuf;

/// `[slurm]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Slurm {
    /// Whether jobs get the GPU memory that Slurm has given them.
    pub jobs: bool,
    /// MiB of a shard.
    pub shard_mib: u64,
    /// The directory of Slurm's installation, with `bin/scontrol` and `sbin/slurmd`.
    pub prefix: PathBuf,
    /// Slurm's settings.
    pub conf: SlurmConf,
}

impl Default for Slurm {
    fn default() -> Self {
        Self { jobs: false, shard_mib: 1024, prefix: "/usr".into(), conf: SlurmConf::Auto }
    }
}

/// `slurm.conf`
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SlurmConf {
    /// The file that Slurm's programs find by themselves.
    #[default]
    Auto,
    /// This file.
    File(PathBuf),
}
