//! What the claims of a pod ask for: each is read when kube-scheduler asks about its pod. That is
//! one request for each, and no list of all claims that has to be kept.

use std::time::{Duration, Instant};

use mpsgate_kubernetes::{Claims, Pod, memory_asked};
use mpsgate_model::Mib;

/// For all claims of a pod. Without an answer the pod is placed all the same, by what the other
/// plugins say.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Claims of one pod that are read; no pod is told apart by more.
const MOST: usize = 16;

/// What they ask for, if that is known by `until`.
///
/// # Errors
/// Why it is not known.
pub(crate) async fn memory(claims: &Claims, pod: &Pod, until: Instant) -> Result<Vec<Mib>, String> {
    let patience = PATIENCE.min(until.saturating_duration_since(Instant::now()));
    let read = async {
        let mut asked = Vec::new();
        for name in pod.claims.iter().take(MOST) {
            let claim = claims.get(&pod.namespace, name).await.map_err(|error| error.line())?;
            asked.extend(claim.iter().flat_map(memory_asked));
        }
        Ok(asked)
    };
    let late = || format!("its claims could not be read within {} ms", patience.as_millis());
    tokio::time::timeout(patience, read).await.unwrap_or_else(|_| Err(late()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use mpsgate_kubernetes::{Patience, Settings, Source};
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn no_claim_is_waited_for_longer_than_its_question() {
        // Whoever connects is heard, and never answered.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let kubeconfig = fake_api_server::kubeconfig(silent.local_addr().unwrap());
        let settings = Settings {
            source: Source::Kubeconfig(kubeconfig.path().to_owned()),
            node: String::new(),
            patience: Patience::default(),
        };
        let claims = Claims::new(settings, PATIENCE * 10);
        let pod = json!({
            "metadata": {"name": "a", "namespace": "default", "uid": "u"},
            "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "web"}]},
        });
        let pod = Pod::parse(&pod.to_string()).unwrap();
        assert_eq!(pod.claims, ["web"]);
        for (left, is_whole) in [(PATIENCE / 10, false), (PATIENCE * 60, true)] {
            let why = memory(&claims, &pod, Instant::now() + left).await.unwrap_err();
            assert!(why.starts_with("its claims could not be read within "), "{why}");
            assert_eq!(why.ends_with(" 1000 ms"), is_whole, "{why}");
        }
    }
}
