//! One look at the nodes and pods of a cluster, for a person who asks: no watch, and as whoever the
//! kubeconfig says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use mpsgate_model::{GPU_COUNT, GPU_MEMORY, parse_count};

use crate::api_access::unquoted;
use crate::node_object::CARDS;
use crate::objects::{Objects, PAGE};
use crate::read::{Found, LeftOut, Object, part};
use crate::wire::{Quantity, WireNode, WirePod};
use crate::{Labels, Node, Pod};

const TIMEOUT: Duration = Duration::from_secs(10);
/// One page of a busy API server.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Bound, and not ended.
const ACTIVE: &str = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName";

/// Which API server, as whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Kubeconfigs that are merged, the first one wins. Those that are not there are left out, as
    /// kubectl does.
    pub kubeconfigs: Vec<PathBuf>,
    /// A context of theirs; none: the current one.
    pub context: Option<String>,
}

/// What one look showed.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// All nodes, or the one that was asked for.
    pub nodes: Vec<SeenNode>,
    /// Their pods that have not ended, in the API server's order.
    pub pods: Vec<Pod>,
    /// What cannot be read of them.
    pub left_out: Vec<LeftOut>,
}

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenNode {
    /// Its name.
    pub name: String,
    /// The first address of the type InternalIP.
    pub address: Option<String>,
    /// `aliyun.com/gpu-mem` that kubelet offers; 0 where that cannot be counted.
    pub gpu_memory: u64,
    /// `aliyun.com/gpu-count` that it offers.
    pub gpu_count: u64,
    /// The annotation `mpsgate.io/cards`, as written.
    pub cards: Option<String>,
    /// What its labels ask for.
    pub labels: Labels,
}

/// Why a look shows nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SeenError {
    /// None of the kubeconfigs is there.
    #[error("there is no kubeconfig: {}", looked_at(looked))]
    NoKubeconfig {
        /// Where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// A kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {}", path.display())]
    Kubeconfig {
        /// The file; where what is wrong is in none alone, the first.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// A kubeconfig is no YAML of one. Its lines are not quoted: its credentials are among them.
    #[error("cannot use the kubeconfig {}: {why}", path.display())]
    KubeconfigText {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: String,
    },
    /// No client could be made of the kubeconfig, such as with a certificate that is none.
    #[error("cannot prepare a connection to the API server {server}")]
    Client {
        /// Its address.
        server: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server does not answer, or says no.
    #[error("cannot {what} at the API server {server}")]
    Read {
        /// `list the nodes`.
        what: String,
        /// Its address.
        server: String,
        /// What the API server or the network said.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server has no node of that name.
    #[error("the cluster has no node {node}")]
    NoNode {
        /// The name that was asked for.
        node: String,
    },
}

fn looked_at(looked: &[PathBuf]) -> String {
    if looked.is_empty() {
        return "no home directory is known".to_owned();
    }
    let paths: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
    format!("{} does not exist", paths.join(", "))
}

impl SeenError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoKubeconfig { .. } => {
                "name one: --kubeconfig FILE, or export KUBECONFIG=FILE".to_owned()
            }
            Self::Kubeconfig { path, source }
                if matches!(
                    source.as_ref(),
                    KubeconfigError::LoadContext(_) | KubeconfigError::CurrentContextNotSet
                ) =>
            {
                format!(
                    "choose a context with --context: kubectl --kubeconfig {} config get-contexts",
                    path.display()
                )
            }
            Self::Kubeconfig { path, .. } | Self::KubeconfigText { path, .. } => {
                format!("check it: kubectl --kubeconfig {} config view", path.display())
            }
            Self::Client { .. } => {
                "check certificates and server address: kubectl config view".to_owned()
            }
            Self::NoNode { .. } => "kubectl get nodes shows the names".to_owned(),
            Self::Read { what, .. } => match self.status() {
                Some(401) => "the credentials are not accepted, perhaps expired: kubectl get nodes"
                    .to_owned(),
                Some(403) => format!(
                    "the account lacks a right, of those to get and list nodes and to list pods in all namespaces: \
                     kubectl auth can-i {}",
                    if what.contains("pods") { "list pods -A" } else { "list nodes" }
                ),
                Some(_) => "look at the API server: kubectl get --raw /readyz".to_owned(),
                None => "check address and network: kubectl cluster-info".to_owned(),
            },
        }
    }

    /// The HTTP status that the API server answered with.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Read { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Looks at all nodes and their pods, or at one node and its pods.
///
/// # Errors
/// No kubeconfig that can be used, no API server that answers and lets it look, no node of that
/// name.
pub async fn seen(access: &Access, node: Option<&str>) -> Result<Seen, SeenError> {
    let (client, server) = access.connect().await?;
    let error = |what: &str, source| SeenError::Read {
        what: what.to_owned(),
        server: server.clone(),
        source: Box::new(source),
    };
    let mut seen = Seen::default();
    match node {
        Some(name) => {
            // A name that no object can have is not sent.
            let asked = Objects::<WireNode>::all(client.clone()).get(name).await;
            let found = asked.map_err(|source| match source {
                kube::Error::Api(status) if status.code == 404 => {
                    SeenError::NoNode { node: name.to_owned() }
                }
                kube::Error::BuildRequest(_) => SeenError::NoNode { node: name.to_owned() },
                source => error("get the node", source),
            })?;
            seen.left_out.extend(left(&found));
            seen.nodes.extend(part(found).map(SeenNode::reduce));
        }
        None => {
            let put = |node: Found<WireNode>| {
                seen.left_out.extend(left(&node));
                seen.nodes.extend(part(node).map(SeenNode::reduce));
            };
            let all = ListParams::default();
            list(&client, all, put).await.map_err(|e| error("list the nodes", e))?;
        }
    }
    let put = |pod: Found<WirePod>| {
        seen.left_out.extend(left(&pod));
        let pod = part(pod).and_then(Pod::reduce);
        seen.pods.extend(pod.filter(|pod| pod.node.is_some() && !pod.finished));
    };
    // Bound to that node, or to any.
    let bound = node.map_or_else(|| "!=".to_owned(), |name| format!("={name}"));
    let active = ListParams::default().fields(&format!("{ACTIVE}{bound}"));
    list(&client, active, put).await.map_err(|e| error("list the pods", e))?;
    Ok(seen)
}

fn left<K>(found: &Found<K>) -> Option<LeftOut> {
    found.as_ref().err().map(|unread| unread.left.clone())
}

/// Every object of a list, page by page, so that a large cluster is never held as a whole.
async fn list<K: Object>(
    client: &Client,
    mut wanted: ListParams,
    mut put: impl FnMut(Found<K>),
) -> Result<(), kube::Error> {
    wanted.limit = Some(PAGE);
    let objects = Objects::<K>::all(client.clone());
    loop {
        let page = objects.next_page(&mut wanted).await?;
        page.items.into_iter().for_each(&mut put);
        wanted.continue_token = page.next;
        if wanted.continue_token.is_none() {
            return Ok(());
        }
    }
}

impl SeenNode {
    fn reduce(wire: WireNode) -> Self {
        let count = |resource: &str| match wire.status.allocatable.get(resource) {
            Some(Quantity::Text(text)) => parse_count(text).unwrap_or(0),
            Some(Quantity::Number(number)) => number.as_u64().unwrap_or(0),
            None => 0,
        };
        let internal = wire.status.addresses.iter().find(|address| address.kind == "InternalIP");
        let mut seen = Self {
            name: wire.metadata.name.clone().unwrap_or_default(),
            address: internal.map(|address| address.address.clone()),
            gpu_memory: count(GPU_MEMORY),
            gpu_count: count(GPU_COUNT),
            cards: wire.metadata.annotations.as_ref().and_then(|all| all.get(CARDS)).cloned(),
            labels: Labels::default(),
        };
        let mut node = Node::default();
        node.reduce(wire);
        seen.labels = node.labels;
        seen
    }
}

impl Access {
    async fn connect(&self) -> Result<(Client, String), SeenError> {
        let mut there = self.kubeconfigs.iter().filter(|path| path.exists()).peekable();
        let Some(first) = there.peek().copied() else {
            return Err(SeenError::NoKubeconfig { looked: self.kubeconfigs.clone() });
        };
        let broken = |path: &Path, source| match unquoted(&source) {
            Some(why) => SeenError::KubeconfigText { path: path.to_owned(), why },
            None => SeenError::Kubeconfig { path: path.to_owned(), source: Box::new(source) },
        };
        let file = there.try_fold(Kubeconfig::default(), |all, path| {
            let one = Kubeconfig::read_from(path).map_err(|source| broken(path, source))?;
            all.merge(one).map_err(|source| broken(first, source))
        })?;
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(file, &options)
            .await
            .map_err(|source| broken(first, source))?;
        config.connect_timeout = Some(TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        config.write_timeout = Some(TIMEOUT);
        let server = config.cluster_url.to_string();
        match Client::try_from(config) {
            Ok(client) => Ok((client, server)),
            Err(source) => Err(SeenError::Client { server, source: Box::new(source) }),
        }
    }
}
