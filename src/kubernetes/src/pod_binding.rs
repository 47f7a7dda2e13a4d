//! What a scheduler does to a pod: read it, bind it, label its own. Each request has its limit of
//! time, and every failure says whether the request may have been carried out all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::objects::Objects;
use crate::requests::Requests;
use crate::wire::{WireLease, WirePod};
use crate::{Error, Pod, Settings};

/// Who wrote, in the API server's managedFields.
pub(crate) const MANAGER: &str = "mpsgate-scheduler";

/// A pod as it is now.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The pod.
    pub pod: Pod,
    /// Its `resourceVersion`: a write that names it fails where somebody wrote since.
    pub version: String,
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Nothing was written: the pod is not there any more, or never was.
    #[error(transparent)]
    Gone(Error),
    /// Nothing was written: somebody else wrote before.
    #[error(transparent)]
    Conflict(Error),
    /// Nothing was written, and nothing will be by asking again.
    #[error(transparent)]
    Refused(Error),
    /// It may have been written.
    #[error(transparent)]
    Unknown(Error),
}

impl WriteError {
    /// What went wrong.
    #[must_use]
    pub fn cause(&self) -> &Error {
        match self {
            Self::Gone(error)
            | Self::Conflict(error)
            | Self::Refused(error)
            | Self::Unknown(error) => error,
        }
    }
}

impl From<Error> for WriteError {
    fn from(error: Error) -> Self {
        match (error.status(), &error) {
            (Some(404 | 410), _) => Self::Gone(error),
            (Some(409 | 412), _) => Self::Conflict(error),
            // 408 is a server's that gave up waiting, with the request perhaps on its way.
            (Some(408), _) => Self::Unknown(error),
            (Some(400..500), _) => Self::Refused(error),
            // Without a connection nothing was sent.
            (
                None,
                Error::Kubeconfig { .. }
                | Error::KubeconfigText { .. }
                | Error::InCluster { .. }
                | Error::Client { .. },
            ) => Self::Refused(error),
            _ => Self::Unknown(error),
        }
    }
}

/// Writes pods.
#[derive(Debug)]
pub struct Binder(Requests);

impl Binder {
    /// `patience` is what each request may take.
    #[must_use]
    pub fn new(settings: Settings, patience: Duration) -> Self {
        Self(Requests::new(settings, patience))
    }

    /// The pod as the API server has it now, `None` where it has none.
    ///
    /// # Errors
    /// Where it does not answer, or refuses; [`Error::Unread`] where the pod cannot be read.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Fetched>, Error> {
        let what = format!("read pod {namespace}/{name}");
        let get = |client| async move {
            Objects::<WirePod>::namespaced(client, namespace).get_opt(name).await
        };
        let Some(found) = self.0.ask(what, get).await? else { return Ok(None) };
        let wire = found.map_err(|unread| Error::from(&unread.left))?;
        let version = wire.metadata.resource_version.clone().unwrap_or_default();
        Ok(Pod::reduce(wire).map(|pod| Fetched { pod, version }))
    }

    /// Sets or takes a label of a pod.
    ///
    /// # Errors
    /// With what is known of its outcome.
    pub async fn label(
        &self,
        namespace: &str,
        name: &str,
        label: &str,
        value: Option<&str>,
    ) -> Result<(), WriteError> {
        let what = format!("label pod {namespace}/{name}");
        self.patch(what, namespace, name, json!({"metadata": {"labels": {label: value}}})).await
    }

    /// Binds a pod to a node and annotates it, in one write, where it is still that of its uid, has
    /// no node, and nobody wrote since it was read. Kubernetes before 1.23 looks at the name and
    /// the node alone, and merges the annotations likewise.
    ///
    /// # Errors
    /// With what is known of its outcome. A conflict is a pod that has a node, another uid or
    /// another version.
    pub async fn bind(
        &self,
        fetched: &Fetched,
        node: &str,
        annotations: &BTreeMap<String, String>,
    ) -> Result<(), WriteError> {
        let Pod { namespace, name, uid, .. } = &fetched.pod;
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "namespace": namespace,
                "name": name,
                "uid": uid,
                "resourceVersion": fetched.version,
                "annotations": annotations,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let post = |client| async move {
            let params =
                PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            Objects::<WirePod>::namespaced(client, namespace)
                .create_subresource("binding", name, &params, &binding)
                .await
        };
        self.0.ask(format!("bind pod {namespace}/{name} to node {node}"), post).await?;
        Ok(())
    }

    /// Who holds a Lease, as the API server has it now; nobody where it is not there.
    ///
    /// # Errors
    /// Where it does not answer, or refuses.
    pub async fn lease_holder(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let get = |client| async move {
            Objects::<WireLease>::namespaced(client, namespace).get_opt(name).await
        };
        let lease = self.0.ask(format!("read lease {namespace}/{name}"), get).await?;
        let lease = lease.transpose().map_err(|unread| Error::from(&unread.left))?;
        Ok(lease.and_then(|lease| lease.spec?.holder_identity))
    }

    async fn patch(
        &self,
        what: String,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Result<(), WriteError> {
        let send = |client| async move {
            let params =
                PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            let pods = Objects::<WirePod>::namespaced(client, namespace);
            pods.patch(name, &params, &Patch::Merge(patch)).await
        };
        let _pod = self.0.ask(what, send).await?;
        Ok(())
    }
}
