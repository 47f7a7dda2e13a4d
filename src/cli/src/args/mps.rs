//! `mps`: a card's control daemon.

use clap::{Args, Subcommand};

use super::{Output, SocketArgs, gpu};

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
    /// Ask the MPS control daemon of a GPU
    ///
    /// Passes one command on to NVIDIA's front-end, nvidia-cuda-mps-control, and prints its answer
    /// as it stands. Only commands that read are passed on. mpsgated need not run. Only root may.
    #[command(
        verbatim_doc_comment,
        after_long_help = "\
Examples:
  mpsgate mps ask 0 get_server_list
  mpsgate mps ask 0 get_client_list 4711
  mpsgate mps ask 0 ps"
    )]
    Ask(MpsAskArgs),
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
pub(crate) struct MpsAskArgs {
    /// The GPU: index or UUID, as nvidia-smi -L prints them
    #[arg(value_parser = gpu)]
    pub(crate) gpu: String,
    /// The command and its arguments, as NVIDIA's front-end takes them
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}
