//! Everything that the node knows, for `mpsgate status`: recorded, device and server views side by
//! side. What is around it the daemon adds.

use mpsgate_api::{CardState, CardStatus, GateStatus, GrantState, GrantStatus, Status};
use mpsgate_model::ledger::{Entry, State};
use mpsgate_model::{GpuUuid, Grant, GrantedCard, Guarantee, Mib, OneOf};
use mpsgate_policy::schedule::Word;
use mpsgate_policy::{Conclusion, GuaranteeLevel};

use super::Node;
use crate::Backend;
use crate::card::Card;

/// What a grant that lost its control daemon needs.
pub(super) const BROKEN: &str = "its CUDA processes lost the GPU when its MPS daemon or server died: restart the \
     container";

impl Node {
    /// All of it, as of now.
    pub fn status(&self) -> Status {
        let mut grants: Vec<GrantStatus> =
            self.ledger().entries().iter().flat_map(|entry| self.grant_status(entry)).collect();
        grants.sort_by_key(|grant| (grant.card_index, grant.since_ms));
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            simulated: self.driver.simulated,
            driver: self.driver.version.clone(),
            nvml_error: self.driver.trouble.as_ref().map(|t| format!("{} ({})", t.why, t.hint)),
            kubelet: self.kubelet,
            cards: self.cards.iter().map(|card| self.card_status(card)).collect(),
            grants,
            refusals: self.counts.refusals(),
            notes: self.counts.notes(),
            clients_terminated: self.kills.terminated,
            kills_unprepared: self.kills.unprepared,
            actions: self.actions.iter().cloned().collect(),
            metrics_listen: None,
            metrics_error: None,
            api_server: None,
            device_plugin: Vec::new(),
            claims: None,
            slurm: None,
            schedule: Word::from(self.schedule.now()).into(),
            overrides: Vec::new(),
            schedule_wanted: self.schedule.wanted().map(OneOf::Known),
            schedule_waits_for: self.waits_for(),
        }
    }

    fn card_status(&self, card: &Card) -> CardStatus {
        let promised = self.ledger().held_back(&card.uuid);
        let granted = self.ledger().granted(&card.uuid);
        let free = card.memory.saturating_sub(granted).saturating_sub(promised);
        let managed = card.is_managed();
        let clients = u32::try_from(self.ledger().on_card(&card.uuid).count()).unwrap_or(u32::MAX);
        let concluded = self.backend().conclusion(card);
        let asking = card.qualified.asking.is_some() && card.trouble().is_none();
        let (state, hint) = match (card.is_lost(), managed) {
            (false, false) => (CardState::Unmanaged.into(), None),
            (false, true) if asking => (CardState::Qualifying.into(), None),
            _ => match (card.trouble(), self.fence(card)) {
                (None, Some(fence)) => (OneOf::Other(fence.why.clone()), Some(fence.hint.clone())),
                (trouble, _) => (card.state(), trouble.map(|trouble| trouble.hint.clone())),
            },
        };
        CardStatus {
            uuid: card.uuid.to_string(),
            index: card.index,
            minor: card.minor,
            name: card.name.clone(),
            managed,
            total_mib: card.total.0,
            memory_mib: card.memory.0,
            granted_mib: granted.0,
            promised_mib: promised.0,
            free_mib: if managed { free.0 } else { 0 },
            used_mib: (!card.is_lost()).then_some(card.used.0),
            compute_mode: card
                .compute_mode()
                .map_or_else(|| OneOf::Other(String::new()), OneOf::Known),
            clients,
            max_clients: card.max_clients(),
            state,
            hint,
            mps: card.mps().filter(|_| managed),
            gate: card.gate().filter(|_| managed).map(|counts| GateStatus {
                handed_over: counts.handed_over,
                waiting: counts.waiting,
                ended: counts.ended.iter().map(|(why, n)| (why.as_str().to_owned(), *n)).collect(),
            }),
            memory: card.watched().parts.filter(|_| managed),
            unwatched: card.watched().blind.clone().filter(|_| managed),
            unlimited: card
                .unlimited()
                .filter(|_| managed)
                .map(|trouble| format!("{} ({})", trouble.why, trouble.hint)),
            qualification: card.qualified.found.clone().filter(|_| managed),
            failures: concluded.map(|concluded| concluded.failures.clone()).unwrap_or_default(),
            qualify: concluded.and_then(|concluded| concluded.due.clone()),
        }
    }

    /// What its processes use of a card, where that is seen now.
    pub(super) fn used(&self, grant: &Grant, card: &GpuUuid) -> Option<Mib> {
        let card = self.card(card)?;
        card.watched().used.get(&grant.key).copied().filter(|_| self.driver.trouble.is_none())
    }

    /// What a process of it gets that unsets its limit, where the control daemon is asked now and
    /// then.
    fn cap(&self, grant: &Grant) -> Option<u64> {
        let card = self.card(&grant.cards.first()?.uuid)?;
        let mps = card.mps().filter(|_| card.is_managed())?;
        // Behind a door it is told the grant's own at the hand-over. Whether each driver's client
        // asks then is not known: at worst it has a neighbour's.
        let largest = self.ledger().on_card(&card.uuid).map(|entry| entry.grant.memory.0).max();
        mps.default_limit_mib.max(largest.filter(|_| mps.default_limit_mib.is_some()))
    }

    /// The level that a grant of the card has under MPS, and what shows that: what its driver's own
    /// limit of a cgroup adds is each grant's.
    pub fn level_of_card(&self, card: &Card) -> GuaranteeLevel {
        let moment = match self.backend().guarantee() {
            Guarantee::Mps if self.watches(card) => Guarantee::MpsWatchdog,
            by_itself => by_itself,
        };
        card.qualified.conclusion.level(moment)
    }

    /// Whether a container that takes more than its grant of the card is ended.
    fn watches(&self, card: &Card) -> bool {
        card.watched().enforced && !card.is_lost() && self.driver.trouble.is_none()
    }

    /// How firmly its limit holds now, and what shows that.
    pub(super) fn guarantee(&self, grant: &Grant) -> GuaranteeLevel {
        let card = grant.cards.first().and_then(|card| self.card(&card.uuid));
        let watched = card.is_some_and(|card| self.watches(card));
        let unknown = Conclusion::default();
        // Who asks finds out anew.
        let asked = card.filter(|card| card.qualified.asking.is_none());
        let concluded = asked.map_or(&unknown, |card| &card.qualified.conclusion);
        let now = match grant.guarantee {
            _ if self.held.contains(&grant.key) && concluded.holds_cgroups() => Guarantee::Cgroup,
            Guarantee::Mps if watched => Guarantee::MpsWatchdog,
            recorded => recorded,
        };
        concluded.level(now)
    }

    /// One line for each of its cards.
    fn grant_status(&self, entry: &Entry) -> impl Iterator<Item = GrantStatus> {
        entry.grant.cards.iter().map(|card| self.status_on_card(entry, card))
    }

    fn status_on_card(&self, entry: &Entry, card: &GrantedCard) -> GrantStatus {
        let grant = &entry.grant;
        let broken = entry.broken_ms.is_some();
        let GuaranteeLevel { guarantee, proof, .. } = self.guarantee(grant);
        let (state, pid, cgroup) = match &entry.state {
            State::Reserved { holder } => (GrantState::Reserved, holder.pid, None),
            State::Active { init, cgroup } => {
                let state = if broken { GrantState::Broken } else { GrantState::Active };
                (state, init.pid, cgroup.as_ref())
            }
        };
        GrantStatus {
            container_id: grant.name(),
            runtime_root: grant.key.runtime_root.clone(),
            instance: grant.key.instance.as_str().to_owned(),
            state: state.into(),
            card: card.uuid.to_string(),
            card_index: card.index,
            memory_mib: grant.memory.0,
            compute_percent: grant.compute.map(|share| share.0),
            uid: grant.uid,
            pid,
            cgroup: cgroup.map(|cgroup| cgroup.path.clone()),
            used_mib: self.used(grant, &card.uuid).map(|used| used.0),
            cap_mib: self.cap(grant),
            guarantee: guarantee.into(),
            proof,
            since_ms: entry.since_ms,
            hint: broken.then(|| BROKEN.to_owned()),
            broken_ms: entry.broken_ms,
        }
    }
}
