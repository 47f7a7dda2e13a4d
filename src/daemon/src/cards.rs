//! Keeps one managed card ready: one task per card, the only one that asks for changes of its MPS.
//!
//! ```text
//!            fails, dies: wait 1, 2, 4 … 60 s
//!          ┌───────────────────────────────────┐
//!          ▼                                   │
//!   bring up ──► ready ── its process has ended: grants broken
//!      │  ▲        │  └── looks: wedged? files? fault?                    (watch)
//!      │  │        └───── orders: server for a uid, limits, stop          (order)
//!      │  └─ answers
//!      └──► wedged already: why?
//! ```
//!
//! A control daemon that dies takes the CUDA clients of its card with it. Their grants are marked
//! broken and count until their containers end; a new daemon is started beside them, and the gate
//! hands nobody over to it before its limits are set.

mod card_health;
mod clients;
mod events;
mod gate_socket;
mod order;
mod server_limits;
mod servers;
mod shared_card;
mod watch;
mod wedge;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_config::Schedule;
use mpsgate_host::crash_point;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Backoff, GpuUuid, Instance};
use mpsgate_mps::{ControlDaemon, MpsInstance};
use mpsgate_node::card::{CardEvent, CardId, Trouble};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use self::watch::Watch;
use crate::daemon::Daemon;
use crate::hardware::control::InForce;
use crate::hardware::{Fault, Ready};
use crate::orders::Order;
use crate::{DaemonError, process_end};
use mpsgate_host::clock::now_ms;

/// Before MPS of a card is tried again.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));

/// Starts the task of a card, unless it has one: whoever looks at the cards may have come first.
pub(crate) fn start(daemon: &Arc<Daemon>, uuid: &GpuUuid) {
    let is_kept = daemon.card_tasks().contains_key(uuid);
    if !is_kept {
        CardTask::new(daemon, uuid).start();
    }
}

/// Keeps one card ready. A card has one at most: two would prepare it at the same time.
pub(crate) struct CardTask {
    daemon: Arc<Daemon>,
    uuid: GpuUuid,
    orders: mpsc::UnboundedReceiver<Order>,
    backoff: Backoff,
    /// The limits of the card's servers, where they are known.
    in_force: InForce,
    /// How often the watchdog had looked when a client of this container was handed over last.
    handed_over: BTreeMap<Instance, u64>,
    watch: Watch,
}

/// Why a step ended.
enum Next {
    BringUp,
    End,
}

impl CardTask {
    /// Takes the card's place, so that nobody else starts a task. Orders wait until it is started.
    pub(crate) fn new(daemon: &Arc<Daemon>, uuid: &GpuUuid) -> Self {
        let (sender, orders) = mpsc::unbounded_channel();
        daemon.card_tasks().insert(uuid.clone(), sender);
        Self {
            daemon: Arc::clone(daemon),
            uuid: uuid.clone(),
            orders,
            backoff: BACKOFF,
            in_force: InForce::default(),
            handed_over: BTreeMap::new(),
            watch: Watch::default(),
        }
    }

    pub(crate) fn start(self) {
        let daemon = Arc::clone(&self.daemon);
        daemon.spawn(format!("keeps {} ready", self.uuid), self.keep());
    }

    async fn keep(mut self) -> Result<(), DaemonError> {
        loop {
            let Some(card) = self.card_id() else { return Ok(()) };
            if self.daemon.node().schedule.now() == Schedule::Share {
                match self.share(&card).await {
                    Next::BringUp => continue,
                    Next::End => return Ok(()),
                }
            }
            self.break_grants_of_a_dead_daemon(&card).await;
            let again = card.clone();
            let up = self.daemon.blocking(move |h| h.bring_up(&again)).await;
            let next = match up {
                // Switched meanwhile.
                Ok(_) if self.daemon.node().schedule.now() != Schedule::Mps => Next::BringUp,
                Ok(ready) => {
                    self.watch = Watch::of(&ready.mps);
                    self.happened(CardEvent::Answers(Box::new(ready.control.clone())));
                    self.in_force = InForce::default();
                    self.serve(&card, ready).await
                }
                Err(Fault::Wedged(mps, daemon)) => self.unwedge(&card, &mps, &daemon).await,
                Err(Fault::Orphans(pids)) => self.wait_for_orphans(&card, &pids).await,
                Err(Fault::Unfit(why)) => {
                    self.happened(CardEvent::Unfit(Schedule::Mps, why));
                    self.back_off(&card).await
                }
                Err(Fault::Failed(why)) => {
                    self.happened(CardEvent::Failed(Schedule::Mps, why));
                    self.back_off(&card).await
                }
            };
            if matches!(next, Next::End) {
                return Ok(());
            }
        }
    }

    /// `None` once the card is no longer managed.
    fn card_id(&self) -> Option<CardId> {
        let node = self.daemon.node();
        let card = node.card(&self.uuid).filter(|card| card.is_managed())?;
        Some(node.card_id(card))
    }

    /// While the control daemon lives.
    async fn serve(&mut self, card: &CardId, ready: Ready) -> Next {
        let since = Instant::now();
        // As it was found: read anew, one that cannot be read now would count as ended.
        let daemon =
            ProcessId { pid: ready.control.pid, start_time: ready.daemon.process.start_ticks() };
        let socket = ready.mps.dirs().gate_socket();
        let _answering = match gate_socket::answer(&self.daemon, &self.uuid, &socket, &ready.pipe) {
            Ok(answering) => answering,
            Err(error) => {
                let why = format!("cannot bind {}: {error}", socket.display());
                let trouble = Trouble::new(why, "journalctl -u mpsgated -n 50");
                self.happened(CardEvent::Failed(Schedule::Mps, trouble));
                return self.back_off(card).await;
            }
        };
        let mut ended = pin!(process_end::ended(&daemon));
        let mut look = self.next_look();
        loop {
            let order = tokio::select! {
                order = self.orders.recv() => order,
                () = &mut ended => return self.died(card, since.elapsed()).await,
                () = sleep_until(look) => {
                    self.look(&ready.mps, &ready.daemon).await;
                    look = self.next_look();
                    continue;
                }
            };
            let Some(order) = order else { return Next::End };
            // On a channel that is known not to answer each order would take 3 s and more.
            let next = if self.is_wedged() {
                self.decline(card, order).await
            } else {
                self.obey(card, &ready, order).await
            };
            if let Some(next) = next {
                return next;
            }
            // A first grant, or a trouble: the next look may be due sooner.
            look = look.min(self.next_look());
        }
    }

    /// A control daemon that was there before us and does not answer: it is looked at, and acted
    /// upon, as if it had been ready before.
    async fn unwedge(
        &mut self,
        card: &CardId,
        mps: &Arc<MpsInstance>,
        running: &Arc<ControlDaemon>,
    ) -> Next {
        let since = Instant::now();
        let pid = u32::try_from(running.process.pid()).unwrap_or_default();
        self.watch = Watch::of(mps);
        self.happened(CardEvent::Silent(pid));
        let daemon = ProcessId { pid, start_time: running.process.start_ticks() };
        let mut ended = pin!(process_end::ended(&daemon));
        let mut look = Instant::now();
        loop {
            let order = tokio::select! {
                order = self.orders.recv() => order,
                () = &mut ended => return self.died(card, since.elapsed()).await,
                () = sleep_until(look) => {
                    self.look_at_wedge(mps, running, false).await;
                    if !self.is_wedged() {
                        return Next::BringUp;
                    }
                    look = self.next_look();
                    continue;
                }
            };
            let Some(order) = order else { return Next::End };
            if let Some(next) = self.decline(card, order).await {
                return next;
            }
        }
    }

    /// The control daemon is gone: another one is started in a moment, less and less soon where
    /// that happens again and again.
    async fn died(&mut self, card: &CardId, well_for: Duration) -> Next {
        self.break_grants().await;
        let wait = self.backoff.pause_after(well_for);
        self.happened(CardEvent::Died(wait));
        self.pause(card, wait, &[]).await
    }

    /// Servers of a dead control daemon hold the card.
    async fn wait_for_orphans(&mut self, card: &CardId, pids: &[u32]) -> Next {
        self.happened(CardEvent::Orphaned(pids.to_vec()));
        let wait = self.backoff.pause();
        let orphans: Vec<ProcessId> =
            pids.iter().filter_map(|pid| process_end::identify(*pid)).collect();
        self.pause(card, wait, &orphans).await
    }

    async fn back_off(&mut self, card: &CardId) -> Next {
        let wait = self.backoff.pause();
        self.pause(card, wait, &[]).await
    }

    /// Waits, or until all of `gone` have ended where there are any, refusing what needs the card.
    async fn pause(&mut self, card: &CardId, wait: Duration, gone: &[ProcessId]) -> Next {
        let until = Instant::now() + wait;
        let mut ended = pin!(async {
            for process in gone {
                process_end::ended(process).await;
            }
            if gone.is_empty() {
                std::future::pending::<()>().await;
            }
        });
        loop {
            let order = tokio::select! {
                order = self.orders.recv() => order,
                () = &mut ended => return Next::BringUp,
                () = sleep_until(until) => return Next::BringUp,
            };
            let Some(order) = order else { return Next::End };
            if let Some(next) = self.decline(card, order).await {
                return next;
            }
        }
    }

    /// Marks the card's grants before another daemon is started: also where it died while mpsgated
    /// was away, and whatever becomes of us in between.
    async fn break_grants_of_a_dead_daemon(&mut self, card: &CardId) {
        let held = self.daemon.node().ledger().on_card(&self.uuid).next().is_some();
        if !held {
            return;
        }
        let asked = card.clone();
        if self.daemon.blocking(move |h| h.is_dead(&asked)).await {
            self.break_grants().await;
        }
    }

    /// The card's CUDA processes have lost it: their containers must be restarted.
    async fn break_grants(&self) {
        crash_point!("grants.before_breaking");
        let is_news = self.daemon.change(|node, effects| {
            let before = node.changes();
            let lost = CardEvent::ClientsLost(now_ms());
            node.apply(&self.uuid, lost, std::time::Instant::now(), effects);
            node.changes() != before
        });
        if !is_news {
            return;
        }
        crash_point!("grants.broken");
        // A failure is logged, and tried again.
        if self.daemon.recorded().await.is_err() {
            self.daemon.unwritten.notify_one();
        }
    }
}
