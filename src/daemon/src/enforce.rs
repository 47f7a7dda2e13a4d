//! Whose process takes from its neighbours what is theirs, and what is done about it.
//!
//! A process belongs to the container in whose cgroup it is: to the innermost, where they lie in each other.
//! Whoever belongs to none is reported and never touched: it is the operator's.

pub(crate) mod owner;

use mpsgate_api::{ACTIONS_KEPT, Action};
use mpsgate_config::Enforce;
use mpsgate_model::GpuUuid;
use mpsgate_model::ledger::{Entry, ProcessId, State};

use crate::daemon::{Daemon, now_ms};
use crate::node::Node;
use crate::{DaemonError, api_server, cgroup, process};

pub(crate) use self::owner::nested;

/// A process that does harm.
#[derive(Debug, Clone)]
pub(crate) struct Culprit {
    pub(crate) process: ProcessId,
    /// `pid 77 (sh -c …)`.
    pub(crate) words: String,
    /// The grant of the container that it is in.
    pub(crate) entry: Option<Entry>,
}

/// How much of a container is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// The one process: what it waits for it cannot get.
    Process,
    /// All of it.
    Container,
}

impl Culprit {
    /// Finds out whose `process` is, among `entries`. `None` once it has ended. Reads cgroups: blocks.
    pub(crate) fn find(process: ProcessId, entries: &[Entry]) -> Option<Self> {
        let words = process::describe(process.pid);
        let entry = owner::of(process.pid, entries).cloned();
        // Still the same after all was read, so all that was read is its own.
        process::is_alive(&process).then_some(Self { process, words, entry })
    }

    /// For sentences: `container web, pid 77 (sh)`.
    pub(crate) fn label(&self) -> String {
        match &self.entry {
            Some(entry) => format!("container {}, {}", entry.grant.key.container_id, self.words),
            None => self.words.clone(),
        }
    }
}

impl Node {
    /// Remembers what was done, for `status`.
    pub(crate) fn note(
        &mut self,
        card: &GpuUuid,
        container: Option<&str>,
        what: &'static str,
        why: String,
    ) {
        let action = Action {
            at_ms: now_ms(),
            container_id: container.map(str::to_owned),
            card: card.to_string(),
            card_index: self.card(card).map(|card| card.index).unwrap_or_default(),
            what: what.to_owned(),
            why,
        };
        self.events.acted(what);
        if let Some(container) = container {
            api_server::tell::acted(self, container, &action.why);
        }
        if self.actions.len() >= ACTIONS_KEPT {
            self.actions.pop_front();
        }
        self.actions.push_back(action);
    }

    /// All grants, for [`Culprit::find`].
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.ledger().entries().to_vec()
    }
}

/// Remembers and logs what a process did, where nothing is done about it.
pub(crate) fn report(daemon: &Daemon, card: &GpuUuid, culprit: &Culprit, why: String) {
    let container = culprit.entry.as_ref().map(|entry| entry.grant.key.container_id.as_str());
    log::warn!(uuid = card.as_str(), container, reason = why.as_str(); "reported, nothing is done");
    daemon.node().note(card, container, "reported", why);
}

/// Does what `policy.enforce` says about a process that was found to do harm. `true` where something
/// was ended.
pub(crate) async fn enforce(
    daemon: &Daemon,
    card: &GpuUuid,
    culprit: &Culprit,
    measure: Measure,
    why: String,
) -> Result<bool, DaemonError> {
    let (Some(entry), Enforce::Kill) = (&culprit.entry, daemon.settings.now().policy.enforce)
    else {
        report(daemon, card, culprit, why);
        return Ok(false);
    };
    let container = entry.grant.key.container_id.clone();
    let target = culprit.process;
    let state = entry.state.clone();
    let others = nested(entry, daemon.node().ledger().entries());
    let work = move |_: &_| match (measure, &state) {
        (Measure::Process, _) => cgroup::kill::kill_process(&target),
        (_, State::Active { init, cgroup: Some(cgroup) }) => {
            cgroup::kill::kill(cgroup, init, &others)
        }
        // With its init the rest of its pid namespace ends.
        (_, State::Active { init, cgroup: None }) => cgroup::kill::kill_process(init),
        (_, State::Reserved { .. }) => Ok(()),
    };
    let killed = daemon.blocking("end a container", work).await?;
    let (container, uuid) = (container.as_str(), card.as_str());
    match killed {
        Ok(()) => {
            let what = match measure {
                Measure::Process => "killed a process",
                Measure::Container => "killed",
            };
            log::warn!(container, uuid, reason = why.as_str(); "{what}");
            daemon.node().note(card, Some(container), what, why);
            Ok(true)
        }
        Err(error) => {
            log::error!(container, uuid, reason = why.as_str(), error:% = error; "not killed");
            let why = format!("{why}; it was to be killed, but {error}");
            daemon.node().note(card, Some(container), "failed", why);
            Ok(false)
        }
    }
}
