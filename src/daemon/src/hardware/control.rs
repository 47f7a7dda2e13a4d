//! What is asked of a running control daemon: how it is, its limits, a server. Blocks; called as
//! [`hardware`](crate::hardware) is.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use mpsgate_api::{ControlState, ServerState, ServerStatus};
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{Mib, OneOf};
use mpsgate_mps::protocol::{self, Command, Event, parse_log};
use mpsgate_mps::{
    Connections, ControlDaemon, Glance, MpsError, MpsInstance, MpsState, Repair, WedgeCause,
};
use mpsgate_node::card::{Trouble, View};
use mpsgate_policy::SharedMemory;

use crate::error::chain;
use crate::process_end;

/// How long an idle server of another uid may take to end, and how often it is looked for.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
const SHUTDOWN_LOOK: Duration = Duration::from_millis(20);
/// The control daemon writes some 250 bytes for each command into a log that lies in memory, and a
/// gate some 200 for each client.
const LOG_BYTES: u64 = 4 << 20;
/// How the name of a server's shared region begins (libcuda and servers of 535 and 550).
const REGION_NAME: &str = "/dev/shm/cuda.shm.";

/// Asks the control daemon how it is.
pub(crate) fn view(mps: &MpsInstance) -> View {
    let servers = |servers: Vec<mpsgate_mps::Server>| {
        servers
            .into_iter()
            .map(|server| ServerStatus {
                pid: u32::try_from(server.pid).unwrap_or_default(),
                uid: server.uid,
                status: server_state(server.status),
            })
            .collect()
    };
    let seen = |state, list: Vec<mpsgate_mps::Server>| View {
        shared_memory: shared_memory(mps, &list),
        ..View::new(state, servers(list))
    };
    match mps.state() {
        Ok(MpsState::Running { servers: list, .. }) => seen(ControlState::Running, list),
        Ok(MpsState::Fault { servers: list, .. }) => seen(ControlState::Fault, list),
        Ok(MpsState::Dead { .. }) => View::new(ControlState::Dead, Vec::new()),
        Ok(MpsState::Wedged { .. }) => View::wedged(None),
        Err(error) => View { trouble: Some(mps_trouble(&error)), ..View::wedged(None) },
    }
}

/// How servers share memory with their clients: what each says of it once, and what the kernel
/// shows.
fn shared_memory(mps: &MpsInstance, servers: &[mpsgate_mps::Server]) -> Option<SharedMemory> {
    if servers.is_empty() {
        return None;
    }
    let log = mps.dirs().log_file().since(0).unwrap_or_default();
    let said: Vec<(i32, bool)> = parse_log(&log)
        .filter_map(|event| match event {
            Event::ServerRegion { server, is_named } => Some((server, is_named)),
            _ => None,
        })
        .collect();
    let of_one = |server: &mpsgate_mps::Server| {
        let words = said.iter().filter(|(pid, _)| *pid == server.pid).map(|(_, named)| *named);
        let pid = u32::try_from(server.pid).ok()?;
        SharedMemory::of_server(words, process_end::maps_file(pid, REGION_NAME)?)
    };
    let seen: Vec<SharedMemory> = servers.iter().filter_map(of_one).collect();
    (!seen.is_empty()).then(|| SharedMemory::of_all(seen))
}

/// What can be seen of a control daemon without a word to it.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) glance: Glance,
    /// What was made again of its files, or what is wrong with them.
    pub(crate) files: Result<Vec<Repair>, Trouble>,
    /// What its log tells since the last look.
    pub(crate) events: Vec<Event>,
    /// Where the next look begins in the log.
    pub(crate) mark: u64,
    pub(crate) connections: Connections,
}

/// Looks at a control daemon, its files and its log from `mark` on; keeps the log short.
pub(crate) fn look(mps: &MpsInstance, daemon: &ControlDaemon, mark: u64) -> Sight {
    let log = mps.dirs().log_file();
    let end = log.mark();
    let written = if end == mark { Ok(String::new()) } else { log.since(mark) };
    let events = written.map(|text| parse_log(&text).collect()).unwrap_or_default();
    let mark = match log.trim(LOG_BYTES) {
        Ok(true) => 0,
        Ok(false) => end,
        Err(error) => {
            log::warn!(card = mps.card(), reason = chain(&error); "control log not trimmed");
            end
        }
    };
    if let Err(error) = mps.dirs().gate_log().trim(LOG_BYTES) {
        log::warn!(card = mps.card(), reason = chain(&error); "gate log not trimmed");
    }
    let files = mps.dirs().repair().map_err(|error| mps_trouble(&error));
    let connections = mps.connections(daemon);
    Sight { glance: mps.glance(daemon), files, events, mark, connections }
}

/// Server and client of each client, as the control daemon names them, while both live.
pub(crate) fn served(mps: &MpsInstance) -> Vec<(u32, ProcessId)> {
    let clients = mps.clients().unwrap_or_default();
    let one = |server: i32, client: i32| {
        let client = process_end::identify(u32::try_from(client).ok()?)?;
        Some((u32::try_from(server).ok()?, client))
    };
    clients
        .iter()
        .flat_map(|(server, clients)| clients.iter().filter_map(|client| one(server.pid, *client)))
        .collect()
}

/// Finds out why a control daemon does not answer, and helps where no harm can come of it.
pub(crate) fn wedge(mps: &MpsInstance, daemon: &ControlDaemon) -> WedgeCause {
    let cause = mps.wedge_cause(daemon);
    if cause == WedgeCause::LogBlocked
        && let Err(error) = mps.drain_log()
    {
        log::warn!(card = mps.card(), reason = chain(&error); "log FIFO not emptied");
    }
    cause
}

fn server_state(status: protocol::ServerStatus) -> Option<OneOf<ServerState>> {
    use protocol::ServerStatus as S;
    match status {
        S::Initializing => Some(ServerState::Initializing.into()),
        S::Active => Some(ServerState::Active.into()),
        S::Fault => Some(ServerState::Fault.into()),
        S::Unreported => None,
        S::Other(word) => Some(OneOf::Other(word)),
    }
}

/// Sets what the clients of the next server get that have no limit of their own, and reads it back.
pub(crate) fn limit_default(mps: &MpsInstance, memory: Mib) -> Result<(), MpsError> {
    mps.channel().set_default_limit(mib_of(memory))
}

/// Sets what the next clients of each running server get, where it is not that, and reads it back.
/// Clients that are there keep what they had. The servers whose limit was set, with it.
pub(crate) fn limit_servers(
    mps: &MpsInstance,
    wanted: Mib,
    has: &InForce,
) -> Result<InForce, MpsError> {
    let mut set = InForce::default();
    for pid in mps.channel().server_list()? {
        let server = u32::try_from(pid).ok().and_then(process_end::identify);
        let Some(server) = server else { continue };
        if has.of(&server) == Some(wanted) {
            continue;
        }
        match mps.channel().set_server_limit(pid, mib_of(wanted)) {
            Ok(()) => set.note(server, wanted),
            // It has ended since; the next one takes the default.
            Err(MpsError::ServerNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(set)
}

fn mib_of(memory: Mib) -> NonZeroU32 {
    u32::try_from(memory.0).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MAX)
}

/// The limits that were set on servers, and read back. A server is its process, whatever has its
/// pid later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct InForce(Vec<(ProcessId, Mib)>);

impl InForce {
    pub(crate) fn of(&self, server: &ProcessId) -> Option<Mib> {
        self.0.iter().find(|(other, _)| other == server).map(|(_, memory)| *memory)
    }

    fn note(&mut self, server: ProcessId, memory: Mib) {
        self.0.retain(|(other, _)| *other != server);
        self.0.push((server, memory));
    }

    /// What was set since counts; servers that have ended do not.
    pub(crate) fn update(&mut self, set: InForce) {
        for (server, memory) in set.0 {
            self.note(server, memory);
        }
        self.0.retain(|(server, _)| process_end::is_alive(server));
    }
}

fn shut_down(mps: &MpsInstance, server: i32) -> Result<(), MpsError> {
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
pub(crate) fn ensure_server(mps: &MpsInstance, uid: u32, limit: Duration) -> Result<(), MpsError> {
    match mps.ensure_server(uid, limit) {
        Ok(outcome) => {
            log::info!(card = mps.card(), uid, pid = outcome.pid; "server ready");
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
