//! `configure`, `node-install` and `node-remove`: engines and the node.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mpsgate_config::paths;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// The CRI plugin of containerd, which kubelet uses; also k3s and RKE2
    Containerd,
    /// Docker (dockerd)
    Docker,
    /// Podman as root
    Podman,
    /// CRI-O
    Crio,
}

/// What engines call mpsgate.
pub(crate) const NAME: &str = "mpsgate";

#[derive(Debug, Args)]
pub(crate) struct ConfigureArgs {
    /// The engine
    pub(crate) engine: Engine,
    /// Write the change, and keep the old file for --undo
    #[arg(long)]
    pub(crate) write: bool,
    /// Restore the files byte for byte; refused if somebody changed them
    #[arg(long, conflicts_with_all = ["write", "name", "keep_default", "all_handlers", "hooks_only"])]
    pub(crate) undo: bool,
    /// Say which handlers bypass mpsgate; exit status 1 if one does
    #[arg(long, conflicts_with_all = ["write", "undo", "keep_default", "hooks_only"])]
    pub(crate) check: bool,
    /// The settings file of the engine; default: what the running one reads
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The process of the engine, if several run; its settings count
    #[arg(long, value_name = "PID", conflicts_with = "undo")]
    pub(crate) engine_pid: Option<u32>,
    /// The name of mpsgate's handler in the engine
    #[arg(long, default_value = NAME)]
    pub(crate) name: String,
    /// Only add mpsgate's handler; keep the default and the other handlers
    #[arg(long)]
    pub(crate) keep_default: bool,
    /// Also change handlers that run another program; they then run runtime.path
    #[arg(long, conflicts_with = "keep_default")]
    pub(crate) all_handlers: bool,
    /// podman: install mpsgate's OCI hooks and keep the runtime
    #[arg(long, conflicts_with_all = ["keep_default", "all_handlers"])]
    pub(crate) hooks_only: bool,
    /// The path of mpsgate-runtime
    #[arg(long, value_name = "FILE", default_value = paths::RUNTIME)]
    pub(crate) program: PathBuf,
    /// mpsgate's settings, for runtime.path
    #[arg(long, value_name = "FILE", default_value = paths::CONFIG_FILE)]
    pub(crate) settings: PathBuf,
    /// Where the files for --undo are kept (for tests)
    #[arg(long, value_name = "DIR", default_value = paths::CONFIGURE_DIR, hide = true)]
    pub(crate) state: PathBuf,
}

impl ConfigureArgs {
    /// `mpsgate configure ENGINE --write` with nothing else said.
    pub(crate) fn write(engine: Engine, config: Option<PathBuf>) -> Self {
        Self {
            engine,
            write: true,
            undo: false,
            check: false,
            config,
            engine_pid: None,
            name: NAME.to_owned(),
            keep_default: false,
            all_handlers: false,
            hooks_only: false,
            program: paths::RUNTIME.into(),
            settings: paths::CONFIG_FILE.into(),
            state: paths::CONFIGURE_DIR.into(),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct NodeInstallArgs {
    /// Settings for the node; default: the node keeps its own
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// If --settings has no runtime.path, use nvidia-container-runtime
    #[arg(long, requires = "settings")]
    pub(crate) choose_runtime: bool,
    /// The engine
    #[arg(long, value_enum)]
    pub(crate) engine: Option<Engine>,
    /// The settings file of the engine, if it is not at its usual place
    #[arg(long, value_name = "FILE", requires = "engine")]
    pub(crate) engine_config: Option<PathBuf>,
    /// Restart the engine (Docker: reload) unless it has loaded them
    #[arg(long, requires = "engine")]
    pub(crate) restart_engine: bool,
    /// The directory of the programs to install
    #[arg(long, value_name = "DIRECTORY", default_value = "/usr/bin")]
    pub(crate) from: PathBuf,
    /// The mount namespace of the node
    #[arg(long, value_name = "FILE", default_value = "/proc/1/ns/mnt", hide = true)]
    pub(crate) mounts: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct NodeRemoveArgs {
    /// Restart the engine (Docker: reload) whose settings were restored
    #[arg(long)]
    pub(crate) restart_engine: bool,
    /// Continue although containers have grants or GPUs are not restored
    #[arg(long)]
    pub(crate) force: bool,
    /// Only list the running containers that mpsgate-runtime started
    #[arg(long, conflicts_with_all = ["restart_engine", "force"])]
    pub(crate) callers: bool,
}
