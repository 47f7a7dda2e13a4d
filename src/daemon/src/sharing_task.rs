//! How the node shares its cards now, what is wanted of it, and the way from one to the other. The
//! decisions are [`mpsgate_policy::schedule`]'s.
//!
//! ```text
//!  settings, node label ─► want ─► advance ── containers of the other kind live ─► waits: no new grant
//!                                     ▲   └── none does ─► holds; card tasks: MPS down, compute mode back, or MPS up
//!        start, end of a grant, reserve                └── label of another system ─► keep: cards given back
//! ```
//!
//! What the label last said is in the file of the cards that operators handed over: a node whose
//! API server is away when it boots goes on as it was.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_model::Refusal;
use mpsgate_node::card::{CardId, ManagedBy};
use mpsgate_node::sharing::Event;
use mpsgate_policy::schedule::CardStep;

use crate::DaemonError;
use crate::daemon::Daemon;
use crate::handover::{Told, give_back, hand_over};

/// Between two looks at cards that could not be given back or taken again.
const AGAIN: Duration = Duration::from_secs(5);

/// Gives cards back to another system, and takes them again, for as long as the process lives.
pub(crate) async fn keep(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    loop {
        daemon.advance_schedule();
        let steps = daemon.node().card_steps();
        for (card, step) in steps {
            let done = match step {
                CardStep::Keep | CardStep::Fence => continue,
                CardStep::GiveBack => yield_card(&daemon, &card).await,
                CardStep::Take => take_card(&daemon, &card).await,
            };
            match done {
                Ok(event) => {
                    daemon.node().schedule.set_stuck(&card.uuid, None);
                    event.iter().for_each(|event| daemon.tell_schedule(event));
                }
                Err(refusal) => {
                    let is_news = daemon.node().schedule.set_stuck(&card.uuid, Some(&refusal));
                    if is_news {
                        daemon.tell_schedule(&Event::Stuck { card: card.uuid.clone(), refusal });
                    }
                }
            }
        }
        let moved = daemon.schedule_moved.notified();
        let _ = tokio::time::timeout(AGAIN, moved).await;
    }
}

/// `None` where nothing is to be done any more: another command was at work, or something else is
/// wanted.
async fn yield_card(daemon: &Arc<Daemon>, card: &CardId) -> Result<Option<Event>, Refusal> {
    let mut told = Told::Nobody;
    let _turn = told.turn(daemon).await;
    let still = {
        let mut node = daemon.node();
        let still = node.card(&card.uuid).is_some_and(|card| node.is_by_settings(card));
        still && node.schedule.leaves(&card.uuid)
    };
    if !still {
        return Ok(None);
    }
    give_back(daemon, &mut told, card).await?;
    Ok(Some(Event::GivenBack { card: card.uuid.clone() }))
}

async fn take_card(daemon: &Arc<Daemon>, card: &CardId) -> Result<Option<Event>, Refusal> {
    let mut told = Told::Nobody;
    let _turn = told.turn(daemon).await;
    let still = {
        let node = daemon.node();
        let free = node.card(&card.uuid).is_some_and(|card| !card.is_managed());
        free && !node.schedule.yields()
    };
    if !still {
        return Ok(None);
    }
    hand_over(daemon, &mut told, card, ManagedBy::Settings).await?;
    daemon.node().schedule.forget(&card.uuid);
    Ok(Some(Event::Taken { card: card.uuid.clone() }))
}
