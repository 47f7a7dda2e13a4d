//! Why the scheduler does not start, or ends.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use mpsgate_edge::{EdgeError, ExitCode, Remedy};

/// What ends the process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// No way to an API server.
    #[error("there is no kubeconfig, and this is no pod with a service account")]
    NoApiServer,
    /// The log goes nowhere.
    #[error(transparent)]
    Edge(#[from] EdgeError),
    /// No threads, or no signals.
    #[error("cannot {action}")]
    Runtime {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What gave it.
        flag: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Anybody in the network could have pods bound.
    #[error("whoever reaches {address} could have pods bound: there is no --tls-client-ca")]
    Open {
        /// The address.
        address: SocketAddr,
    },
    /// The API server does not do what a removal asks of it.
    #[error(transparent)]
    Removal(mpsgate_kubernetes::Error),
    /// Nodes have not given their cards back.
    #[error("cards were not given back in {seconds} s, so that nothing is removed, on: {nodes}")]
    Kept {
        /// How long it was waited for.
        seconds: u64,
        /// The nodes, and what keeps the cards of each.
        nodes: String,
    },
    /// A removal was ended.
    #[error("ended by a signal before every card was given back, so that nothing is removed")]
    Stopped,
    /// Pods of the chart have not ended.
    #[error(
        "these pods of mpsgate's have not ended, so that their nodes keep the annotation mpsgate.io/removal: {pods}"
    )]
    Left {
        /// The pods and their nodes.
        pods: String,
    },
    /// Certificate or key cannot be used.
    #[error("cannot use {}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl Remedy for SchedulerError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Edge(error) => return error.hint(),
            Self::NoApiServer => {
                "name one with --kubeconfig; in a pod, check automountServiceAccountToken"
                    .to_owned()
            }
            Self::Runtime { .. } => {
                "look at the limits of the container or unit".to_owned()
            }
            Self::Listen { address, flag, .. } => {
                format!("free {address}, or choose another with {flag}")
            }
            Self::Open { .. } => "name the CA of kube-scheduler's client certificate with --tls-client-ca (beside --tls-cert and --tls-key), \
                 or listen on loopback; where the network keeps everybody else away, say --allow-anonymous"
                .to_owned(),
            Self::Removal(error) => match error.status() {
                Some(401 | 403) => "the account lacks a right: it may list and patch nodes, and in its namespace list pods and delete \
                                    the Leases (clusterrole and role mpsgate-removal of the chart)"
                    .to_owned(),
                _ => "look at the API server: kubectl get --raw /readyz; then do this step again".to_owned(),
            },
            Self::Kept { .. } => "end these pods (kubectl get pods -A --field-selector spec.nodeName=NODE), and uninstall again; the nodes go on \
                                  as before. A node whose cards no container holds: look at its mpsgated, and at mpsgate status there; one \
                                  that is gone for good: kubectl delete node NODE. helm uninstall --no-hooks leaves the nodes as they are"
                .to_owned(),
            Self::Stopped => "the nodes go on as before; uninstall again with more time: helm uninstall --timeout".to_owned(),
            Self::Left { .. } => "when they are gone: kubectl annotate nodes --all mpsgate.io/removal-".to_owned(),
            Self::Tls { path, .. } => {
                format!("write PEM into {}: openssl x509 -in FILE -noout -dates", path.display())
            }
        })
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoApiServer | Self::Tls { .. } | Self::Open { .. } => ExitCode::BadConfig,
            Self::Edge(error) => error.exit_code(),
            _ => ExitCode::Failed,
        }
    }
}
