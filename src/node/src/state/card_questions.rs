//! What cards were asked: who may ask, what follows from the answers, and what others are told
//! meanwhile.

use std::collections::BTreeSet;

use mpsgate_api::{Engine, Reserve};
use mpsgate_config::paths;
use mpsgate_model::{
    Answer, Code, GpuSelector, GpuUuid, GrantKey, QUESTIONS, Qualification, Refusal, Subject,
};
use mpsgate_policy::{Condition, Disturbance, SharedMemory, conclude, judge};

use super::Node;
use crate::card::{Asking, Card, Trouble};

impl Asking {
    /// Whether a container is one of those that ask: started by the command, which alone uses this
    /// runtime root. Its name proves nothing: a user names processes as he likes, and reads its
    /// beginning in the names of cgroups.
    fn is_of(&self, key: &GrantKey) -> bool {
        key.runtime_root == paths::QUALIFY_ROOT && key.container_id.as_str().starts_with(&self.id)
    }
}

impl Node {
    /// Of what a card would be asked today.
    pub fn subject(&self, card: &Card) -> Subject {
        Subject {
            card: card.uuid.clone(),
            driver: self.driver.version.clone().unwrap_or_default(),
            control: self.driver.control.clone(),
            questions: QUESTIONS,
            simulated: self.driver.simulated,
        }
    }

    /// Draws the conclusions anew: answers have come, or the driver is another.
    pub fn conclude(&mut self) {
        let subjects: Vec<Subject> = self.cards.iter().map(|card| self.subject(card)).collect();
        for (card, now) in self.cards.iter_mut().zip(subjects) {
            let mut conclusion = conclude(card.qualified.found.as_ref(), &now);
            if let Some(why) = &card.qualified.unreadable {
                conclusion.due = Some(format!("its answers cannot be read: {why}"));
            }
            let index = card.index;
            let refusal = conclusion.refusal.clone().map(|why| {
                let hint = format!(
                    "ask again, and after a change of the driver, too: mpsgate qualify {index}"
                );
                Trouble::new(why, hint)
            });
            card.qualified.refusal = refusal;
            card.qualified.conclusion = conclusion;
        }
    }

    /// Whether a card takes a grant of a container; while it is asked, only those that ask.
    pub(super) fn condition_for<'a>(
        &'a self,
        card: &'a Card,
        container: Option<&GrantKey>,
    ) -> Condition<'a> {
        let condition = self.condition(card);
        let Some(asking) = &card.qualified.asking else { return condition };
        let asks = container.is_some_and(|key| asking.is_of(key));
        match condition {
            // What it answered before stands in nobody's way who asks it anew.
            Condition::Unhealthy { .. } if asks && card.qualified.refusal.is_some() => {
                card.condition()
            }
            Condition::Ready if !asks => {
                let Trouble { why, hint } = &asking.trouble;
                Condition::NotReady { why, hint }
            }
            condition => condition,
        }
    }

    /// Whether a card is being asked, and not by this container.
    pub fn is_asked_by_others(&self, container: &GrantKey) -> bool {
        let managed = self.cards.iter().filter(|card| card.is_managed());
        let mut asking = managed.filter_map(|card| card.qualified.asking.as_ref());
        asking.any(|asking| !asking.is_of(container))
    }

    /// Whether a container is one of those that ask the card which it wants memory of. That is
    /// root's word, on a node with a kubelet, too.
    pub(super) fn asks(&self, call: &Reserve) -> bool {
        let wanted = |card: &&Card| match &call.request.gpu {
            Some(GpuSelector::Uuid(uuid)) => *uuid == card.uuid,
            _ => false,
        };
        let asking = self.cards.iter().find(wanted).and_then(|card| card.qualified.asking.as_ref());
        call.engine == Engine::Local && asking.is_some_and(|asking| asking.is_of(&call.key))
    }

    /// The card that is being asked by this id.
    pub fn asked_card(&self, id: &str) -> Option<&Card> {
        self.cards
            .iter()
            .find(|card| card.qualified.asking.as_ref().is_some_and(|asking| asking.id == id))
    }

    /// Takes an answer, as far as it counts: what was seen of the card since the answer before may
    /// be the cause of a *no*. `None` where no card is being asked by this id.
    pub fn take_answer(&mut self, id: &str, answer: Answer) -> Option<Answer> {
        let card = self.asked_card(id)?;
        let (uuid, trouble) = (card.uuid.clone(), self.trouble_of_asked(card));
        let card = self.card_mut(&uuid)?;
        if let Some(why) = trouble {
            card.saw(Disturbance::NotReady, why);
        }
        let asking = card.qualified.asking.as_mut()?;
        let answer = judge(answer, &asking.before, &asking.sight);
        asking.before = asking.sight.clone();
        asking.answers.retain(|before| before.question != answer.question);
        asking.answers.push(answer.clone());
        Some(answer)
    }

    /// Why a card that is being asked cannot serve now.
    fn trouble_of_asked(&self, card: &Card) -> Option<String> {
        match (&self.driver.trouble, card.condition()) {
            (Some(trouble), _) => {
                Some(format!("the NVIDIA driver does not answer: {}", trouble.why))
            }
            _ if !self.under_mps() => Some("it is shared without MPS".to_owned()),
            (None, Condition::Ready) => None,
            (None, Condition::Unfit { why, .. } | Condition::Unhealthy { why, .. })
            | (None, Condition::NotReady { why, .. }) => Some(format!("it {why}")),
        }
    }

    /// How the servers of the managed cards share memory: what a card has shown counts before what
    /// was seen of its server.
    pub fn shared_memory(&self) -> SharedMemory {
        let managed = self.cards.iter().filter(|card| card.is_managed());
        SharedMemory::of_all(managed.filter_map(|card| {
            let shown = card.qualified.conclusion.shared_memory;
            // While it is asked it has shown nothing: its containers would be refused.
            shown.filter(|_| card.qualified.asking.is_none()).or_else(|| card.shared_memory())
        }))
    }

    /// Lets a card be asked, by containers whose ids begin with `id`.
    ///
    /// # Errors
    /// Where the answers would be of something else: it is not ready, or others use it.
    pub fn begin_asking(&mut self, gpu: &str, id: &str, until: &str) -> Result<Subject, Refusal> {
        let card = self.find_card(gpu)?;
        let label = card.label();
        card.is_ours("")?;
        if !self.under_mps() {
            let hint = "gpus.schedule = \"mps\" in /etc/mpsgate/config.toml";
            return Err(card.without_mps("nothing of MPS can be asked of it", hint));
        }
        if let Condition::Unfit { why, hint } | Condition::Unhealthy { why, hint } =
            card.condition()
        {
            return Err(Trouble::new(why, hint).refusal(label));
        }
        if card.qualified.asking.is_some() {
            return Err(Refusal::new(
                Code::GpuNotReady,
                format!("{label} is being asked already"),
                "wait for the other mpsgate qualify to end: mpsgate status",
            ));
        }
        let (grants, promised) =
            (self.ledger.on_card(&card.uuid).count(), self.ledger.held_back(&card.uuid));
        if grants > 0 || promised.0 > 0 {
            let what = match grants {
                0 => format!("{promised} of it are promised to pods"),
                1 => "a container has a grant on it".to_owned(),
                more => format!("{more} containers have grants on it"),
            };
            return Err(Refusal::new(
                Code::GpuInUse,
                format!("{label} is only asked while nobody uses it, and {what}"),
                "drain it first; mpsgate status shows the grants",
            ));
        }
        let subject = self.subject(card);
        let uuid = card.uuid.clone();
        let trouble = Trouble::new(
            format!("is being asked what holds on it, until {until} at the latest"),
            "try again then; mpsgate status shows when it is ready",
        );
        let asking = Asking::new(id, subject.clone(), trouble);
        if let Some(card) = self.card_mut(&uuid) {
            card.qualified.asking = Some(asking);
        }
        Ok(subject)
    }

    /// Whether nobody has asked a card of which nobody has memory, and somebody can.
    pub fn is_unasked(&self, card: &Card) -> bool {
        let of_nobody = self.ledger.on_card(&card.uuid).next().is_none()
            && self.ledger.held_back(&card.uuid).0 == 0;
        let can_be_asked = self.under_mps() && !self.driver.simulated;
        card.is_managed() && card.qualified.found.is_none() && of_nobody && can_be_asked
    }

    /// Kubelet is not told of these cards before they were asked. Whether that is news.
    pub fn await_answers(&mut self, awaited: &BTreeSet<GpuUuid>) -> bool {
        let mut is_news = false;
        for card in &mut self.cards {
            let is_awaited = awaited.contains(&card.uuid);
            is_news |= card.qualified.is_awaited != is_awaited;
            card.qualified.is_awaited = is_awaited;
        }
        is_news
    }

    /// Ends the asking that has this id, if it was still going on.
    pub fn end_asking(&mut self, id: &str) -> Option<Asking> {
        let uuid = self.asked_card(id)?.uuid.clone();
        self.card_mut(&uuid)?.qualified.asking.take()
    }

    /// What a card has answered counts from now on, or that it cannot be read. Whether that is
    /// news.
    pub fn set_answers(
        &mut self,
        card: &GpuUuid,
        found: Result<Option<Qualification>, String>,
    ) -> bool {
        let Some(card) = self.card_mut(card) else { return false };
        let (found, unreadable) = match found {
            Ok(found) => (found, None),
            Err(why) => (None, Some(why)),
        };
        let is_news = card.qualified.found != found || card.qualified.unreadable != unreadable;
        card.qualified.found = found;
        card.qualified.unreadable = unreadable;
        is_news
    }
}
