//! A card that is shared without MPS: ended is what MPS left, and nothing but its fitness is kept.

use mpsgate_config::Schedule;
use mpsgate_node::card::{Card, CardEvent, CardId, Trouble};

use super::{CardTask, Next, Order};
use crate::hardware::Fault;

impl CardTask {
    /// Prepares the card, and keeps it until its schedule is another one.
    pub(super) async fn share(&mut self, card: &CardId) -> Next {
        let asked = card.clone();
        let shared = self.daemon.blocking(move |h| h.share(&asked)).await;
        match shared {
            Ok(mode) => self.happened(CardEvent::Shared(mode)),
            Err(fault) => {
                match fault {
                    Fault::Unfit(why) => self.happened(CardEvent::Unfit(Schedule::Share, why)),
                    Fault::Failed(why) => self.happened(CardEvent::Failed(Schedule::Share, why)),
                    // Both are MPS' own, which is not brought up.
                    Fault::Orphans(_) | Fault::Wedged(..) => {}
                }
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

    /// With the compute mode that NVML showed last.
    fn set_shared_as_seen(&self) {
        let mode = self.daemon.node().card(&self.uuid).and_then(Card::compute_mode);
        if let Some(mode) = mode {
            self.happened(CardEvent::Shared(mode));
        }
    }
}
