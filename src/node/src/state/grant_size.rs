//! A grant that gets more or less while its container runs.

use mpsgate_model::ledger::{Capacity, Entry, State};
use mpsgate_model::{Code, GrantKey, Mib, Refusal};
use mpsgate_policy::{Resize, Resized, resize, resized};

use super::asker::Asker;
use super::{Node, named};
use crate::card::Card;
use crate::{Effect, Machine};

/// What is to be done about a grant, and what that means for its container.
#[derive(Debug)]
pub struct Resizing {
    /// As it is.
    pub entry: Entry,
    /// What is to be done.
    pub what: Resized,
    /// What it is to have on each of its cards.
    pub each: Mib,
    /// For people.
    pub lines: Vec<String>,
}

impl Node {
    /// Decides whether a container's grant may become `memory`, which is in all: on several cards
    /// each has an equal part. `container` is a whole name, or the beginning of one id alone.
    pub fn resizing(
        &self,
        container: &str,
        memory: Mib,
        machine: &dyn Machine,
    ) -> Result<Resizing, Refusal> {
        self.driver_answers()?;
        let entry = self.find_grant(container, memory, machine)?;
        let grant = &entry.grant;
        let id = grant.name();
        let cards: Vec<&Card> = grant.cards.iter().filter_map(|it| self.card(&it.uuid)).collect();
        let refuse = |why: String, hint: String| Err(Refusal::new(Code::Resize, why, hint));
        if entry.broken_ms.is_some() || cards.len() != grant.cards.len() {
            return refuse(
                format!("container {id} has lost its card: its memory there is worth nothing"),
                "end the container, and create it anew".to_owned(),
            );
        }
        cards.iter().try_for_each(|card| card.serves())?;
        let count = u64::try_from(cards.len()).unwrap_or(u64::MAX);
        let each = Mib(memory.0.checked_div(count).unwrap_or(0));
        if each.0 == 0 || each.0.checked_mul(count) != Some(memory.0) {
            return refuse(
                format!(
                    "{memory} cannot be given in equal parts to the {count} cards of container {id}"
                ),
                format!("ask for a multiple of {count} MiB"),
            );
        }
        let label = match cards.as_slice() {
            [card] => format!("GPU {}", card.index),
            cards => format!("each of {} GPUs", cards.len()),
        };
        let room = cards.iter().zip(self.capacities(entry)).map(|(card, capacity)| {
            let others = self.ledger.granted(&card.uuid).saturating_sub(grant.memory);
            capacity.memory.saturating_sub(others)
        });
        let asked = Resize {
            container: &id,
            cards: &label,
            level: self.guarantee(grant).guarantee,
            uses_mps: grant.uses_mps(),
            has: grant.memory,
            wants: each,
            pod_limit: entry.handed.as_ref().map(|_| entry.created_with()),
            total: cards.iter().map(|card| card.memory).min().unwrap_or_default(),
            room: room.min().unwrap_or_default(),
            uses: cards.iter().filter_map(|card| self.used(grant, &card.uuid)).max(),
        };
        let what = resize(&asked)?;
        Ok(Resizing { entry: entry.clone(), what, each, lines: resized(&asked) })
    }

    /// Changes a grant to `each` on each of its cards. Whether it fits is decided anew.
    pub fn resize(
        &mut self,
        key: &GrantKey,
        each: Mib,
        effects: &mut Vec<Effect>,
    ) -> Result<Entry, Refusal> {
        let entry = self.ledger.get(key).cloned();
        let capacities = entry.as_ref().map(|entry| self.capacities(entry)).unwrap_or_default();
        let resized = self.ledger.resize(key, each, &capacities).cloned().map_err(|error| {
            Refusal::new(Code::Resize, format!("it stays as it is: {error}"), "mpsgate status")
        })?;
        self.changes += 1;
        effects.extend([
            Effect::RewriteRecord(Box::new(resized.grant.clone())),
            Effect::WriteLedger,
            Effect::Publish,
        ]);
        effects.extend(resized.grant.cards.iter().map(|card| Effect::Cap(card.uuid.clone())));
        Ok(resized)
    }

    fn capacities(&self, entry: &Entry) -> Vec<Capacity> {
        let asker = Asker::of(entry.handed.as_ref());
        let of = |uuid| self.card(uuid).map(|card| self.capacity(card, asker));
        entry.grant.cards.iter().map(|card| of(&card.uuid).unwrap_or_default()).collect()
    }

    /// The one that is meant, which runs.
    fn find_grant(
        &self,
        container: &str,
        memory: Mib,
        machine: &dyn Machine,
    ) -> Result<&Entry, Refusal> {
        let entry = named::find(container, memory, self.ledger.entries())?;
        let name = entry.grant.name();
        let refuse = |why, hint: &str| Err(Refusal::new(Code::Resize, why, hint));
        match &entry.state {
            State::Reserved { .. } => {
                refuse(format!("container {name} is being created"), "try again when it runs")
            }
            State::Active { init, .. } if !machine.is_alive(init) => {
                refuse(format!("container {name} has ended"), "mpsgate status lists those that run")
            }
            State::Active { .. } => Ok(entry),
        }
    }
}
