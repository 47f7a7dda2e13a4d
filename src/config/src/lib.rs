//! Settings, defaults and well-known paths of mpsgate.
//!
//! ```text
//! text ── toml ──► table ── keys::read ──► Config
//! ```
//!
//! `keys` lists every key with its allowed values and its field, so that an error can name file,
//! line, key, value and the allowed values. It does without serde's derived code, which could not
//! do this, and which would add some 200 KiB to the shim. This crate reads only the files that it
//! is given the path of: no environment, no clock, no processes. All executables use it.

mod error;
mod keys;
pub mod paths;
mod real_runtime;
mod reload_rules;
mod settings;
mod settings_file;

pub use error::{ConfigError, MAX_BYTES};
pub use real_runtime::{find_runtime, runtime_for_pass_through, runtime_path_hint};
pub use reload_rules::{Change, Taken};
pub use settings::{
    Config, Enforce, Exempt, Gpus, HostPid, Inject, InjectMode, Ipc, Kubeconfig, Kubernetes,
    Listen, Log, LogLevel, Manage, Metrics, Mps, NodeName, Nvml, Orphan, Policy, Privileged,
    Processes, Requests, Run, RunGroup, Runtime, Schedule, SlicesUid, Slurm, SlurmConf, Supervisor,
    Switch, Tolerance, Trust, Unallocated, VisibleDevices,
};
pub use settings_file::{Origin, runs_as_root};
