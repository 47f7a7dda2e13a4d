//! The command line, and the environment variables in its place.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use mpsgate_kubernetes::Access;

/// Show the GPU memory of each node and GPU that is allocated to pods
///
/// If the program is in PATH, kubectl runs it as kubectl inspect cgpu. It lists nodes and pods, and
/// changes nothing. The table is byte for byte that of the tools of ACK and gpushare, with the
/// nodes sorted by name.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-inspect-cgpu",
    version,
    verbatim_doc_comment,
    override_usage = "kubectl inspect cgpu [OPTIONS] [NODE]",
    after_long_help = "\
Examples:
  kubectl inspect cgpu
  kubectl inspect cgpu gpu-1 -d
  kubectl inspect cgpu --kubeconfig ~/.kube/prod --context gpu -o wide
  kubectl inspect cgpu -o json | jq '.nodes[] | {name, used_mib, total_mib}'

Environment:
  KUBECONFIG  kubeconfig files, separated by colons; default: ~/.kube/config
  NO_COLOR    if set, no colours; without a terminal there are none

Exit status:
  0   success
  1   the cluster has no node of that name
  2   an error: the API server refused, or the output cannot be written
  64  wrong arguments
  69  the API server does not answer
  78  there is no kubeconfig, or it cannot be used"
)]
pub(crate) struct Cli {
    /// Show only this node
    pub(crate) node: Option<String>,
    /// Also show each pod with its GPU memory
    #[arg(short, long)]
    pub(crate) details: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// The kubeconfig; counts more than KUBECONFIG
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context in the kubeconfig; default: its current context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// As ACK's tool prints it
    Table,
    /// Also the sharing mode of the node, and the memory that pods cannot use
    Wide,
    /// For programs; the field `schema` changes when the meaning of another field does
    Json,
}

impl Cli {
    /// The API server and the credentials: by flag, then KUBECONFIG, then the home directory.
    pub(crate) fn access(&self) -> Access {
        let kubeconfigs = match &self.kubeconfig {
            Some(path) => vec![path.clone()],
            None => from_environment(),
        };
        Access { kubeconfigs, context: self.context.clone() }
    }
}

fn from_environment() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        Some(list) => {
            std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect()
        }
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_description_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_flag_comes_before_the_environment() {
        let cli = Cli::parse_from(["x", "n", "-d", "--kubeconfig", "/k", "--context", "c"]);
        let access = Access { kubeconfigs: vec!["/k".into()], context: Some("c".to_owned()) };
        assert_eq!(cli.access(), access);
        assert!(cli.details && cli.node.as_deref() == Some("n"));
    }
}
