//! `[slurm]`.

use std::path::PathBuf;

/// `[slurm]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Slurm {
    /// Whether jobs get what Slurm has given them of a GPU.
    pub jobs: bool,
    /// MiB of a shard.
    pub shard_mib: u64,
    /// Where Slurm is installed: `bin/scontrol` and `sbin/slurmd` are below it.
    pub prefix: PathBuf,
    /// Its settings.
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
    /// Where Slurm's programs look by themselves.
    #[default]
    Auto,
    /// This file.
    File(PathBuf),
}
