//! What the rest of the daemon sees of a card: every change of its health and of its MPS.

use std::sync::Arc;

use mpsgate_api::{ControlState, MpsStatus, ServerState};
use mpsgate_config::Schedule;
use mpsgate_model::{ComputeMode, Mib, OneOf};
use mpsgate_mps::{MpsError, MpsInstance};
use mpsgate_node::card::{Card, Health, Trouble};
use mpsgate_policy::Disturbance;

use super::CardTask;
use super::wedge::wedge_trouble;
use crate::daemon::Daemon;
use crate::hardware::Ready;
use crate::hardware::control::{View, view};

impl CardTask {
    pub(super) async fn refresh(&self, mps: &Arc<MpsInstance>) {
        let asked = Arc::clone(mps);
        let view = self.daemon.blocking(move |_| view(&asked)).await;
        self.set_view(view);
    }

    /// After a command that failed. One that was not answered is not followed by another: why is
    /// for the next look.
    pub(super) async fn refresh_after(&self, mps: &Arc<MpsInstance>, error: &MpsError) {
        if matches!(error, MpsError::Wedged { .. }) {
            return self.set_view(View::wedged());
        }
        self.refresh(mps).await;
    }

    pub(super) fn set_ready(&self, ready: &Ready, cap: Mib) {
        let mut node = self.daemon.node();
        let Some(card) = node.card_mut(&self.uuid) else { return };
        card.multiuser = ready.multiuser;
        card.max_clients = ready.max_clients;
        card.ends.clone_from(&ready.ends);
        card.compute_mode = Some(ComputeMode::ExclusiveProcess);
        card.mps = Some(MpsStatus {
            state: ready.view.state.into(),
            pid: Some(ready.pid),
            default_limit_mib: Some(cap.0),
            servers: Vec::new(),
        });
        card.cap = cap;
        card.shared_memory = None;
        card.saw(Disturbance::Restarted, "its control daemon was started or found anew");
        log::info!(
            uuid = self.uuid.as_str(), gpu = card.index, control_pid = ready.pid,
            adopted = ready.adopted, memory_mib = card.memory.0; "control daemon answers"
        );
        drop(node);
        self.set_view(ready.view.clone());
    }

    /// A control daemon that runs, and of which no more is known.
    pub(super) fn set_wedged(&self, pid: u32) {
        if let Some(card) = self.daemon.node().card_mut(&self.uuid) {
            card.mps = Some(MpsStatus {
                state: ControlState::Wedged.into(),
                pid: Some(pid),
                default_limit_mib: None,
                servers: Vec::new(),
            });
        }
        self.set_view(View::wedged());
    }

    pub(super) fn set_view(&self, view: View) {
        let mut node = self.daemon.node();
        // From then on it is being prepared for something else.
        if node.schedule.now() != Schedule::Mps {
            return;
        }
        let Some(card) = node.card_mut(&self.uuid) else { return };
        card.server_uid = view
            .servers
            .iter()
            // A driver that cannot tell (535) has none that is known not to take clients.
            .find(|server| server.status.as_ref().is_none_or(|state| *state == ServerState::Active))
            .and_then(|server| server.uid);
        if let Some(seen) = view.shared_memory.filter(|seen| Some(*seen) != card.shared_memory) {
            log::info!(uuid = self.uuid.as_str(), shared_memory = seen.as_str(); "MPS server looked at");
            card.shared_memory = Some(seen);
            self.daemon.look.notify_one();
        }
        if let Some(mps) = &mut card.mps {
            mps.state = view.state.into();
            // Those of a daemon that cannot be asked are as they were.
            if view.state != ControlState::Wedged {
                mps.servers = view.servers;
            }
        }
        self.assess(card, view.trouble);
        drop_and_tell(node, &self.daemon);
    }

    /// Draws the conclusion from what is known by now.
    pub(super) fn reassess(&self) {
        let mut node = self.daemon.node();
        if node.schedule.now() != Schedule::Mps {
            return;
        }
        let Some(card) = node.card_mut(&self.uuid) else { return };
        let before = card.health.clone();
        self.assess(card, None);
        if card.health != before {
            drop_and_tell(node, &self.daemon);
        }
    }

    fn assess(&self, card: &mut Card, unasked: Option<Trouble>) {
        let pid = card.mps.as_ref().and_then(|mps| mps.pid);
        let trouble = match card.mps.as_ref().map(|mps| &mps.state) {
            Some(OneOf::Known(ControlState::Wedged)) => Some(unasked.map_or_else(
                || wedge_trouble(self.watch.wedge.as_ref(), pid),
                |Trouble { why, hint }| Trouble::new(format!("cannot be asked: {why}"), hint),
            )),
            Some(OneOf::Known(ControlState::Fault)) => Some(self.fault()),
            _ => None,
        };
        let files = || {
            let Trouble { why, hint } = self.watch.files.clone()?;
            Some(Trouble::new(format!("is not safe to use: {why}"), hint))
        };
        let gate = || self.watch.gate.clone();
        // Who cannot be asked or ended may have lost its files: they say why.
        let health = match files().or(trouble).or_else(gate) {
            Some(trouble) => Health::Unhealthy(trouble),
            // A container could bypass MPS: `ComputeMode` decides.
            None if card.compute_mode != Some(ComputeMode::ExclusiveProcess) => card.health.clone(),
            // `dead`: the end of its process decides.
            None => Health::Ready,
        };
        log_health(card, &health);
        card.set_health(health);
    }

    fn fault(&self) -> Trouble {
        let by = self.watch.fault.as_ref();
        // A container may be able to write to that log.
        let by = by.map(|by| format!(", for which its log, which proves nothing, names {by}"));
        Trouble::new(
            format!("has an MPS server in FAULT after a fatal GPU error{}", by.unwrap_or_default()),
            "stop the containers on this card: the server recovers when the last one has ended",
        )
    }

    /// Of a card without a control daemon.
    pub(super) fn set_health(&self, health: Health) {
        let state = match health {
            Health::Starting => ControlState::Starting,
            _ => ControlState::Dead,
        };
        let mut node = self.daemon.node();
        let Some(card) = node.card_mut(&self.uuid) else { return };
        card.server_uid = None;
        card.cap = Mib(0);
        card.mps = Some(MpsStatus {
            state: state.into(),
            pid: None,
            default_limit_mib: None,
            servers: Vec::new(),
        });
        log_health(card, &health);
        card.set_health(health);
        drop_and_tell(node, &self.daemon);
    }
}

/// One line per change.
pub(super) fn log_health(card: &Card, now: &Health) {
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

pub(super) fn drop_and_tell(node: std::sync::MutexGuard<'_, mpsgate_node::Node>, daemon: &Daemon) {
    drop(node);
    daemon.tell_change();
}
