//! What one scrape shows.

use std::collections::BTreeMap;

use mpsgate_api::{CardUsage, GrantStatus, GrantUsage, Status, UsageDay};
use mpsgate_node::refusal_counts::CodeCounts;

use crate::around::handler_status::Handlers;
use crate::counters::Events;
use crate::daemon::Daemon;

/// Everything that one scrape shows, as of one moment.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) status: Status,
    pub(super) events: Events,
    pub(super) counts: CodeCounts,
    pub(super) ledger_failing: bool,
    pub(super) handlers: Option<Handlers>,
    /// Today so far.
    pub(super) cards: BTreeMap<String, CardUsage>,
    /// Of the grants that live.
    pub(super) grants: BTreeMap<String, GrantUsage>,
}

impl Scrape {
    /// As it is now: no driver is asked.
    pub(super) fn of(daemon: &Daemon) -> Self {
        let status = daemon.status();
        let (cards, grants) = {
            let day = daemon.usage.day();
            let row = |grant: &GrantStatus| {
                let key = UsageDay::key(&grant.card, &grant.instance);
                Some((key.clone(), day.grants.get(&key)?.clone()))
            };
            (day.cards.clone(), status.grants.iter().filter_map(row).collect())
        };
        let node = daemon.node();
        Self {
            status,
            events: daemon.events.clone(),
            counts: node.counts().clone(),
            ledger_failing: node.is_failing(),
            handlers: daemon.around().handlers.clone(),
            cards,
            grants,
        }
    }
}
