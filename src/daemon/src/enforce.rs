//! Whose process takes from its neighbours what is theirs, and what is done about it.
//!
//! A process belongs to the container in whose cgroup it is: to the innermost, where they lie in
//! each other. Whoever belongs to none is reported and never touched: it is the operator's.

use std::time::Duration;

use mpsgate_api::Done;
use mpsgate_config::Enforce;
use mpsgate_model::GpuUuid;
use mpsgate_model::ledger::{Entry, State};

use tokio::time::timeout;

use crate::container_cgroup::kill::Meant;
use crate::daemon::Daemon;
use crate::{container_cgroup, jobs, scontrol};

/// How long a job lives on while its owner is told why it ends: its neighbours wait.
const TELL: Duration = Duration::from_secs(1);

/// Remembers and logs what a process did, where nothing is done about it.
pub(crate) fn report(daemon: &Daemon, card: &GpuUuid, entry: Option<&Entry>, why: String) {
    let container = entry.map(|entry| entry.grant.name());
    log::warn!(uuid = card.as_str(), container = container.as_deref(), reason = why.as_str(); "reported, nothing is done");
    daemon.note(card, entry, Done::Reported, why);
}

/// Does what `policy.enforce` says about a container that was found to do harm: ends it.
pub(crate) async fn enforce(daemon: &Daemon, card: &GpuUuid, entry: &Entry, why: String) {
    if daemon.settings.now().policy.enforce != Enforce::Kill {
        return report(daemon, card, Some(entry), why);
    }
    if let Some(job) = scontrol::job_cgroup::id(&entry.grant.key) {
        // Slurm takes no comment on a job that has ended.
        let text = format!("mpsgate ends it: {why}");
        let _ = timeout(TELL, jobs::comment(daemon, job, &text)).await;
    }
    let container = entry.grant.name();
    let state = entry.state.clone();
    let meant = Meant::of(&entry.grant, daemon.node().nested(entry));
    let work = move |_: &_| match &state {
        State::Active { init, cgroup: Some(cgroup) } => {
            container_cgroup::kill::kill(cgroup, init, &meant)
        }
        // With its init the rest of its pid namespace ends.
        State::Active { init, cgroup: None } => container_cgroup::kill::kill_process(init),
        State::Reserved { .. } => Ok(()),
    };
    let killed = daemon.blocking(work).await;
    let (container, uuid) = (container.as_str(), card.as_str());
    match killed {
        Ok(()) => {
            log::warn!(container, uuid, reason = why.as_str(); "killed");
            daemon.note(card, Some(entry), Done::Killed, why);
        }
        Err(error) => {
            log::error!(container, uuid, reason = why.as_str(), error:% = error; "not killed");
            let why = format!("{why}; it was to be killed, but {error}");
            daemon.note(card, Some(entry), Done::Failed, why);
        }
    }
}
