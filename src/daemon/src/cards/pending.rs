//! Clients that wait in the control daemon's pending list. One of another uid than the server's
//! waits until all clients of that server have ended, and everybody who comes later may wait behind
//! it (nebuly-ai/nos issue 19, NVIDIA/k8s-device-plugin issue 679; unverified without a GPU).
//!
//! Who is wrong is told by the grants: a process that runs as another uid than its container's
//! grant says. That is the one that waits, or, where it came first, the one that is served.
//!
//! **A line of the log is a hint.** A container may be able to write there, so nobody is blamed,
//! killed or waited for because of one alone: the kernel says who has which uid, whose cgroup he is
//! in and whether he is connected to this card now; the control daemon says whom its server serves
//! and how it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_model::GrantKey;
use mpsgate_model::ledger::{Entry, ProcessId};
use mpsgate_mps::protocol::{Event, ServerStatus};
use mpsgate_mps::{ControlDaemon, MpsInstance};
use mpsgate_node::card::Trouble;
use tokio::time::Instant;

use super::CardTask;
use crate::enforce::{Measure, enforce};
use crate::owner::Culprit;
use crate::{DaemonError, process};

/// A server that is just starting makes its first client wait, too.
const NAMED_AFTER: Duration = Duration::from_secs(2);
/// How long such a client may keep the card from others.
const LIMIT: Duration = Duration::from_secs(10);
/// Processes that are looked at.
const WAITING: usize = 256;
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

impl CardTask {
    /// Takes what the log hints at since the last look. Whether the control daemon is to be asked
    /// about it.
    pub(super) fn read_events(&mut self, events: &[Event]) -> bool {
        let mut asks = false;
        for event in events {
            match *event {
                Event::ClientPending { client, uid } => self.push_pending(client, uid),
                Event::ServerContext { .. } => self.watch.fault = None,
                Event::ServerExited { server, status } => self.watch.servers.exited(server, status),
                Event::ServerForcedDown { server } => self.watch.servers.forced(server),
                Event::ServerFault { .. } => asks = true,
                Event::FaultCulprit { client, .. } => {
                    self.watch.accused = Some(client);
                    asks = true;
                }
                // Who is served is what the end of a server is evaluated by.
                Event::ClientServed { .. } => asks = true,
                _ => {}
            }
        }
        asks
    }

    fn push_pending(&mut self, client: i32, uid: u32) {
        // 0: of a pid namespace that the control daemon cannot see.
        let process =
            u32::try_from(client).ok().filter(|pid| *pid != 0).and_then(process::identify);
        let Some(process) = process else { return };
        let waiting = &mut self.watch.pending.waiting;
        // More are never looked at, whoever writes them.
        if waiting.len() < WAITING && !waiting.iter().any(|known| known.process == process) {
            waiting.push(Waiting { process, uid, since: Instant::now(), told: false });
        }
    }

    /// Names the process that its server's log accuses of a fatal fault, where the control daemon
    /// says that there is one, and that this is a client of its server. It stays what a line says:
    /// nobody is blamed for it.
    pub(super) async fn name_fault(&mut self, mps: &Arc<MpsInstance>) -> Result<(), DaemonError> {
        let Some(client) = self.watch.accused.take().and_then(|pid| u32::try_from(pid).ok()) else {
            return Ok(());
        };
        let entries = self.entries_of_card();
        let asked = Arc::clone(mps);
        let find = move |_: &_| {
            let faulted = asked.clients().ok()?.into_iter().find(|(server, clients)| {
                server.status == ServerStatus::Fault
                    && clients.iter().any(|pid| u32::try_from(*pid) == Ok(client))
            });
            faulted.is_some().then_some(())?;
            Culprit::find(process::identify(client)?, &entries).filter(|c| c.entry.is_some())
        };
        let named = self.daemon.blocking("find out whose a process is", find).await?;
        match named.as_ref().map(Culprit::label) {
            Some(label) => {
                log::warn!(uuid = self.uuid.as_str(), reason = label.as_str(); "fatal GPU error, and its log names a client");
                self.watch.fault = Some(label);
                self.reassess();
            }
            None => {
                log::info!(uuid = self.uuid.as_str(), pid = client; "the MPS log blames a process, and its control daemon does not bear it out");
            }
        }
        Ok(())
    }

    /// The grants on this card.
    pub(super) fn entries_of_card(&self) -> Vec<Entry> {
        self.daemon.node().ledger().on_card(&self.uuid).cloned().collect()
    }

    /// Forgets who does not wait: the log says so, and the kernel does not.
    async fn confirm_pending(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
    ) -> Result<(), DaemonError> {
        if self.watch.pending.waiting.is_empty() {
            return Ok(());
        }
        let (mps, daemon) = (Arc::clone(mps), Arc::clone(daemon));
        let waiting = std::mem::take(&mut self.watch.pending.waiting);
        let work = move |_: &_| -> Vec<Waiting> {
            let waits = |waiting: &Waiting| {
                let pid = waiting.process.pid;
                process::uid(pid) == Some(waiting.uid)
                    && pid.try_into().is_ok_and(|pid| mps.is_connected(&daemon, pid))
                    // Still the same after all was read, so all that was read is its own.
                    && process::is_alive(&waiting.process)
            };
            waiting.into_iter().filter(waits).collect()
        };
        self.watch.pending.waiting = self.daemon.blocking("look at who waits", work).await?;
        Ok(())
    }

    /// Evaluates who waits.
    pub(super) async fn look_at_pending(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
    ) -> Result<(), DaemonError> {
        self.confirm_pending(mps, daemon).await?;
        let (server, multiuser) = {
            let node = self.daemon.node();
            let card = node.card(&self.uuid);
            let servers = card.and_then(|card| card.mps.as_ref()).map(|mps| &mps.servers);
            let server = servers.and_then(|servers| servers.first()).cloned();
            (server, card.is_some_and(|card| card.multiuser))
        };
        let serves = server.as_ref().and_then(|server| server.uid);
        self.watch.pending.waiting.retain(|waiting| {
            // Served since, or about to be.
            !multiuser && serves != Some(waiting.uid)
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
        mps: &Arc<MpsInstance>,
        first: &Waiting,
        server: u32,
        serves: u32,
    ) -> Result<Vec<Culprit>, DaemonError> {
        let (mps, first) = (Arc::clone(mps), first.clone());
        let entries = self.entries_of_card();
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
                // The daemon names pids; the kernel says who runs as the server's user.
                .filter(|process| process::uid(process.pid) == Some(serves))
                .filter_map(|process| Culprit::find(process, &entries))
                .filter(|culprit| {
                    culprit.entry.as_ref().is_none_or(|entry| entry.grant.uid != serves)
                })
                .collect()
        };
        self.daemon.blocking("find out who blocks a card", work).await
    }
}
