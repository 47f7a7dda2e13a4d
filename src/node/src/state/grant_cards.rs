//! Which cards a request gets, and what the grant of them is.

use std::num::NonZeroU32;

use mpsgate_api::{Activate, Reserve};
use mpsgate_config::Schedule;
use mpsgate_model::ledger::{Capacity, Promise};
use mpsgate_model::{
    Code, ComputeShare, DeviceNode, GpuSelector, Grant, GrantKey, GrantedCard, Mib, Priority,
    Refusal,
};
use mpsgate_policy::{Candidate, Holder, Need, choose, choose_several, compute_share, schedule};

use super::Node;
use super::asker::Asker;
use super::grants::no_reservation;
use super::trust::Confirmed;
use crate::card::Card;
use crate::{Backend, Effect, Machine, grant_devices};

/// How a request is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Memory on each card.
    each: Mib,
    cards: NonZeroU32,
    /// Share of each card's compute.
    compute: Option<ComputeShare>,
}

/// What of a card is kept for others than one asker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Promised to pods.
    pub(super) promised: Mib,
    /// In claims' shares that no container holds.
    claimed: Mib,
    /// How many clients these will be.
    clients: u32,
}

impl Room {
    fn kept(&self) -> Mib {
        Mib(self.promised.0.saturating_add(self.claimed.0))
    }
}

impl Node {
    /// Whether grants are given under MPS now.
    pub fn under_mps(&self) -> bool {
        self.backend() == Schedule::Mps
    }

    /// How cards are shared now, and by that what differs.
    pub fn backend(&self) -> Schedule {
        self.schedule.now()
    }

    /// How the trusted `memory` is laid out, where the node's schedule gives that at all.
    pub(super) fn layout(
        &self,
        call: &Reserve,
        confirmed: Option<&Confirmed>,
        memory: Mib,
    ) -> Result<Layout, Refusal> {
        // A pod's own words on it do not count, as those on its memory.
        let (cards, unit) = match confirmed {
            Some(confirmed) => (confirmed.cards, confirmed.unit()),
            None => (call.request.cards, Mib(1)),
        };
        if let Some(refusal) = schedule::refuses(self.schedule.now(), &call.request, cards) {
            return Err(refusal);
        }
        let each = if cards.get() == 1 { memory } else { schedule::each(memory, cards, unit)? };
        // What the scheduler has counted is the most; a container may want less. Without MPS it is
        // an agreement.
        let limit = self.backend().compute(confirmed.and_then(|confirmed| confirmed.compute));
        let compute = compute_share(call.request.compute, limit);
        Ok(Layout { each, cards, compute })
    }

    pub(super) fn place(
        &self,
        call: &Reserve,
        confirmed: Option<&Confirmed>,
        layout: Layout,
    ) -> Result<Vec<&Card>, Refusal> {
        let hints = confirmed.map(|confirmed| confirmed.hints.as_slice()).unwrap_or_default();
        let kept = match confirmed {
            // The scheduler knows the uid of its limits' pod alone. Another one, which only an
            // annotation names, stays on the card that was counted, or nowhere.
            // A claim is of one card, whoever counts it.
            Some(Confirmed { hints, handed, .. }) if handed.share.is_some() => {
                hints.first().cloned().map(GpuSelector::Uuid)
            }
            Some(Confirmed { placed: true, hints, .. }) if call.request.uid.is_some() => {
                hints.first().filter(|_| layout.cards.get() == 1).cloned().map(GpuSelector::Uuid)
            }
            _ => None,
        };
        let gpu = kept.as_ref().or(call.request.gpu.as_ref());
        let spread = self.spread;
        let need = Need { memory: layout.each, uid: call.uid, gpu, hints, spread };
        let asker = Asker::of(confirmed.map(|confirmed| &confirmed.handed));
        let container = Some(&call.key);
        let mut candidates = self.candidates(asker, container);
        let mut chosen = choose_several(&candidates, &need, layout.cards);
        if chosen.is_err() && confirmed.is_some() {
            // Other pods' promises only make another card the better one; what claims hold back is
            // theirs.
            for (candidate, card) in candidates.iter_mut().zip(&self.cards) {
                candidate.promised = self.room(card, asker).claimed;
            }
            chosen = choose_several(&candidates, &need, layout.cards);
        }
        Ok(chosen?.into_iter().filter_map(|position| self.cards.get(position)).collect())
    }

    pub(super) fn grant(
        &self,
        call: &Reserve,
        confirmed: Option<&Confirmed>,
        cards: &[&Card],
        layout: Layout,
        machine: &dyn Machine,
    ) -> Grant {
        let majors = machine.majors();
        let mut nodes: Vec<DeviceNode> = Vec::new();
        for card in cards {
            let of_card = grant_devices::nodes(card.minor, &majors).into_iter();
            // The driver's shared ones are every card's. No driver made those of simulated cards.
            let is_new = |node: &DeviceNode| {
                !nodes.contains(node) && (!self.driver.simulated || machine.has(node))
            };
            let new: Vec<_> = of_card.filter(is_new).collect();
            nodes.extend(new);
        }
        let granted = |card: &&Card| GrantedCard {
            uuid: card.uuid.clone(),
            index: card.index,
            minor: card.minor,
        };
        // The claim's author may lower it, and so may the pod's.
        let share = Asker::of(confirmed.map(|confirmed| &confirmed.handed)).share();
        let share = share.and_then(|key| self.ledger.share(key)).map(|(_, share)| share);
        let low = share.map(|share| share.priority).filter(|its| *its == Priority::Low);
        Grant {
            key: call.key.clone(),
            cards: cards.iter().map(granted).collect(),
            memory: layout.each,
            uid: call.uid,
            compute: layout.compute,
            priority: low.unwrap_or(call.request.priority),
            client_dir: self.backend().door(cards, &call.key),
            devices: nodes,
            guarantee: self.backend().guarantee(),
            user: call.user.clone(),
        }
    }

    /// What of a card is kept for others than `asker`.
    pub(super) fn room(&self, card: &Card, asker: Asker<'_>) -> Room {
        let (ledger, card) = (&self.ledger, &card.uuid);
        Room {
            promised: match asker {
                Asker::Local => ledger.promised(card),
                Asker::Pod { uid, .. } => ledger.promised_beside(card, uid),
            },
            claimed: ledger.claimed_beside(card, asker.share()),
            clients: ledger.claimed_clients(card, asker.share()),
        }
    }

    /// What the ledger may give of a card, without what claims hold back. To a pod also what other
    /// pods were promised: kubelet has counted them, and knows first which of them have ended.
    pub(super) fn capacity(&self, card: &Card, asker: Asker<'_>) -> Capacity {
        let room = self.room(card, asker);
        let kept = match asker {
            Asker::Local => room.kept(),
            Asker::Pod { .. } => room.claimed,
        };
        let memory = card.memory.saturating_sub(kept);
        Capacity { memory, max_clients: self.max_clients(card, &room) }
    }

    fn max_clients(&self, card: &Card, room: &Room) -> u32 {
        let most = self.backend().max_clients(card).unwrap_or(u32::MAX);
        most.saturating_sub(room.clients)
    }

    /// The capacities of the cards that an expired reservation named, if everything is as it was.
    pub(super) fn still_fits(
        &self,
        call: &Activate,
        grant: &Grant,
    ) -> Result<Vec<Capacity>, Refusal> {
        self.driver_answers()?;
        if grant.cards.is_empty() {
            return Err(no_reservation("its grant names no card"));
        }
        if grant.key != call.key {
            return Err(no_reservation("its grant is another container's"));
        }
        if grant.uses_mps() {
            return Err(no_reservation(
                "its reservation has expired, and its door to MPS was closed with it",
            ));
        }
        if self.under_mps() {
            return Err(no_reservation(
                "its grant is from before the node's schedule was switched",
            ));
        }
        if !grant.client_dir.is_empty() {
            return Err(no_reservation("its grant has a door to MPS, and needs none"));
        }
        let candidates = self.candidates(Asker::Local, None);
        let fits = |granted: &GrantedCard| {
            let gpu = GpuSelector::Uuid(granted.uuid.clone());
            let (memory, uid) = (grant.memory, grant.uid);
            let need = Need { memory, uid, gpu: Some(&gpu), hints: &[], spread: false };
            let position = choose(&candidates, &need).map_err(|refusal| {
                let why = format!("its reservation has expired, and now {}", refusal.sentence);
                Refusal::new(Code::NoReservation, why, refusal.hint)
            })?;
            let card = self.cards.get(position).filter(|card| card.minor == granted.minor);
            card.map(|card| self.capacity(card, Asker::Local)).ok_or_else(|| {
                no_reservation("its grant is from before the card was prepared anew")
            })
        };
        grant.cards.iter().map(fits).collect()
    }

    pub(super) fn candidates(
        &self,
        asker: Asker<'_>,
        container: Option<&GrantKey>,
    ) -> Vec<Candidate<'_>> {
        self.cards.iter().map(|card| self.candidate(card, asker, container)).collect()
    }

    /// `container` is a new one.
    fn candidate<'a>(
        &'a self,
        card: &'a Card,
        asker: Asker<'_>,
        container: Option<&GrantKey>,
    ) -> Candidate<'a> {
        let holders = self.ledger.on_card(&card.uuid).map(|entry| Holder {
            container: entry.grant.name(),
            memory: entry.grant.memory,
            uid: entry.grant.uid,
        });
        let room = self.room(card, asker);
        Candidate {
            uuid: &card.uuid,
            index: card.index,
            managed: card.is_managed(),
            condition: self.condition_for(card, container),
            memory: card.memory,
            promised: room.kept(),
            holders: holders.collect(),
            max_clients: self.max_clients(card, &room),
            multiuser: self.backend().serves_any_uid(card),
        }
    }

    /// Replaces what pods were promised.
    pub fn promise(&mut self, promises: Vec<Promise>, effects: &mut Vec<Effect>) {
        if self.ledger.set_promises(promises) {
            self.changes += 1;
            effects.extend([Effect::WriteLedger, Effect::TellChange]);
        }
    }
}
