//! What callers want: reserve, activate, release and report are here.

mod activate;
mod caller_process;
mod open_door;
mod reserve;
mod run_call;
mod slurm_job;

use std::sync::Arc;

use mpsgate_api::{Call, Release, Reply, Report};
use mpsgate_host::crash_point;
use mpsgate_model::{Code, OneOf, PodContainer, Refusal};
use mpsgate_node::refusal_counts::Telling;
use mpsgate_policy::NoteAction;
use tokio::time::Instant;

use self::activate::activate;
use self::reserve::{Reservation, reserve};
use crate::daemon::Daemon;
use crate::files::FileKind;
use crate::line::{Caller, Line, Speaker};
use crate::real_machine::ThisMachine;
use crate::{operator, reload_settings, status_call, tell, terminate};

/// Of a sentence, what goes into the log: characters.
const LONGEST_REASON: usize = 1024;

/// Answers one call.
pub(crate) async fn handle(
    daemon: &Arc<Daemon>,
    line: &mut Line,
    caller: Caller,
    call: Call,
) -> Reply {
    let since = Instant::now();
    let is_right = match caller.speaker {
        Speaker::Root => true,
        Speaker::User => matches!(call, Call::Run(_)),
        Speaker::Job => matches!(call, Call::Job),
    };
    if !is_right {
        return Reply::Refused(for_root().into());
    }
    let answer = match call {
        Call::Reserve(call) => {
            let answer = reserve(daemon, line, &caller, &call).await.map(Reservation::keep);
            daemon.events.reserved(since.elapsed(), answer.is_ok());
            answer
        }
        Call::Activate(call) => {
            let answer = activate(daemon, line, caller, &call).await;
            daemon.events.activated(since.elapsed(), answer.is_ok());
            answer
        }
        Call::Release(call) => release(daemon, line, &call).await,
        Call::Terminate(call) => terminate::prepare(daemon, line, &call).await,
        Call::Report(call) => Ok(report(daemon, &call)),
        Call::Status => Ok(Reply::Status(Box::new(status_call::now(daemon).await))),
        Call::Enable { gpu } => operator::enable(daemon, line, &gpu).await,
        Call::Disable { gpu } => operator::disable(daemon, line, &gpu).await,
        Call::Mps(call) => operator::mps(daemon, line, &call).await,
        Call::Reload => reload_settings::now(daemon, line).await,
        Call::Qualify(call) => operator::qualify(daemon, line, &call).await,
        Call::Resize(call) => operator::resize(daemon, line, &call).await,
        Call::Run(call) => run_call::run(daemon, line, caller, &call).await,
        Call::Job => slurm_job::job(daemon, line, caller).await,
        Call::EndJob { job } => slurm_job::end(daemon, line, job).await,
    };
    answer.unwrap_or_else(|refusal| Reply::Refused(refusal.into()))
}

/// To whoever asks for anything but his own grant on a socket for users.
fn for_root() -> Refusal {
    Refusal::new(
        Code::Unconfirmed,
        "on this socket users ask for memory for their own processes, and for nothing else",
        "mpsgate run --gpu-mem 7Gi -- COMMAND; everything else is root's",
    )
}

type Answer = Result<Reply, Refusal>;

async fn release(daemon: &Daemon, line: &mut Line, call: &Release) -> Answer {
    let text = daemon.change(|node, effects| {
        // A runtime tells of the end although it could not remove the cgroup: the watch waits for
        // that.
        let ended = node.remains(&call.key, &ThisMachine).is_none();
        let released = if ended { node.release(&call.key, "released", effects) } else { None };
        released.map(|entry| {
            crash_point!("daemon.release.changed");
            format!("{} released", entry.grant.memory)
        })
    });
    // Whoever is told that it is released finds nothing of it.
    let gone = async {
        daemon.files.settled(FileKind::Records).await;
        daemon.files.settled(FileKind::Doors).await;
    };
    line.wait("what the grant had is being removed", gone).await;
    Ok(Reply::Done { text: text.unwrap_or_default() })
}

fn report(daemon: &Daemon, call: &Report) -> Reply {
    let Report { container_id, code, action, sentence, hint, pod } = call;
    tell_once(daemon, container_id, action, code, sentence);
    match (action, pod) {
        (OneOf::Known(NoteAction::Refused), Some(pod)) => {
            let pod = known(daemon, pod);
            tell::refused(daemon.recorder(), pod, code, sentence, hint.as_deref());
        }
        (OneOf::Known(NoteAction::Warned), Some(pod)) => {
            let pod = known(daemon, pod);
            tell::warned(daemon.recorder(), pod, code, sentence);
        }
        _ => {}
    }
    Reply::Done { text: String::new() }
}

fn refused(daemon: &Daemon, container: &str, pod: Option<&PodContainer>, refusal: &Refusal) {
    let code = refusal.code.as_str();
    tell_once(daemon, container, &NoteAction::Refused.into(), code, &refusal.sentence);
    if let Some(pod) = pod {
        let pod = known(daemon, pod);
        tell::refused(daemon.recorder(), pod, code, &refusal.sentence, Some(&refusal.hint));
    }
}

fn known(daemon: &Daemon, pod: &PodContainer) -> PodContainer {
    daemon.api_server.get().map_or_else(|| pod.clone(), |api_server| api_server.known(pod))
}

/// Counts a container and tells of it, both once for each of its codes. What is found in a
/// specification may be as long as the specification.
fn tell_once(
    daemon: &Daemon,
    container: &str,
    action: &OneOf<NoteAction>,
    code: &str,
    sentence: &str,
) {
    let now = std::time::Instant::now();
    let telling = daemon.node().hear(container, action, code, sentence, now);
    let Telling::Told { untold } = telling else { return };
    if untold > 0 {
        log::warn!(containers = untold; "more containers were reported than are logged");
    }
    let reason: String = sentence.chars().take(LONGEST_REASON).collect();
    let reason = reason.as_str();
    // What a container is let do and an operator should be able to find.
    if *action == NoteAction::Noted {
        log::info!(container, code, reason; "container noted");
    } else {
        log::warn!(container, code, action = action.as_str(), reason; "container {action}");
    }
}
