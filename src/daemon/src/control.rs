//! What is asked of a running control daemon: how it is, its limits, a server. Blocks; called as
//! [`hardware`](crate::hardware) is.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use mpsgate_allocation::Mib;
use mpsgate_mps::protocol::Command;
use mpsgate_mps::{CardMps, MpsError, MpsState};

use crate::card::Trouble;
use crate::error::chain;

/// How long an idle server of another uid may take to end, and how often it is looked for.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
const SHUTDOWN_LOOK: Duration = Duration::from_millis(20);
/// The control daemon writes some 250 bytes for each command into a log that lies in memory.
const LOG_BYTES: u64 = 4 << 20;

/// A control daemon as last seen.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: &'static str,
    pub(crate) servers: Vec<mpsgate_api::ServerStatus>,
}

/// Asks the control daemon how it is; keeps its log short.
pub(crate) fn view(mps: &CardMps) -> View {
    if let Err(error) = mps.dirs().log_file().trim(LOG_BYTES) {
        log::warn!(card = mps.card(), reason = chain(&error); "control log not trimmed");
    }
    let servers = |servers: Vec<mpsgate_mps::Server>| {
        servers
            .into_iter()
            .map(|server| mpsgate_api::ServerStatus {
                pid: u32::try_from(server.pid).unwrap_or_default(),
                uid: server.uid,
                status: server_word(&server.status),
            })
            .collect()
    };
    match mps.state() {
        Ok(MpsState::Running { servers: list, .. }) => {
            View { state: "running", servers: servers(list) }
        }
        Ok(MpsState::Fault { servers: list, .. }) => {
            View { state: "fault", servers: servers(list) }
        }
        Ok(MpsState::Dead { .. }) => View { state: "dead", servers: Vec::new() },
        Ok(MpsState::Wedged { .. }) | Err(_) => View { state: "wedged", servers: Vec::new() },
    }
}

fn server_word(status: &mpsgate_mps::protocol::ServerStatus) -> Option<String> {
    use mpsgate_mps::protocol::ServerStatus as S;
    let word = match status {
        S::Initializing => "INITIALIZING",
        S::Active => "ACTIVE",
        S::Fault => "FAULT",
        S::Unreported => return None,
        S::Other(word) => word,
    };
    Some(word.to_owned())
}

/// Sets what a client gets that has no limit of its own, for the next server and for the running one,
/// and reads it back. Clients that are there keep what they had.
pub(crate) fn cap(mps: &CardMps, memory: Mib) -> Result<(), MpsError> {
    let mib = u32::try_from(memory.0).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX);
    mps.channel().set_default_limit(mib)?;
    for server in mps.channel().server_list()? {
        match mps.channel().set_server_limit(server, mib) {
            // It has ended since; the next one takes the default.
            Ok(()) | Err(MpsError::ServerNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn shut_down(mps: &CardMps, server: i32) -> Result<(), MpsError> {
    match mps.channel().ask(&Command::ShutdownServer { server, force: false }) {
        Ok(_) | Err(MpsError::ServerNotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    let deadline = Instant::now() + SHUTDOWN_LIMIT;
    while mps.channel().server_list()?.contains(&server) && Instant::now() < deadline {
        std::thread::sleep(SHUTDOWN_LOOK);
    }
    Ok(())
}

/// Makes sure that a server for `uid` takes clients; an idle one of another uid is ended first.
pub(crate) fn ensure_server(mps: &CardMps, uid: u32, limit: Duration) -> Result<(), MpsError> {
    match mps.ensure_server(uid, limit) {
        Ok(outcome) => {
            log::info!(card = mps.card(), uid, pid = outcome.pid, limit_bytes = outcome.limit_bytes; "server ready");
            Ok(())
        }
        // The caller saw no grant of another uid on the card: nobody needs that server.
        Err(MpsError::ServerOfOtherUid { server, serves, .. }) => {
            log::info!(card = mps.card(), uid = serves, pid = server; "idle server of another uid ended");
            shut_down(mps, server)?;
            mps.ensure_server(uid, limit).map(|_| ())
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn mps_trouble(error: &MpsError) -> Trouble {
    let hint = error.hint().unwrap_or_else(|| "journalctl -u mpsgated -n 50".to_owned());
    Trouble::new(chain(error), hint)
}
