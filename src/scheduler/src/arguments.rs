//! The command line of `mpsgate-scheduler`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, ValueEnum};
use mpsgate_cluster::Placement;
use mpsgate_config::{Exempt, Ipc, Policy};

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
  mpsgate-scheduler --listen 0.0.0.0:39999 --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt --probe-listen 0.0.0.0:39998
  mpsgate-scheduler --kubeconfig ~/.kube/config --removal begin

Exit status:
  0   ended by SIGTERM or SIGINT; with --removal: done
  2   failed; the reason is on standard error
  64  wrong arguments
  78  certificate or kubeconfig cannot be used, or anybody could have pods bound"
)]
pub struct Arguments {
    /// Where it answers kube-scheduler
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:39999")]
    pub listen: SocketAddr,
    /// Where it also answers /healthz, /readyz, /leaderz, /metrics and /version, without TLS and to whoever asks
    #[arg(long, value_name = "ADDRESS")]
    pub probe_listen: Option<SocketAddr>,
    /// How the API server is reached; without it by the service account of the pod that this runs in
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The server's certificate with its chain, PEM: then it answers TLS alone. Read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its key, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The CA, PEM, that has signed kube-scheduler's client certificate: nobody else is answered then. Best one of its own; a cluster's
    /// CA has signed each kubelet's, too. Read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Answers whoever comes, also on an address that is not loopback, and so lets them have pods bound
    #[arg(long, conflicts_with = "tls_client_ca")]
    pub allow_anonymous: bool,
    /// How cards and nodes are filled where the label ack.node.gpu.placement does not say it
    #[arg(long, value_enum, default_value_t = Pack::Binpack)]
    pub placement: Pack,
    /// The largest body of a request; with nodeCacheCapable: false kube-scheduler sends whole nodes, and that wants 64
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
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
    /// The webhook sets hostIPC: true in pods that may come under MPS, where --webhook-ipc is require-host
    #[arg(long)]
    pub webhook_host_ipc: bool,
    /// The webhook sets this schedulerName in pods with GPU memory that name none
    #[arg(long, value_name = "NAME")]
    pub webhook_scheduler_name: Option<String>,
    /// Another schedulerName that it takes the place of; may be given several times
    #[arg(long, value_name = "NAME")]
    pub webhook_replaces: Vec<String>,
    /// Who may say where a pod was placed: the scheduler's account, system:serviceaccount:NAMESPACE:NAME. The webhook refuses that
    /// of anybody else
    #[arg(long, value_name = "USER")]
    pub webhook_scheduler_account: Option<String>,
    /// The nodes' policy.ipc. With auto or any the webhook neither refuses a pod without hostIPC nor sets it: each node decides
    #[arg(long, value_name = "WORD", default_value_t = Policy::default().ipc, value_parser = ipc())]
    pub webhook_ipc: Ipc,
    /// One of the nodes' policy.exempt, whose containers' ways to a card the webhook does not judge; may be given several times
    #[arg(long, value_name = "NAMESPACE=IMAGE", value_parser = exempt)]
    pub webhook_exempt: Vec<Exempt>,
    /// Does a step of mpsgate's removal from the cluster, and ends: nobody is answered then. Helm's hooks call it
    #[arg(long, value_enum, value_name = "STEP")]
    pub removal: Option<Removal>,
    /// How long that step waits for nodes or pods
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u16).range(1..=3600), requires = "removal")]
    pub removal_timeout: u16,
    /// The labels of the pods, in --namespace, that --removal end waits for, as kubectl -l takes them
    #[arg(long, value_name = "SELECTOR", requires = "removal")]
    pub removal_pods: Option<String>,
    /// A Lease in --namespace that --removal end deletes; may be given several times
    #[arg(long, value_name = "NAME", requires = "removal")]
    pub removal_lease: Vec<String>,
    /// What is logged
    #[arg(long, value_enum, default_value_t = Level::Info)]
    pub log_level: Level,
}

/// A step of the removal from a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Removal {
    /// Before: has every node give its cards back and waits for it, or leaves all as it was
    Begin,
    /// After: takes what is left off the nodes, and deletes Leases
    End,
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

/// The settings file's words.
fn ipc() -> impl TypedValueParser<Value = Ipc> {
    let words = PossibleValuesParser::new(Ipc::WORDS);
    words.try_map(|word| Ipc::from_word(&word).ok_or("it is none of these words"))
}

fn exempt(text: &str) -> Result<Exempt, String> {
    match text.split_once('=') {
        Some((namespace, image)) if !namespace.is_empty() && !image.is_empty() => {
            Ok(Exempt { namespace: namespace.to_owned(), image: image.to_owned() })
        }
        _ => {
            Err("it is no NAMESPACE=IMAGE, as gpu-operator=nvcr.io/nvidia/k8s/dcgm-exporter"
                .to_owned())
        }
    }
}

/// For the manual page and the completions.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}
