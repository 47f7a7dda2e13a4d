//! The node's schedule, as all tasks may move it: what follows from a change is done at once, and
//! told in one place.

use mpsgate_kubernetes::Labels;
use mpsgate_model::GpuUuid;
use mpsgate_model::Placement;
use mpsgate_node::sharing::{Event, Want};
use mpsgate_policy::schedule::Word;

use super::Daemon;
use crate::files::FileKind;
use crate::orders::Order;
use crate::{managed, tell};

/// What the labels make of the node. One without any of ours is left alone, as ACK and gpushare
/// have it: nos' label alone means what ACK's `mps` does.
fn word(labels: &Labels) -> Word {
    match &labels.schedule {
        Some(word) => Word::of_label(word),
        None if labels.slices => Word::Mps,
        None => Word::Off,
    }
}

impl Daemon {
    /// Does what the node's labels say.
    pub(crate) fn obey(&self, labels: &Labels) {
        self.node().spread = labels.placement == Some(Placement::Spread);
        self.want_schedule(Want::Label(Some(word(labels))));
    }

    /// Takes note of what somebody wants of the node; what follows is done at once, or by itself
    /// when the containers that are in the way have ended. It does not wait for the disk: after a
    /// crash in between the label's word of before applies until the API server is heard.
    pub(crate) fn want_schedule(&self, want: Want) {
        let to_remember = self.node().schedule.want(want);
        let path = self.paths.managed();
        self.files.post(FileKind::Managed, move || {
            if let Err(error) = managed::set_schedule(&path, to_remember) {
                log::error!(path:% = path.display(), reason:% = error; "the node's schedule is not remembered");
            }
        });
        self.advance_schedule();
        self.schedule_moved.notify_one();
    }

    /// Does what can be done at once. `true` where another schedule holds from now on.
    pub(crate) fn advance_schedule(&self) -> bool {
        let events = self.node().advance();
        let switched = events.iter().any(|event| matches!(event, Event::Switched { .. }));
        if switched {
            let card_tasks: Vec<GpuUuid> = self.card_tasks().keys().cloned().collect();
            for card in &card_tasks {
                self.order(card, Order::Schedule);
            }
        }
        if !events.is_empty() {
            self.tell_change();
        }
        events.iter().for_each(|event| self.tell_schedule(event));
        switched
    }

    /// The one place where it is said what becomes of the schedule.
    pub(crate) fn tell_schedule(&self, event: &Event) {
        tell::schedule(self.recorder(), event);
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_of_the_seed_systems_make_the_node_ours_or_not() {
        let labels = |schedule: Option<&str>, slices| {
            let schedule = schedule.map(str::to_owned);
            Labels { schedule, slices, ..Labels::default() }
        };
        for (schedule, slices, expected) in [
            (Some("mps"), false, Word::Mps),
            (Some("share"), true, Word::Share),
            (None, true, Word::Mps),
            (None, false, Word::Off),
            (Some("cgpu"), false, Word::Off),
            (Some("cgpu"), true, Word::Off),
        ] {
            let labels = labels(schedule, slices);
            assert_eq!(word(&labels), expected, "{labels:?}");
        }
    }
}
