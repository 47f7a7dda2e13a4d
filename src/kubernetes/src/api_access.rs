//! Which API server, as whom, and which node.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::Error;

/// Where a pod finds its service account.
const IN_CLUSTER: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Also what holds a request on a network that swallows packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How the API server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// By a kubeconfig, often the kubelet's own `/etc/kubernetes/kubelet.conf`.
    Kubeconfig(PathBuf),
    /// By the service account of the pod that mpsgated runs in.
    InCluster,
}

/// How long an API server may say nothing until it counts as not heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// After so many seconds the server is to end a watch: its heartbeat where nothing changes.
    /// Each watch costs it a request in this time.
    pub watch_seconds: u32,
    /// Longest time without a word on a watch.
    pub silence: Duration,
    /// Longest time without a byte of any other answer.
    pub answer: Duration,
}

impl Default for Patience {
    /// A network that swallows packets is noticed within 30 s, and a server that is 5 s late is
    /// none.
    fn default() -> Self {
        Self {
            watch_seconds: 20,
            silence: Duration::from_secs(25),
            answer: Duration::from_secs(29),
        }
    }
}

/// Which API server, and which of its nodes is this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How it is reached.
    pub source: Source,
    /// The node's name in the cluster.
    pub node: String,
    /// How long it may say nothing.
    pub patience: Patience,
}

impl Settings {
    /// What applies: a kubeconfig that was named, else a pod's service account where there is one.
    /// `None` is standalone mode: no API server is asked, and only tokens count.
    ///
    /// A kubeconfig that was named need not exist yet: it is read at each connection.
    #[must_use]
    pub fn find(kubeconfig: Option<PathBuf>, node: &str) -> Option<Self> {
        let source = match kubeconfig {
            Some(path) => Source::Kubeconfig(path),
            None if std::fs::exists(IN_CLUSTER).unwrap_or(false) => Source::InCluster,
            None => return None,
        };
        Some(Self { source, node: node.to_owned(), patience: Patience::default() })
    }

    /// A client with the credentials as they are now. Made anew after each failure: certificates of
    /// a kubelet are replaced while mpsgated runs.
    pub(crate) async fn connect(&self) -> Result<Client, Error> {
        let mut config = match &self.source {
            Source::Kubeconfig(path) => {
                let broken = |source| match unquoted(&source) {
                    Some(why) => Error::KubeconfigText { path: path.clone(), why },
                    None => Error::Kubeconfig { path: path.clone(), source: Box::new(source) },
                };
                let file = Kubeconfig::read_from(path).map_err(broken)?;
                Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                    .await
                    .map_err(broken)?
            }
            Source::InCluster => Config::incluster()
                .map_err(|source| Error::InCluster { source: Box::new(source) })?,
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(self.patience.answer);
        // What a connection waited for its next request is no part of that.
        config.reset_reader_on_write = true;
        config.write_timeout = Some(CONNECT_TIMEOUT);
        // What is retried, and how long, is decided here alone.
        config.default_retry = false;
        let server = config.cluster_url.to_string();
        Client::try_from(config)
            .map_err(|source| Error::Client { server, source: Box::new(source) })
    }
}

/// Why a kubeconfig is no YAML of one, and where. Its lines are not quoted: its credentials are
/// among them. `None` where the error quotes none.
pub(crate) fn unquoted(error: &KubeconfigError) -> Option<String> {
    let KubeconfigError::Parse(error) = error else { return None };
    Some(error.without_snippet().to_string())
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

    #[test]
    fn a_server_that_says_nothing_is_noticed_within_30_s_and_one_that_is_late_is_not() {
        let Patience { watch_seconds, silence, answer } = Patience::default();
        let late = silence.saturating_sub(Duration::from_secs(watch_seconds.into()));
        assert!(late >= Duration::from_secs(5), "{late:?}");
        assert!(silence < answer && answer < Duration::from_secs(30), "{silence:?} {answer:?}");
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

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a file for the test")]
    async fn no_credential_of_a_broken_kubeconfig_is_quoted() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("kubeconfig");
        let text = "apiVersion: v1\nkind: Config\nusers:\n- name: n\n  user:\n    \
                    token: S3CR3T\n    tokenFile: [a]\n";
        std::fs::write(&path, text).expect("written");
        let settings = Settings::find(Some(path.clone()), "gpu-1").expect("named");
        let Err(error) = settings.connect().await else { panic!("connected to nothing") };
        let line = error.line();
        assert!(line.contains("line 7") && !line.contains("S3CR3T"), "{line}");
        assert!(error.hint().contains(&*path.to_string_lossy()), "{}", error.hint());
    }
}
