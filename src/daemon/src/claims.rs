//! The driver of Dynamic Resource Allocation: what of the cards claims may have, and what kubelet
//! has prepared of it.
//!
//! ```text
//!  cards, ledger ─► offers ─► ResourceSlice ─► kube-scheduler
//!                     └─────► health ─► kubelet
//!  kubelet ─► driver ─► API server: the claim ─► ledger ─► files: a token for each share
//!  pods ─► reconcile ─► ledger                               (what kubelet did not take back)
//! ```
//!
//! What is prepared is in the ledger alone, so whichever instance kubelet asks knows it. `/run` is
//! empty after a reboot, and so is the ledger: kubelet prepares again.

mod claim_files;
mod offers;
mod prepare_claim;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpsgate_dra::{DeviceHealth, Pace, Place};
use mpsgate_kubernetes::{Pods, Wanted, resource_slices};
use mpsgate_model::names::is_uid;
use mpsgate_node::Node;
use tokio::sync::watch;

use self::prepare_claim::Driver;
use crate::DaemonError;
use crate::around::driver_status::Claims;
use crate::daemon::Daemon;
use mpsgate_host::clock::now_ms;

/// Between two looks for kubelet's directory, and at claims whose pods have ended.
const LOOK: Duration = Duration::from_secs(10);
/// How long kubelet may take to unprepare a claim whose pod has ended or is gone.
const GRACE: Duration = Duration::from_secs(120);
/// Between two writes of the claims' files: long before a key that signed a token is forgotten.
const REFRESH: Duration = Duration::from_secs(60 * 60);

/// Begins to serve claims, where the settings say so.
pub(crate) fn start(daemon: &Arc<Daemon>) {
    if !daemon.settings.now().kubernetes.dra.is_on(false) {
        return;
    }
    let Some(api_server) = daemon.api_server.get() else {
        log::error!(
            hint = "set kubernetes.kubeconfig in /etc/mpsgate/config.toml, or kubernetes.dra = \"off\"";
            "claims are not served: kubernetes.dra is on, and no API server is named"
        );
        return;
    };
    let (wanted, slice) = watch::channel(Wanted::default());
    let (told, health) = watch::channel(Vec::new());
    let (shown, keep_slice) = resource_slices(api_server.settings.clone(), slice);
    daemon.around().claims = Some(Claims::new(shown));
    daemon.spawn("keeps the slice", async { match keep_slice.await {} });
    daemon.spawn("offers the cards", offer(Arc::clone(daemon), wanted, told));
    daemon.spawn("serves claims", serve(Arc::clone(daemon), health));
    daemon.spawn("tends the claims", tend(Arc::clone(daemon)));
}

/// Serves kubelet, once it has a directory, for as long as the process lives.
async fn serve(
    daemon: Arc<Daemon>,
    health: watch::Receiver<Vec<DeviceHealth>>,
) -> Result<(), DaemonError> {
    let Some(driver) = Driver::new(&daemon) else { return Ok(()) };
    let root = loop {
        if let Some(root) = kubelet_root(&daemon.paths.kubelets) {
            break root.to_owned();
        }
        tokio::time::sleep(LOOK).await;
    };
    let place = Place {
        registry: root.join("plugins_registry"),
        plugins: root.join("plugins"),
        instance: instance(std::env::var("POD_UID").ok()),
        pace: Pace::default(),
    };
    mpsgate_dra::serve(place, health, Arc::new(driver), std::future::pending()).await;
    Ok(())
}

/// The directory of a kubelet that runs, or has run, here.
fn kubelet_root(plugins: &[PathBuf]) -> Option<&Path> {
    plugins.iter().find(|directory| directory.is_dir())?.parent()
}

/// What the sockets are named by. During an update the next pod serves beside the last one.
fn instance(pod_uid: Option<String>) -> String {
    pod_uid.filter(|uid| is_uid(uid)).unwrap_or_else(|| "node".to_owned())
}

/// Keeps what is offered, and how well the cards are, as they are.
async fn offer(
    daemon: Arc<Daemon>,
    wanted: watch::Sender<Wanted>,
    told: watch::Sender<Vec<DeviceHealth>>,
) -> Result<(), DaemonError> {
    let Some(api_server) = daemon.api_server.get() else { return Ok(()) };
    let name = api_server.settings.node.clone();
    let (mut changes, mut ledger) = (daemon.changes(), daemon.ledger_changes());
    daemon.started().await;
    let mut since = BTreeMap::new();
    loop {
        let (offers, is_known) = {
            let node = daemon.node();
            (offers::of(&node), node.knows_its_cards())
        };
        for (card, why) in mpsgate_dra::left_out(&offers) {
            log::debug!(uuid:% = card, why:% = why; "a card is not offered to claims");
        }
        let now = offers::health(&name, &offers, &mut since, now_ms());
        told.send_if_modified(|shown| replace(shown, now));
        let slice = match mpsgate_dra::spec(&name, &offers) {
            // An empty list would take the slice away whenever NVML does not answer.
            None if !is_known => Wanted::Unknown,
            None => Wanted::None,
            Some(spec) => Wanted::Spec(Box::new(spec)),
        };
        wanted.send_if_modified(|shown| replace(shown, slice));
        tokio::select! {
            _ = changes.changed() => {}
            _ = ledger.changed() => {}
        }
    }
}

fn replace<T: PartialEq>(shown: &mut T, next: T) -> bool {
    let differs = *shown != next;
    *shown = next;
    differs
}

/// Writes the files of what is prepared, and takes back what kubelet did not.
async fn tend(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let mut written = None::<Instant>;
    let mut over = BTreeMap::new();
    loop {
        if written.is_none_or(|at| at.elapsed() >= REFRESH) {
            written = Some(Instant::now());
            if let Err(refusal) = claim_files::write_all(&daemon).await {
                log::error!(
                    reason = refusal.sentence.as_str(), hint = refusal.hint.as_str();
                    "files of claims are not written: their containers may not start"
                );
            }
        }
        if let Some(api_server) = daemon.api_server.get() {
            let pods = Arc::clone(&api_server.pods.borrow());
            let ended = ended(&daemon.node(), &pods, &mut over, Instant::now());
            for claim in ended {
                log::warn!(claim_uid = claim.as_str(); "kubelet did not unprepare a claim: its pod has ended");
                if let Err(refusal) = prepare_claim::take_back(&daemon, &claim).await {
                    log::warn!(reason:% = refusal; "the file of a claim is not removed");
                }
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The claims whose pods ended some time ago, as the API server says. Of a pod that cannot be read
/// it says nothing. `over` is since when.
fn ended(
    node: &Node,
    pods: &Pods,
    over: &mut BTreeMap<String, Instant>,
    now: Instant,
) -> Vec<String> {
    let may_run = |uid: &str| pods.may_be(uid) || pods.get(uid).is_some_and(|pod| !pod.finished);
    let claims = node.ledger().claims().iter();
    let of_nobody: Vec<&String> = claims
        .filter(|claim| pods.state.is_current() && !may_run(&claim.pod_uid))
        .map(|claim| &claim.claim.uid)
        .collect();
    over.retain(|claim, _| of_nobody.contains(&claim));
    let since =
        of_nobody.into_iter().map(|claim| (claim, *over.entry(claim.clone()).or_insert(now)));
    since
        .filter(|(_, since)| now.duration_since(*since) >= GRACE)
        .map(|(claim, _)| claim.clone())
        .collect()
}

#[cfg(test)]
mod tests;
