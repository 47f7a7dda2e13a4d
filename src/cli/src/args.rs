//! The command line. Values are checked here; nothing is opened or asked.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use mpsgate_config::paths;
use mpsgate_model::GpuUuid;

/// Share NVIDIA GPUs between containers, each with its own GPU memory limit
#[derive(Debug, Parser)]
#[command(
    name = "mpsgate",
    version,
    arg_required_else_help = true,
    after_long_help = "\
Exit status:
  0   success
  1   the answer is no: refused, or a check failed
  2   an error
  64  wrong arguments
  69  mpsgated or the driver does not answer
  78  the settings cannot be used"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

// Long texts keep their line breaks, so that the help is at most 100 columns wide.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show GPUs, MPS daemons and grants
    ///
    /// The line below the column heads names the source of each figure: the ledger of mpsgated,
    /// the device (NVML), or the MPS control daemon. On a broken node the sources differ.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate status
  mpsgate status -o json | jq '.cards[] | {index, free_mib}'"
    )]
    Status(StatusArgs),
    /// Watch the GPU memory of each container
    ///
    /// Shows GPUs and containers with bars and histories. It needs a terminal of 64 columns, and
    /// shows everything in 80. Keys: q quits, s changes the order, r reverses it, p pauses, the
    /// arrow keys scroll.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate top
  ssh -t node mpsgate top --interval 10"
    )]
    Top(TopArgs),
    /// Let mpsgate manage a GPU
    ///
    /// mpsgated starts an MPS control daemon for the GPU and sets its compute mode to
    /// EXCLUSIVE_PROCESS. From then on a container needs a grant to use the GPU. The command is
    /// refused while compute processes run on it.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate enable 0
  mpsgate enable GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
    )]
    Enable(CardArgs),
    /// Stop managing a GPU
    ///
    /// mpsgated stops the GPU's MPS control daemon and restores its compute mode. The command is
    /// refused while containers have grants on the GPU.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Example:
  mpsgate disable 0"
    )]
    Disable(CardArgs),
    /// Stop or restart the MPS control daemon of a GPU
    ///
    /// Every CUDA process on the GPU ends with its MPS control daemon. A healthy control daemon
    /// ends only by these commands: it keeps running when mpsgated is restarted or upgraded.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate mps restart 0          # lists the processes that would be terminated
  mpsgate mps restart 0 --yes"
    )]
    Mps {
        #[command(subcommand)]
        action: MpsCommand,
    },
    /// Reload the settings of mpsgated
    ///
    /// Prints which changes were applied, and which need a command such as a restart. If the file
    /// has an error, the error is shown with its line and nothing changes. SIGHUP to mpsgated does
    /// the same.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Example:
  mpsgate reload"
    )]
    Reload(ReloadArgs),
    /// Configure a container engine to run its containers through mpsgate
    ///
    /// Without --write the command shows a diff and changes nothing. It keeps comments, order and
    /// the keys of others, and does not touch a file that it cannot parse. It does not restart the
    /// engine, but prints the command that does. It changes every runtime that runs runc or
    /// runtime.path of mpsgate's settings, and names the runtimes that it leaves.
    ///
    /// The settings are /etc/containerd/config.toml (from containerd 2.1 on a drop-in; for k3s and
    /// RKE2, name the template with --config), /etc/docker/daemon.json, and drop-ins in
    /// containers.conf.d (podman) and crio.conf.d (crio).
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate configure containerd            # shows the diff
  mpsgate configure containerd --write && systemctl restart containerd
  mpsgate configure docker --check || echo some containers bypass mpsgate
  mpsgate configure podman --undo
  mpsgate configure containerd --write \\
    --config /var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl"
    )]
    Configure(ConfigureArgs),
    /// Explain what mpsgate decides about a container
    ///
    /// Reads a config.json and prints the decision, its codes, and everything in the file that
    /// could reach a GPU. The command needs no daemon, no GPU and no root. Without --node it
    /// assumes that every GPU is managed. Exit status 1 means that the container would be refused.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate explain /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json
  runc spec && mpsgate explain config.json
  mpsgate explain --node /run/mpsgate/node.json - < config.json
  mpsgate explain E_NO_HOST_IPC"
    )]
    Explain(ExplainArgs),
    /// Check this node and say how to repair it
    ///
    /// Each check prints a name, a result (ok, warn, fail, skip), the evidence, and what to do. The
    /// command works without mpsgated. Exit status 1 means that a check failed.
    ///
    /// --bundle also writes an archive for support: this report, status, settings, ledger, the ends
    /// of the logs, and units. The archive has no token keys, no environment variables and no
    /// settings of engines. Its manifest.json lists what was left out.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate doctor
  mpsgate doctor -o json | jq '.checks[] | select(.result == \"fail\")'
  mpsgate doctor --bundle mpsgate-$(hostname).tar.gz"
    )]
    Doctor(DoctorArgs),
    /// Verify the limit of this container by allocating GPU memory
    ///
    /// Run it inside a container that has a grant. It allocates until an allocation is refused,
    /// compares the sum with the limit, and frees everything. Exit status 1 means that it got more
    /// than the limit.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  docker run --ipc=host -e MPSGATE_GPU_MEM=7Gi -v /usr/bin/mpsgate:/mpsgate:ro IMAGE /mpsgate probe
  mpsgate probe --max-mib 1024 -o json"
    )]
    Probe(ProbeArgs),
    /// Verify the limit in a temporary container
    ///
    /// Starts a container with a grant through mpsgate-runtime, and runs mpsgate probe in it. The
    /// command needs no engine and no image: the container sees the programs and libraries of this
    /// node, read-only. Exit status 1 means that the grant was refused, or that the container got
    /// more than the limit. The container is removed.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate run-probe
  mpsgate run-probe --memory 7Gi --gpu 0 -o json"
    )]
    RunProbe(RunProbeArgs),
    /// From a pod: install mpsgate on the pod's node
    ///
    /// The init container of the Helm chart runs this on nodes without the package. The command
    /// enters the mount namespace of pid 1 and copies mpsgate-runtime, mpsgate-hook and mpsgate to
    /// /usr/bin. It writes /etc/mpsgate/config.toml unless somebody else wrote that file. Then it
    /// runs mpsgate configure ENGINE --write on the node. It restarts the engine only with
    /// --restart-engine; without it, it prints that a restart is needed.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate node-install --settings /chart/config.toml --engine containerd
  mpsgate node-install --engine crio --restart-engine"
    )]
    NodeInstall(NodeInstallArgs),
    /// On a node: remove what node-install installed
    ///
    /// For nodes without the package, after the pods of mpsgated are gone. The command restores the
    /// settings of engines, and removes programs, settings of the chart, and state. If containers
    /// still run that mpsgate-runtime started, it leaves a link to the real runtime in its place,
    /// so that they can be stopped. It is refused, and changes nothing, while containers have
    /// grants or GPUs wait for their compute mode.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate node-remove --restart-engine
  mpsgate node-remove --callers           # lists what still calls mpsgate-runtime"
    )]
    NodeRemove(NodeRemoveArgs),
    /// Print the completions for a shell
    ///
    /// The packages install them. Use this if you installed mpsgate by hand.
    #[command(after_long_help = "\
Examples:
  mpsgate completions bash > /usr/share/bash-completion/completions/mpsgate
  mpsgate completions zsh > /usr/local/share/zsh/site-functions/_mpsgate
  mpsgate completions fish > /etc/fish/completions/mpsgate.fish")]
    Completions(CompletionsArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum MpsCommand {
    /// Stop the MPS of a GPU and close the GPU
    ///
    /// Terminates the control daemon, its servers and all their clients, and restores the compute
    /// mode. The GPU stays managed, so no container can use it until mpsgate mps restart, also
    /// after a restart of mpsgated or of the node. Without --yes the command only lists the
    /// processes that would be terminated, and ends with exit status 1.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate mps stop 0
  mpsgate mps stop 0 --yes"
    )]
    Stop(MpsArgs),
    /// Restart the MPS of a GPU
    ///
    /// Terminates the control daemon, its servers and all their clients, and starts a new control
    /// daemon. Grants on the GPU are marked broken: restart their containers. The command also
    /// starts what mpsgate mps stop stopped. Without --yes it only lists the processes that would
    /// be terminated, and ends with exit status 1.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate mps restart 0
  mpsgate mps restart 0 --yes"
    )]
    Restart(MpsArgs),
    /// List the processes that would be terminated with the MPS of all GPUs
    ///
    /// Use it before you upgrade the driver or the supervisor pod, which ends every MPS control
    /// daemon of the node. The command changes nothing. Exit status 0 means that no process would
    /// be terminated; 1 means that some would be, or that a control daemon does not answer.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate mps preflight
  mpsgate mps preflight -o json | jq '.cards[].grants[].container_id'"
    )]
    Preflight(PreflightArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// For people
    Table,
    /// For programs; the field `schema` changes when the meaning of another field does
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs; the field `schema` changes when the meaning of another field does
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct SocketArgs {
    /// The socket of mpsgated
    #[arg(long, value_name = "PATH", default_value = paths::SOCKET)]
    pub(crate) socket: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: StatusOutput,
    /// Say only whether containers can get GPU memory now (exit status 0 or 1)
    #[arg(long, conflicts_with = "output")]
    pub(crate) ready: bool,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Time between two updates
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub(crate) interval: u16,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CardArgs {
    /// The GPU: index or UUID, as nvidia-smi -L prints them
    #[arg(value_parser = gpu)]
    pub(crate) gpu: String,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MpsArgs {
    /// The GPU: index or UUID, as nvidia-smi -L prints them
    #[arg(value_parser = gpu)]
    pub(crate) gpu: String,
    /// Do it, instead of listing the processes
    #[arg(long)]
    pub(crate) yes: bool,
    /// Format of the list
    #[arg(short, long, value_enum, default_value = "text", conflicts_with = "yes")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PreflightArgs {
    /// Format of the list
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
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

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_parser = clap::builder::EnumValueParser::<Shell>::new())]
    pub(crate) shell: Shell,
}

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
    /// The settings file of the engine, if it is not at its usual place
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
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
pub(crate) struct ExplainArgs {
    /// A config.json, - for standard input, or a code such as E_NO_HOST_IPC
    pub(crate) file: PathBuf,
    /// The managed GPUs, in the format of /run/mpsgate/node.json
    #[arg(long, value_name = "FILE")]
    pub(crate) node: Option<PathBuf>,
    /// The --root of the runtime, by which mpsgate recognises the engine
    #[arg(long, value_name = "DIR")]
    pub(crate) runtime_root: Option<PathBuf>,
    /// The settings of mpsgate, if any
    #[arg(long, value_name = "FILE", default_value = paths::CONFIG_FILE)]
    pub(crate) config: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
    /// Also write a support archive; an existing file is not replaced
    #[arg(long, value_name = "FILE.tar.gz")]
    pub(crate) bundle: Option<PathBuf>,
    /// Use DIR instead of / (for tests, or for the root of a stopped machine)
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub(crate) root: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Stop at this many MiB
    #[arg(long, value_name = "MIB")]
    pub(crate) max_mib: Option<u64>,
    /// The CUDA driver library
    #[arg(long, value_name = "NAME", default_value = "libcuda.so.1")]
    pub(crate) library: std::ffi::OsString,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct RunProbeArgs {
    /// The GPU memory of the grant, as in mpsgate.io/gpu-mem
    #[arg(long, value_name = "QUANTITY", default_value = "1Gi")]
    pub(crate) memory: String,
    /// The GPU: index or UUID; default: the best fit
    #[arg(long, value_parser = gpu)]
    pub(crate) gpu: Option<String>,
    /// The CUDA driver library
    #[arg(long, value_name = "NAME", default_value = "libcuda.so.1")]
    pub(crate) library: std::ffi::OsString,
    /// The path of mpsgate-runtime
    #[arg(long, value_name = "FILE", default_value = paths::RUNTIME)]
    pub(crate) program: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

/// An index or a UUID, in the spelling that the daemon compares with.
fn gpu(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return match text.parse::<u32>() {
            Ok(index) => Ok(index.to_string()),
            Err(_) => Err("no node has so many GPUs".to_owned()),
        };
    }
    GpuUuid::parse(text)
        .map(String::from)
        .map_err(|_| "a GPU is named by its index or its whole UUID: nvidia-smi -L".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    /// Manual pages and completions are made of these texts.
    #[test]
    fn every_command_and_argument_says_what_it_is() {
        fn look(name: &str, command: &clap::Command) {
            assert!(command.get_about().is_some(), "{name} has no short text");
            assert!(command.get_long_about().is_some(), "{name} has no long text");
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            assert!(text.contains(&format!("  {name}")), "{name} has no example: {text:?}");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{name}: {} has no text", argument.get_id());
            }
            for command in command.get_subcommands() {
                look(&format!("{name} {}", command.get_name()), command);
            }
        }
        for command in Cli::command().get_subcommands() {
            look(&format!("mpsgate {}", command.get_name()), command);
        }
    }

    #[test]
    fn a_gpu_is_named_by_index_or_uuid() {
        assert_eq!(gpu("0"), Ok("0".to_owned()));
        assert_eq!(gpu("007"), Ok("7".to_owned()));
        let uuid = "GPU-5D5BA0D6-d33d-2b2c-524d-9e3d8d2b8a77";
        assert_eq!(gpu(uuid), Ok("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77".to_owned()));
        for bad in ["", "-1", "all", "GPU-1", "0,1", "99999999999"] {
            assert!(gpu(bad).is_err(), "{bad}");
        }
    }
}
