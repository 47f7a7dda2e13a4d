//! A control daemon that does not answer: why, and when it is asked again.
//!
//! ```text
//!  busy at a look ──► command ──► no answer in 3 s: wedged ──► each second: why? may it answer?
//!        ▲                │                                        │ then, and every 4 s
//!        └── at rest ◄────┴── answers ◄── command ◄────────────────┘
//! ```
//!
//! No container can hold it up: the gate speaks for all of them. It is not ended unasked, because
//! its clients would end with it.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_mps::{ControlDaemon, MpsInstance, WedgeCause};
use mpsgate_node::card::{Card, CardEvent, View};

use super::CardTask;
use crate::hardware::control::wedge;

/// While it is wedged and nothing says that it may answer: between two commands.
const ASK: Duration = Duration::from_secs(4);

impl CardTask {
    pub(super) fn is_wedged(&self) -> bool {
        self.daemon.node().card(&self.uuid).is_some_and(Card::is_wedged)
    }

    /// Looks at a daemon that is busy, or known not to answer. `is_free`: nothing is seen to keep
    /// it from answering.
    pub(super) async fn look_at_wedge(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
        is_free: bool,
    ) {
        let mut cause = self.cause(mps, daemon).await;
        let may_answer = match cause {
            WedgeCause::Stopped | WedgeCause::ServerStopped { .. } => false,
            WedgeCause::LogBlocked => true,
            WedgeCause::Unknown => is_free,
        };
        if !self.is_wedged() || self.unasked_for() >= ASK || may_answer {
            self.ask(mps, daemon, Some(cause)).await;
            if !self.is_wedged() {
                return;
            }
            cause = self.cause(mps, daemon).await;
        }
        self.happened(CardEvent::Viewed(View::wedged(Some(cause))));
    }

    async fn cause(&self, mps: &Arc<MpsInstance>, daemon: &Arc<ControlDaemon>) -> WedgeCause {
        let (mps, daemon) = (Arc::clone(mps), Arc::clone(daemon));
        let work = move |_: &_| wedge(&mps, &daemon);
        self.daemon.blocking(work).await
    }
}
