//! What can be typed, and the environment that stands in for it.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use mpsgate_kubernetes::Access;

/// Show the GPU memory of the cluster's nodes: of each card, how much is allocated to pods
///
/// kubectl runs it as `kubectl inspect cgpu` wherever the program is in PATH. It lists nodes and pods, and changes nothing. The
/// table is that of ACK's and gpushare's tools, byte for byte, with the nodes in the order of their names.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-inspect-cgpu",
    version,
    override_usage = "kubectl inspect cgpu [OPTIONS] [NODE]",
    after_long_help = "\
Examples:
  kubectl inspect cgpu
  kubectl inspect cgpu gpu-1 -d
  kubectl inspect cgpu --kubeconfig ~/.kube/prod --context gpu -o wide
  kubectl inspect cgpu -o json | jq '.nodes[] | {name, used_mib, total_mib}'

Environment:
  KUBECONFIG  kubeconfig files, separated by colons; without it ~/.kube/config is read
  NO_COLOR    no colours; there are none outside of a terminal anyway

Exit status:
  0   done
  1   the cluster has no node of that name
  2   failed: the API server refused, or the answer cannot be written
  64  wrong arguments
  69  the API server does not answer
  78  there is no kubeconfig, or it cannot be used"
)]
pub(crate) struct Cli {
    /// Only this node
    pub(crate) node: Option<String>,
    /// Each pod, with what it has of each card
    #[arg(short, long)]
    pub(crate) details: bool,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value = "table")]
    pub(crate) output: Output,
    /// The kubeconfig to use, before KUBECONFIG
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig, instead of its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// As ACK's tool prints it
    Table,
    /// With how the node shares its cards, and what of them is not for pods
    Wide,
    /// For programs; the field `schema` changes with the meaning of any other
    Json,
}

impl Cli {
    /// Which API server, as whom: flag, then KUBECONFIG, then the home directory.
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
