//! What the control daemon's log hints at.
//!
//! **A line of the log is a hint.** Who is in a server's place may be able to write there
//! (SECURITY.md, row 21), so nobody is blamed, killed or waited for because of one alone: the
//! kernel says whose cgroup a process is in; the control daemon says whom its server serves and how
//! it is.

use std::sync::Arc;

use mpsgate_model::ledger::Entry;
use mpsgate_mps::MpsInstance;
use mpsgate_mps::protocol::{Event, ServerStatus};
use mpsgate_node::card::CardEvent;

use super::CardTask;
use crate::owner::Culprit;
use crate::process_end;

impl CardTask {
    /// Takes what the log hints at since the last look. Whether the control daemon is to be asked
    /// about it.
    pub(super) fn read_events(&mut self, events: &[Event]) -> bool {
        let mut asks = false;
        for event in events {
            match *event {
                Event::ServerContext { .. } => self.happened(CardEvent::ServerBegan),
                Event::ServerExited { server, status } => self.watch.servers.exited(server, status),
                Event::ServerForcedDown { server } => self.watch.servers.forced(server),
                Event::ServerFault { .. } => asks = true,
                Event::FaultCulprit { client, .. } => {
                    self.watch.accused = Some(client);
                    asks = true;
                }
                // Who is served is what the end of a server is evaluated by.
                Event::ClientServed { .. } => asks = true,
                _ => {}
            }
        }
        asks
    }

    /// Names the process that its server's log accuses of a fatal fault, where the control daemon
    /// says that there is one, and that this is a client of its server. It stays what a line says:
    /// nobody is blamed for it.
    pub(super) async fn name_fault(&mut self, mps: &Arc<MpsInstance>) {
        let Some(client) = self.watch.accused.take().and_then(|pid| u32::try_from(pid).ok()) else {
            return;
        };
        let entries = self.entries_of_card();
        let asked = Arc::clone(mps);
        let find = move |_: &_| {
            let faulted = asked.clients().ok()?.into_iter().find(|(server, clients)| {
                server.status == ServerStatus::Fault
                    && clients.iter().any(|pid| u32::try_from(*pid) == Ok(client))
            });
            faulted.is_some().then_some(())?;
            Culprit::find(process_end::identify(client)?, &entries).filter(|c| c.entry.is_some())
        };
        let named = self.daemon.blocking(find).await;
        match named.as_ref().map(Culprit::label) {
            Some(label) => {
                log::warn!(uuid = self.uuid.as_str(), reason = label.as_str(); "fatal GPU error, and its log names a client");
                self.happened(CardEvent::Blamed(label));
            }
            None => {
                log::info!(uuid = self.uuid.as_str(), pid = client; "the MPS log blames a process, and its control daemon does not bear it out");
            }
        }
    }

    /// The grants on this card.
    pub(super) fn entries_of_card(&self) -> Vec<Entry> {
        self.daemon.node().ledger().on_card(&self.uuid).cloned().collect()
    }
}
