//! `kill` with SIGKILL, and `delete --force`: before a granted container dies, the daemon ends the
//! GPU work of its CUDA processes.
//!
//! A client that is killed with work outstanding can leave the MPS server and its other clients in
//! an undefined state (NVIDIA MPS documentation, r615). The verb itself is never touched, delayed
//! by more than [`LIMIT`], or made to fail: a container that must die dies.

use std::path::Path;
use std::time::Duration;

use mpsgate_api::{Call, Client, NoStatus, Reply, Terminate};
use mpsgate_config::paths;
use mpsgate_host::crash_point;
use mpsgate_oci::argv::Invocation;

use crate::record::{Found, find};
use crate::report::{Report, chain};
use crate::{exec, facts, process};

/// For connecting to the daemon, its work on the MPS channel and its answer, all together.
const LIMIT: Duration = Duration::from_secs(1);

/// Asks for the end of the container's GPU work, where it has a grant and SIGKILL is sent. Any
/// other signal costs nothing, a container without a grant one failed stat.
pub(crate) fn prepare(invocation: &Invocation) {
    if !invocation.sends_sigkill() {
        return;
    }
    let Some(id) = invocation.container_id.as_deref().and_then(|id| id.to_str()) else { return };
    let runtime = if invocation.root.is_none() { exec::runtime_path() } else { None };
    let root = facts::runtime_root(invocation, runtime.as_deref());
    let why = match find(&root, id) {
        Found::None => return,
        Found::Unusable(why) => why,
        Found::Record(record) => {
            process::ensure_standard_descriptors();
            let call = Call::Terminate(Terminate { key: record.grant.key });
            let answer = Client::ask_within::<NoStatus>(Path::new(paths::SOCKET), call, LIMIT);
            crash_point!("shim.kill.asked");
            match answer {
                // The daemon has done it, or logged why not.
                Ok(Reply::Done { .. }) => return,
                Ok(Reply::Refused(refusal)) => refusal.sentence,
                Ok(_) => "mpsgated answered another question".to_owned(),
                Err(error) => chain(&error),
            }
        }
    };
    Report::of(invocation)
        .warned(&format!("is killed without ending its GPU work at the MPS server first: {why}"));
}
