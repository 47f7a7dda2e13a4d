//! Looks at a card whose control daemon runs, as long as it runs.
//!
//! A look reads /proc, the daemon's log and its files: microseconds, and not a word to the daemon.
//! A command is asked where that look gives a reason, and now and then without one, because a
//! daemon whose cgroup is frozen looks like one at rest. So a wedge is known within 5 s while
//! grants live on the card: 1 s until the look, 3 s until the command gives up.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_mps::{Connections, ControlDaemon, Glance, MpsError, MpsInstance, WedgeCause};
use mpsgate_node::card::{CardEvent, GateSeen, Health, View};
use tokio::time::Instant;

use super::CardTask;
use super::servers::Servers;
use crate::hardware::control::{Sight, look, mps_trouble, served, view};
use crate::hardware::{Gate, Hardware};
use crate::process_end;

/// Between two looks while grants live on the card, and while none does.
const BUSY: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_secs(5);
/// Between two commands that nothing gives a reason for, while grants live on the card.
const UNASKED: Duration = Duration::from_secs(30);
/// The same where the kernel does not show what the daemon does.
const UNSEEN: Duration = Duration::from_secs(2);

/// What the looks have shown so far.
#[derive(Debug)]
pub(super) struct Watch {
    /// When the last command was asked.
    asked: Instant,
    /// Connections that were there while it answered: none of them holds it up.
    known: Connections,
    /// Those of the last look.
    seen: Connections,
    /// Where the daemon's log was read to.
    mark: u64,
    pub(super) servers: Servers,
    /// The pid that a line of the log accuses of it.
    pub(super) accused: Option<i32>,
}

impl Watch {
    pub(super) fn of(mps: &MpsInstance) -> Self {
        // What was written before is about processes whose pids may be others' by now.
        Self { mark: mps.dirs().log_file().mark(), ..Self::default() }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            asked: Instant::now(),
            known: Connections::default(),
            seen: Connections::default(),
            mark: 0,
            servers: Servers::default(),
            accused: None,
        }
    }
}

impl CardTask {
    /// When to look next.
    pub(super) fn next_look(&self) -> Instant {
        let node = self.daemon.node();
        let busy = node.ledger().on_card(&self.uuid).next().is_some()
            || node.card(&self.uuid).is_some_and(|card| *card.health() != Health::Ready);
        Instant::now() + if busy { BUSY } else { IDLE }
    }

    /// Looks once, asks where there is a reason, and acts on what it finds.
    pub(super) async fn look(&mut self, mps: &Arc<MpsInstance>, daemon: &Arc<ControlDaemon>) {
        let (seen_mps, seen_daemon, mark) = (Arc::clone(mps), Arc::clone(daemon), self.watch.mark);
        let work = move |hardware: &Hardware| {
            hardware.keep_programs();
            let gate = hardware.keep_gate(&seen_mps);
            (gate, look(&seen_mps, &seen_daemon, mark))
        };
        let (gate, sight) = self.daemon.blocking(work).await;
        self.watch.mark = sight.mark;
        self.note_files(&sight, gate);
        let hinted = self.read_events(&sight.events);
        self.evaluate_servers().await;
        // A client's connection is there for a moment, a front-end's that stays at the next look,
        // too.
        let seen = std::mem::replace(&mut self.watch.seen, sight.connections);
        let stays = self.watch.seen.in_both(&seen).has_more_than(&self.watch.known);
        if self.is_wedged() || stays || matches!(sight.glance, Glance::Busy | Glance::Stopped) {
            // The end of its process is seen by whoever waits for that.
            let is_free = !stays && !matches!(sight.glance, Glance::Busy | Glance::Stopped);
            return self.look_at_wedge(mps, daemon, is_free).await;
        }
        if hinted || self.is_worth_asking(sight.glance) {
            self.ask(mps, daemon, None).await;
        }
        self.name_fault(mps).await;
    }

    /// Asks the control daemon how it is. `cause`: why it may not answer.
    pub(super) async fn ask(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
        cause: Option<WedgeCause>,
    ) {
        let was_wedged = self.is_wedged();
        let (asked, running) = (Arc::clone(mps), Arc::clone(daemon));
        let work = move |_: &_| {
            let before = asked.connections(&running);
            let view = view(&asked);
            let served = if view.servers.is_empty() { Vec::new() } else { served(&asked) };
            (view, before.in_both(&asked.connections(&running)), served)
        };
        let (view, known, served) = self.daemon.blocking(work).await;
        self.happened(CardEvent::Viewed(View { cause, ..view }));
        self.watch.servers.serve(served);
        self.watch.asked = Instant::now();
        if self.is_wedged() {
            return;
        }
        self.watch.known = known;
        if was_wedged {
            // Limits that could not be set meanwhile.
            self.cap(mps).await.ok();
        }
    }

    /// How long ago the last command was asked.
    pub(super) fn unasked_for(&self) -> Duration {
        self.watch.asked.elapsed()
    }

    /// Whether something is wrong that may have passed, a server has ended, or nobody has asked for
    /// long.
    fn is_worth_asking(&self, glance: Glance) -> bool {
        let limit = if glance == Glance::Unseen { UNSEEN } else { UNASKED };
        let (healthy, held) = {
            let node = self.daemon.node();
            let healthy = node.card(&self.uuid).is_some_and(|card| *card.health() == Health::Ready);
            (healthy, node.ledger().on_card(&self.uuid).next().is_some())
        };
        !healthy
            || (held && self.unasked_for() >= limit)
            || self.server_pids().iter().any(|pid| process_end::identify(*pid).is_none())
    }

    fn note_files(&self, sight: &Sight, gate: Result<Gate, MpsError>) {
        let files = match &sight.files {
            Ok(repairs) => {
                for repair in repairs {
                    log::warn!(uuid = self.uuid.as_str(), what:% = repair; "made again");
                }
                None
            }
            Err(trouble) => Some(trouble.clone()),
        };
        let gate = match gate {
            Ok(Gate::Serves) => GateSeen::Serves,
            Ok(Gate::Started) => GateSeen::Started,
            Err(error) => GateSeen::Missing(mps_trouble(&error)),
        };
        self.happened(CardEvent::Looked(files, gate));
    }
}
