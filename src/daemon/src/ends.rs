//! Ends reservations and grants when what holds them has ended. One small task per entry; a task
//! whose entry was released otherwise finds nothing to do.

use std::sync::Arc;
use std::time::Duration;

use mpsgate_host::crash_point;
use mpsgate_model::ledger::{Entry, ProcessId, State};
use mpsgate_model::{Backoff, GrantKey};

use crate::daemon::Daemon;
use crate::hardware::Hardware;
use crate::process_end::ended;
use crate::{DaemonError, container_cgroup, runs};

/// First and last pause between two looks at a cgroup whose init has ended: its processes mostly
/// end together, and a grant is to be free 100 ms later.
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LAST_LOOK: Duration = Duration::from_millis(50);
/// The same of a job: without `PrologFlags=Contain` none of its processes lives as long as it.
const JOBS_LOOK: Duration = Duration::from_secs(1);

/// How long a reservation may be unused that a hook of the engine's took for it. The engine may be
/// a service that runs for ever, and its runtime may fail before a hook of ours is run. Creating
/// takes seconds.
const UNUSED_LIMIT: Duration = Duration::from_secs(120);

/// Starts the watch of an entry.
pub(crate) fn start(daemon: &Arc<Daemon>, entry: &Entry) {
    let key = entry.grant.key.clone();
    let shared = Arc::clone(daemon);
    let name = format!("watches {key}");
    match &entry.state {
        State::Reserved { holder } => daemon.spawn(name, reservation(shared, key, *holder)),
        State::Active { init, .. } => daemon.spawn(name, grant(shared, key, *init)),
    }
}

/// Ends a reservation that is none of a process's own after [`UNUSED_LIMIT`].
pub(crate) fn limit(daemon: &Arc<Daemon>, entry: &Entry) {
    let key = entry.grant.key.clone();
    let shared = Arc::clone(daemon);
    daemon.spawn(format!("limits {key}"), async move {
        tokio::time::sleep(UNUSED_LIMIT).await;
        shared.change(|node, effects| node.expire(&key, "reservation not used", effects));
        Ok(())
    });
}

async fn reservation(
    daemon: Arc<Daemon>,
    key: GrantKey,
    holder: ProcessId,
) -> Result<(), DaemonError> {
    ended(&holder).await;
    crash_point!("daemon.expire.before");
    let expired = daemon.change(|node, effects| {
        let expired = node.expire(&key, "reservation expired", effects).is_some();
        if expired {
            crash_point!("daemon.expire.changed");
        }
        expired
    });
    if expired && key.is_run() {
        let cgroups = daemon.paths.cgroups.clone();
        let remove = move |_: &Hardware| runs::remove_of(&cgroups, &key.instance);
        daemon.blocking(remove).await;
    }
    Ok(())
}

async fn grant(daemon: Arc<Daemon>, key: GrantKey, init: ProcessId) -> Result<(), DaemonError> {
    ended(&init).await;
    let mut backoff = Backoff::new(FIRST_LOOK, if key.is_job() { JOBS_LOOK } else { LAST_LOOK });
    let of_run = loop {
        let (cgroup, others) = {
            let node = daemon.node();
            let Some(entry) = node.ledger().get(&key) else { return Ok(()) };
            let State::Active { cgroup, .. } = &entry.state else { return Ok(()) };
            (cgroup.clone(), node.nested(entry))
        };
        // A cgroup that cannot be read is looked at again: memory in use is never given away.
        let is_empty =
            |cgroup| container_cgroup::is_empty_but_for(&cgroup, &others).unwrap_or(false);
        if cgroup.clone().is_none_or(is_empty) {
            break cgroup.filter(|_| key.is_run());
        }
        tokio::time::sleep(backoff.pause()).await;
    };
    if let Some(cgroup) = of_run {
        runs::remove(&cgroup);
    }
    crash_point!("daemon.end.before");
    daemon.change(|node, effects| {
        if node.release(&key, "container ended", effects).is_some() {
            crash_point!("daemon.end.changed");
        }
    });
    Ok(())
}
