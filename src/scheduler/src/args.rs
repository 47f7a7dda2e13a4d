//! The command line of `mpsgate-scheduler`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{CommandFactory, Parser, ValueEnum};
use mpsgate_config::{Exempt, Ipc, LogLevel, Policy};
use mpsgate_model::Placement;

/// A kube-scheduler extender that places pods by the GPU memory of each card
///
/// kube-scheduler asks the extender which nodes have a GPU with enough free memory and how well
/// each fits, and lets it bind the pod. Several replicas can run: all of them answer, and the one
/// with the Lease binds. SIGTERM and SIGINT release the Lease and end it.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "mpsgate-scheduler",
    version,
    verbatim_doc_comment,
    next_line_help = true,
    after_long_help = "\
Example:
  mpsgate-scheduler --listen 127.0.0.1:39999 --kubeconfig /etc/kubernetes/scheduler.conf
  mpsgate-scheduler --listen 0.0.0.0:39999 --probe-listen 0.0.0.0:39998 \\
    --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt
  mpsgate-scheduler --kubeconfig ~/.kube/config --removal begin

Exit status:
  0   ended by SIGTERM or SIGINT; with --removal: done
  2   an error; the reason is on standard error
  64  wrong arguments
  78  a certificate or the kubeconfig cannot be used, or no client is authenticated"
)]
pub struct Arguments {
    /// The address for kube-scheduler
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:39999")]
    pub listen: SocketAddr,
    /// The address for probes and metrics, without TLS and without authentication
    #[arg(long, value_name = "ADDRESS")]
    pub probe_listen: Option<SocketAddr>,
    /// The kubeconfig for the API server; default: the service account of this pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The certificate with its chain, PEM; enables TLS, and is reloaded when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The key of --tls-cert, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The CA of the client certificates that are accepted, PEM
    ///
    /// Use a CA of its own for kube-scheduler: the CA of the cluster also signed the certificates
    /// of kubelets. The file is reloaded when it changes.
    #[arg(long, verbatim_doc_comment, value_name = "FILE", requires = "tls_cert")]
    pub tls_client_ca: Option<PathBuf>,
    /// Allow clients without authentication on other addresses than loopback to bind pods
    #[arg(long, conflicts_with = "tls_client_ca")]
    pub allow_anonymous: bool,
    /// How to fill GPUs and nodes
    ///
    /// The label ack.node.gpu.placement of a node counts more.
    #[arg(long, verbatim_doc_comment, value_parser = placement(), default_value = "binpack")]
    pub placement: Placement,
    /// The largest request body; with nodeCacheCapable: false use 64
    #[arg(long, value_name = "MIB", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub max_body: u16,
    /// The name of the Lease, the same for all replicas
    #[arg(long, value_name = "NAME", default_value = "mpsgate-scheduler")]
    pub lease_name: String,
    /// The namespace of the Lease and of this pod
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kube-system")]
    pub namespace: String,
    /// This pod; it gets the label mpsgate.io/active=true while it has the Lease
    #[arg(long, value_name = "POD", env = "POD_NAME")]
    pub pod_name: Option<String>,
    /// The address of the admission webhook, with TLS; default: no webhook
    #[arg(long, value_name = "ADDRESS", requires = "webhook_tls_cert")]
    pub webhook_listen: Option<SocketAddr>,
    /// The certificate of the webhook with its chain, PEM
    #[arg(long, value_name = "FILE", requires = "webhook_tls_key")]
    pub webhook_tls_cert: Option<PathBuf>,
    /// The key of --webhook-tls-cert, PEM
    #[arg(long, value_name = "FILE", requires = "webhook_tls_cert")]
    pub webhook_tls_key: Option<PathBuf>,
    /// Set hostIPC: true in pods that may use MPS, if --webhook-ipc is require-host
    #[arg(long)]
    pub webhook_host_ipc: bool,
    /// Set this schedulerName in pods that request GPU memory and name none
    #[arg(long, value_name = "NAME")]
    pub webhook_scheduler_name: Option<String>,
    /// Also replace this schedulerName; may be repeated
    #[arg(long, value_name = "NAME")]
    pub webhook_replaces: Vec<String>,
    /// A schedulerName whose kube-scheduler calls this extender; may be repeated
    ///
    /// The extender keeps its pods off nodes whose handler bypasses mpsgate. Pods of other
    /// schedulers are refused by the webhook while one of their nodes has such a handler.
    #[arg(long, verbatim_doc_comment, value_name = "NAME")]
    pub webhook_steers: Vec<String>,
    /// The only user that may write placements: system:serviceaccount:NAMESPACE:NAME
    #[arg(long, value_name = "USER")]
    pub webhook_scheduler_account: Option<String>,
    /// policy.ipc of the nodes
    ///
    /// With auto or any each node decides about hostIPC.
    #[arg(long, verbatim_doc_comment, value_name = "WORD", default_value_t = Policy::default().ipc, value_parser = ipc())]
    pub webhook_ipc: Ipc,
    /// Allow limits that become claims of whole cards, as kubernetes.dra_extended_resources
    #[arg(long)]
    pub webhook_extended_resources: bool,
    /// A policy.exempt of the nodes: the webhook ignores such containers; may be repeated
    #[arg(long, value_name = "NAMESPACE=IMAGE", value_parser = exempt)]
    pub webhook_exempt: Vec<Exempt>,
    /// Do one step of the removal from the cluster, and end
    #[arg(long, value_enum, value_name = "STEP")]
    pub removal: Option<Removal>,
    /// How long --removal waits for nodes or pods
    #[arg(long, value_name = "SECONDS", default_value_t = 240, value_parser = clap::value_parser!(u16).range(1..=3600), requires = "removal")]
    pub removal_timeout: u16,
    /// The pods in --namespace that --removal end waits for, as in kubectl -l
    #[arg(long, value_name = "SELECTOR", requires = "removal")]
    pub removal_pods: Option<String>,
    /// A Lease in --namespace that --removal end deletes; may be repeated
    #[arg(long, value_name = "NAME", requires = "removal")]
    pub removal_lease: Vec<String>,
    /// The log level
    #[arg(long, value_enum, default_value_t = Level::Info)]
    pub log_level: Level,
}

/// A step of the removal from a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Removal {
    /// Before: let every node release its GPUs and wait for it, or change nothing
    Begin,
    /// After: clean the node objects and delete the Leases
    End,
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

impl From<Level> for LogLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Error => Self::Error,
            Level::Warn => Self::Warn,
            Level::Info => Self::Info,
            Level::Debug => Self::Debug,
        }
    }
}

/// How cards and nodes are filled.
fn placement() -> impl TypedValueParser<Value = Placement> {
    let words = PossibleValuesParser::new([
        PossibleValue::new("binpack").help("The fullest that fits"),
        PossibleValue::new("spread").help("The emptiest"),
    ]);
    words.try_map(|word| Placement::parse(&word).ok_or("it is none of these words"))
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
