//! Where claims stand with kubelet and the API server, for status and doctor.

use std::sync::Arc;

use mpsgate_api::ClaimsStatus;
use mpsgate_dra::{Event, SocketEvent};
use mpsgate_kubernetes::{Slices, State};
use mpsgate_node::card::Trouble;
use tokio::sync::watch;

/// Claims, where they are served.
#[derive(Debug)]
pub(crate) struct Claims {
    /// Since when kubelet knows the driver.
    since_ms: Option<u64>,
    /// Why it does not.
    trouble: Option<Trouble>,
    /// This node's slice.
    slices: watch::Receiver<Arc<Slices>>,
}

impl Claims {
    pub(crate) fn new(slices: watch::Receiver<Arc<Slices>>) -> Self {
        Self { since_ms: None, trouble: None, slices }
    }

    /// Takes note of what happened. Whether kubelet knows the driver now and did not, or the other
    /// way round.
    pub(crate) fn take(&mut self, event: &Event, now_ms: u64) -> bool {
        let before = self.since_ms.is_some();
        match event {
            Event::Registered => {
                self.since_ms.get_or_insert(now_ms);
                self.trouble = None;
            }
            Event::NotRegistered { .. }
            | Event::NotAsked { .. }
            | Event::Failed(_)
            | Event::Socket(SocketEvent::Gone(_)) => {
                self.since_ms = None;
                let hint =
                    event.hint().unwrap_or_else(|| "journalctl -u mpsgated -n 50".to_owned());
                self.trouble = Some(Trouble::new(event.to_string(), hint));
            }
            _ => {}
        }
        before != self.since_ms.is_some()
    }

    /// For `status`; `prepared` claims are in the ledger.
    pub(crate) fn status(&self, prepared: usize) -> ClaimsStatus {
        let trouble = self.of_slice().or_else(|| match self.since_ms {
            Some(_) => None,
            None => self.trouble.clone().or_else(|| {
                let why = "kubelet has not asked for the driver yet";
                Some(Trouble::new(why, "journalctl -u kubelet -n 50"))
            }),
        });
        let (problem, hint) = trouble.map(|Trouble { why, hint }| (why, hint)).unzip();
        ClaimsStatus {
            registered_ms: self.since_ms,
            prepared: u64::try_from(prepared).unwrap_or(u64::MAX),
            problem,
            hint,
        }
    }

    /// Why the cluster does not see what can be claimed.
    fn of_slice(&self) -> Option<Trouble> {
        let slices = self.slices.borrow();
        match &slices.state {
            State::Failing { error, hint } | State::Stale { error, hint, .. } => {
                Some(Trouble::new(error.clone(), hint.clone()))
            }
            State::Waiting | State::Current => slices.write_error.as_ref().map(|error| {
                Trouble::new(
                    error.clone(),
                    "kubectl get resourceslices; journalctl -u mpsgated -n 50",
                )
            }),
        }
    }
}
