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

use mpsgate_api::ControlState;
use mpsgate_mps::{ControlDaemon, MpsInstance, WedgeCause};
use mpsgate_node::card::Trouble;

use super::CardTask;
use crate::hardware::control::{View, wedge};

/// While it is wedged and nothing says that it may answer: between two commands.
const ASK: Duration = Duration::from_secs(4);

/// What is wrong with a control daemon of this pid, for people.
pub(super) fn wedge_trouble(cause: Option<&WedgeCause>, pid: Option<u32>) -> Trouble {
    let pid = pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
    let (why, hint) = cause.unwrap_or(&WedgeCause::Unknown).explain(pid);
    Trouble::new(format!("has an MPS control daemon that does not answer{why}"), hint)
}

impl CardTask {
    pub(super) fn is_wedged(&self) -> bool {
        let node = self.daemon.node();
        let mps = node.card(&self.uuid).and_then(|card| card.mps.as_ref());
        mps.is_some_and(|mps| mps.state == ControlState::Wedged)
    }

    /// Looks at a daemon that is busy, or known not to answer. `is_free`: nothing is seen to keep
    /// it from answering.
    pub(super) async fn look_at_wedge(
        &mut self,
        mps: &Arc<MpsInstance>,
        daemon: &Arc<ControlDaemon>,
        is_free: bool,
    ) {
        let cause = self.cause(mps, daemon).await;
        let may_answer = match cause {
            WedgeCause::Stopped | WedgeCause::ServerStopped { .. } => false,
            WedgeCause::LogBlocked => true,
            WedgeCause::Unknown => is_free,
        };
        self.watch.wedge = Some(cause);
        if !self.is_wedged() || self.unasked_for() >= ASK || may_answer {
            self.ask(mps, daemon).await;
            if !self.is_wedged() {
                return;
            }
            self.watch.wedge = Some(self.cause(mps, daemon).await);
        }
        self.set_view(View::wedged());
    }

    async fn cause(&self, mps: &Arc<MpsInstance>, daemon: &Arc<ControlDaemon>) -> WedgeCause {
        let (mps, daemon) = (Arc::clone(mps), Arc::clone(daemon));
        let work = move |_: &_| wedge(&mps, &daemon);
        self.daemon.blocking(work).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_with_what_to_do() {
        for (cause, expected, command) in [
            (WedgeCause::Stopped, ": somebody stopped it, pid 7", "kill -CONT 7"),
            (
                WedgeCause::ServerStopped { server: 8 },
                ": somebody stopped its MPS server, pid 8",
                "kill -CONT 8",
            ),
            (WedgeCause::LogBlocked, ": its log was full", "mpsgate mps restart GPU"),
            (WedgeCause::Unknown, "", "cat /proc/7/stack"),
        ] {
            let Trouble { why, hint } = wedge_trouble(Some(&cause), Some(7));
            let told = format!("has an MPS control daemon that does not answer{expected}");
            assert_eq!(why, told);
            assert!(hint.contains(command), "{hint}");
        }
    }
}
