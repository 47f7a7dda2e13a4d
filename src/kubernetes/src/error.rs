//! Why the API server is not reached, or does not do what it is asked.

use std::path::PathBuf;

use kube::config::{InClusterError, KubeconfigError};
use mpsgate_model::printable::{self, chain};

use crate::read::{LeftOut, look};

/// What can go wrong between a program and the API server. Nothing of it stops mpsgated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig is no YAML of one. Its lines are not quoted: its credentials are among them.
    #[error("cannot use the kubeconfig {path}: {why}")]
    KubeconfigText {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// The pod's own service account cannot be used.
    #[error("cannot use the pod's service account")]
    InCluster {
        /// What is missing.
        #[source]
        source: Box<InClusterError>,
    },
    /// No client could be made of the settings, such as with a certificate that is none.
    #[error("cannot prepare a connection to the API server {server}")]
    Client {
        /// Its address.
        server: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// A list or watch failed.
    #[error("cannot watch {what}")]
    Watch {
        /// `the pods of node gpu-1`.
        what: String,
        /// What the API server or the network said.
        #[source]
        source: Box<kube::Error>,
    },
    /// A watch without a word: whether the API server, or anything between, is still there is not
    /// known.
    #[error("cannot watch {what}: nothing was heard for {seconds} s")]
    Silent {
        /// `the pods of node gpu-1`.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// A list or an object from which no watch can go on.
    #[error("cannot watch {what}: the API server gave no resourceVersion")]
    NoVersion {
        /// `the pods of node gpu-1`.
        what: String,
    },
    /// An object that is there, and is not as it should be.
    #[error("cannot read {object}: {why}")]
    Unread {
        /// `Pod default/web`.
        object: String,
        /// What is wrong with it.
        why: String,
    },
    /// A write failed.
    #[error("cannot {what}")]
    Write {
        /// `patch node gpu-1`.
        what: String,
        /// What the API server or the network said.
        #[source]
        source: Box<kube::Error>,
    },
    /// A request was given up. Whether it was carried out is not known.
    #[error("cannot {what}: no answer in {seconds} s")]
    Late {
        /// `bind pod default/web`.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The API server has no node of that name.
    #[error("the API server knows no node {node}")]
    NoNode {
        /// The name that was asked for.
        node: String,
    },
    /// The API server has no such group: it is older, or the group is switched off.
    #[error("cannot {what}: the API server does not serve resource.k8s.io/v1")]
    NotServed {
        /// `watch the ResourceSlices of node gpu-1`.
        what: String,
    },
    /// The ResourceClaim of that uid is there no more, and so nothing was written. Another one may
    /// have its name.
    #[error("the ResourceClaim {claim} with uid {uid} is not there any more")]
    NoClaim {
        /// `default/gpu-7gi`.
        claim: String,
        /// The uid that was written for.
        uid: String,
    },
}

impl From<&LeftOut> for Error {
    fn from(LeftOut { kind, name, why, .. }: &LeftOut) -> Self {
        Self::Unread { object: format!("{kind} {name}"), why: why.clone() }
    }
}

impl Error {
    /// What to do about it, of mpsgated's.
    #[must_use]
    pub fn hint(&self) -> String {
        self.hint_for("mpsgated")
    }

    /// What to do about it; `program` is whose it is, and the name of its ClusterRole.
    #[must_use]
    pub fn hint_for(&self, program: &str) -> String {
        match self {
            Self::Kubeconfig { path, .. } | Self::KubeconfigText { path, .. } => format!(
                "check that the file is there and valid: kubectl --kubeconfig {} get nodes",
                path.display()
            ),
            Self::InCluster { .. } => "outside a pod, name a kubeconfig; in a pod, check \
                 automountServiceAccountToken and /var/run/secrets/kubernetes.io/serviceaccount"
                .to_owned(),
            Self::Client { .. } => {
                "check certificates and server address of the kubeconfig".to_owned()
            }
            Self::NoNode { node } => format!(
                "the node's name is what `kubectl get nodes` shows, often not the host's name; {node} is none \
                 of them"
            ),
            Self::NotServed { .. } => {
                "Kubernetes 1.34 or newer serves resource.k8s.io/v1, unless --runtime-config of its \
                 kube-apiserver says otherwise; what is served: kubectl api-versions"
                    .to_owned()
            }
            Self::Unread { object, .. } => {
                let (kind, name) = object.split_once(' ').unwrap_or((object, ""));
                format!(
                    "{} shows it; whoever wrote it has to mend or delete it",
                    look(kind, name)
                )
            }
            Self::NoClaim { .. } => {
                "nothing is to be done: what is deleted needs no status".to_owned()
            }
            Self::Late { .. }
            | Self::NoVersion { .. }
            | Self::Silent { .. }
            | Self::Watch { .. }
            | Self::Write { .. } => match self.status() {
                Some(401) => "the credentials are not accepted: check that token or certificate \
                     have not expired"
                    .to_owned(),
                Some(403) => format!(
                    "the account lacks a right; what {program} needs: kubectl describe clusterrole {program}"
                ),
                Some(429) => format!("the API server asks for patience; {program} goes on trying"),
                _ => format!(
                    "{program} goes on trying; look at the API server: kubectl get --raw /readyz"
                ),
            },
        }
    }

    /// The answer is that there is no such path, not that there is no such object: a
    /// Kubernetes without the group says "404 page not found" without a word of details.
    pub(crate) fn is_not_served(&self) -> bool {
        let (Self::Write { source, .. } | Self::Watch { source, .. }) = self else { return false };
        match source.as_ref() {
            kube::Error::Api(status) => {
                let names_one = |status: &kube::core::Status| {
                    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
                };
                status.code == 404 && !names_one(status)
            }
            _ => false,
        }
    }

    /// The HTTP status that the API server answered with.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        let code = |error: &kube::Error| match error {
            kube::Error::Api(status) => Some(status.code),
            _ => None,
        };
        match self {
            Self::Write { source, .. }
            | Self::Client { source, .. }
            | Self::Watch { source, .. } => code(source),
            _ => None,
        }
    }

    /// The error and its causes on one line, for a log and for `mpsgate status`. Cut: an API server
    /// may quote a whole object.
    #[must_use]
    pub fn line(&self) -> String {
        printable::line(&chain(self)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_shown_by_a_command_that_can_be_pasted() {
        for (object, command) in [
            ("Pod default/web", "kubectl get pod -n default web -o json "),
            ("ResourceClaim n/gpu-7gi", "kubectl get resourceclaim -n n gpu-7gi -o json "),
            ("Node gpu-1", "kubectl get node gpu-1 -o json "),
        ] {
            let error = Error::Unread { object: object.to_owned(), why: "x".to_owned() };
            assert!(error.hint().starts_with(command), "{}", error.hint());
        }
    }
}
