//! Starts a card's server ahead of its first client. The server holds the card in EXCLUSIVE_PROCESS
//! mode, so a container that bypasses MPS finds the card busy. A uid that cannot be served is also
//! known before the container runs.

use std::time::{Duration, Instant};

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::mps_process::POLL;
use crate::mps_state::Server;
use crate::protocol::{Command, Event, ServerStatus, parse_log};

/// How long the control daemon must have had no child before a server counts as ended: it forks a
/// server right after the command.
const CHILDLESS: Duration = Duration::from_millis(100);

/// A server that takes clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServerOutcome {
    /// Its pid.
    pub pid: i32,
    /// Whether it was running before.
    pub was_running: bool,
}

impl MpsInstance {
    /// Ensures that a server for `uid` takes clients. The daemon must run, with its limits set:
    /// they apply to the server started here.
    ///
    /// # Errors
    /// [`MpsError::ServerOfOtherUid`], [`MpsError::ServerDied`], [`MpsError::ServerNotReady`], the
    /// last two with the end of the log; and errors of the channel.
    pub fn ensure_server(&self, uid: u32, limit: Duration) -> Result<ServerOutcome, MpsError> {
        let deadline = Instant::now() + limit;
        let log = self.dirs().log_file();
        let mark = log.mark();
        let was_running = !self.servers()?.is_empty();
        let mut was_heard = was_running || self.start_server(uid)?;
        let mut status = "it is not in the list of servers".to_owned();
        let (mut childless, mut has_ended) = (None, false);
        loop {
            let servers = match self.servers() {
                // A server that dies closes any open connection, now and then two in a row (seen on
                // 550 under load): the next look shows its state.
                Err(MpsError::ChannelBroken { .. } | MpsError::EmptyAnswer { .. })
                    if Instant::now() < deadline =>
                {
                    std::thread::sleep(POLL);
                    continue;
                }
                other => other?,
            };
            let written = log.since(if was_running { 0 } else { mark })?;
            let is_late = Instant::now() >= deadline;
            if let Some(server) = servers.first() {
                let ready = was_running && server.status == ServerStatus::Unreported
                    || is_ready(server, &written);
                // The control daemon forks a server that is still root's, so a new server may not
                // yet have its user.
                if ready || is_late || server.uid != Some(0) {
                    self.check_uid(server, uid)?;
                }
                if ready {
                    return Ok(ServerOutcome { pid: server.pid, was_running });
                }
                status = format!("server {} is {:?}", server.pid, server.status);
            } else {
                // The log is read to a limit: a line may not be in it the next time.
                has_ended |= server_ended(&written);
                if was_running || has_ended && self.has_had_no_child(&mut childless) {
                    let tail = log.tail(mark);
                    return Err(MpsError::ServerDied { card: self.card(), uid, tail });
                }
                if !was_heard && !has_ended && self.has_had_no_child(&mut childless) {
                    was_heard = self.start_server(uid)?;
                    childless = None;
                }
            }
            if is_late {
                return Err(MpsError::ServerNotReady {
                    card: self.card(),
                    uid,
                    status,
                    tail: log.tail(mark),
                });
            }
            std::thread::sleep(POLL);
        }
    }

    /// Starts a server. Returns whether the control daemon surely received the command: it reports
    /// nothing even if the server dies at once. Then it also closes the connection, in one of ten
    /// cases before the front-end has its answer (measured on 550). It does the same if another
    /// front-end is connected, as that of an mpsgated that was killed. The list and the log decide.
    fn start_server(&self, uid: u32) -> Result<bool, MpsError> {
        match self.channel().ask(&Command::StartServer { uid }) {
            Ok(_) => Ok(true),
            Err(MpsError::ChannelBroken { .. } | MpsError::EmptyAnswer { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the control daemon has been without a child for a while; its servers are its
    /// children from their first moment. The log alone does not prove that a starting server has
    /// ended.
    fn has_had_no_child(&self, since: &mut Option<Instant>) -> bool {
        let daemon = self.find_running().ok().flatten();
        if daemon.is_some_and(|daemon| daemon.process.has_child()) {
            *since = None;
            return false;
        }
        since.get_or_insert_with(Instant::now).elapsed() >= CHILDLESS
    }

    fn check_uid(&self, server: &Server, wanted: u32) -> Result<(), MpsError> {
        match server.uid {
            Some(serves) if serves != wanted && !self.is_multiuser() => {
                Err(MpsError::ServerOfOtherUid {
                    card: self.card(),
                    server: server.pid,
                    serves,
                    wanted,
                })
            }
            _ => Ok(()),
        }
    }
}

fn is_ready(server: &Server, log: &str) -> bool {
    match server.status {
        ServerStatus::Active => true,
        // 535 cannot be asked; its log shows when the server has connected.
        ServerStatus::Unreported => {
            parse_log(log).any(|event| event == Event::ServerReady { server: server.pid })
        }
        _ => false,
    }
}

/// This is only a hint: a container may be able to write such a line.
fn server_ended(log: &str) -> bool {
    parse_log(log).any(|event| matches!(event, Event::ServerExited { .. }))
}
