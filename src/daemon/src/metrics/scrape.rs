//! What one scrape shows.

use mpsgate_api::{ApiServerStatus, Status};

use crate::node::Node;
use crate::node::counters::Events;
use crate::node::handlers::Handlers;
use crate::node::refusals::Evaluated;

/// Everything that one scrape shows, as of one moment.
#[derive(Debug)]
pub(super) struct Scrape {
    pub(super) status: Status,
    pub(super) events: Events,
    pub(super) evaluated: Evaluated,
    pub(super) ledger_failing: bool,
    pub(super) handlers: Option<Handlers>,
}

impl Scrape {
    /// As it is now: no driver is asked.
    pub(super) fn of(node: &Node, api_server: Option<ApiServerStatus>) -> Self {
        Self {
            status: Status { api_server, ..node.status() },
            events: node.events.clone(),
            evaluated: node.evaluated.clone(),
            ledger_failing: node.is_failing(),
            handlers: node.handlers.clone(),
        }
    }
}
