//! The command line of `mpsgate-scheduler`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{CommandFactory, Parser, ValueEnum};
use mpsgate_policy::cluster::Placement;

/// A kube-scheduler extender that gives pods GPU memory by card
///
/// kube-scheduler asks it which nodes have one card with enough memory left, how well each suits, and has it bind the
/// pod. Several replicas may run: all answer, the one with the lease binds. SIGTERM and SIGINT end it, and give the
/// lease back.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "mpsgate-scheduler",
    version,
    after_long_help = "\
Example:
  mpsgate-scheduler --listen 127.0.0.1:39999 --kubeconfig /etc/kubernetes/scheduler.conf

Exit status:
  0   ended by SIGTERM or SIGINT
  2   failed; the reason is on standard error
  64  wrong arguments
  78  certificate or kubeconfig cannot be used"
)]
pub struct Arguments {
    /// Where it answers
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:39999")]
    pub listen: SocketAddr,
    /// How the API server is reached; without it by the service account of the pod that this runs in
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The server's certificate with its chain, PEM: then it answers TLS alone. Read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// How cards and nodes are filled where the label ack.node.gpu.placement does not say it
    #[arg(long, value_enum, default_value_t = Pack::Binpack)]
    pub placement: Pack,
    /// The largest body of a request; with nodeCacheCapable: false kube-scheduler sends whole nodes
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_body: u16,
    /// The name of the Lease; replicas of one scheduler have the same
    #[arg(long, value_name = "NAME", default_value = "mpsgate-scheduler")]
    pub lease_name: String,
    /// Where the Lease and its own pod are
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub namespace: String,
    /// Its own pod, which has the label mpsgate.io/active=true while it binds; without it nothing is labelled
    #[arg(long, value_name = "POD", env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// Where it answers admission reviews, by TLS alone; without it there is no webhook
    #[arg(long, value_name = "ADDRESS", requires = "webhook_tls_cert")]
    pub webhook_listen: Option<SocketAddr>,
    /// The webhook's certificate with its chain, PEM
    #[arg(long, value_name = "FILE", requires = "webhook_tls_key")]
    pub webhook_tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "webhook_tls_cert")]
    pub webhook_tls_key: Option<PathBuf>,
    /// The webhook sets hostIPC: true in pods that may come under MPS
    #[arg(long)]
    pub webhook_host_ipc: bool,
    /// The webhook sets this schedulerName in pods with GPU memory that name none
    #[arg(long, value_name = "NAME")]
    pub webhook_scheduler_name: Option<String>,
    /// Another schedulerName that it takes the place of; may be given several times
    #[arg(long, value_name = "NAME")]
    pub webhook_replaces: Vec<String>,
    /// What is logged
    #[arg(long, value_enum, default_value_t = Level::Info)]
    pub log_level: Level,
}

/// How cards and nodes are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pack {
    /// The fullest that has room
    Binpack,
    /// The emptiest
    Spread,
}

impl From<Pack> for Placement {
    fn from(pack: Pack) -> Self {
        match pack {
            Pack::Binpack => Self::Binpack,
            Pack::Spread => Self::Spread,
        }
    }
}

/// What is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[expect(missing_docs, reason = "the words are the log's own")]
pub enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// For the manual page and the completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}
