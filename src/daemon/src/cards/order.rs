//! What a card task is asked to do, and how it answers while the card is ready and while it is not.
//! Orders are carried out one after the other: nothing else changes the card's MPS.

use mpsgate_model::{Code, Refusal};
use mpsgate_node::card::{CardEvent, CardId, Trouble};
use tokio::sync::oneshot;

use super::{CardTask, Next};
use crate::hardware::Ready;
use crate::orders::Order;

impl CardTask {
    /// Carries an order out on a ready card. `Some` where the card is ready no longer.
    pub(super) async fn obey(
        &mut self,
        card: &CardId,
        ready: &Ready,
        order: Order,
    ) -> Option<Next> {
        match order {
            Order::Server { uid, reply } => {
                // Who asked may have gone; the server is wanted all the same.
                let _ = reply.send(self.server(ready, uid).await);
            }
            // A failure is logged; before the next server starts it is tried again.
            Order::Cap => drop(self.cap(&ready.mps).await),
            Order::Prepare { instance, client, reply } => {
                // It would change the limit under somebody else's hand-over.
                if !reply.is_closed() {
                    let _ = reply.send(self.prepare(ready, &instance, client).await);
                }
            }
            Order::Unserved { why } => self.happened(CardEvent::GateUnserved(why)),
            Order::GateCounts(counts, gate) => self.happened(CardEvent::GateCounts(counts, gate)),
            Order::ComputeMode => self.retake_compute_mode(&ready.mps).await,
            Order::View { reply } => {
                self.refresh(&ready.mps).await;
                let _ = reply.send(());
            }
            // Its receiver ends with the patience of whoever asked.
            Order::Terminate { doomed, deadline, taken, reply } => {
                if taken.send(()).is_ok() {
                    self.terminate(&ready.mps, doomed, deadline, reply).await;
                }
            }
            Order::Clients { reply } => self.clients(&ready.mps, reply).await,
            Order::Schedule => return Some(Next::BringUp),
            Order::Restart { reply } => return Some(self.restart(card, reply).await),
            Order::Stop { reply } => return Some(self.stop(card, reply).await),
        }
        None
    }

    /// Answers an order while the card is not ready: refuses what needs it. `Some` where the card
    /// task has something else to do now.
    pub(super) async fn decline(&mut self, card: &CardId, order: Order) -> Option<Next> {
        match order {
            Order::Server { reply, .. } => {
                let _ = reply.send(Err(self.not_ready()));
            }
            Order::Cap | Order::ComputeMode => {}
            Order::View { reply } => {
                let _ = reply.send(());
            }
            // Their replies are dropped, which says as much.
            Order::Terminate { .. } | Order::Prepare { .. } | Order::Unserved { .. } => {}
            Order::GateCounts(counts, gate) => self.happened(CardEvent::GateCounts(counts, gate)),
            Order::Clients { reply } => {
                let Refusal { sentence, hint, .. } = self.not_ready();
                let _ = reply.send(Err(Trouble::new(sentence, hint)));
            }
            Order::Schedule => return Some(Next::BringUp),
            Order::Restart { reply } => return Some(self.restart(card, reply).await),
            Order::Stop { reply } => return Some(self.stop(card, reply).await),
        }
        None
    }

    fn not_ready(&self) -> Refusal {
        let node = self.daemon.node();
        let label =
            node.card(&self.uuid).map_or_else(|| self.uuid.to_string(), |card| card.label());
        let trouble = node.card(&self.uuid).and_then(|card| card.health().trouble());
        let (why, hint) = trouble.map_or(("is not ready", "mpsgate status"), |t| (&t.why, &t.hint));
        Refusal::new(Code::GpuUnhealthy, format!("{label} {why}"), hint)
    }

    /// Ends the card's MPS; the card stays EXCLUSIVE_PROCESS, so that nobody slips in, and is
    /// brought up again whatever came of it.
    async fn restart(&self, card: &CardId, reply: oneshot::Sender<Result<(), Trouble>>) -> Next {
        let card = card.clone();
        let result = self.daemon.blocking(move |h| h.end_mps(&card)).await;
        if result.is_ok() {
            self.break_grants().await;
            self.happened(CardEvent::Ended);
        }
        let _ = reply.send(result);
        Next::BringUp
    }

    /// Takes the card down. Where that fails it stays managed, so it is brought up again.
    pub(super) async fn stop(
        &self,
        card: &CardId,
        reply: oneshot::Sender<Result<(), Trouble>>,
    ) -> Next {
        let card = card.clone();
        let result = self.daemon.blocking(move |h| h.take_down(&card)).await;
        let next = if result.is_ok() { Next::End } else { Next::BringUp };
        if result.is_ok() {
            self.break_grants().await;
        }
        let _ = reply.send(result);
        next
    }
}
