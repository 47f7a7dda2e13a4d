//! The device plugin: which resources are served to kubelet and with which devices, as settings,
//! cards and ledger change.
//!
//! ```text
//!  settings, cards, ledger ─► keep ─► Inventory ─► serve (a task for each resource) ◄─► kubelet
//!                                                    │ grant                 │ tell
//!                                                 tokens                  state ─► log, status, metrics
//! ```
//!
//! Whom kubelet gave how much of what is in the token alone; whether it still fits, and on which
//! card, is decided when the container brings it.

mod resource_host;
mod unasked;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpsgate_config::Kubernetes;
use mpsgate_deviceplugin::{Inventory, Place, Stock, serve};
use mpsgate_model::Resource;
use mpsgate_node::Node;
use mpsgate_policy::Condition;
use tokio::sync::{oneshot, watch};

use self::resource_host::Plugin;
use self::unasked::Unasked;
use crate::around::served::Served;
use crate::daemon::Daemon;
use crate::{DaemonError, kubelet};

/// Between two looks at cards that wait to be asked.
const LOOK: Duration = Duration::from_secs(1);

/// The resources that the settings name, and slices that pods ask for.
fn resources(settings: &Kubernetes, asked: &[u64]) -> BTreeMap<String, Resource> {
    let units = settings.memory_units_mib.iter().filter_map(|mib| Resource::by((*mib).into()));
    let configured: Vec<u64> = settings.slices_gib.iter().map(|gib| (*gib).into()).collect();
    let further = asked.iter().filter(|gib| !configured.contains(gib));
    let slices = configured.iter().chain(further).filter_map(|gib| Resource::slice(*gib));
    let all = [Resource::Memory].into_iter().chain(units).chain(slices);
    all.map(|resource| (resource.to_string(), resource)).collect()
}

/// Slices that pods ask for.
fn slices(daemon: &Daemon) -> Vec<u64> {
    let api_server = daemon.api_server.get();
    api_server.map(|all| all.slices(daemon.node().largest_gib())).unwrap_or_default()
}

/// The managed cards, as far as the resource of this name is concerned.
fn inventory(node: &Node, resource: &str) -> Inventory {
    let managed = node.cards().iter().filter(|card| card.is_managed());
    let managed = managed.filter(|card| !card.qualified().is_awaited);
    let cards = managed.map(|card| {
        let trouble = match (&node.driver.trouble, node.condition(card)) {
            (Some(trouble), _) => Some(trouble.why.clone()),
            (None, Condition::Ready) => None,
            (
                None,
                Condition::Unfit { why, .. }
                | Condition::Unhealthy { why, .. }
                | Condition::NotReady { why, .. },
            ) => Some(why.to_owned()),
        };
        let withheld = node.ledger().withheld(&card.uuid, resource);
        let seen = Stock { index: card.index, memory: card.memory, withheld, trouble, numa: None };
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

/// Serves for as long as the process lives, where settings and node say so. For `qualify_first`
/// kubelet is not told of a card that was never asked.
pub(crate) async fn keep(daemon: Arc<Daemon>, qualify_first: Duration) -> Result<(), DaemonError> {
    let (mut changes, mut ledger) = (daemon.changes(), daemon.ledger_changes());
    let mut running: BTreeMap<String, Running> = BTreeMap::new();
    let mut place = None;
    let mut unasked = Unasked::new(qualify_first);
    daemon.started().await;
    loop {
        let wanted = kubelet::directory(&daemon);
        let resources = match &wanted {
            Some(_) => resources(&daemon.settings.now().kubernetes, &slices(&daemon)),
            None => BTreeMap::new(),
        };
        let awaited = match &wanted {
            Some(_) => unasked.awaited(&daemon.node(), Instant::now()),
            None => BTreeSet::new(),
        };
        if daemon.node().await_answers(&awaited) {
            daemon.tell_change();
        }
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
        if let Some(directory) = place.as_deref().filter(|_| daemon.node().knows_its_cards()) {
            for (name, resource) in resources {
                running.entry(name).or_insert_with(|| start(&daemon, directory, resource));
            }
        }
        tokio::select! {
            _ = changes.changed() => {}
            _ = ledger.changed() => {}
            // For those that nobody comes to ask.
            () = tokio::time::sleep(LOOK), if !awaited.is_empty() => {}
        }
    }
}

fn replace(now: &mut Inventory, next: Inventory) -> bool {
    let differs = *now != next;
    *now = next;
    differs
}

fn start(daemon: &Arc<Daemon>, directory: &Path, resource: Resource) -> Running {
    let name = resource.to_string();
    log::info!(resource = name.as_str(), directory:% = directory.display(); "device plugin starts");
    daemon.around().served.insert(name.clone(), Served::default());
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
    daemon.around().served.remove(name);
    log::info!(resource = name; "device plugin ended");
}
