//! Keeps one managed card ready: one task per card, the only one that asks for changes of its MPS.
//!
//! ```text
//!            fails: wait 1, 2, 4 … 60 s
//!          ┌──────────┐
//!          ▼          │
//!   bring up ─────────┴──► ready ─────────── its process has ended ────────► dead
//!      ▲                     │                                                 │
//!      │                     └── orders: server for a uid, stop                │
//!      └──────────────── no grant lives on it ─────────────────────────────────┘
//! ```
//!
//! A dead control daemon takes its card's clients with it. With grants on the card a new one is not
//! started: their containers would lose what they hold without a word. The card is fenced and
//! `status` says what to do.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_allocation::{GpuUuid, Mib};
use mpsgate_api::MpsStatus;
use mpsgate_mps::{CardMps, MpsError};
use mpsgate_policy::{Code, Refusal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::card::{Card, Health, Trouble};
use crate::control::{View, cap, ensure_server, mps_trouble, view};
use crate::daemon::Daemon;
use crate::hardware::{CardId, Fault, Ready};
use crate::{DaemonError, process};

/// How often servers are looked at: their processes only, the channel where one is missing.
const LOOK: Duration = Duration::from_secs(5);
/// As NVML's mode is named.
const EXCLUSIVE: &str = "EXCLUSIVE_PROCESS";
/// First and last wait after a failure.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LAST_WAIT: Duration = Duration::from_secs(60);

/// What a keeper is asked to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// A server for this uid must take clients.
    Server { uid: u32, reply: oneshot::Sender<Result<(), Refusal>> },
    /// The largest grant of the card may have changed: let MPS know, and say when it does.
    Cap { reply: Option<oneshot::Sender<Result<(), Refusal>>> },
    /// Somebody changed the card's compute mode: change it back.
    ComputeMode,
    /// Ask the control daemon how it is, for `status`.
    View { reply: oneshot::Sender<()> },
    /// Take the card down and end.
    Stop { reply: oneshot::Sender<Result<(), Trouble>> },
}

/// Starts the keeper of a card.
pub(crate) fn start(daemon: &Arc<Daemon>, uuid: &GpuUuid) {
    let (sender, orders) = mpsc::unbounded_channel();
    daemon.keepers().insert(uuid.clone(), sender);
    let keeper = Keeper { daemon: Arc::clone(daemon), uuid: uuid.clone(), orders };
    daemon.spawn(format!("keeps {uuid} ready"), keeper.keep());
}

struct Keeper {
    daemon: Arc<Daemon>,
    uuid: GpuUuid,
    orders: mpsc::UnboundedReceiver<Order>,
}

/// Why a step ended.
enum Next {
    BringUp,
    End,
}

impl Keeper {
    async fn keep(mut self) -> Result<(), DaemonError> {
        let mut wait = FIRST_WAIT;
        loop {
            let Some(card) = self.card_id() else { return Ok(()) };
            let again = card.clone();
            let up = self.daemon.blocking("bring a card up", move |h| h.bring_up(&again)).await?;
            let next = match up {
                Ok(ready) => {
                    wait = FIRST_WAIT;
                    self.set_ready(&ready, card.cap);
                    self.serve(&card, ready).await?
                }
                Err(fault) => {
                    self.set_fault(fault);
                    let next = self.pause(&card, wait).await?;
                    wait = (wait * 2).min(LAST_WAIT);
                    next
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
        let card = node.card(&self.uuid).filter(|card| card.managed.is_some())?;
        let cap = node.wanted_cap(&self.uuid);
        Some(CardId { uuid: card.uuid.clone(), minor: card.minor, memory: card.memory, cap })
    }

    /// While the control daemon lives.
    async fn serve(&mut self, card: &CardId, ready: Ready) -> Result<Next, DaemonError> {
        let Some(daemon) = process::identify(ready.pid) else {
            return self.died(card).await;
        };
        let mut ended = pin!(process::ended(&daemon));
        let mut look = Instant::now() + LOOK;
        loop {
            let order = tokio::select! {
                order = self.orders.recv() => order,
                () = &mut ended => return self.died(card).await,
                () = sleep_until(look) => {
                    look = Instant::now() + LOOK;
                    if self.is_worth_a_look() {
                        self.refresh(&ready.mps).await?;
                    }
                    continue;
                }
            };
            match order {
                None => return Ok(Next::End),
                Some(Order::Server { uid, reply }) => {
                    // Who asked may have gone; the server is wanted all the same.
                    let _ = reply.send(self.server(&ready, uid).await?);
                }
                Some(Order::Cap { reply }) => {
                    let result = self.cap(&ready.mps).await?;
                    if let Some(reply) = reply {
                        let _ = reply.send(result);
                    }
                }
                Some(Order::ComputeMode) => self.retake_compute_mode(&ready.mps).await?,
                Some(Order::View { reply }) => {
                    self.refresh(&ready.mps).await?;
                    let _ = reply.send(());
                }
                Some(Order::Stop { reply }) => return self.stop(card, reply).await,
            }
        }
    }

    /// Whether something is wrong that may have passed, or a server has ended.
    fn is_worth_a_look(&self) -> bool {
        let node = self.daemon.node();
        let Some(card) = node.card(&self.uuid) else { return false };
        let mut servers = card.mps.iter().flat_map(|mps| &mps.servers);
        card.health != Health::Ready
            || servers.any(|server| process::identify(server.pid).is_none())
    }

    /// Waits after a failure, refusing what needs the card.
    async fn pause(&mut self, card: &CardId, wait: Duration) -> Result<Next, DaemonError> {
        let until = Instant::now() + wait;
        loop {
            let order = tokio::select! {
                order = self.orders.recv() => order,
                () = sleep_until(until) => return Ok(Next::BringUp),
            };
            match order {
                None => return Ok(Next::End),
                Some(Order::Server { reply, .. } | Order::Cap { reply: Some(reply) }) => {
                    let _ = reply.send(Err(self.not_ready()));
                }
                Some(Order::Cap { reply: None } | Order::ComputeMode) => {}
                Some(Order::View { reply }) => {
                    let _ = reply.send(());
                }
                Some(Order::Stop { reply }) => return self.stop(card, reply).await,
            }
        }
    }

    fn not_ready(&self) -> Refusal {
        let node = self.daemon.node();
        let label =
            node.card(&self.uuid).map_or_else(|| self.uuid.to_string(), |card| card.label());
        let trouble = node.card(&self.uuid).and_then(|card| card.health.trouble());
        let (why, hint) = trouble.map_or(("is not ready", "mpsgate status"), |t| (&t.why, &t.hint));
        Refusal::new(Code::GpuUnhealthy, format!("{label} {why}"), hint)
    }

    /// The control daemon is gone: fence the card; start another where nobody is hurt.
    async fn died(&mut self, card: &CardId) -> Result<Next, DaemonError> {
        loop {
            let holders = self.daemon.node().ledger().on_card(&self.uuid).count();
            let (why, hint) = if holders == 0 {
                (
                    "lost its MPS control daemon, which is being started again".to_owned(),
                    "mpsgate status".to_owned(),
                )
            } else {
                (
                    format!("lost its MPS control daemon, and its {holders} grants are broken with it"),
                    "stop the containers that hold memory of this card (mpsgate status lists them): the \
                     control daemon is started again when the last one has ended"
                        .to_owned(),
                )
            };
            self.set_health(Health::Unhealthy(Trouble::new(why, hint)), "dead");
            if holders == 0 {
                return Ok(Next::BringUp);
            }
            if matches!(self.pause(card, LOOK).await?, Next::End) {
                return Ok(Next::End);
            }
        }
    }

    async fn server(&self, ready: &Ready, uid: u32) -> Result<Result<(), Refusal>, DaemonError> {
        {
            let mut node = self.daemon.node();
            let Some(card) = node.card_mut(&self.uuid) else { return Ok(Ok(())) };
            if card.has_server_for(uid) {
                return Ok(Ok(()));
            }
            // Until the new one takes clients no other order may count on it.
            card.server_uid = None;
        }
        // The server takes the default that it finds when it starts.
        if let Err(refusal) = self.cap(&ready.mps).await? {
            return Ok(Err(refusal));
        }
        let asked = Arc::clone(&ready.mps);
        let limit = Duration::from_secs(self.daemon.config.mps.start_timeout_s.into());
        let started = self
            .daemon
            .blocking("start a server", move |_| ensure_server(&asked, uid, limit))
            .await?;
        let result = match started {
            Ok(()) => Ok(()),
            Err(MpsError::ServerDied { .. }) if ready.simulated => {
                log::info!(uuid = self.uuid.as_str(); "no MPS server: the card is simulated");
                if let Some(card) = self.daemon.node().card_mut(&self.uuid) {
                    card.serverless = true;
                }
                Ok(())
            }
            Err(error) => {
                let Trouble { why, hint } = mps_trouble(&error);
                log::error!(uuid = self.uuid.as_str(), uid, reason = why.as_str(); "server not ready");
                Err(Refusal::new(Code::MpsServer, why, hint))
            }
        };
        self.refresh(&ready.mps).await?;
        Ok(result)
    }

    /// Brings the limit of clients without one of their own in line with the largest grant.
    async fn cap(&self, mps: &Arc<CardMps>) -> Result<Result<(), Refusal>, DaemonError> {
        let wanted = {
            let node = self.daemon.node();
            let wanted = node.wanted_cap(&self.uuid);
            if node.card(&self.uuid).is_none_or(|card| card.cap == wanted) {
                return Ok(Ok(()));
            }
            wanted
        };
        let asked = Arc::clone(mps);
        let set = self.daemon.blocking("set a limit", move |_| cap(&asked, wanted)).await?;
        if let Err(error) = set {
            let Trouble { why, hint } = mps_trouble(&error);
            log::error!(uuid = self.uuid.as_str(), limit_mib = wanted.0, reason = why.as_str(); "limit not set");
            self.refresh(mps).await?;
            return Ok(Err(Refusal::new(Code::GpuUnhealthy, why, hint)));
        }
        log::debug!(uuid = self.uuid.as_str(), limit_mib = wanted.0; "limit set");
        if let Some(card) = self.daemon.node().card_mut(&self.uuid) {
            card.cap = wanted;
            if let Some(mps) = &mut card.mps {
                mps.default_limit_mib = Some(wanted.0);
            }
        }
        Ok(Ok(()))
    }

    async fn retake_compute_mode(&self, mps: &Arc<CardMps>) -> Result<(), DaemonError> {
        let uuid = self.uuid.to_string();
        let set = self
            .daemon
            .blocking("set a compute mode", move |h| h.retake_compute_mode(&uuid))
            .await?;
        match set {
            Ok(changed) => {
                if changed {
                    log::warn!(
                        uuid = self.uuid.as_str(), mode = EXCLUSIVE;
                        "somebody changed the compute mode of a managed card; changed back"
                    );
                }
                if let Some(card) = self.daemon.node().card_mut(&self.uuid) {
                    EXCLUSIVE.clone_into(&mut card.compute_mode);
                }
                self.refresh(mps).await
            }
            Err(trouble) => {
                let why = format!("can be used without MPS: {}", trouble.why);
                let mut node = self.daemon.node();
                if let Some(card) = node.card_mut(&self.uuid) {
                    let health = Health::Unhealthy(Trouble::new(why, trouble.hint));
                    log_health(card, &health);
                    card.health = health;
                }
                drop_and_tell(node, &self.daemon);
                Ok(())
            }
        }
    }

    async fn refresh(&self, mps: &Arc<CardMps>) -> Result<(), DaemonError> {
        let asked = Arc::clone(mps);
        let view = self.daemon.blocking("look at a control daemon", move |_| view(&asked)).await?;
        self.set_view(view);
        Ok(())
    }

    /// Takes the card down. Where that fails it stays managed, so it is brought up again.
    async fn stop(
        &self,
        card: &CardId,
        reply: oneshot::Sender<Result<(), Trouble>>,
    ) -> Result<Next, DaemonError> {
        let card = card.clone();
        let result = self.daemon.blocking("take a card down", move |h| h.take_down(&card)).await?;
        let next = if result.is_ok() { Next::End } else { Next::BringUp };
        let _ = reply.send(result);
        Ok(next)
    }

    fn set_ready(&self, ready: &Ready, cap: Mib) {
        let mut node = self.daemon.node();
        let Some(card) = node.card_mut(&self.uuid) else { return };
        card.multiuser = ready.multiuser;
        card.max_clients = ready.max_clients;
        card.client_dir.clone_from(&ready.client_dir);
        EXCLUSIVE.clone_into(&mut card.compute_mode);
        card.mps = Some(MpsStatus {
            state: ready.view.state.to_owned(),
            pid: Some(ready.pid),
            default_limit_mib: Some(cap.0),
            servers: Vec::new(),
        });
        card.cap = cap;
        log::info!(
            uuid = self.uuid.as_str(), gpu = card.index, control_pid = ready.pid,
            adopted = ready.adopted, memory_mib = card.memory.0; "control daemon answers"
        );
        drop(node);
        self.set_view(ready.view.clone());
    }

    fn set_view(&self, view: View) {
        let mut node = self.daemon.node();
        let Some(card) = node.card_mut(&self.uuid) else { return };
        card.server_uid = view
            .servers
            .iter()
            // A driver that cannot tell (535) has none that is known not to take clients.
            .find(|server| server.status.as_deref().is_none_or(|word| word == "ACTIVE"))
            .and_then(|server| server.uid);
        if let Some(mps) = &mut card.mps {
            mps.state = view.state.to_owned();
            mps.servers = view.servers;
        }
        let health = match view.state {
            "fault" => Health::Unhealthy(Trouble::new(
                "has an MPS server in FAULT after a fatal GPU error",
                "stop the containers on this card: the server recovers when the last one has ended",
            )),
            "wedged" => Health::Unhealthy(Trouble::new(
                "has an MPS control daemon that does not answer",
                "mpsgate doctor names the process that holds its channel; end that container",
            )),
            // A container could go round MPS: `ComputeMode` decides.
            _ if card.compute_mode != EXCLUSIVE => card.health.clone(),
            // `dead`: the end of its process decides.
            _ => Health::Ready,
        };
        log_health(card, &health);
        card.health = health;
        drop_and_tell(node, &self.daemon);
    }

    fn set_fault(&self, fault: Fault) {
        let health = match fault {
            Fault::Unfit(trouble) => Health::Unfit(trouble),
            Fault::Failed(Trouble { why, hint }) => {
                Health::Unhealthy(Trouble::new(format!("is not ready: {why}"), hint))
            }
        };
        self.set_health(health, "dead");
    }

    fn set_health(&self, health: Health, mps: &str) {
        let mut node = self.daemon.node();
        let Some(card) = node.card_mut(&self.uuid) else { return };
        card.server_uid = None;
        card.cap = Mib(0);
        card.mps = Some(MpsStatus {
            state: mps.to_owned(),
            pid: None,
            default_limit_mib: None,
            servers: Vec::new(),
        });
        log_health(card, &health);
        card.health = health;
        drop_and_tell(node, &self.daemon);
    }
}

/// One line per change.
fn log_health(card: &Card, now: &Health) {
    if card.health == *now {
        return;
    }
    let (uuid, gpu) = (card.uuid.as_str(), card.index);
    match now.trouble() {
        Some(Trouble { why, hint }) => {
            log::error!(uuid, gpu, reason = why.as_str(), hint = hint.as_str(); "card not ready");
        }
        None => log::info!(uuid, gpu, memory_mib = card.memory.0; "card ready"),
    }
}

fn drop_and_tell(node: std::sync::MutexGuard<'_, crate::node::Node>, daemon: &Daemon) {
    drop(node);
    daemon.tell_change();
}
