//! How the card task asks a control daemon how it is, and what the log says of a card.

use std::sync::Arc;

use mpsgate_model::{GpuUuid, Mib};
use mpsgate_mps::{MpsError, MpsInstance};
use mpsgate_node::card::{CardEvent, CardNews, Control, Trouble, View};

use super::CardTask;
use crate::hardware::Ready;
use crate::hardware::control::view;

impl CardTask {
    pub(super) fn happened(&self, event: CardEvent) {
        self.daemon.happened(&self.uuid, event);
    }

    pub(super) async fn refresh(&self, mps: &Arc<MpsInstance>) {
        let asked = Arc::clone(mps);
        let view = self.daemon.blocking(move |_| view(&asked)).await;
        self.happened(CardEvent::Viewed(view));
    }

    /// After a command that failed. One that was not answered is not followed by another: why is
    /// for the next look.
    pub(super) async fn refresh_after(&self, mps: &Arc<MpsInstance>, error: &MpsError) {
        if matches!(error, MpsError::Wedged { .. }) {
            return self.happened(CardEvent::Viewed(View::wedged(None)));
        }
        self.refresh(mps).await;
    }

    pub(super) fn answers(&self, ready: &Ready, limit: Mib) {
        self.happened(CardEvent::Answers(Box::new(Control {
            pid: ready.pid,
            adopted: ready.adopted,
            multiuser: ready.multiuser,
            max_clients: ready.max_clients,
            ends: ready.ends.clone(),
            limit,
            view: ready.view.clone(),
        })));
    }
}

/// Logs what happened to a card.
pub(crate) fn tell(uuid: &GpuUuid, gpu: u32, news: CardNews) {
    let uuid = uuid.as_str();
    match news {
        CardNews::Ready(memory) => log::info!(uuid, gpu, memory_mib = memory.0; "card ready"),
        CardNews::NotReady(Trouble { why, hint }) => {
            log::error!(uuid, gpu, reason = why.as_str(), hint = hint.as_str(); "card not ready");
        }
        CardNews::Answers(control_pid, adopted, memory) => log::info!(
            uuid, gpu, control_pid, adopted, memory_mib = memory.0; "control daemon answers"
        ),
        CardNews::SharedMemory(seen) => {
            log::info!(uuid, shared_memory = seen.as_str(); "MPS server looked at");
        }
        CardNews::Back => log::info!(uuid; "card is back"),
        CardNews::Lost(Trouble { why, hint }) => {
            log::error!(uuid, reason = why.as_str(), hint = hint.as_str(); "card lost");
        }
        CardNews::Kept => log::warn!(
            uuid, hint = "when they have ended: mpsgate disable GPU";
            "card was taken out of the settings while it has grants and stays managed"
        ),
        CardNews::Broken(names) => log::error!(
            uuid, containers = names.join(","),
            hint = "restart these containers"; "grants broken: their MPS died"
        ),
        CardNews::Unlimited(Trouble { why, hint }) => log::info!(
            uuid, reason = why.as_str(), hint = hint.as_str();
            "the driver does not limit containers of the card by cgroup: the guarantee is the next lower one"
        ),
    }
}
