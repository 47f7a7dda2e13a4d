//! What was done to containers and processes, remembered for `status`, counted and told.

use mpsgate_api::{ACTIONS_KEPT, Action};
use mpsgate_model::GpuUuid;
use mpsgate_model::ledger::Entry;

use mpsgate_host::clock::now_ms;

use super::{Node, tell};

impl Node {
    /// Remembers what was done, for `status`.
    pub(crate) fn note(
        &mut self,
        card: &GpuUuid,
        container: Option<&str>,
        what: &'static str,
        why: String,
    ) {
        let action = Action {
            at_ms: now_ms(),
            container_id: container.map(str::to_owned),
            card: card.to_string(),
            card_index: self.card(card).map(|card| card.index).unwrap_or_default(),
            what: what.to_owned(),
            why,
        };
        self.events.acted(what);
        if let Some(container) = container {
            tell::acted(self, container, &action.why);
        }
        if self.actions.len() >= ACTIONS_KEPT {
            self.actions.pop_front();
        }
        self.actions.push_back(action);
    }

    /// All grants, for [`Culprit::find`](crate::owner::Culprit::find).
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.ledger().entries().to_vec()
    }
}
