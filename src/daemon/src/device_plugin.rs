//! The device plugin: which resources are served to kubelet and with which devices, as settings, cards and ledger
//! change.
//!
//! ```text
//!  settings, cards, ledger ─► keep ─► Inventory ─► serve (a task for each resource) ◄─► kubelet
//!                                                    │ grant                 │ tell
//!                                                 tokens                  state ─► log, status, metrics
//! ```
//!
//! Whom kubelet gave how much of what is in the token alone; whether it still fits, and on which card, is decided
//! when the container brings it.

mod host;
mod state;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mpsgate_config::{Kubernetes, Manage, Switch};
use mpsgate_deviceplugin::{Card, Inventory, Place, Resource, Unit, serve};
use mpsgate_policy::Condition;
use tokio::sync::{oneshot, watch};

use self::host::Plugin;
pub(crate) use self::state::Served;
use crate::daemon::Daemon;
use crate::node::Node;
use crate::{DaemonError, api_server};

/// The directory in which the plugin serves, or will as soon as the cards are known; `None` where the settings or
/// the node say that it does not. Without NVML, because who has asked by annotations must not depend on it.
pub(crate) fn directory(daemon: &Daemon) -> Option<PathBuf> {
    let settings = daemon.settings.now();
    let kubelets = &daemon.places.kubelets;
    let there = kubelets.iter().find(|directory| directory.is_dir());
    match settings.kubernetes.device_plugin {
        Switch::Off => None,
        Switch::On => there.or_else(|| kubelets.first()).cloned(),
        Switch::Auto => {
            let configured =
                !matches!(&settings.gpus.manage, Manage::Uuids(uuids) if uuids.is_empty());
            // Another plugin may have kubelet's resource where no card is ours.
            there.filter(|_| configured || !daemon.node().handed_over.is_empty()).cloned()
        }
    }
}

/// Whether pods of this node ask by their limits alone.
pub(crate) fn is_in_charge(daemon: &Daemon) -> bool {
    directory(daemon).is_some() && !daemon.node().served.values().any(Served::cannot_work)
}

/// The resources that the settings name, and slices that pods ask for.
fn resources(settings: &Kubernetes, asked: &[u64]) -> BTreeMap<String, Resource> {
    let units = settings.memory_units_mib.iter().filter_map(|mib| Unit::new((*mib).into()));
    let configured: Vec<u64> = settings.slices_gib.iter().map(|gib| (*gib).into()).collect();
    let further = asked.iter().filter(|gib| !configured.contains(gib));
    let slices = configured.iter().chain(further).filter_map(|gib| Resource::slice(*gib));
    let memory = [Unit::GIB].into_iter().chain(units).map(Resource::gpu_mem);
    memory.chain(slices).map(|resource| (resource.name().to_owned(), resource)).collect()
}

/// The managed cards, as far as the resource of this name is concerned.
fn inventory(node: &Node, resource: &str) -> Inventory {
    let managed = node.cards.iter().filter(|card| card.managed.is_some());
    let cards = managed.map(|card| {
        let trouble = match (&node.driver.trouble, node.condition(card)) {
            (Some(trouble), _) => Some(trouble.why.clone()),
            (None, Condition::Ready) => None,
            (None, Condition::Unfit { why, .. } | Condition::Unhealthy { why, .. }) => {
                Some(why.to_owned())
            }
        };
        let withheld = node.ledger().withheld(&card.uuid, resource);
        let seen = Card { index: card.index, memory: card.memory, withheld, trouble, numa: None };
        (card.uuid.clone(), seen)
    });
    Inventory { cards: cards.collect(), spread: node.spread }
}

/// One resource that is being served.
struct Running {
    inventory: watch::Sender<Inventory>,
    /// Its end is the order to end.
    stop: oneshot::Sender<()>,
    /// Its end is the end.
    ended: oneshot::Receiver<()>,
}

/// Serves for as long as the process lives, where settings and node say so.
pub(crate) async fn keep(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let (mut changes, mut ledger) = (daemon.changes(), daemon.ledger_changes());
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    let mut place = None;
    daemon.started().await;
    loop {
        let wanted = directory(&daemon);
        let resources = match &wanted {
            Some(_) => resources(&daemon.settings.now().kubernetes, &api_server::slices(&daemon)),
            None => BTreeMap::new(),
        };
        let moved = place != wanted;
        let all = std::mem::take(&mut running);
        for (name, one) in all {
            if moved || !resources.contains_key(&name) {
                end(&daemon, &name, one).await;
            } else {
                one.inventory
                    .send_if_modified(|now| replace(now, inventory(&daemon.node(), &name)));
                running.insert(name, one);
            }
        }
        place = wanted;
        if let Some(directory) = place.as_deref().filter(|_| are_known(&daemon.node())) {
            for (name, resource) in resources {
                running.entry(name).or_insert_with(|| start(&daemon, directory, resource));
            }
        }
        tokio::select! {
            _ = changes.changed() => {}
            _ = ledger.changed() => {}
        }
    }
}

/// Whether NVML has told which cards there are: kubelet must not take a list for the node's that is only empty
/// because nobody was asked yet.
pub(crate) fn are_known(node: &Node) -> bool {
    node.cards.iter().any(|card| card.managed.is_some())
        || (node.driver.trouble.is_none() && node.driver.version.is_some())
}

fn replace(now: &mut Inventory, next: Inventory) -> bool {
    let differs = *now != next;
    *now = next;
    differs
}

fn start(daemon: &Arc<Daemon>, directory: &Path, resource: Resource) -> Running {
    let name = resource.name().to_owned();
    log::info!(resource = name.as_str(), directory:% = directory.display(); "device plugin starts");
    daemon.node().served.insert(name.clone(), Served::default());
    let (inventory, cards) = watch::channel(inventory(&daemon.node(), &name));
    let (stop, stopped) = oneshot::channel::<()>();
    let (running, ended) = oneshot::channel::<()>();
    let host = Arc::new(Plugin { daemon: Arc::clone(daemon), resource: name.clone() });
    let place = Place { directory: directory.to_owned(), ..Place::default() };
    daemon.spawn(format!("serves {name}"), async move {
        let stop = async {
            let _ = stopped.await;
        };
        serve(place, resource, cards, host, stop).await;
        drop(running);
        Ok(())
    });
    Running { inventory, stop, ended }
}

/// Returns when its socket has gone, so that a next one does not lose its own.
async fn end(daemon: &Daemon, name: &str, one: Running) {
    let Running { inventory, stop, ended } = one;
    drop(stop);
    let _ = ended.await;
    drop(inventory);
    daemon.node().served.remove(name);
    log::info!(resource = name; "device plugin ended");
}
