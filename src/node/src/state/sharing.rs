//! How the node shares its cards now, what is wanted of it, and the way from one to the other. The
//! decisions are [`mpsgate_policy::schedule`]'s.

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_config::Schedule;
use mpsgate_model::ledger::Entry;
use mpsgate_model::{GpuUuid, Refusal};
use mpsgate_policy::schedule::{CardStep, Holding, Step, Target, Wants, Word};
use mpsgate_policy::{Condition, schedule};

use super::Node;
use crate::card::{Card, CardId, ManagedBy, Trouble};

/// What somebody wants of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// `gpus.schedule`.
    Settings(Schedule),
    /// The node label `ack.node.gpu.schedule`; `None` where there is no label, or nobody who could
    /// tell of one.
    Label(Option<Word>),
}

/// What happens to the node's schedule, for the log and for events of the node object.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "what a field is, the line above its variant says")]
pub enum Event {
    /// A switch waits for these containers.
    Waits { from: Schedule, to: Schedule, refusal: Refusal },
    /// What was wanted is wanted no more.
    Stays { schedule: Schedule },
    /// Another schedule holds; the cards are being prepared for it.
    Switched { from: Schedule, to: Schedule, by_label: bool },
    /// The cards of the settings are another system's from now on; these containers have grants on
    /// them yet.
    Yields { containers: Vec<String> },
    /// A card was given back to that system.
    GivenBack { card: GpuUuid },
    /// Such a card is mpsgate's again.
    Taken { card: GpuUuid },
    /// It cannot be taken now, or not be given back; it is tried again.
    Stuck { card: GpuUuid, refusal: Refusal },
}

/// What holds, what is wanted, and what follows for the cards.
#[derive(Debug)]
pub struct Scheduling {
    now: Schedule,
    wants: Wants,
    /// The switch that waits, so that it is told once.
    waits: Option<Target>,
    /// Why no card gives anything while it does.
    fence: Option<Trouble>,
    /// Why the cards of the settings give nothing while they are another system's.
    yields: Option<Trouble>,
    /// Cards of the settings that are not taken because they are.
    given_back: BTreeSet<GpuUuid>,
    /// Why cards can be neither given back nor taken, so that it is told once.
    stuck: BTreeMap<GpuUuid, Refusal>,
}

impl Default for Scheduling {
    fn default() -> Self {
        let settings = Schedule::Mps;
        Self::start(Wants { settings, label: None }, &[])
    }
}

impl Scheduling {
    /// After a start, with the grants that there are.
    pub fn start(wants: Wants, entries: &[Entry]) -> Self {
        Self {
            now: schedule::at_start(wants.target(), &held(entries)),
            wants,
            waits: None,
            fence: None,
            yields: None,
            given_back: BTreeSet::new(),
            stuck: BTreeMap::new(),
        }
    }

    /// What holds.
    pub fn now(&self) -> Schedule {
        self.now
    }

    /// What is wanted, where it is something else.
    pub fn wanted(&self) -> Option<Word> {
        let Target { schedule, yields, .. } = self.wants.target();
        let word = if yields { Word::Off } else { schedule.into() };
        (yields || schedule != self.now).then_some(word)
    }

    /// Whether the settings' cards are another system's. One that is not taken for it is
    /// remembered.
    pub fn leaves(&mut self, card: &GpuUuid) -> bool {
        let yields = self.wants.target().yields;
        if yields {
            self.given_back.insert(card.clone());
        }
        yields
    }

    /// Takes note of what somebody wants. Returns what a start has to know of it.
    pub fn want(&mut self, want: Want) -> Option<Word> {
        match want {
            Want::Settings(settings) => self.wants.settings = settings,
            Want::Label(label) => self.wants.label = label,
        }
        self.to_remember()
    }

    /// Whether the cards of the settings are to be another system's.
    pub fn yields(&self) -> bool {
        self.wants.target().yields
    }

    /// Remembers why a card can be neither given back nor taken, or that it can. Whether that is
    /// news.
    pub fn set_stuck(&mut self, card: &GpuUuid, why: Option<&Refusal>) -> bool {
        let known = match why {
            Some(refusal) => self.stuck.insert(card.clone(), refusal.clone()),
            None => self.stuck.remove(card),
        };
        known.as_ref() != why
    }

    /// The settings do not name it any more.
    pub fn forget(&mut self, card: &GpuUuid) {
        self.given_back.remove(card);
    }

    /// What a start has to know of the label: nothing where it says what the settings say, so that
    /// an older mpsgated reads the file.
    fn to_remember(&self) -> Option<Word> {
        self.wants.label.filter(|word| *word != self.wants.settings.into())
    }
}

fn held(entries: &[Entry]) -> Vec<Holding> {
    let one =
        |entry: &'_ Entry| if entry.grant.uses_mps() { Schedule::Mps } else { Schedule::Share };
    let holding = |entry: &Entry| Holding { name: entry.grant.name(), schedule: one(entry) };
    entries.iter().map(holding).collect()
}

impl Node {
    /// Draws the conclusion from what is wanted and from the grants that there are. Where another
    /// schedule holds from now on, all cards are to be prepared anew.
    pub fn advance(&mut self) -> Vec<Event> {
        let (now, target) = (self.schedule.now, self.schedule.wants.target());
        let step = schedule::next(now, target, &held(self.ledger().entries()));
        let mut events = Vec::new();
        self.schedule.fence = None;
        let waited = self.schedule.waits.take();
        match step {
            Step::Stay => {
                events.extend(waited.map(|_| Event::Stays { schedule: now }));
            }
            Step::Wait(containers) => {
                let to = target.schedule;
                let why =
                    format!("gives nothing until the node has gone from schedule {now} to {to}");
                let hint = "mpsgate status names the containers that it waits for";
                self.schedule.fence = Some(Trouble::new(why, hint));
                self.schedule.waits = Some(target);
                if waited != Some(target) {
                    let refusal = schedule::waits(now, target, &containers);
                    events.push(Event::Waits { from: now, to, refusal });
                }
            }
            Step::Switch => {
                let Target { schedule: to, by_label, .. } = target;
                self.schedule.now = to;
                // Before anybody can place a grant on it as it was.
                self.cards.iter_mut().for_each(|card| card.switch(to));
                events.push(Event::Switched { from: now, to, by_label });
            }
        }
        self.note_yielding(target, &mut events);
        events
    }

    fn note_yielding(&mut self, target: Target, events: &mut Vec<Event>) {
        let yields = target.yields.then(|| {
            Trouble::new(
                format!("is another system's, as the node label {} says", schedule::LABEL),
                "use a node whose label is mps or share; mpsgate status",
            )
        });
        let began = yields.is_some() && self.schedule.yields.is_none();
        self.schedule.yields = yields;
        if began {
            let of_settings: Vec<&Card> =
                self.cards.iter().filter(|card| self.is_by_settings(card)).collect();
            let on = |entry: &&Entry| {
                let on = |card: &&Card| entry.grant.cards.iter().any(|c| c.uuid == card.uuid);
                of_settings.iter().any(on)
            };
            let entries = self.ledger().entries().iter().filter(on);
            let containers = entries.map(|entry| entry.grant.name()).collect();
            events.push(Event::Yields { containers });
        }
    }

    /// Whether only the settings hand it over.
    pub fn is_by_settings(&self, card: &Card) -> bool {
        card.managed() == Some(ManagedBy::Settings) && !self.handed_over.contains(&card.uuid)
    }

    /// Why no grant is given now, whatever the cards have left.
    pub fn waiting_refusal(&self) -> Option<Refusal> {
        let (now, target) = (self.schedule.now, self.schedule.wants.target());
        match schedule::next(now, target, &held(self.ledger().entries())) {
            Step::Stay => None,
            Step::Wait(containers) => Some(schedule::waits(now, target, &containers)),
            // Whoever asks advances, and asks again.
            Step::Switch => Some(schedule::waits(now, target, &[])),
        }
    }

    /// Containers that a switch waits for, for `status`.
    pub fn waits_for(&self) -> Vec<String> {
        let (now, target) = (self.schedule.now, self.schedule.wants.target());
        match schedule::next(now, target, &held(self.ledger().entries())) {
            Step::Wait(containers) => containers,
            Step::Stay | Step::Switch => Vec::new(),
        }
    }

    /// Why a card that could give memory does not.
    pub fn fence<'a>(&'a self, card: &'a Card) -> Option<&'a Trouble> {
        let yields = self.schedule.yields.as_ref().filter(|_| self.is_by_settings(card));
        let refusal = card.qualified.refusal.as_ref().filter(|_| self.under_mps());
        let fence = self.schedule.fence.as_ref().or(yields).or(refusal);
        fence.filter(|_| card.is_managed())
    }

    /// Whether a card takes grants.
    pub fn condition<'a>(&'a self, card: &'a Card) -> Condition<'a> {
        match (card.condition(), self.fence(card)) {
            (Condition::Ready, Some(Trouble { why, hint })) => Condition::Unhealthy { why, hint },
            (condition, _) => condition,
        }
    }

    /// Cards of the settings that are to be given back or taken again.
    pub fn card_steps(&self) -> Vec<(CardId, CardStep)> {
        let target = self.schedule.wants.target();
        let steps = self.cards.iter().filter_map(|card| {
            let managed = self.is_by_settings(card);
            let is_free = !card.is_managed() && self.schedule.given_back.contains(&card.uuid);
            if !managed && !is_free {
                return None;
            }
            let grants = self.ledger().on_card(&card.uuid).count();
            Some((self.card_id(card), schedule::card_step(target, managed, grants)))
        });
        steps.collect()
    }
}

#[cfg(test)]
mod tests;
