//! What can be typed. Values are checked here; nothing is opened or asked.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use mpsgate_config::paths;
use mpsgate_model::GpuUuid;

/// Shares NVIDIA GPUs between containers, each with the GPU memory that it was given.
#[derive(Debug, Parser)]
#[command(
    name = "mpsgate",
    version,
    arg_required_else_help = true,
    after_long_help = "\
Exit status:
  0   done
  1   the answer is no: refused, or the doctor found something broken
  2   failed
  64  wrong arguments
  69  mpsgated, or the driver, does not answer
  78  the configuration cannot be used"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show cards, MPS daemons and grants
    ///
    /// Under each column stands whose view it is: what the ledger recorded, what the device reports
    /// through NVML, what the MPS control daemon answers. In a broken system they differ.
    #[command(after_long_help = "\
Examples:
  mpsgate status
  mpsgate status -o json | jq '.cards[] | {index, free_mib}'")]
    Status(StatusArgs),
    /// Watch what containers use of each GPU
    ///
    /// Cards and containers, with bars and histories, until q is pressed. Needs a terminal of 64 columns;
    /// 80 show everything. s changes the order, r reverses it, p stops the picture, arrows scroll.
    #[command(after_long_help = "\
Examples:
  mpsgate top
  ssh -t node mpsgate top --interval 10")]
    Top(TopArgs),
    /// Hand a GPU to mpsgate
    ///
    /// The GPU gets its own MPS control daemon and compute mode EXCLUSIVE_PROCESS. Refused while
    /// compute processes run on it. Containers then reach it through a grant only.
    #[command(after_long_help = "\
Examples:
  mpsgate enable 0
  mpsgate enable GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77")]
    Enable(CardArgs),
    /// Take a GPU back from mpsgate
    ///
    /// Refused while containers hold grants on it. Its MPS control daemon is stopped, and its compute
    /// mode is what it was before.
    #[command(after_long_help = "\
Example:
  mpsgate disable 0")]
    Disable(CardArgs),
    /// Stop or restart the MPS of a GPU
    ///
    /// Everything that runs on the GPU dies with its MPS control daemon. Nothing else ends one that is
    /// healthy: restarting or upgrading mpsgated does not.
    #[command(after_long_help = "\
Examples:
  mpsgate mps restart 0          # who would die? nothing is done
  mpsgate mps restart 0 --yes")]
    Mps {
        #[command(subcommand)]
        action: MpsCommand,
    },
    /// Let mpsgated read its settings again
    ///
    /// Prints what was taken, and what takes effect only later, with the command that does it. A mistake
    /// in the file is named with its line, and nothing changes. What SIGHUP does, too.
    #[command(after_long_help = "\
Example:
  mpsgate reload")]
    Reload(ReloadArgs),
    /// Set an engine up so that its containers pass mpsgate
    ///
    /// Without --write it shows the change as a diff and changes nothing. Comments, order and keys of others
    /// stay; a file that cannot be parsed is left alone. The engine is never restarted: the command for it is
    /// printed. Every runtime that the engine knows and that runs runtime.path of mpsgate's settings, or
    /// runc, is led through mpsgate; others are named.
    ///
    /// containerd: /etc/containerd/config.toml, a drop-in from containerd 2.1 on; k3s and RKE2: name the
    /// template. docker: /etc/docker/daemon.json. podman, crio: drop-ins in containers.conf.d, crio.conf.d.
    #[command(after_long_help = "\
Examples:
  mpsgate configure containerd            # what would change?
  mpsgate configure containerd --write && systemctl restart containerd
  mpsgate configure docker --check || echo some containers go round mpsgate
  mpsgate configure podman --undo
  mpsgate configure containerd --config /var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl --write")]
    Configure(ConfigureArgs),
    /// Say what mpsgate would do with a container, and why
    ///
    /// Reads a config.json and prints the decision, its codes, and everything in it that could reach
    /// a GPU. Needs no daemon, no GPU and no root. Without --node, every card counts as managed.
    /// Exit status 1 means that the container would be refused.
    #[command(after_long_help = "\
Examples:
  mpsgate explain /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/config.json
  runc spec && mpsgate explain config.json
  mpsgate explain --node /run/mpsgate/node.json - < config.json
  mpsgate explain E_NO_HOST_IPC")]
    Explain(ExplainArgs),
    /// Check this node, and say what to do about what is broken
    ///
    /// Each check has a name, a result (ok, warn, fail, skip), the evidence, and what to do. Works
    /// with the daemon down. Exit status 1 means that a check failed.
    ///
    /// --bundle also writes an archive for whoever helps: this report, status, settings, ledger, ends of the
    /// logs, units. No token keys, no environments, no engine's settings; manifest.json in it says what was
    /// left out.
    #[command(after_long_help = "\
Examples:
  mpsgate doctor
  mpsgate doctor -o json | jq '.checks[] | select(.result == \"fail\")'
  mpsgate doctor --bundle mpsgate-$(hostname).tar.gz")]
    Doctor(DoctorArgs),
    /// Allocate GPU memory until it is refused, and compare with the limit
    ///
    /// For the inside of a container with a grant. Exit status 1 means that more than the limit could be
    /// had. Everything is freed again.
    #[command(after_long_help = "\
Examples:
  docker run --ipc=host -e MPSGATE_GPU_MEM=7Gi -v /usr/bin/mpsgate:/mpsgate:ro IMAGE /mpsgate probe
  mpsgate probe --max-mib 1024 -o json")]
    Probe(ProbeArgs),
    /// Run probe in a container with a grant of its own
    ///
    /// Needs no engine and no image: the container sees this node's programs and libraries, read-only, and
    /// goes through mpsgate-runtime. Exit status 1 means that the grant was refused, or that more than the
    /// limit could be had. The container is gone afterwards.
    #[command(after_long_help = "\
Examples:
  mpsgate run-probe
  mpsgate run-probe --memory 7Gi --gpu 0 -o json")]
    RunProbe(RunProbeArgs),
    /// From a pod: put mpsgate onto its node
    ///
    /// The init container of the Helm chart runs this, on nodes that get no package. It enters the mount
    /// namespace of pid 1, writes mpsgate-runtime, mpsgate-hook and mpsgate to /usr/bin (beside, then
    /// renamed) and the settings to /etc/mpsgate/config.toml where these are not somebody else's, and runs
    /// there mpsgate configure ENGINE --write. A restart of the engine is told, and done only when asked for.
    #[command(after_long_help = "\
Examples:
  mpsgate node-install --settings /chart/config.toml --engine containerd
  mpsgate node-install --engine crio --restart-engine")]
    NodeInstall(NodeInstallArgs),
    /// On a node: take away what node-install put there
    ///
    /// For nodes without the package, when mpsgated's pods are gone. Puts engines' settings back, and removes programs, the
    /// chart's settings and the state. Where containers go on that were started through mpsgate-runtime, a link to the
    /// real runtime takes its place, so that they can be stopped. Refused while containers have GPU memory, or cards
    /// wait for their compute mode; nothing was changed then.
    #[command(after_long_help = "\
Examples:
  mpsgate node-remove --restart-engine
  mpsgate node-remove --callers           # who still calls mpsgate-runtime? nothing is done")]
    NodeRemove(NodeRemoveArgs),
    /// Print the completions of a shell
    ///
    /// The packages install them; this is for where mpsgate was installed by hand.
    #[command(after_long_help = "\
Examples:
  mpsgate completions bash > /usr/share/bash-completion/completions/mpsgate
  mpsgate completions zsh > /usr/local/share/zsh/site-functions/_mpsgate
  mpsgate completions fish > /etc/fish/completions/mpsgate.fish")]
    Completions(CompletionsArgs),
}

#[derive(Debug, Subcommand)]
pub(crate) enum MpsCommand {
    /// End the MPS of a GPU and keep the GPU closed
    ///
    /// Its control daemon, its servers and all their clients end, and its compute mode is what it was
    /// before. The GPU stays managed: no container reaches it, over a restart of mpsgated and of the node
    /// too, until mps restart. Without --yes it prints who would die, does nothing and ends with 1.
    #[command(after_long_help = "\
Examples:
  mpsgate mps stop 0
  mpsgate mps stop 0 --yes")]
    Stop(MpsArgs),
    /// End the MPS of a GPU and start it anew
    ///
    /// Its control daemon, its servers and all their clients end; limits are set before containers find the
    /// new one. Grants on the GPU are broken: their containers have to be restarted. Also starts what mps
    /// stop ended. Without --yes it prints who would die, does nothing and ends with 1.
    #[command(after_long_help = "\
Examples:
  mpsgate mps restart 0
  mpsgate mps restart 0 --yes")]
    Restart(MpsArgs),
    /// Say who would die if the MPS of every GPU ended
    ///
    /// Before another driver, another holder pod or anything else that ends all MPS control daemons of the
    /// node. Does nothing. Exit status 0 means nobody; 1 that somebody would die, or that a control daemon
    /// does not tell.
    #[command(after_long_help = "\
Examples:
  mpsgate mps preflight
  mpsgate mps preflight -o json | jq '.cards[].grants[].container_id'")]
    Preflight(PreflightArgs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// For people
    Table,
    /// For programs; the field `schema` changes with the meaning of any other
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs; the field `schema` changes with the meaning of any other
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct SocketArgs {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", default_value = paths::SOCKET)]
    pub(crate) socket: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: StatusOutput,
    /// Say only whether containers can have GPU memory here now; exit status 1 and the reason where they cannot
    #[arg(long, conflicts_with = "output")]
    pub(crate) ready: bool,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Time between two looks
    #[arg(short, long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub(crate) interval: u16,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CardArgs {
    /// Index or UUID, as nvidia-smi -L prints them
    #[arg(value_parser = gpu)]
    pub(crate) gpu: String,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MpsArgs {
    /// Index or UUID, as nvidia-smi -L prints them
    #[arg(value_parser = gpu)]
    pub(crate) gpu: String,
    /// Do it
    #[arg(long)]
    pub(crate) yes: bool,
    /// Form of the list of who would die
    #[arg(short, long, value_enum, default_value = "text", conflicts_with = "yes")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PreflightArgs {
    /// Form of the list of who would die
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
    /// Settings for the node; without them the node's stay
    #[arg(long, value_name = "FILE")]
    pub(crate) settings: Option<PathBuf>,
    /// Set runtime.path to nvidia-container-runtime where the node has it and these settings name none
    #[arg(long, requires = "settings")]
    pub(crate) choose_runtime: bool,
    /// Whose settings mpsgate configure writes; without it no engine's
    #[arg(long, value_enum)]
    pub(crate) engine: Option<Engine>,
    /// The engine's settings, where they are not at their usual place
    #[arg(long, value_name = "FILE", requires = "engine")]
    pub(crate) engine_config: Option<PathBuf>,
    /// Restart the engine (Docker: reload) where it has not loaded these settings
    #[arg(long, requires = "engine")]
    pub(crate) restart_engine: bool,
    /// The programs of the image
    #[arg(long, value_name = "DIRECTORY", default_value = "/usr/bin")]
    pub(crate) from: PathBuf,
    /// The node's mount namespace
    #[arg(long, value_name = "FILE", default_value = "/proc/1/ns/mnt", hide = true)]
    pub(crate) mounts: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct NodeRemoveArgs {
    /// Restart the engine (Docker: reload) whose settings were put back
    #[arg(long)]
    pub(crate) restart_engine: bool,
    /// Go on where containers have GPU memory, or cards wait for their compute mode
    #[arg(long)]
    pub(crate) force: bool,
    /// Say only what was started through mpsgate-runtime and goes on
    #[arg(long, conflicts_with_all = ["restart_engine", "force"])]
    pub(crate) callers: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell's
    #[arg(value_parser = clap::builder::EnumValueParser::<Shell>::new())]
    pub(crate) shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// Its CRI plugin, which serves the kubelet; also k3s and RKE2
    Containerd,
    /// dockerd
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
    /// Whose settings
    pub(crate) engine: Engine,
    /// Write the change, after the engine itself has read it where it can, and keep what was there
    #[arg(long)]
    pub(crate) write: bool,
    /// Put back, to the byte, what --write found; refused where somebody changed the file since
    #[arg(long, conflicts_with_all = ["write", "name", "keep_default", "all_handlers", "hooks_only"])]
    pub(crate) undo: bool,
    /// Say for each handler whether it reaches mpsgate; exit status 1 where one goes round it
    #[arg(long, conflicts_with_all = ["write", "undo", "keep_default", "hooks_only"])]
    pub(crate) check: bool,
    /// The engine's settings, where they are not in their usual place
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// What the engine shall call mpsgate
    #[arg(long, default_value = NAME)]
    pub(crate) name: String,
    /// Only add it: default and other handlers stay, and only who names it passes mpsgate
    #[arg(long)]
    pub(crate) keep_default: bool,
    /// Lead handlers through mpsgate too that run another program than runtime.path; they run runtime.path then
    #[arg(long, conflicts_with = "keep_default")]
    pub(crate) all_handlers: bool,
    /// podman: install mpsgate's OCI hooks and leave the runtime alone
    #[arg(long, conflicts_with_all = ["keep_default", "all_handlers"])]
    pub(crate) hooks_only: bool,
    /// mpsgate-runtime, where it is installed elsewhere
    #[arg(long, value_name = "FILE", default_value = paths::RUNTIME)]
    pub(crate) program: PathBuf,
    /// mpsgate's own settings, of which runtime.path counts here
    #[arg(long, value_name = "FILE", default_value = paths::CONFIG_FILE)]
    pub(crate) settings: PathBuf,
    /// Where undo's files are kept (for tests)
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
    /// A container's config.json, - for standard input, or a code such as E_NO_HOST_IPC
    pub(crate) file: PathBuf,
    /// Which cards are managed, as mpsgated writes it to /run/mpsgate/node.json
    #[arg(long, value_name = "FILE")]
    pub(crate) node: Option<PathBuf>,
    /// The runtime's --root, which tells the engine that calls
    #[arg(long, value_name = "DIR")]
    pub(crate) runtime_root: Option<PathBuf>,
    /// The settings; a missing file means the defaults
    #[arg(long, value_name = "FILE", default_value = paths::CONFIG_FILE)]
    pub(crate) config: PathBuf,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
    /// Write a support archive too; a file that exists is not replaced
    #[arg(long, value_name = "FILE.tar.gz")]
    pub(crate) bundle: Option<PathBuf>,
    /// Look below DIR instead of / (for tests and for the root of a stopped machine)
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub(crate) root: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// Stop at so many MiB
    #[arg(long, value_name = "MIB")]
    pub(crate) max_mib: Option<u64>,
    /// The CUDA driver library
    #[arg(long, value_name = "NAME", default_value = "libcuda.so.1")]
    pub(crate) library: std::ffi::OsString,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct RunProbeArgs {
    /// GPU memory of the grant, as the annotation mpsgate.io/gpu-mem has it
    #[arg(long, value_name = "QUANTITY", default_value = "1Gi")]
    pub(crate) memory: String,
    /// On this GPU: index or UUID, as nvidia-smi -L prints them
    #[arg(long, value_parser = gpu)]
    pub(crate) gpu: Option<String>,
    /// The CUDA driver library
    #[arg(long, value_name = "NAME", default_value = "libcuda.so.1")]
    pub(crate) library: std::ffi::OsString,
    /// mpsgate-runtime, where it is installed elsewhere
    #[arg(long, value_name = "FILE", default_value = paths::RUNTIME)]
    pub(crate) program: PathBuf,
    /// Form of the answer
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
