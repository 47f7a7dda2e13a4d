//! Who asks for itself: a process of the node, which the kernel names by its connection.

use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Code, Refusal};

use crate::line::{Caller, Line};
use crate::process_end;

/// The calling process, where it is the caller's own and counts processes as we do.
///
/// # Errors
/// For a process that has gone, another user's, and one of a container.
pub(super) fn of(caller: &Caller) -> Result<ProcessId, Refusal> {
    let process = caller.pid.and_then(process_end::identify).ok_or_else(gone)?;
    if !is_whose(caller, process.pid) {
        return Err(gone());
    }
    shares_our_namespaces(process.pid)?;
    Ok(process)
}

/// Whether it still waits, so that what was read of its pid meanwhile was its own.
pub(super) fn waits(line: &Line, caller: &Caller, process: ProcessId) -> bool {
    line.is_open()
        && process_end::identify(process.pid) == Some(process)
        && is_whose(caller, process.pid)
}

/// Whether a process is the user's who called. The pid is of the moment of the connection: a child
/// that inherits it may call when another process, of whomever, has that pid.
fn is_whose(caller: &Caller, pid: u32) -> bool {
    caller.user.is_none_or(|user| process_end::uid(pid) == Some(user))
}

pub(super) fn gone() -> Refusal {
    let sentence = "the process that asks has ended, or is in another pid namespace";
    Refusal::new(Code::Unconfirmed, sentence, "run it on the node itself, in no container")
}

/// A process of a container is not moved out of it.
fn shares_our_namespaces(pid: u32) -> Result<(), Refusal> {
    let user = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user")).ok();
    let own = user("self");
    if process_end::counts_as_we_do(pid) && own.is_some() && user(&pid.to_string()) == own {
        return Ok(());
    }
    Err(Refusal::new(
        Code::Unconfirmed,
        "it asks from a pid or user namespace that is not the node's, as of a container",
        "ask for GPU memory when the container is made (docs/compose.md), or run it on the node itself",
    ))
}
