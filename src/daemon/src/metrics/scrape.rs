//! What one scrape shows.

use mpsgate_api::Status;
use mpsgate_node::refusals::CodeCounts;

use crate::around::handlers::Handlers;
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
}

impl Scrape {
    /// As it is now: no driver is asked.
    pub(super) fn of(daemon: &Daemon) -> Self {
        let status = daemon.status();
        let node = daemon.node();
        Self {
            status,
            events: daemon.events.clone(),
            counts: node.counts().clone(),
            ledger_failing: node.is_failing(),
            handlers: daemon.around().handlers.clone(),
        }
    }
}
