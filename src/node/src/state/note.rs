//! What was done to containers and processes, remembered for `status`, counted and told.

use std::time::Instant;

use mpsgate_api::{ACTIONS_KEPT, Action, Done};
use mpsgate_model::ledger::Entry;
use mpsgate_model::{GpuUuid, OneOf};
use mpsgate_policy::NoteAction;

use super::Node;
use crate::refusal_counts::{CodeCounts, Telling};
use crate::{Effect, Why};

impl Node {
    /// Remembers what was done, for `status`.
    pub fn note(
        &mut self,
        card: &GpuUuid,
        of: Option<&Entry>,
        what: Done,
        why: String,
        at_ms: u64,
        effects: &mut Vec<Effect>,
    ) {
        let action = Action {
            at_ms,
            container_id: of.map(|entry| entry.grant.name()),
            card: card.to_string(),
            card_index: self.card(card).map(|card| card.index).unwrap_or_default(),
            what: what.into(),
            why,
        };
        effects.push(Effect::Count(what));
        let pod = of.and_then(|entry| Some(entry.handed.as_ref()?.pod.clone()));
        effects.extend(pod.map(|pod| Effect::TellPod(pod, Why::Watchdog, action.why.clone())));
        if self.actions.len() >= ACTIONS_KEPT {
            self.actions.pop_front();
        }
        self.actions.push_back(action);
    }

    /// Counts a container that was refused, or started with a note, once for each of its codes and
    /// texts.
    pub fn hear(
        &mut self,
        container: &str,
        action: &OneOf<NoteAction>,
        code: &str,
        text: &str,
        now: Instant,
    ) -> Telling {
        let telling = self.heard.take(container, action, code, text, now);
        if telling != Telling::Known {
            self.counts.count(action, code);
        }
        telling
    }

    /// Containers that were refused, or started with a note.
    pub fn counts(&self) -> &CodeCounts {
        &self.counts
    }

    /// All grants.
    pub fn entries(&self) -> Vec<Entry> {
        self.ledger().entries().to_vec()
    }
}
