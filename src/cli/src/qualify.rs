//! `mpsgate qualify`: asks a card of this node what holds on it, before anything is promised.
//!
//! ```text
//! mpsgated keeps the card free ─► containers through mpsgate-runtime, hook, gate and driver ─► answers
//!    ├── says of each whether it counts: it has seen the card meanwhile ◄─────────────────────────┤
//!    └── writes them, and draws the conclusions ◄─────────────────────────────────────────────────┘
//! ```

mod from_pod;
mod qualify_report;
mod questions;

use std::cell::Cell;
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use mpsgate_api::{ApiError, Asking, Call, CardStatus, Json, Qualify, Reply};
use mpsgate_edge::{ExitCode, print};
use mpsgate_model::{Answer, Question};

use self::questions::{ALL, Asker, FULL};
use crate::args::{AskArgs, EnableArgs, Output, QualifyArgs};
use crate::cuda_client::{self, Runtime};
use crate::error::RunProbeError;
use crate::{CliError, daemon_call};

/// Where its containers are kept: nobody else's, so that what is found there at the beginning is
/// left over, and that mpsgated knows them by it.
const ROOT: &str = mpsgate_config::paths::QUALIFY_ROOT;
/// Held by who asks.
const LOCK: &str = "/run/mpsgate/qualify.lock";

pub(crate) fn run(args: &QualifyArgs) -> Result<ExitCode, CliError> {
    if args.from_pod {
        return from_pod::run(args);
    }
    let QualifyArgs { gpu, report, output, how, daemon, .. } = args;
    let Some(gpu) = gpu else { return ask_due(how, &daemon.socket) };
    let (asking, answers) = ask(gpu, how, &daemon.socket)?;
    print::answer(&match output {
        _ if *report => qualify_report::page(&asking, &answers),
        Output::Json => qualify_report::json(&asking, &answers)?,
        Output::Text => qualify_report::text(&asking, &answers),
    })?;
    let fails = answers.iter().any(Answer::is_failure);
    Ok(if fails { ExitCode::No } else { ExitCode::Done })
}

/// A card that has just been handed over is asked, where it is to be and where there is a GPU. It
/// is enabled whatever comes of that.
pub(crate) fn after_enable(args: &EnableArgs) {
    let EnableArgs { no_qualify, card, how } = args;
    let socket = &card.daemon.socket;
    let ask_it = || {
        let status = daemon_call::status(socket)?;
        let is_it = |one: &&CardStatus| one.uuid == card.gpu || one.index.to_string() == card.gpu;
        if status.simulated {
            print::note("not asked what holds on it: the GPU is simulated\n");
        } else if status.cards.iter().find(is_it).is_some_and(|card| card.qualify.is_some()) {
            let (asking, answers) = ask(&card.gpu, how, socket)?;
            print::answer(&qualify_report::text(&asking, &answers))?;
        }
        Ok::<_, CliError>(())
    };
    if *no_qualify {
        return;
    }
    if let Err(error) = ask_it() {
        let hint = format!("hint: mpsgate qualify {}\n", card.gpu);
        print::note(&format!("not asked what holds on it: {error}\n{hint}"));
    }
}

/// One card after the other, as far as nobody uses them.
fn ask_due(how: &AskArgs, socket: &Path) -> Result<ExitCode, CliError> {
    let status = daemon_call::status(socket)?;
    if status.simulated {
        return Ok(ExitCode::Done);
    }
    let due = status.cards.iter().filter(|card| card.qualify.is_some());
    for card in due.filter(|card| card.clients == 0 && card.promised_mib == 0) {
        match ask(&card.uuid, how, socket) {
            Ok((asking, answers)) => print::answer(&qualify_report::text(&asking, &answers))?,
            Err(CliError::RunProbe(ended @ RunProbeError::Ended)) => return Err(ended.into()),
            // Somebody was faster: another time.
            Err(error) => print::note(&format!("GPU {} was not asked: {error}\n", card.index)),
        }
    }
    Ok(ExitCode::Done)
}

/// Asks a card everything, and has mpsgated keep what it answered.
fn ask(gpu: &str, how: &AskArgs, socket: &Path) -> Result<(Asking, Vec<Answer>), CliError> {
    let ended = cuda_client::signals()?;
    let own = std::env::current_exe().map_err(RunProbeError::Own)?;
    // Whether there is an mpsgated, and whether it may be asked, it says best.
    daemon_call::status(socket)?;
    let _alone = alone()?;
    let runtime = Runtime { program: &how.program, root: ROOT, ended: &ended };
    runtime.remove_leftovers();
    let asking = begin(gpu, socket)?;
    let limit = if how.full { ALL + FULL } else { ALL };
    print::progress(&format!(
        "GPU {} is asked what holds on it; it takes no containers for up to {} s",
        asking.card_index,
        limit.as_secs()
    ));
    let mut asker = Asker {
        asking: &asking,
        socket,
        own: &own,
        runtime,
        library: &how.library,
        until: Instant::now() + limit,
        deadline: Instant::now() + limit,
        containers: Cell::new(0),
        attached: None,
    };
    let mut answers = Vec::new();
    let more: &[Question] = if how.full { &Question::FULL } else { &[] };
    for question in Question::ALL.iter().chain(more).copied() {
        if ended.load(Ordering::Relaxed) {
            break;
        }
        print::progress(&format!("  {}", question.text()));
        match counted(&asking, &asker.ask(question), socket) {
            Ok(answer) => answers.push(answer),
            Err(error @ CliError::Refused(_)) => {
                // Whatever it was, the card is opened.
                let _ = end(&asking, false, socket);
                return Err(error);
            }
            // mpsgated is away. It says what it knows of this when it is back.
            Err(_) => {}
        }
    }
    // Whatever came of it, the card is opened; and half of the answers are none.
    let is_broken_off = ended.load(Ordering::Relaxed);
    let kept = end(&asking, !is_broken_off, socket);
    if is_broken_off {
        return Err(RunProbeError::Ended.into());
    }
    kept?;
    Ok((asking, answers))
}

/// What mpsgated says of an answer: it has seen the card meanwhile.
fn counted(asking: &Asking, answer: &Answer, socket: &Path) -> Result<Answer, CliError> {
    let (id, answer) = (asking.id.clone(), Json::of(answer));
    match daemon_call::ask(socket, Call::Qualify(Qualify::Answer { id, answer }))? {
        Reply::Answered { answer } => answer.read().map_err(|_| ApiError::Unexpected.into()),
        _ => Err(ApiError::Unexpected.into()),
    }
}

/// One at a time: what is found at the beginning is then left over.
fn alone() -> Result<File, RunProbeError> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true).mode(0o600);
    let lock = options.open(LOCK).map_err(RunProbeError::Bundle)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(RunProbeError::Busy),
        Err(TryLockError::Error(error)) => Err(RunProbeError::Bundle(error)),
    }
}

fn begin(gpu: &str, socket: &Path) -> Result<Asking, CliError> {
    let call = Call::Qualify(Qualify::Begin { gpu: gpu.to_owned() });
    match daemon_call::ask(socket, call)? {
        Reply::Asking { asking } => asking.read().map_err(|_| ApiError::Unexpected.into()),
        _ => Err(ApiError::Unexpected.into()),
    }
}

fn end(asking: &Asking, keep: bool, socket: &Path) -> Result<String, CliError> {
    let call = Call::Qualify(Qualify::End { id: asking.id.clone(), keep });
    daemon_call::change(socket, call)
}
