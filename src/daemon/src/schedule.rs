//! How the node shares its cards now, what is wanted of it, and the way from one to the other. The decisions are
//! [`mpsgate_policy::schedule`]'s.
//!
//! ```text
//!  settings, node label ─► want ─► advance ── containers of the other kind live ─► waits: no new grant
//!                                     ▲   └── none does ─► holds; keepers: MPS down, compute mode back, or MPS up
//!        start, end of a grant, reserve                └── label of another system ─► keep: cards given back
//! ```
//!
//! What the label last said is in the file of the cards that operators handed over: a node whose API server is
//! away when it boots goes on as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use mpsgate_config::Schedule;
use mpsgate_model::GpuUuid;
use mpsgate_model::Refusal;
use mpsgate_model::ledger::Entry;
use mpsgate_policy::schedule::{CardStep, Held, Step, Target, Wants, Word};
use mpsgate_policy::{Condition, schedule};

use crate::card::{Card, Health, ManagedBy, Trouble};
use crate::daemon::Daemon;
use crate::hardware::CardId;
use crate::keeper::Order;
use crate::node::Node;
use crate::operator::{Told, give_back, hand_over, id};
use crate::{DaemonError, api_server, managed};

/// Between two looks at cards that could not be given back or taken again.
const AGAIN: Duration = Duration::from_secs(5);

/// What somebody wants of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// `gpus.schedule`.
    Settings(Schedule),
    /// The node label `ack.node.gpu.schedule`; `None` where there is no label, or nobody who could tell of one.
    Label(Option<Word>),
}

/// What happens to the node's schedule, for the log and for events of the node object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A switch waits for these containers.
    Waits { from: Schedule, to: Schedule, refusal: Refusal },
    /// What was wanted is wanted no more.
    Stays { schedule: Schedule },
    /// Another schedule holds; the cards are being prepared for it.
    Switched { from: Schedule, to: Schedule, by_label: bool },
    /// The cards of the settings are another system's from now on; these containers have grants on them yet.
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
pub(crate) struct Scheduling {
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
    pub(crate) fn start(wants: Wants, entries: &[Entry]) -> Self {
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
    pub(crate) fn now(&self) -> Schedule {
        self.now
    }

    /// What is wanted, where it is something else.
    pub(crate) fn wanted(&self) -> Option<Word> {
        let Target { schedule, yields, .. } = self.wants.target();
        let word = if yields { Word::Off } else { schedule.into() };
        (yields || schedule != self.now).then_some(word)
    }

    /// Whether the settings' cards are another system's. One that is not taken for it is remembered.
    pub(crate) fn leaves(&mut self, card: &GpuUuid) -> bool {
        let yields = self.wants.target().yields;
        if yields {
            self.given_back.insert(card.clone());
        }
        yields
    }

    /// The settings do not name it any more.
    pub(crate) fn forget(&mut self, card: &GpuUuid) {
        self.given_back.remove(card);
    }

    /// What a start has to know of the label: nothing where it says what the settings say, so that an older
    /// mpsgated reads the file.
    fn to_remember(&self) -> Option<Word> {
        self.wants.label.filter(|word| *word != self.wants.settings.into())
    }
}

fn held(entries: &[Entry]) -> Vec<Held<'_>> {
    let one =
        |entry: &'_ Entry| if entry.grant.uses_mps() { Schedule::Mps } else { Schedule::Share };
    entries.iter().map(|entry| Held { key: &entry.grant.key, schedule: one(entry) }).collect()
}

impl Node {
    /// Draws the conclusion from what is wanted and from the grants that there are. Where another schedule holds
    /// from now on, all cards are to be prepared anew.
    pub(crate) fn advance(&mut self) -> Vec<Event> {
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
                for card in self.cards.iter_mut().filter(|card| card.managed.is_some()) {
                    card.health = Health::Starting;
                }
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
            let containers =
                entries.map(|entry| entry.grant.key.container_id.to_string()).collect();
            events.push(Event::Yields { containers });
        }
    }

    /// Whether only the settings hand it over.
    fn is_by_settings(&self, card: &Card) -> bool {
        card.managed == Some(ManagedBy::Settings) && !self.handed_over.contains(&card.uuid)
    }

    /// Why no grant is given now, whatever the cards have left.
    pub(crate) fn waiting_refusal(&self) -> Option<Refusal> {
        let (now, target) = (self.schedule.now, self.schedule.wants.target());
        match schedule::next(now, target, &held(self.ledger().entries())) {
            Step::Stay => None,
            Step::Wait(containers) => Some(schedule::waits(now, target, &containers)),
            // Whoever asks advances, and asks again.
            Step::Switch => Some(schedule::waits(now, target, &[])),
        }
    }

    /// Containers that a switch waits for, for `status`.
    pub(crate) fn waits_for(&self) -> Vec<String> {
        let (now, target) = (self.schedule.now, self.schedule.wants.target());
        match schedule::next(now, target, &held(self.ledger().entries())) {
            Step::Wait(containers) => containers,
            Step::Stay | Step::Switch => Vec::new(),
        }
    }

    /// Why a card that could give memory does not.
    pub(crate) fn fence(&self, card: &Card) -> Option<&Trouble> {
        let yields = self.schedule.yields.as_ref().filter(|_| self.is_by_settings(card));
        self.schedule.fence.as_ref().or(yields).filter(|_| card.managed.is_some())
    }

    /// Whether a card takes grants.
    pub(crate) fn condition<'a>(&'a self, card: &'a Card) -> Condition<'a> {
        match (card.condition(), self.fence(card)) {
            (Condition::Ready, Some(Trouble { why, hint })) => Condition::Unhealthy { why, hint },
            (condition, _) => condition,
        }
    }

    /// Cards of the settings that are to be given back or taken again.
    fn card_steps(&self) -> Vec<(CardId, CardStep)> {
        let target = self.schedule.wants.target();
        let steps = self.cards.iter().filter_map(|card| {
            let managed = self.is_by_settings(card);
            let is_free = card.managed.is_none() && self.schedule.given_back.contains(&card.uuid);
            if !managed && !is_free {
                return None;
            }
            let grants = self.ledger().on_card(&card.uuid).count();
            Some((id(self, card), schedule::card_step(target, managed, grants)))
        });
        steps.collect()
    }
}

impl Daemon {
    /// Takes note of what somebody wants of the node; what follows is done at once, or by itself when the
    /// containers that are in the way have ended.
    pub(crate) fn want_schedule(&self, want: Want) {
        let to_remember = {
            let mut node = self.node();
            match want {
                Want::Settings(settings) => node.schedule.wants.settings = settings,
                Want::Label(label) => node.schedule.wants.label = label,
            }
            node.schedule.to_remember()
        };
        let path = self.places.managed();
        if let Err(error) = managed::set_schedule(&path, to_remember) {
            log::error!(path:% = path.display(), reason:% = error; "the node's schedule is not remembered");
        }
        advance(self);
        self.schedule_moved.notify_one();
    }
}

/// Does what can be done at once. `true` where another schedule holds from now on.
pub(crate) fn advance(daemon: &Daemon) -> bool {
    let events = daemon.node().advance();
    let switched = events.iter().any(|event| matches!(event, Event::Switched { .. }));
    if switched {
        let keepers: Vec<GpuUuid> = daemon.keepers().keys().cloned().collect();
        for card in &keepers {
            daemon.order(card, Order::Schedule);
        }
    }
    if !events.is_empty() {
        daemon.tell_change();
    }
    events.iter().for_each(|event| tell(daemon, event));
    switched
}

/// The one place where it is said what becomes of the schedule.
fn tell(daemon: &Daemon, event: &Event) {
    api_server::tell::schedule(&daemon.node(), event);
    match event {
        Event::Waits { from, to, refusal } => {
            let (reason, hint) = (refusal.sentence.as_str(), refusal.hint.as_str());
            log::warn!(from:% = from, to:% = to, reason, hint; "switch of the schedule waits");
        }
        Event::Stays { schedule } => {
            log::info!(schedule:% = schedule; "switch of the schedule withdrawn")
        }
        Event::Switched { from, to, by_label } => {
            log::info!(from:% = from, to:% = to, by_label; "schedule switched");
        }
        Event::Yields { containers } => {
            let containers = containers.join(",");
            log::warn!(
                containers = containers.as_str(), hint = "drain the node; a card is given back when its last grant has ended";
                "the cards of the settings are another system's"
            );
        }
        Event::GivenBack { card } => {
            log::info!(uuid = card.as_str(); "card given back to another system")
        }
        Event::Taken { card } => log::info!(uuid = card.as_str(); "card taken again"),
        Event::Stuck { card, refusal } => {
            let (reason, hint) = (refusal.sentence.as_str(), refusal.hint.as_str());
            log::error!(uuid = card.as_str(), reason, hint; "card neither given back nor taken; tried again");
        }
    }
}

/// Gives cards back to another system, and takes them again, for as long as the process lives.
pub(crate) async fn keep(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    loop {
        advance(&daemon);
        let steps = daemon.node().card_steps();
        for (card, step) in steps {
            let done = match step {
                CardStep::Keep | CardStep::Fence => continue,
                CardStep::GiveBack => yield_card(&daemon, &card).await,
                CardStep::Take => take_card(&daemon, &card).await?,
            };
            let stuck = |stuck: Option<Refusal>| {
                let known = &mut daemon.node().schedule.stuck;
                match stuck {
                    Some(refusal) => known.insert(card.uuid.clone(), refusal),
                    None => known.remove(&card.uuid),
                }
            };
            match done {
                Ok(event) => {
                    stuck(None);
                    event.iter().for_each(|event| tell(&daemon, event));
                }
                Err(refusal) => {
                    if stuck(Some(refusal.clone())).as_ref() != Some(&refusal) {
                        tell(&daemon, &Event::Stuck { card: card.uuid.clone(), refusal });
                    }
                }
            }
        }
        let moved = daemon.schedule_moved.notified();
        let _ = tokio::time::timeout(AGAIN, moved).await;
    }
}

/// `None` where nothing is to be done any more: another command was at work, or something else is wanted.
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

async fn take_card(
    daemon: &Arc<Daemon>,
    card: &CardId,
) -> Result<Result<Option<Event>, Refusal>, DaemonError> {
    let mut told = Told::Nobody;
    let _turn = told.turn(daemon).await;
    let still = {
        let node = daemon.node();
        let free = node.card(&card.uuid).is_some_and(|card| card.managed.is_none());
        free && !node.schedule.wants.target().yields
    };
    if !still {
        return Ok(Ok(None));
    }
    let handed = hand_over(daemon, &mut told, card, ManagedBy::Settings).await?;
    Ok(handed.map(|_| {
        daemon.node().schedule.forget(&card.uuid);
        Some(Event::Taken { card: card.uuid.clone() })
    }))
}

#[cfg(test)]
mod tests;
