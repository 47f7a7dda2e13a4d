//! Clients that wait in the control daemon's pending list. One of another uid than the server's waits
//! until all clients of that server have ended, and everybody who comes later may wait behind it
//! (nebuly-ai/nos issue 19, NVIDIA/k8s-device-plugin issue 679; unverified without a GPU).
//!
//! Who is wrong is told by the grants: a process that runs as another uid than its container's grant
//! says. That is the one that waits, or, where it came first, the one that is served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_allocation::GrantKey;
use mpsgate_allocation::ledger::ProcessId;
use mpsgate_mps::CardMps;
use mpsgate_mps::protocol::Event;
use tokio::time::Instant;

use super::Keeper;
use crate::card::Trouble;
use crate::enforce::{Culprit, Measure, enforce};
use crate::{DaemonError, process};

/// A server that is just starting makes its first client wait, too.
const NAMED_AFTER: Duration = Duration::from_secs(2);
/// How long such a client may keep the card from others.
const LIMIT: Duration = Duration::from_secs(10);
/// A container that does it again and again is ended as a whole.
const PROCESSES: u32 = 3;

/// A client in the pending list.
#[derive(Debug, Clone)]
struct Waiting {
    process: ProcessId,
    uid: u32,
    since: Instant,
    /// Something was done, or said, about it.
    told: bool,
}

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: Vec<Waiting>,
    /// Processes of each container that were ended for it.
    ended: BTreeMap<GrantKey, u32>,
    /// Why the card takes no grants, if so.
    pub(super) trouble: Option<Trouble>,
}

impl Keeper {
    /// Takes what the log tells since the last look.
    pub(super) async fn read_events(&mut self, events: &[Event]) -> Result<(), DaemonError> {
        for event in events {
            match *event {
                Event::ClientPending { client, uid } => self.push_pending(client, uid),
                Event::ServerContext { .. } => self.watch.fault = None,
                Event::ServerExited { server, status } => self.watch.servers.exited(server, status),
                Event::ServerForcedDown { server } => self.watch.servers.forced(server),
                Event::FaultCulprit { client, .. } => self.name_fault(client).await?,
                _ => {}
            }
        }
        Ok(())
    }

    fn push_pending(&mut self, client: i32, uid: u32) {
        // 0: of a pid namespace that the control daemon cannot see.
        let process =
            u32::try_from(client).ok().filter(|pid| *pid != 0).and_then(process::identify);
        let Some(process) = process else { return };
        let waiting = &mut self.watch.pending.waiting;
        if !waiting.iter().any(|known| known.process == process) {
            waiting.push(Waiting { process, uid, since: Instant::now(), told: false });
        }
    }

    /// The process that its server's log names as the one that caused a fatal fault.
    async fn name_fault(&mut self, client: i32) -> Result<(), DaemonError> {
        let Ok(pid) = u32::try_from(client) else { return Ok(()) };
        let entries = self.daemon.node().entries();
        let find = move |_: &_| Culprit::find(process::identify(pid)?, &entries);
        let culprit = self.daemon.blocking("find out whose a process is", find).await?;
        let (label, container) = match &culprit {
            Some(culprit) => (culprit.label(), culprit.entry.as_ref()),
            None => (format!("pid {pid}, which has ended"), None),
        };
        let container = container.map(|entry| entry.grant.key.container_id.as_str());
        let why =
            format!("{label} caused a fatal GPU error, which hits every container of the card");
        log::warn!(uuid = self.uuid.as_str(), container, reason = why.as_str(); "fatal GPU error attributed");
        self.daemon.node().note(&self.uuid, container, "reported", why);
        self.watch.fault = Some(label);
        Ok(())
    }

    /// Judges who waits.
    pub(super) async fn look_at_pending(&mut self, mps: &Arc<CardMps>) -> Result<(), DaemonError> {
        let (server, multiuser) = {
            let node = self.daemon.node();
            let card = node.card(&self.uuid);
            let servers = card.and_then(|card| card.mps.as_ref()).map(|mps| &mps.servers);
            let server = servers.and_then(|servers| servers.first()).cloned();
            (server, card.is_some_and(|card| card.multiuser))
        };
        let serves = server.as_ref().and_then(|server| server.uid);
        self.watch.pending.waiting.retain(|waiting| {
            process::is_alive(&waiting.process)
                // Served since, or about to be.
                && !multiuser
                && serves != Some(waiting.uid)
        });
        let blocking =
            |waiting: &&Waiting| serves.is_some() && waiting.since.elapsed() >= NAMED_AFTER;
        let Some(first) = self.watch.pending.waiting.iter().find(blocking).cloned() else {
            if self.watch.pending.trouble.take().is_some() {
                self.reassess();
            }
            return Ok(());
        };
        let (Some(server), Some(serves)) = (server, serves) else { return Ok(()) };
        let wrong = self.who_is_wrong(mps, &first, server.pid, serves).await?;
        let named: Vec<String> = wrong.iter().map(Culprit::label).collect();
        let why = format!(
            "is blocked: {} waits for an MPS server of uid {}, and its server serves uid {serves}",
            process::describe(first.process.pid),
            first.uid
        );
        let hint = if named.is_empty() {
            format!("end it, or what keeps the server: kill {}", first.process.pid)
        } else {
            format!("it is up to {}, which has another uid than its grant", named.join(" and "))
        };
        self.watch.pending.trouble = Some(Trouble::new(why.clone(), hint));
        self.reassess();
        if first.since.elapsed() < LIMIT || first.told {
            return Ok(());
        }
        for waiting in &mut self.watch.pending.waiting {
            waiting.told |= waiting.process == first.process;
        }
        for culprit in wrong {
            self.end_wrong(&culprit, serves).await?;
        }
        Ok(())
    }

    async fn end_wrong(&mut self, culprit: &Culprit, serves: u32) -> Result<(), DaemonError> {
        let mut measure = Measure::Process;
        if let Some(entry) = &culprit.entry {
            let ended = self.watch.pending.ended.entry(entry.grant.key.clone()).or_default();
            *ended += 1;
            if *ended > PROCESSES {
                measure = Measure::Container;
            }
        }
        let granted = culprit.entry.as_ref().map_or_else(
            || "it is in no container with a grant".to_owned(),
            |entry| format!("its grant is for uid {}", entry.grant.uid),
        );
        let why = format!(
            "{} blocked the card for {} s: {granted}, and the MPS server serves uid {serves}",
            culprit.words,
            LIMIT.as_secs()
        );
        enforce(&self.daemon, &self.uuid, culprit, measure, why).await.map(drop)
    }

    /// Who runs as another uid than its grant's: the one that waits, or else those that are served.
    async fn who_is_wrong(
        &self,
        mps: &Arc<CardMps>,
        first: &Waiting,
        server: u32,
        serves: u32,
    ) -> Result<Vec<Culprit>, DaemonError> {
        let (mps, first) = (Arc::clone(mps), first.clone());
        let entries = self.daemon.node().entries();
        let work = move |_: &_| {
            let Some(waiting) = Culprit::find(first.process, &entries) else { return Vec::new() };
            let rightful = waiting.entry.as_ref().is_some_and(|entry| entry.grant.uid == first.uid);
            if !rightful {
                return vec![waiting];
            }
            let served = i32::try_from(server).ok().map(|pid| mps.channel().client_list(pid));
            let served = served.and_then(Result::ok).unwrap_or_default();
            served
                .into_iter()
                .filter_map(|pid| process::identify(u32::try_from(pid).ok()?))
                .filter_map(|process| Culprit::find(process, &entries))
                .filter(|culprit| {
                    culprit.entry.as_ref().is_none_or(|entry| entry.grant.uid != serves)
                })
                .collect()
        };
        self.daemon.blocking("find out who blocks a card", work).await
    }
}
