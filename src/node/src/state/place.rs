//! Which cards a request gets, and what the grant of them is.

use std::num::NonZeroU32;

use mpsgate_api::{Activate, Reserve};
use mpsgate_config::Schedule;
use mpsgate_model::ledger::{Capacity, Promise};
use mpsgate_model::{
    Code, ComputeShare, DeviceNode, GpuSelector, Grant, GrantedCard, Guarantee, Mib, Refusal,
};
use mpsgate_policy::{Candidate, Holder, Need, choose, choose_several, compute_share, schedule};

use super::grants::no_reservation;
use super::trust::Confirmed;
use super::{Node, nvml_refusal};
use crate::card::Card;
use crate::{Effect, Machine, devices};

/// How a request is laid out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Memory on each card.
    each: Mib,
    cards: NonZeroU32,
    /// Share of each card's compute.
    compute: Option<ComputeShare>,
}

impl Node {
    /// Whether grants are given under MPS now.
    pub fn under_mps(&self) -> bool {
        self.schedule.now() == Schedule::Mps
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
        let limit = confirmed.and_then(|confirmed| confirmed.compute).filter(|_| self.under_mps());
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
            Some(Confirmed { placed: true, hints, .. }) if call.request.uid.is_some() => {
                hints.first().filter(|_| layout.cards.get() == 1).cloned().map(GpuSelector::Uuid)
            }
            _ => None,
        };
        let gpu = kept.as_ref().or(call.request.gpu.as_ref());
        let spread = self.spread;
        let need = Need { memory: layout.each, uid: call.uid, gpu, hints, spread };
        let pod = confirmed.map(|confirmed| confirmed.handed.pod.uid.as_str());
        let container = Some(call.key.container_id.as_str());
        let mut candidates = self.candidates(pod, container);
        let mut chosen = choose_several(&candidates, &need, layout.cards);
        if chosen.is_err() && pod.is_some() {
            // Other pods' promises only make another card the better one.
            candidates.iter_mut().for_each(|card| card.promised = Mib(0));
            chosen = choose_several(&candidates, &need, layout.cards);
        }
        Ok(chosen?.into_iter().filter_map(|position| self.cards.get(position)).collect())
    }

    pub(super) fn grant(
        &self,
        call: &Reserve,
        cards: &[&Card],
        layout: Layout,
        machine: &dyn Machine,
    ) -> Grant {
        let majors = machine.majors();
        let mut nodes: Vec<DeviceNode> = Vec::new();
        for card in cards {
            let of_card = devices::nodes(card.minor, &majors).into_iter();
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
        let client_dir =
            cards.first().filter(|_| self.under_mps()).map(|card| card.ends.of(&call.key));
        Grant {
            key: call.key.clone(),
            cards: cards.iter().map(granted).collect(),
            memory: layout.each,
            uid: call.uid,
            compute: layout.compute,
            priority: call.request.priority,
            client_dir: client_dir.unwrap_or_default(),
            devices: nodes,
            guarantee: if self.under_mps() { Guarantee::Mps } else { Guarantee::None },
        }
    }

    /// What the ledger may give of a card. To a pod also what other pods were promised: kubelet has
    /// counted them, and knows first which of them have ended.
    pub(super) fn capacity(&self, card: &Card, pod: bool) -> Capacity {
        let promised = if pod { Mib(0) } else { self.ledger.promised(&card.uuid) };
        let memory = card.memory.saturating_sub(promised);
        let max_clients = if self.under_mps() { card.max_clients } else { u32::MAX };
        Capacity { memory, max_clients }
    }

    /// The capacities of the cards that an expired reservation named, if everything is as it was.
    pub(super) fn still_fits(
        &self,
        call: &Activate,
        grant: &Grant,
    ) -> Result<Vec<Capacity>, Refusal> {
        if let Some(trouble) = &self.driver.trouble {
            return Err(nvml_refusal(trouble));
        }
        if grant.cards.is_empty() || (grant.uses_mps() && grant.cards.len() > 1) {
            return Err(no_reservation("its grant names no card, or several"));
        }
        if grant.key != call.key {
            return Err(no_reservation("its grant is another container's"));
        }
        if grant.has_door() {
            return Err(no_reservation(
                "its reservation has expired, and its door to MPS was closed with it",
            ));
        }
        if grant.uses_mps() != self.under_mps() {
            return Err(no_reservation(
                "its grant is from before the node's schedule was switched",
            ));
        }
        let candidates = self.candidates(None, None);
        let fits = |granted: &GrantedCard| {
            let gpu = GpuSelector::Uuid(granted.uuid.clone());
            let (memory, uid) = (grant.memory, grant.uid);
            let need = Need { memory, uid, gpu: Some(&gpu), hints: &[], spread: false };
            let position = choose(&candidates, &need).map_err(|refusal| {
                let why = format!("its reservation has expired, and now {}", refusal.sentence);
                Refusal::new(Code::NoReservation, why, refusal.hint)
            })?;
            let as_it_was = |card: &&Card| {
                card.minor == granted.minor
                    && (!grant.uses_mps() || card.ends.of(&grant.key) == grant.client_dir)
            };
            let card = self.cards.get(position).filter(as_it_was);
            card.map(|card| self.capacity(card, false)).ok_or_else(|| {
                no_reservation("its grant is from before the card was prepared anew")
            })
        };
        grant.cards.iter().map(fits).collect()
    }

    fn candidates(&self, pod: Option<&str>, container: Option<&str>) -> Vec<Candidate<'_>> {
        self.cards.iter().map(|card| self.candidate(card, pod, container)).collect()
    }

    /// `pod` is the uid of the pod for which it is looked at, `container` the id of a new one.
    fn candidate<'a>(
        &'a self,
        card: &'a Card,
        pod: Option<&str>,
        container: Option<&str>,
    ) -> Candidate<'a> {
        let holders = self.ledger.on_card(&card.uuid).map(|entry| Holder {
            container: entry.grant.key.container_id.as_str(),
            memory: entry.grant.memory,
            uid: entry.grant.uid,
        });
        Candidate {
            uuid: &card.uuid,
            index: card.index,
            managed: card.managed.is_some(),
            condition: self.condition_for(card, container),
            memory: card.memory,
            promised: match pod {
                None => self.ledger.promised(&card.uuid),
                Some(pod) => self.ledger.promised_beside(&card.uuid, pod),
            },
            holders: holders.collect(),
            max_clients: self.capacity(card, false).max_clients,
            // Without a server none is in anybody's way.
            multiuser: card.serves_any_uid() || !self.under_mps(),
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
