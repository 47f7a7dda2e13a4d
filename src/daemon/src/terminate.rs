//! `kill` with SIGKILL on a container with a grant: its CUDA clients' GPU work is ended first. And
//! `delete`: the driver's limit of its cgroup is cleared before the runtime removes that.
//!
//! ```text
//!  shim: kill, 1 s ─► entry, its processes ─► the card's task: clients ∩ processes ─► terminate_client
//!                          │ none, or ended        │ busy or not healthy, or no time left
//!                          └─► done                └─► refused with the reason, logged, counted
//! ```
//!
//! The container dies in any case, so this never waits for what is slow: a card task that starts a
//! server, or a channel that hangs.

use std::time::{Duration, Instant};

use mpsgate_api::{Removal, Reply, Terminate};
use mpsgate_host::crash_point;
use mpsgate_model::ledger::State;
use mpsgate_model::{GpuUuid, GrantKey, Refusal};
use mpsgate_node::card::Trouble;
use tokio::sync::oneshot;
use tokio::time::{timeout, timeout_at};

use crate::container_cgroup::kill::Meant;
use crate::daemon::Daemon;
use crate::line::Line;
use crate::orders::{Doomed, LimitOrder, Order};
use crate::{container_cgroup, process_end};

/// For the clients: the shim gives up after 1 s, counted from before it has connected.
const LIMIT: Duration = Duration::from_millis(800);
/// For the limit of a cgroup: the shim waits 4 s for an mpsgated that says what it does.
const UNLIMITED: Duration = Duration::from_secs(3);
/// For the card task to begin: what it does on a healthy card takes some milliseconds, unless it
/// starts a server.
const TURN: Duration = Duration::from_millis(200);

/// What is to be done before a container is killed, removed, or both.
pub(crate) async fn prepare(
    daemon: &Daemon,
    line: &mut Line,
    call: &Terminate,
) -> Result<Reply, Refusal> {
    if call.removal == Removal::No {
        return clients(daemon, &call.key).await;
    }
    line.wait("the limit of the container's cgroup is being cleared", remove(daemon, call)).await
}

async fn remove(daemon: &Daemon, call: &Terminate) -> Result<Reply, Refusal> {
    let terminated = match call.removal {
        Removal::Ended => Ok(Reply::Done { text: String::new() }),
        Removal::No | Removal::Forced => clients(daemon, &call.key).await,
    };
    unlimit(daemon, &call.key, call.removal).await;
    terminated
}

/// Has the limit of a container's cgroup cleared while that is there. Its grant ends with it, so
/// that no look sets the limit again; so must its processes, which the runtime is about to kill.
async fn unlimit(daemon: &Daemon, key: &GrantKey, removal: Removal) {
    let deadline = tokio::time::Instant::now() + UNLIMITED;
    let found = {
        let node = daemon.node();
        node.ledger().get(key).map(|entry| (entry.clone(), node.nested(entry)))
    };
    // Where it has just ended the order to clear may not be carried out yet.
    if let Some((entry, others)) = found {
        let State::Active { init, cgroup: Some(cgroup) } = entry.state else { return };
        let refuses = removal == Removal::Ended && process_end::is_alive(&init);
        if entry.cgroup_limit.is_none() || refuses {
            return;
        }
        let meant = Meant::of(&entry.grant, others);
        let kill = move |_: &_| container_cgroup::kill::kill(&cgroup, &init, &meant);
        if let Err(error) = daemon.blocking(kill).await {
            let container = entry.grant.name();
            log::warn!(container = container.as_str(), reason:% = error; "removed with the limit of its cgroup");
            return;
        }
        if timeout_at(deadline, process_end::ended(&init)).await.is_err() {
            return;
        }
        daemon.change(|node, effects| {
            node.release(key, "removed by its runtime", effects);
        });
    }
    let (reply, done) = oneshot::channel();
    if daemon.limits.send(LimitOrder::Done { reply }).is_ok() {
        // Whoever asked waits no longer either.
        let _ = timeout_at(deadline, done).await;
    }
}

/// Ends the GPU work of the container's clients, as far as that is possible at once.
pub(crate) async fn clients(daemon: &Daemon, key: &GrantKey) -> Result<Reply, Refusal> {
    let done = |text: String| Ok(Reply::Done { text });
    let (card, doomed, container) = {
        let node = daemon.node();
        let Some(entry) = node.ledger().get(key) else { return done(String::new()) };
        // Before it is active no program of the container has run.
        let State::Active { init, cgroup } = &entry.state else { return done(String::new()) };
        let mut cards = entry.grant.cards.iter().filter(|_| entry.grant.uses_mps());
        let Some(card) = cards.next() else { return done(String::new()) };
        (
            card.uuid.clone(),
            {
                let others = node.nested(entry);
                Doomed { init: *init, cgroup: cgroup.clone(), others }
            },
            entry.grant.name(),
        )
    };
    // What cannot be read is for the card task to find: there may be processes.
    if doomed.processes().is_ok_and(|processes| processes.is_empty()) {
        return done(String::new());
    }
    crash_point!("daemon.terminate.found");
    let container = container.as_str();
    match ask(daemon, &card, doomed).await {
        Ok(None) => done(String::new()),
        Ok(Some(terminated)) => {
            let count = terminated.len();
            if count == 0 {
                return done(String::new());
            }
            daemon.node().kills.terminated += u64::try_from(count).unwrap_or(u64::MAX);
            log::info!(container, uuid = card.as_str(), clients:? = terminated; "clients terminated before a kill");
            let pids: Vec<String> = terminated.iter().map(i32::to_string).collect();
            done(format!("{count} CUDA clients terminated: pid {}", pids.join(", ")))
        }
        Err(trouble) => {
            daemon.node().kills.unprepared += 1;
            log::warn!(container, uuid = card.as_str(), reason = trouble.why.as_str(); "container is killed without ending its GPU work first");
            Err(trouble.into())
        }
    }
}

/// `None` where the card cannot have clients.
async fn ask(daemon: &Daemon, uuid: &GpuUuid, doomed: Doomed) -> Result<Option<Vec<i32>>, Trouble> {
    let deadline = Instant::now() + LIMIT;
    let label = {
        let node = daemon.node();
        let Some(card) = node.card(uuid) else { return Ok(None) };
        if let Some(trouble) = card.trouble() {
            let why = format!("{} {}", card.label(), trouble.why);
            return Err(Trouble::new(why, trouble.hint.clone()));
        }
        if card.is_serverless() {
            return Ok(None);
        }
        let asked = card.qualified();
        // Who asks finds out anew.
        if let Some(seen) =
            asked.conclusion.no_terminate.as_ref().filter(|_| asked.asking.is_none())
        {
            let why = format!("{} does not end one client alone: {seen}", card.label());
            return Err(Trouble::new(why, format!("mpsgate qualify {uuid} --full")));
        }
        card.label()
    };
    let hint = "mpsgate status; journalctl -u mpsgated -n 50";
    let (taken, begun) = oneshot::channel();
    let (reply, answer) = oneshot::channel();
    let order = Order::Terminate { doomed, deadline, taken, reply };
    let not_taken = |why: &str| Trouble::new(format!("{label} {why}"), hint);
    if !daemon.order(uuid, order) {
        return Err(not_taken("is being taken back"));
    }
    let busy = "has an MPS control daemon that is busy with something else";
    let begun = timeout(TURN, begun).await.map_err(|_| not_taken(busy))?;
    begun.map_err(|_| not_taken("is not ready"))?;
    let late = "has an MPS control daemon that did not answer in time";
    let left = deadline.saturating_duration_since(Instant::now());
    let answer = timeout(left, answer).await.map_err(|_| not_taken(late))?;
    answer.unwrap_or_else(|_| Err(not_taken("is not ready"))).map(Some)
}
