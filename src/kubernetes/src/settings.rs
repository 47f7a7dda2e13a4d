//! Which API server, as whom, and which node.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::Error;

/// Where a pod finds its service account.
const IN_CLUSTER: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Also what holds a request on a network that swallows packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longer than any watch is quiet: the watch itself ends sooner (`follow`).
const READ_TIMEOUT: Duration = Duration::from_secs(150);

/// How the API server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// By a kubeconfig, often the kubelet's own `/etc/kubernetes/kubelet.conf`.
    Kubeconfig(PathBuf),
    /// By the service account of the pod that mpsgated runs in.
    InCluster,
}

/// Which API server, and which of its nodes is this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How it is reached.
    pub source: Source,
    /// The node's name in the cluster.
    pub node: String,
}

impl Settings {
    /// What applies: a kubeconfig that was named, else a pod's service account where there is one. `None` is
    /// standalone mode: no API server is asked, and only tokens count.
    ///
    /// A kubeconfig that was named need not exist yet: it is read at each connection.
    #[must_use]
    pub fn find(kubeconfig: Option<PathBuf>, node: &str) -> Option<Self> {
        let source = match kubeconfig {
            Some(path) => Source::Kubeconfig(path),
            None if std::fs::exists(IN_CLUSTER).unwrap_or(false) => Source::InCluster,
            None => return None,
        };
        Some(Self { source, node: node.to_owned() })
    }

    /// A client with the credentials as they are now. Made anew after each failure: certificates of a kubelet are
    /// replaced while mpsgated runs.
    pub(crate) async fn connect(&self) -> Result<Client, Error> {
        let mut config = match &self.source {
            Source::Kubeconfig(path) => {
                let broken =
                    |source| Error::Kubeconfig { path: path.clone(), source: Box::new(source) };
                let file = Kubeconfig::read_from(path).map_err(broken)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(broken)?
            }
            Source::InCluster => Config::incluster()
                .map_err(|source| Error::InCluster { source: Box::new(source) })?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        config.write_timeout = Some(CONNECT_TIMEOUT);
        // What is retried, and how long, is decided here alone.
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        Client::try_from(config)
            .map_err(|source| Error::Client { server, source: Box::new(source) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_that_is_named_need_not_exist_yet() {
        let settings =
            Settings::find(Some("/nowhere/kubelet.conf".into()), "gpu-1").expect("named");
        assert_eq!(settings.source, Source::Kubeconfig("/nowhere/kubelet.conf".into()));
        assert_eq!(settings.node, "gpu-1");
    }

    #[tokio::test]
    async fn a_missing_kubeconfig_is_an_error_with_its_path_and_a_hint() {
        let settings =
            Settings::find(Some("/nowhere/kubelet.conf".into()), "gpu-1").expect("named");
        let Err(error) = settings.connect().await else { panic!("connected to nothing") };
        assert!(error.line().contains("/nowhere/kubelet.conf"), "{}", error.line());
        assert!(
            error.hint().contains("kubectl --kubeconfig /nowhere/kubelet.conf"),
            "{}",
            error.hint()
        );
    }
}
