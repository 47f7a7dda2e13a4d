//! How mpsgated ends on a node of a cluster.
//!
//! The moment its device plugin is gone, kubelet fails every pod with GPU memory that comes to it,
//! for good ("no healthy devices present", measured with 1.20 and 1.36). So first the node's object
//! says that no card takes requests, for which mpsgate-scheduler sends no more pods, and kubelet is
//! served until it has taken those that were sent before.

use std::time::Duration;

use crate::daemon::Daemon;

/// How long the API server may take to show it.
const TOLD: Duration = Duration::from_secs(3);
/// How long a binding may take that was decided on before.
const BOUND: Duration = Duration::from_secs(1);
/// How long kubelet may take for pods that are bound. All three are less than the 20 s that a pod
/// of the chart has.
const TAKEN: Duration = Duration::from_secs(6);

/// Returns when the device plugin may go, or when that has taken too long. Nothing is waited for
/// where no kubelet has devices from here.
pub(crate) async fn leave(daemon: &Daemon) {
    let Some(api_server) = daemon.api_server.get() else { return };
    {
        let mut around = daemon.around();
        if !around.served.iter().any(|(name, served)| served.status(name).registered_ms.is_some()) {
            return;
        }
        around.ending = true;
    }
    daemon.tell_change();
    let mut shown = api_server.node.clone();
    let told = shown.wait_for(|node| node.shows_ready() != Some(true));
    if !matches!(tokio::time::timeout(TOLD, told).await, Ok(Ok(_))) {
        log::warn!(
            "mpsgated ends without a word to the cluster: the API server did not take it in time; pods with GPU memory that come now fail"
        );
        return;
    }
    tokio::time::sleep(BOUND).await;
    let mut pods = api_server.pods.clone();
    let taken = pods.wait_for(|pods| !pods.iter().any(|pod| pod.is_on_its_way()));
    if tokio::time::timeout(TAKEN, taken).await.is_err() {
        let pods = api_server.pods.borrow();
        let left: Vec<_> = pods.iter().filter(|pod| pod.is_on_its_way()).collect();
        let names: Vec<_> =
            left.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
        log::warn!(pods = names.join(", ").as_str(); "kubelet has not taken every pod, and may fail these");
    }
}
