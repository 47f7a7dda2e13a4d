//! `kill` with SIGKILL, and `delete`. Before a granted container is killed, the daemon ends the GPU
//! work of its CUDA processes; before its cgroup is removed, the daemon clears the driver's limit
//! of it.
//!
//! A client that is killed with work outstanding can leave the MPS server and its other clients in
//! an undefined state (NVIDIA MPS documentation, r615). A driver that counts by itself keeps a
//! limit for ever after its cgroup has gone (r615's `memacct.c`). The verb itself is never changed,
//! delayed by more than [`LIMIT`] or [`REMOVAL`], or made to fail: a container that must end does
//! end.

use std::path::Path;
use std::time::Duration;

use mpsgate_api::{Call, Client, NoStatus, Removal, Reply, Terminate};
use mpsgate_config::paths;
use mpsgate_host::crash_point;
use mpsgate_oci::argv::{Invocation, Verb};

use crate::engine_log::{Report, chain};
use crate::grant_record::{Found, find};
use crate::{descriptors, exec, facts};

/// The time to connect to the daemon, for its work on the MPS channel and for its answer together.
const LIMIT: Duration = Duration::from_secs(1);
/// The same for `delete` while mpsgated reports that it is at work: a slow driver or a busy node is
/// no reason to leave a limit for ever. containerd gives `delete` 5 s
/// (`io.containerd.timeout.shim.cleanup`).
const REMOVAL: Duration = Duration::from_secs(4);

/// Asks the daemon to end the container's GPU work if it has a grant and SIGKILL is sent, and to
/// clear its limit if it is removed. Any other signal costs nothing, a container without a grant
/// one failed stat.
pub(crate) fn prepare(invocation: &Invocation) {
    let removal = match (invocation.verb, invocation.sends_sigkill()) {
        (Verb::Delete, true) => Removal::Forced,
        (Verb::Delete, false) => Removal::Ended,
        (_, true) => Removal::No,
        (_, false) => return,
    };
    let Some(id) = invocation.container_id.as_deref().and_then(|id| id.to_str()) else { return };
    let runtime = if invocation.root.is_none() { exec::runtime_path() } else { None };
    let root = facts::runtime_root(invocation, runtime.as_deref());
    let why = match find(&root, id) {
        Found::None => return,
        Found::Unusable(why) => why,
        Found::Record(record) => {
            descriptors::ensure_standard_descriptors();
            let call = Call::Terminate(Terminate { key: record.grant.key, removal });
            let busy = if removal == Removal::No { LIMIT } else { REMOVAL };
            let socket = Path::new(paths::SOCKET);
            let answer = Client::ask_within::<NoStatus>(socket, call, LIMIT, busy);
            crash_point!("shim.kill.asked");
            match answer {
                // The daemon has done it, or has logged why not.
                Ok(Reply::Done { .. }) => return,
                Ok(Reply::Refused(refusal)) => refusal.sentence,
                Ok(_) => "mpsgated answered another question".to_owned(),
                Err(error) => chain(&error),
            }
        }
    };
    // This verb kills nothing.
    if removal == Removal::Ended {
        return;
    }
    Report::of(invocation)
        .warned(&format!("is killed without ending its GPU work at the MPS server first: {why}"));
}
