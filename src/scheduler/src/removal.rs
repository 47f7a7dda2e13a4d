//! `--removal`: what has to happen in the cluster before and after the chart is removed. Helm's
//! hooks run it.
//!
//! ```text
//!  begin: annotation on each node with cards ─► mpsgated gives each back when its last container has ended ─► nothing of it is shown
//!           └── not in time, or ended ─► annotation off: nodes go on as before, and the chart stays
//!  end:   the chart's pods have ended ─► annotation off, Leases deleted
//! ```
//! While a mpsgated runs on a node, taking the annotation off there gives it the cards again: hence
//! the order of `end`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mpsgate_kubernetes::{Error, Remains, Remover, Settings, Which};
use mpsgate_model::printable::few;
use tokio::sync::watch;

use crate::args::Removal;
use crate::{Arguments, SchedulerError};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// How long what is no card is waited for, such as a condition: mpsgated writes it last, and one
/// whose mpsgated is gone stays.
const LINGER: Duration = Duration::from_secs(15);
/// Nodes, or pods of a node, that a sentence names.
const NAMED: usize = 20;

/// Does that step, and ends. `until` ends it early.
///
/// # Errors
/// What is not as it should be then, and what to do.
pub async fn remove(
    arguments: &Arguments,
    step: Removal,
    until: impl Future<Output = ()> + Send + 'static,
) -> Result<(), SchedulerError> {
    let Some(settings) = Settings::find(arguments.kubeconfig.clone(), "") else {
        return Err(SchedulerError::NoApiServer);
    };
    let (stop, stopped) = watch::channel(false);
    let hears = tokio::spawn(async move {
        until.await;
        stop.send_replace(true);
    });
    let seconds = arguments.removal_timeout;
    let mut work = Work {
        remover: Remover::new(settings),
        began: Instant::now(),
        patience: Duration::from_secs(seconds.into()),
        stopped,
    };
    let done = match step {
        Removal::Begin => work.begin().await,
        Removal::End => work.end(arguments).await,
    };
    hears.abort();
    done
}

/// What is to be done about nodes as they are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    /// These do not know yet.
    tell: Vec<String>,
    /// These have cards of mpsgate's.
    waits: Vec<Remains>,
    /// These have none, and something of mpsgate's is shown there.
    left: Vec<Remains>,
}

fn plan(nodes: Vec<Remains>) -> Plan {
    let mut plan = Plan::default();
    for node in nodes {
        let is_left = !node.shown.is_empty();
        if (node.is_shared || is_left) && !node.is_told {
            plan.tell.push(node.node.clone());
        }
        if node.is_shared {
            plan.waits.push(node);
        } else if is_left {
            plan.left.push(node);
        }
    }
    plan
}

/// What comes after a look.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Some time later, at these.
    Wait(Which),
    /// At once, at all: where a card was, something else may stand.
    All,
    /// Every card is given back, and whatever still stands is not waited for.
    Done,
}

/// After a look at `which`; `free` is how long no node has had cards.
fn next(which: Which, plan: &Plan, free: Duration) -> Next {
    match which {
        _ if !plan.waits.is_empty() => Next::Wait(Which::Shared),
        Which::Shared => Next::All,
        Which::All if !plan.left.is_empty() && free < LINGER => Next::Wait(Which::All),
        Which::All => Next::Done,
    }
}

/// Nodes with cards, and what keeps each.
fn kept(nodes: &[Remains]) -> String {
    let one = |node: &Remains| {
        let mut why = Vec::new();
        if !node.holders.is_empty() {
            why.push(format!("pods with the uids {}", few(&node.holders, NAMED)));
        }
        if node.local_mib > 0 {
            why.push(format!("local containers with {} MiB", node.local_mib));
        }
        let why = if why.is_empty() { "no container".to_owned() } else { why.join(" and ") };
        format!("{} ({why})", node.node)
    };
    few(nodes.iter().map(one), NAMED)
}

/// Which of the nodes are freed when these pods of the chart are left: those that have none.
fn freed(nodes: &[Remains], pods: &[(String, Option<String>)]) -> Vec<String> {
    let busy: BTreeSet<&str> = pods.iter().filter_map(|(_, node)| node.as_deref()).collect();
    let told = nodes.iter().filter(|node| node.is_told && !busy.contains(node.node.as_str()));
    told.map(|node| node.node.clone()).collect()
}

/// Whether asking again gives no other answer.
fn is_final(error: &Error) -> bool {
    matches!(error.status(), Some(401 | 403))
        || matches!(
            error,
            Error::Kubeconfig { .. }
                | Error::KubeconfigText { .. }
                | Error::InCluster { .. }
                | Error::Client { .. }
        )
}

struct Work {
    remover: Remover,
    began: Instant,
    patience: Duration,
    stopped: watch::Receiver<bool>,
}

impl Work {
    fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }

    fn is_late(&self) -> bool {
        self.began.elapsed() >= self.patience
    }

    async fn pause(&mut self) {
        let stopped = self.stopped.wait_for(|stopped| *stopped);
        let _ = tokio::time::timeout(LOOK, stopped).await;
    }

    /// Whether it is tried again; else it is the end.
    fn bear(&self, error: Error) -> Result<(), SchedulerError> {
        if is_final(&error) || self.is_late() || self.is_stopped() {
            return Err(SchedulerError::Removal(error));
        }
        log::warn!(error = error.line().as_str(); "the API server does not do it; it is tried again");
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), SchedulerError> {
        let mut told = BTreeSet::new();
        let done = self.give_back(&mut told).await;
        match &done {
            Ok(()) => log::info!("every card was given back"),
            Err(_) => self.withdraw(told).await,
        }
        done
    }

    async fn give_back(&mut self, told: &mut BTreeSet<String>) -> Result<(), SchedulerError> {
        let (mut which, mut free_since, mut said) = (Which::All, None, String::new());
        loop {
            match self.look(which, told).await {
                Err(error) => self.bear(error)?,
                Ok(plan) => {
                    let names = kept(&plan.waits);
                    if !names.is_empty() && names != said {
                        log::info!(nodes = names.as_str(); "cards are to be given back");
                        said.clone_from(&names);
                    }
                    let now = Instant::now();
                    let since = free_since.filter(|_| plan.waits.is_empty()).unwrap_or(now);
                    free_since = plan.waits.is_empty().then_some(since);
                    match next(which, &plan, now.saturating_duration_since(since)) {
                        Next::Done => {
                            tell_left(&plan.left);
                            return Ok(());
                        }
                        Next::All => {
                            which = Which::All;
                            continue;
                        }
                        Next::Wait(next) => which = next,
                    }
                    if !plan.waits.is_empty() && self.is_late() {
                        let seconds = self.patience.as_secs();
                        return Err(SchedulerError::Kept { seconds, nodes: names });
                    }
                }
            }
            self.pause().await;
            if self.is_stopped() {
                return Err(SchedulerError::Stopped);
            }
        }
    }

    /// At the nodes; who does not know it yet is told.
    async fn look(&self, which: Which, told: &mut BTreeSet<String>) -> Result<Plan, Error> {
        let plan = plan(self.remover.nodes(which).await?);
        for node in &plan.tell {
            if self.is_stopped() {
                break;
            }
            // Also one that was written without an answer is to be taken off.
            told.insert(node.clone());
            self.remover.tell(node, true).await?;
        }
        Ok(plan)
    }

    /// The nodes go on as before; also those that an earlier attempt has told.
    async fn withdraw(&self, mut told: BTreeSet<String>) {
        match self.remover.nodes(Which::All).await {
            Ok(nodes) => {
                told.extend(nodes.into_iter().filter(|node| node.is_told).map(|node| node.node));
            }
            Err(error) => {
                log::warn!(error = error.line().as_str(); "nodes that were told before this attempt are not known");
            }
        }
        for node in told {
            if let Err(error) = self.remover.tell(&node, false).await {
                log::error!(node = node.as_str(), error = error.line().as_str(),
                    hint = "kubectl annotate nodes --all mpsgate.io/removal-";
                    "the node goes on giving its cards back");
            }
        }
    }

    async fn end(&mut self, arguments: &Arguments) -> Result<(), SchedulerError> {
        let namespace = &arguments.namespace;
        let pods = match &arguments.removal_pods {
            Some(selector) => self.ended(namespace, selector).await?,
            None => Vec::new(),
        };
        let nodes = loop {
            match self.remover.nodes(Which::All).await {
                Ok(nodes) => break nodes,
                Err(error) => self.bear(error)?,
            }
            self.pause().await;
        };
        // As much as can be, and what failed last is told.
        let mut failed = None;
        for node in freed(&nodes, &pods) {
            failed = self.remover.tell(&node, false).await.err().or(failed);
        }
        for name in &arguments.removal_lease {
            failed = self.remover.delete_lease(namespace, name).await.err().or(failed);
        }
        match failed {
            Some(error) => Err(SchedulerError::Removal(error)),
            None if pods.is_empty() => Ok(()),
            None => Err(SchedulerError::Left { pods: few(pods.into_iter().map(on_node), NAMED) }),
        }
    }

    /// Waits for the end of the chart's pods; those that are left.
    async fn ended(
        &mut self,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<(String, Option<String>)>, SchedulerError> {
        loop {
            match self.remover.pods(namespace, selector).await {
                Ok(pods) if pods.is_empty() || self.is_late() || self.is_stopped() => {
                    return Ok(pods);
                }
                Ok(pods) => log::info!(count = pods.len(); "pods of the chart are waited for"),
                Err(error) => self.bear(error)?,
            }
            self.pause().await;
        }
    }
}

fn on_node((pod, node): (String, Option<String>)) -> String {
    format!("{pod} on {}", node.as_deref().unwrap_or("no node"))
}

fn tell_left(left: &[Remains]) {
    for node in left {
        let shown = node.shown.join(" ");
        log::warn!(node = node.node.as_str(), shown = shown.as_str();
            "no card is held there, but this still stands on the node: no mpsgated takes it away");
    }
}

#[cfg(test)]
mod tests;
