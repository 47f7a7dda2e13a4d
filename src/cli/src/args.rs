//! The command line. Values are checked here; nothing is opened or asked.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use mpsgate_config::paths;
use mpsgate_model::{ContainerId, GpuSelector, GpuUuid, Mib, QuantityError, likely_quantity};

mod configure;
mod mps;

pub(crate) use self::configure::{ConfigureArgs, Engine, NAME, NodeInstallArgs, NodeRemoveArgs};
pub(crate) use self::mps::{MpsAskArgs, MpsCommand, PreflightArgs};

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
    /// With -o wide the line below the column heads names the source of each figure: the ledger of
    /// mpsgated, the device (NVML), or the MPS control daemon. On a broken node the sources differ.
    /// It also says what each guarantee level means, and why none is higher.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate status
  mpsgate status -o wide
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
    /// Show how much GPU memory was granted and used over time
    ///
    /// Adds up the days (UTC) from --from to --to: GiB-hours, of containers as far as NVML told
    /// what they used. By GPU the parts are containers, MPS servers, others (in no container with a
    /// grant), and nobody (of no process). mpsgated keeps 400 days in /var/lib/mpsgate/usage and
    /// writes every 30 s.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate usage
  mpsgate usage --from 2026-11-01 --to 2026-11-30 --by namespace -o csv > november.csv
  mpsgate usage --by gpu"
    )]
    Usage(UsageArgs),
    /// Let mpsgate manage a GPU
    ///
    /// mpsgated starts an MPS control daemon for the GPU and sets its compute mode to
    /// EXCLUSIVE_PROCESS. From then on a container needs a grant to use the GPU. The command is
    /// refused while compute processes run on it. It then asks the GPU what holds on it, as mpsgate
    /// qualify does, which takes up to 60 s.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate enable 0
  mpsgate enable GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
    )]
    Enable(EnableArgs),
    /// Ask a GPU what holds on it
    ///
    /// Starts containers with grants through mpsgate-runtime, and asks the driver in them: whether
    /// a CUDA client attaches, at which MiB it is stopped, whatever it does with its environment,
    /// and what NVML tells of it. Guarantee levels in mpsgate status rest on the answers. The GPU
    /// must have no grants, and takes no others for up to 60 s. Exit status 1 means that something
    /// does not hold. The timer mpsgate-qualify asks GPUs that were not asked with their driver.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate qualify 0
  mpsgate qualify --due
  mpsgate qualify 0 --report       # for an issue: names no host, container or UUID"
    )]
    Qualify(QualifyArgs),
    /// Change how much GPU memory a running container has
    ///
    /// More needs room on the container's GPU, and a pod gets no more than its limits. Less needs
    /// guarantee level cgroup, and no more in use than that. The answer says what it means for the
    /// container's processes: MPS changes no limit of one that has attached. A container that is
    /// created anew gets what its request says. On several GPUs each gives an equal part.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate resize web 9Gi
  mpsgate resize 3f2a 7680Mi       # the beginning of an id, if it is one container's
  mpsgate resize alice/train 9Gi   # a process of mpsgate run"
    )]
    Resize(ResizeArgs),
    /// Run a command with GPU memory of its own, without a container
    ///
    /// The command gets a grant on a GPU and a cgroup of its own, in which it can open no other
    /// GPU. It replaces mpsgate, so that signals, terminal and exit status are the command's. The
    /// memory is free when the last process of the cgroup has ended. Users of the group run.group
    /// of the settings may run their own processes so.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate run --gpu-mem 7Gi -- python train.py
  mpsgate run --gpu-mem 2Gi --gpu 0 --compute 30 --priority low --name notebook -- jupyter lab
  sudo mpsgate run --gpu-mem 7Gi --user alice -- nvidia-smi

Exit status:
  125  the command was not started: refused, or an error
  126  the command cannot be executed
  127  the command was not found
  else that of the command"
    )]
    Run(RunArgs),
    /// What Slurm calls for its jobs
    ///
    /// With slurm.jobs = true in the settings, a job that Slurm has given a part of a GPU
    /// (--gres=shard:7) gets a grant of it. slurm.conf names the scripts that call this, which are
    /// slurm-task-prolog (TaskProlog) and slurm-epilog (Epilog) in /usr/libexec/mpsgate.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate slurm task-prolog              # in a TaskProlog
  mpsgate slurm epilog                   # in an Epilog"
    )]
    Slurm {
        #[command(subcommand)]
        action: SlurmCommand,
    },
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusOutput {
    /// For people
    Table,
    /// The same, with what the words and figures mean
    Wide,
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

#[derive(Debug, Clone, Args)]
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
pub(crate) struct ResizeArgs {
    /// The container's id or its beginning; a process's USER/NAME
    pub(crate) container: String,
    /// GPU memory in all, with its unit
    #[arg(value_name = "MEMORY", value_parser = memory)]
    pub(crate) memory: Mib,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// GPU memory, with its unit
    #[arg(long, value_name = "MEMORY", value_parser = memory)]
    pub(crate) gpu_mem: Mib,
    /// The GPU: index or UUID; default: the best fit
    #[arg(long, value_parser = selector)]
    pub(crate) gpu: Option<GpuSelector>,
    /// The share of the GPU's SMs, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) compute: Option<u8>,
    /// The priority on the GPU: normal or low
    #[arg(
        long,
        value_name = "WORD",
        value_enum,
        default_value = "normal",
        hide_possible_values = true
    )]
    pub(crate) priority: PriorityWord,
    /// The name in mpsgate status; default: run- and some digits
    #[arg(long, value_parser = ContainerId::parse)]
    pub(crate) name: Option<ContainerId>,
    /// As root: the user who runs the command, by name or uid
    #[arg(long, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// The socket of mpsgated; default: the one for root, or for users
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SlurmCommand {
    /// Give a task the variables of its job's grant
    ///
    /// Slurm runs it before each task, as the user. It prints what slurmd is to do: set the
    /// variables, or show why there is no grant. Exit status 1 fails the task and its job.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Example:
  mpsgate slurm task-prolog"
    )]
    TaskProlog(SlurmArgs),
    /// End what is left of a job
    ///
    /// Slurm runs it when a job has ended, as root. The job is the one that SLURM_JOB_ID names. A
    /// user can hide a process from Slurm, which would keep the job's GPU memory.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Example:
  mpsgate slurm epilog                   # in an Epilog"
    )]
    Epilog(SlurmArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SlurmArgs {
    /// The socket of mpsgated; default: the one for jobs, or for root
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PriorityWord {
    Normal,
    Low,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UsageOutput {
    /// For people: GiB-hours
    Table,
    /// For spreadsheets: GiB-seconds
    Csv,
    /// For programs; the field `schema` changes when the meaning of another field does
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UsageBy {
    Container,
    Pod,
    Namespace,
    /// The host uid of the CUDA processes
    User,
    /// With the parts of its memory
    Gpu,
}

#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    /// The first day; default: the last one that there is
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub(crate) from: Option<String>,
    /// The last day; default: the last one that there is
    #[arg(long, value_name = "DAY", value_parser = day)]
    pub(crate) to: Option<String>,
    /// A line for each container, pod, namespace, user or gpu
    #[arg(long, value_enum, default_value = "container", hide_possible_values = true)]
    pub(crate) by: UsageBy,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: UsageOutput,
    /// Where mpsgated writes the days
    #[arg(long, value_name = "DIR", default_value = paths::USAGE_DIR, hide = true)]
    pub(crate) directory: PathBuf,
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
pub(crate) struct EnableArgs {
    /// Do not ask the GPU what holds on it (mpsgate qualify)
    #[arg(long)]
    pub(crate) no_qualify: bool,
    #[command(flatten)]
    pub(crate) card: CardArgs,
    #[command(flatten)]
    pub(crate) how: AskArgs,
}

#[derive(Debug, Args)]
pub(crate) struct QualifyArgs {
    /// The GPU: index or UUID, as nvidia-smi -L prints them
    #[arg(value_parser = gpu, required_unless_present = "due")]
    pub(crate) gpu: Option<String>,
    /// Ask each GPU that has no grants and was not asked with this driver
    #[arg(long, conflicts_with_all = ["gpu", "report", "output"])]
    pub(crate) due: bool,
    /// In a pod (hostPID): ask with the node's own mpsgate, in its namespaces
    #[arg(long, conflicts_with_all = ["report", "output", "socket", "program"])]
    pub(crate) from_pod: bool,
    /// With --from-pod --due: again after 15 s, and less often up to this
    #[arg(long, value_name = "SECONDS", requires_all = ["from_pod", "due"], value_parser = clap::value_parser!(u32).range(15..=86_400))]
    pub(crate) every: Option<u32>,
    /// Print a page that can be pasted into an issue
    #[arg(long, conflicts_with = "output")]
    pub(crate) report: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) how: AskArgs,
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

/// With what a card is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct AskArgs {
    /// The CUDA driver library
    #[arg(long, value_name = "NAME", default_value = "libcuda.so.1")]
    pub(crate) library: OsString,
    /// The path of mpsgate-runtime
    #[arg(long, value_name = "FILE", default_value = paths::RUNTIME)]
    pub(crate) program: PathBuf,
    /// Ask also for two users, and whether one client can be ended alone
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    pub(crate) daemon: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_parser = clap::builder::EnumValueParser::<Shell>::new())]
    pub(crate) shell: Shell,
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
    /// Do what lines on standard input say (for mpsgate qualify)
    #[arg(long, hide = true)]
    pub(crate) steps: bool,
    /// The CUDA driver library
    #[arg(long, value_name = "NAME", default_value = "libcuda.so.1")]
    pub(crate) library: OsString,
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
    pub(crate) library: OsString,
    /// The path of mpsgate-runtime
    #[arg(long, value_name = "FILE", default_value = paths::RUNTIME)]
    pub(crate) program: PathBuf,
    /// Output format
    #[arg(short, long, value_enum, default_value = "text")]
    pub(crate) output: Output,
}

/// A day as the files are named.
fn day(text: &str) -> Result<String, String> {
    let is_day = text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    if is_day { Ok(text.to_owned()) } else { Err("a day looks like 2026-11-26".to_owned()) }
}

/// GPU memory, with its unit.
fn memory(text: &str) -> Result<Mib, String> {
    Mib::parse_quantity(text).map_err(|error| match error {
        QuantityError::NoUnit => format!("{error}: write {text}Gi or {text}Mi"),
        other => match likely_quantity(text) {
            Some(meant) => format!("{other}: write {meant}"),
            None => other.to_string(),
        },
    })
}

/// A GPU, for a request.
fn selector(text: &str) -> Result<GpuSelector, String> {
    let named = gpu(text)?;
    let index = named.parse().map(GpuSelector::Index);
    index.or_else(|_| GpuUuid::parse(&named).map(GpuSelector::Uuid)).map_err(|e| e.to_string())
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
mod tests;
