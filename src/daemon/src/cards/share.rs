//! A card that is shared without MPS: ended is what MPS left, and nothing but its fitness is kept.

use mpsgate_config::Schedule;
use mpsgate_model::{ComputeMode, GpuUuid, Mib};
use mpsgate_node::card::{CardId, Ends, Health, Trouble};

use super::health::{drop_and_tell, log_health};
use super::{CardTask, Next, Order};
use crate::hardware::Fault;

impl CardTask {
    /// Prepares the card, and keeps it until its schedule is another one.
    pub(super) async fn share(&mut self, card: &CardId) -> Next {
        let asked = card.clone();
        let shared = self.daemon.blocking(move |h| h.share(&asked)).await;
        match shared {
            Ok(mode) => self.set_shared(|uuid| health(uuid, mode), Some(mode)),
            Err(fault) => {
                let health = match fault {
                    Fault::Unfit(trouble) => Health::Unfit(trouble),
                    Fault::Failed(Trouble { why, hint }) => {
                        Health::Unhealthy(Trouble::new(format!("is not ready: {why}"), hint))
                    }
                    // Both are MPS' own, which is not brought up.
                    Fault::Orphans(_) | Fault::Wedged(..) => Health::Starting,
                };
                self.set_shared(|_| health, None);
                return self.back_off(card).await;
            }
        }
        loop {
            let Some(order) = self.orders.recv().await else { return Next::End };
            match order {
                // There is none to start, and none to tell.
                Order::Server { reply, .. } => {
                    let _ = reply.send(Ok(()));
                }
                Order::Cap => {}
                Order::ComputeMode => self.set_shared_as_seen(),
                Order::Restart { reply } => {
                    let _ = reply.send(Err(Trouble::new("it has no MPS", "mpsgate status")));
                }
                Order::Stop { reply } => return self.stop(card, reply).await,
                other => {
                    if let Some(next) = self.decline(card, other).await {
                        return next;
                    }
                }
            }
        }
    }

    fn set_shared(&self, health: impl FnOnce(&GpuUuid) -> Health, mode: Option<ComputeMode>) {
        let mut node = self.daemon.node();
        // Switched meanwhile: the order to prepare it anew is on its way.
        if node.schedule.now() != Schedule::Share {
            return;
        }
        let Some(card) = node.card_mut(&self.uuid) else { return };
        card.mps = None;
        (card.server_uid, card.cap, card.max_clients, card.multiuser) = (None, Mib(0), 0, false);
        card.ends = Ends::None;
        card.unlimited = None;
        card.compute_mode = mode.or(card.compute_mode);
        let health = health(&card.uuid);
        log_health(card, &health);
        card.set_health(health);
        drop_and_tell(node, &self.daemon);
    }

    /// With the compute mode that NVML showed last.
    fn set_shared_as_seen(&self) {
        let mode = self.daemon.node().card(&self.uuid).and_then(|card| card.compute_mode);
        if let Some(mode) = mode {
            self.set_shared(|uuid| health(uuid, mode), Some(mode));
        }
    }
}

/// Somebody else may have set a mode in which containers cannot share the card. It is his, and not
/// changed.
fn health(uuid: &GpuUuid, mode: ComputeMode) -> Health {
    if mode == ComputeMode::Default {
        return Health::Ready;
    }
    Health::Unhealthy(Trouble::new(
        format!("is in compute mode {mode}, in which containers cannot share it without MPS"),
        format!(
            "end what has set it (another MPS control daemon), then: nvidia-smi -i {uuid} -c DEFAULT"
        ),
    ))
}
