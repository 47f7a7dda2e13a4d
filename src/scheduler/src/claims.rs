//! What the claims of a pod ask for: each is read when kube-scheduler asks about its pod. That is
//! one request for each, and no list of all claims that has to be kept.

use std::time::Duration;

use mpsgate_kubernetes::{Claims, Pod, memory_asked};
use mpsgate_model::Mib;

/// For all claims of a pod. Without an answer the pod is placed all the same, by what the other
/// plugins say.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Claims of one pod that are read; no pod is told apart by more.
const MOST: usize = 16;

/// # Errors
/// Why it is not known.
pub(crate) async fn memory(claims: &Claims, pod: &Pod) -> Result<Vec<Mib>, String> {
    let read = async {
        let mut asked = Vec::new();
        for name in pod.claims.iter().take(MOST) {
            let claim = claims.get(&pod.namespace, name).await.map_err(|error| error.line())?;
            asked.extend(claim.iter().flat_map(memory_asked));
        }
        Ok(asked)
    };
    let late = || format!("its claims could not be read within {} s", PATIENCE.as_secs());
    tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| Err(late()))
}
