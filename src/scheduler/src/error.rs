//! Why the scheduler does not start, or ends.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use mpsgate_config::ExitCode;

/// What ends the process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchedulerError {
    /// No way to an API server.
    #[error("there is no kubeconfig, and this is no pod with a service account")]
    NoApiServer,
    /// The log goes nowhere.
    #[error("cannot open the log")]
    Log(#[source] log::SetLoggerError),
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

impl SchedulerError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoApiServer => {
                "name one with --kubeconfig; in a pod, check automountServiceAccountToken"
                    .to_owned()
            }
            Self::Log(_) | Self::Runtime { .. } => {
                "look at the limits of the container or unit".to_owned()
            }
            Self::Listen { address, flag, .. } => {
                format!("free {address}, or choose another with {flag}")
            }
            Self::Open { .. } => "name the CA of kube-scheduler's client certificate with --tls-client-ca (beside --tls-cert and --tls-key), \
                 or listen on loopback; where the network keeps everybody else away, say --allow-anonymous"
                .to_owned(),
            Self::Tls { path, .. } => {
                format!("write PEM into {}: openssl x509 -in FILE -noout -dates", path.display())
            }
        }
    }

    /// What the process ends with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoApiServer | Self::Tls { .. } | Self::Open { .. } => ExitCode::BadConfig,
            _ => ExitCode::Failed,
        }
    }
}
