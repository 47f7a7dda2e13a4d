//! `mpsgate resize`: a container that runs gets more or less of its cards.
//!
//! ```text
//!   decided ─► more: ledger, driver's limit of the cgroup │ less: limit, ledger ─► exec record ─► answered
//! ```

use std::sync::Arc;

use mpsgate_api::{Reply, Resize};
use mpsgate_host::crash_point;
use mpsgate_model::{Code, GrantKey, Mib, Refusal};
use mpsgate_node::Resizing;
use mpsgate_policy::Resized;
use tokio::sync::oneshot;

use super::Answer;
use crate::daemon::Daemon;
use crate::files::FileKind;
use crate::handover::Told;
use crate::line::Line;
use crate::orders::LimitOrder;
use crate::real_machine::ThisMachine;

/// Changes a container's grant, or says why not.
pub(crate) async fn resize(daemon: &Arc<Daemon>, line: &mut Line, call: &Resize) -> Answer {
    let mut told = Told::Caller(line);
    let _turn = told.turn(daemon).await;
    let found = daemon.node().resizing(&call.container, call.memory, &ThisMachine);
    let Resizing { entry, what, each, lines } = found?;
    let (grant, key) = (&entry.grant, &entry.grant.key);
    if what == Resized::Same {
        return Ok(Reply::Resized { lines });
    }
    let doing = "the driver is to change the limit of the container's cgroup";
    told.wait(doing, change(daemon, key, each, what == Resized::Down)).await?;
    let recorded = daemon.recorded();
    if let Err(refusal) = told.wait("the grant is being recorded", recorded).await {
        // A restart would not know of it.
        let _ = change(daemon, key, grant.memory, false).await;
        return Err(refusal);
    }
    crash_point!("daemon.resize.stored");
    log::info!(
        container = grant.name().as_str(), instance = key.instance.as_str(),
        memory_mib = each.0, had_mib = grant.memory.0; "grant resized"
    );
    Ok(Reply::Resized { lines })
}

async fn change(daemon: &Daemon, key: &GrantKey, each: Mib, held: bool) -> Result<(), Refusal> {
    let (reply, answer) = oneshot::channel();
    let ends = || Refusal::new(Code::DaemonAway, "mpsgated is ending", "try again");
    let order = LimitOrder::Resize { key: key.clone(), each, held, reply };
    daemon.limits.send(order).map_err(|_| ends())?;
    let changed = answer.await.unwrap_or_else(|_| Err(ends()));
    // Whoever is told of the size finds it in the exec record.
    daemon.files.settled(FileKind::Records).await;
    changed
}
