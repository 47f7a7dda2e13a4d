//! What an operator changes: `mpsgate enable` and `mpsgate disable` hand a card over and take it
//! back (how, is in [`handover`](crate::handover)), `mpsgate mps` (in `mps_stop`) ends its MPS,
//! `mpsgate qualify` (in `qualify_card`) asks what holds on it, `mpsgate resize` (in
//! `resize_grant`) changes a grant. All take turns.

mod mps_stop;
mod qualify_card;
mod resize_grant;

use std::sync::Arc;

use mpsgate_api::Reply;
use mpsgate_model::{Code, Refusal};
use mpsgate_node::card::ManagedBy;

use crate::daemon::Daemon;
use crate::handover::{Told, give_back, hand_over};
use crate::line::Line;

type Answer = Result<Reply, Refusal>;

pub(crate) use mps_stop::mps;
pub(crate) use qualify_card::qualify;
pub(crate) use resize_grant::resize;

/// Hands a card to mpsgate and waits until it is ready; where that fails, all is as before.
pub(crate) async fn enable(daemon: &Arc<Daemon>, line: &mut Line, gpu: &str) -> Answer {
    let mut told = Told::Caller(line);
    let _turn = told.turn(daemon).await;
    let card = {
        let node = daemon.node();
        let card = node.find_card(gpu)?;
        if card.is_managed() {
            return done(format!("{} is managed already: {}", card.label(), card.state()));
        }
        node.card_id(card)
    };
    done(hand_over(daemon, &mut told, &card, ManagedBy::Operator).await?)
}

/// Takes a card back: no control daemon, the old compute mode, no files.
pub(crate) async fn disable(daemon: &Arc<Daemon>, line: &mut Line, gpu: &str) -> Answer {
    let mut told = Told::Caller(line);
    let _turn = told.turn(daemon).await;
    let card = {
        let node = daemon.node();
        let card = node.find_card(gpu)?;
        match card.managed() {
            None => return done(format!("{} is not managed", card.label())),
            Some(ManagedBy::Settings) => {
                return Err(Refusal::new(
                    Code::GpuConfigured,
                    format!(
                        "{} is managed because gpus.manage in the settings names it",
                        card.label()
                    ),
                    "take it out of gpus.manage in /etc/mpsgate/config.toml and run: mpsgate reload",
                ));
            }
            Some(ManagedBy::Operator) => node.card_id(card),
        }
    };
    done(give_back(daemon, &mut told, &card).await?)
}

fn done(text: String) -> Answer {
    Ok(Reply::Done { text })
}
