//! What follows from each event for the node: which cards it has, whose they are, and whose grants
//! an event breaks. What follows for the card itself is [`Card`]'s.

use std::time::Instant;

use mpsgate_model::GpuUuid;
use mpsgate_model::printable::few;

use super::Node;
use crate::card::{Card, CardEvent, Closing, ManagedBy, Seen, Trouble};
use crate::effect::{CardNews, Effect};

/// Containers that a sentence names.
const NAMED: usize = 10;

impl Node {
    /// Takes what happened to a card, and adds what is to be done to `effects`. Of a card that is
    /// not known only that NVML shows it means something.
    pub fn apply(
        &mut self,
        uuid: &GpuUuid,
        event: CardEvent,
        now: Instant,
        effects: &mut Vec<Effect>,
    ) {
        match event {
            CardEvent::Seen(seen) => self.see(uuid, *seen, effects),
            CardEvent::Vanished(told) => self.vanish(uuid, told, effects),
            CardEvent::HandedOver(by) => {
                if by == ManagedBy::Operator {
                    self.handed_over.insert(uuid.clone());
                }
                self.set_managed(uuid, Some(by), effects);
            }
            CardEvent::TakenBack => {
                self.handed_over.remove(uuid);
                self.stopped.remove(uuid);
                self.set_managed(uuid, None, effects);
            }
            CardEvent::StopWanted => {
                self.stopped.insert(uuid.clone());
                self.close(uuid, None, effects);
            }
            CardEvent::StartWanted => {
                self.stopped.remove(uuid);
                self.close(uuid, None, effects);
            }
            CardEvent::Closed(what) => self.close(uuid, Some(what), effects),
            CardEvent::Reopened => self.close(uuid, None, effects),
            CardEvent::ClientsLost(at_ms) => self.break_grants(uuid, at_ms, effects),
            CardEvent::Orphaned(pids) => {
                let why = self.orphans(uuid, &pids);
                self.apply_to_card(uuid, |card| card.lose_control(why, effects));
            }
            CardEvent::CgroupLimit(trouble) => {
                let all_held = self.all_held(uuid);
                self.apply_to_card(uuid, |card| card.limit_cgroup(trouble, all_held, effects));
            }
            event => {
                let schedule = self.schedule.now();
                self.apply_to_card(uuid, |card| card.apply(event, schedule, now, effects));
            }
        }
    }

    fn apply_to_card(&mut self, uuid: &GpuUuid, apply: impl FnOnce(&mut Card)) {
        if let Some(card) = self.card_mut(uuid) {
            apply(card);
        }
    }

    fn see(&mut self, uuid: &GpuUuid, seen: Seen, effects: &mut Vec<Effect>) {
        let schedule = self.schedule.now();
        if self.card(uuid).is_none() {
            let managed = self.who_manages(uuid, seen.is_named);
            let mut card = Card::new(uuid, managed);
            let is_kept = managed == Some(ManagedBy::Operator) && !self.handed_over.contains(uuid);
            if is_kept {
                effects.push(card.news(CardNews::Kept));
            }
            card.close(self.closing(&card, None).filter(|_| managed.is_some()));
            self.cards.push(card);
            // Who looked may not be the one who starts card tasks.
            effects.push(Effect::Look);
        }
        self.apply_to_card(uuid, |card| card.see(seen, schedule, effects));
        self.cards.sort_by_key(|card| card.index);
    }

    fn who_manages(&mut self, uuid: &GpuUuid, is_named: bool) -> Option<ManagedBy> {
        let held = self.ledger().on_card(uuid).next().is_some();
        let handed_over = self.handed_over.contains(uuid);
        if is_named {
            // What it holds grants on it gives back when they have ended.
            let left = self.schedule.leaves(uuid) && !handed_over && !held;
            return (!left).then_some(ManagedBy::Settings);
        }
        // Taken out of the settings while it has grants, it stays managed.
        (handed_over || held).then_some(ManagedBy::Operator)
    }

    /// It is forgotten where nobody depends on it.
    fn vanish(&mut self, uuid: &GpuUuid, told: Option<Trouble>, effects: &mut Vec<Effect>) {
        let held = self.ledger().on_card(uuid).next().is_some();
        let trouble = match told {
            Some(Trouble { why, hint }) => Trouble::new(format!("does not answer: {why}"), hint),
            None => Trouble::new(
                "is not seen by the NVIDIA driver any more",
                "look for Xid lines in dmesg; nvidia-smi -L",
            ),
        };
        let Some(card) = self.card_mut(uuid) else { return };
        if !card.is_managed() && !held {
            self.cards.retain(|card| card.uuid != *uuid);
        } else {
            card.lose(trouble, effects);
        }
    }

    fn set_managed(
        &mut self,
        uuid: &GpuUuid,
        managed: Option<ManagedBy>,
        effects: &mut Vec<Effect>,
    ) {
        self.apply_to_card(uuid, |card| card.hand(managed));
        effects.extend([Effect::TellChange, Effect::Look]);
    }

    /// Closes a card for a command, or as long as the operator wants it stopped.
    fn close(&mut self, uuid: &GpuUuid, what: Option<Closing>, effects: &mut Vec<Effect>) {
        let closed = self.card(uuid).and_then(|card| self.closing(card, what));
        self.apply_to_card(uuid, |card| card.close(closed));
        effects.push(Effect::TellChange);
    }

    fn closing(&self, card: &Card, what: Option<Closing>) -> Option<Trouble> {
        let (why, hint) = match what {
            Some(Closing::TakeBack) => (
                "is being taken back",
                "use another card, or enable it again: mpsgate enable GPU".to_owned(),
            ),
            Some(Closing::Restart) => (
                "is being restarted by the operator",
                "try again in a moment; mpsgate status shows when it is ready".to_owned(),
            ),
            None if self.stopped.contains(&card.uuid) => {
                ("was stopped by the operator", format!("mpsgate mps restart {}", card.uuid))
            }
            None => return None,
        };
        Some(Trouble::new(why, hint))
    }

    /// The card's CUDA processes have lost it: their containers must be restarted.
    fn break_grants(&mut self, uuid: &GpuUuid, at_ms: u64, effects: &mut Vec<Effect>) {
        let broken = self.mark_broken(uuid, at_ms, effects);
        let entries = broken.iter().filter_map(|key| self.ledger().get(key));
        let names: Vec<String> = entries.map(|entry| entry.grant.name()).collect();
        if let Some(card) = self.card(uuid).filter(|_| !names.is_empty()) {
            effects.push(card.news(CardNews::Broken(names)));
        }
    }

    fn orphans(&self, uuid: &GpuUuid, pids: &[u32]) -> Trouble {
        let list: Vec<String> = pids.iter().map(u32::to_string).collect();
        let names: Vec<String> =
            self.ledger().on_card(uuid).map(|entry| entry.grant.name()).collect();
        let of =
            if names.is_empty() { String::new() } else { format!(" for {}", few(names, NAMED)) };
        Trouble::new(
            format!(
                "lost its MPS control daemon, whose server still holds the card{of}: pid {}",
                list.join(", ")
            ),
            format!(
                "end the containers that were on the card, or the server itself: kill {}; mps.orphan \
                 = \"kill\" does that by itself",
                list.join(" ")
            ),
        )
    }
}
