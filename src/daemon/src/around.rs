//! What is known of those around the node's state: kubelet, the engines, Prometheus. For status,
//! metrics and the node's object; decides nothing about containers.

pub(crate) mod driver_status;
pub(crate) mod handler_status;
pub(crate) mod node_report;
pub(crate) mod served;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use mpsgate_api::Status;
use mpsgate_node::Node;

use self::driver_status::Claims;
use self::handler_status::Handlers;
use self::served::Served;

/// Kubelet, engines and Prometheus, as last seen.
#[derive(Debug, Default)]
pub(crate) struct Around {
    /// Resources that are served to kubelet, by name.
    pub(crate) served: BTreeMap<String, Served>,
    /// Claims; `None` where they are not served.
    pub(crate) claims: Option<Claims>,
    /// What does not fit between Slurm and the cards; `None` where jobs get no grants, or before
    /// the first look.
    pub(crate) slurm: Option<Vec<String>>,
    /// Where the engine's handlers lead; `None` before the first look, and where no kubelet is.
    pub(crate) handlers: Option<Handlers>,
    /// Where the metrics are served.
    pub(crate) endpoint: Endpoint,
    /// Whether mpsgated is about to end.
    pub(crate) ending: bool,
}

/// Where the metrics are served, for `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `None` where the settings want none.
    pub(crate) at: Option<SocketAddr>,
    /// Why they are not served there.
    pub(crate) error: Option<String>,
}

impl Around {
    /// The node's status, with what is known of these; of the API server others know.
    pub(crate) fn status(&self, node: &Node) -> Status {
        Status {
            metrics_listen: self.endpoint.at.map(|at| at.to_string()),
            metrics_error: self.endpoint.error.clone(),
            claims: self.claims.as_ref().map(|claims| claims.status(node.ledger().claims().len())),
            slurm: self.slurm.clone(),
            device_plugin: self.served.iter().map(|(name, served)| served.status(name)).collect(),
            ..node.status()
        }
    }
}
