//! The control daemon's books: limits, servers, clients, and the commands on them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};

use crate::server::{USER, late_user};
use crate::value::{limit_bytes, percentage, render_limit};
use crate::wire::{self, DEVICES, order};
use crate::{record, version};

/// Who sent a command, and through which socket.
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) privileged: bool,
}

pub(crate) enum Reply {
    Text(String),
    Quit(Option<Duration>),
}

/// So many servers are tried for a client, which is then hung up on (measured).
const STARTS_MAX: u32 = 6;

struct Server {
    child: Child,
    uid: u32,
    /// Once it has connected: it keeps limits and clients, and says what it is asked.
    connection: Option<OwnedFd>,
    /// What it gave us.
    _lifeline: Option<OwnedFd>,
}

/// A client that waits for a server of its uid.
struct Waiting {
    peer: Peer,
    connection: OwnedFd,
}

pub(crate) struct State {
    log: File,
    /// The FIFO by which servers write to the log, until somebody writes there what is no record.
    records: Option<File>,
    unread: Vec<u8>,
    multiuser: bool,
    share: f64,
    priority: i32,
    limits: BTreeMap<String, u64>,
    servers: Vec<Server>,
    /// First come, first served: one of another uid holds up all who come later
    /// (nebuly-ai/nos issue 19).
    pending: VecDeque<Waiting>,
    /// How many servers ended, one after the other, before they had connected.
    failed_starts: u32,
    /// Connections that said a word which it does not know.
    lost: Vec<OwnedFd>,
    last_status: u8,
}

impl State {
    pub(crate) fn new(log: File, multiuser: bool) -> Self {
        Self {
            log,
            records: None,
            unread: Vec::new(),
            multiuser,
            share: 100.0,
            priority: 0,
            limits: BTreeMap::new(),
            servers: Vec::new(),
            pending: VecDeque::new(),
            failed_starts: 0,
            lost: Vec::new(),
            last_status: 0,
        }
    }

    pub(crate) fn log(&mut self, component: &str, pid: u32, text: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, millis) = (now.as_secs() % 86_400, now.subsec_millis());
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        // The date is not read by anyone.
        let _ = writeln!(
            self.log,
            "[2026-01-01 {hour:02}:{minute:02}:{second:02}.{millis:03} {component} {pid:5}] {text}"
        );
    }

    fn control(&mut self, text: &str) {
        self.log("Control", std::process::id(), text);
    }

    /// Reads what servers write into the FIFO, and who else has it open.
    pub(crate) fn read_records(&mut self, fifo: &Path) {
        let open =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(fifo);
        self.records = open.ok();
    }

    fn log_records(&mut self) {
        let Some(fifo) = &mut self.records else { return };
        let _ = fifo.read_to_end(&mut self.unread);
        match record::take(&mut self.unread) {
            Some(records) => {
                for (component, pid, text) in records {
                    self.log(component, pid, &text);
                }
            }
            None => self.records = None,
        }
    }

    pub(crate) fn has_clients(&self) -> bool {
        self.servers.iter().any(|server| !server.clients().is_empty())
    }

    /// What happened since the last look: servers that ended, clients that left.
    pub(crate) fn tick(&mut self) {
        self.log_records();
        let mut ended = Vec::new();
        self.servers.retain_mut(|server| match server.child.try_wait() {
            Ok(Some(status)) => {
                // What is printed for one that a signal ended is not known.
                ended.push((server.child.id(), status.code().unwrap_or(137)));
                self.failed_starts += u32::from(server.connection.is_none());
                false
            }
            _ => true,
        });
        for (pid, code) in ended {
            self.last_status = u8::try_from(code).unwrap_or(1);
            self.control(&format!("Server {pid} exited with status {code}"));
            if self.failed_starts < STARTS_MAX && !self.pending.is_empty() {
                continue;
            }
            self.control("Removed Shm file at ");
            self.failed_starts = 0;
            self.pending.pop_front();
        }
        self.serve_pending();
    }

    /// A server has connected: it is told the defaults.
    pub(crate) fn take_server(&mut self, connection: OwnedFd, peer: &Peer) {
        let pid = peer.pid.cast_unsigned();
        let Some(server) = self.servers.iter_mut().find(|server| server.child.id() == pid) else {
            return;
        };
        let Some(mut message) = wire::receive(connection.as_fd()) else { return };
        let say = |bytes: &[u8]| wire::say(connection.as_fd(), bytes);
        let _ = say(&self.share.to_ne_bytes());
        let _ = say(&(DEVICES as u64).to_ne_bytes());
        for device in 0..DEVICES {
            let _ = say(&self.limits.get(&device.to_string()).copied().unwrap_or(0).to_ne_bytes());
        }
        let _ = say(&self.priority.to_ne_bytes());
        self.failed_starts = 0;
        server._lifeline = message.descriptors.pop();
        server.connection = Some(connection);
        self.control(&format!("NEW SERVER {pid}: Ready"));
    }

    fn start_server(&mut self, uid: u32) {
        let uid = if self.multiuser { nix::unistd::geteuid().as_raw() } else { uid };
        // PATH decides which server program runs, as with the real daemon (measured); without one
        // the child ends with 1.
        let mut command = Command::new("nvidia-cuda-mps-server");
        if late_user() {
            command.env(USER, uid.to_string());
        } else {
            command.uid(uid);
        }
        let child = command.spawn().or_else(|_| Command::new("/bin/false").spawn());
        let Ok(child) = child else { return };
        self.control(&format!("Starting new server {} for user {uid}", child.id()));
        self.servers.push(Server { child, uid, connection: None, _lifeline: None });
    }

    /// Ends all servers; the status that the daemon exits with.
    pub(crate) fn end_servers(&mut self) -> u8 {
        for server in &mut self.servers {
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
        self.last_status
    }

    pub(crate) fn lose(&mut self, connection: OwnedFd) {
        self.lost.push(connection);
    }

    pub(crate) fn attach(&mut self, connection: OwnedFd, peer: Peer) {
        self.tick();
        let now = self.pending.is_empty() && self.serves(&peer);
        let what = if now {
            "Server already exists"
        } else {
            "Server is not ready, push client to pending list"
        };
        self.control(&format!("NEW CLIENT {} from user {}: {what}", peer.pid, peer.uid));
        if now {
            self.admit(&connection);
        } else {
            if self.servers.is_empty() {
                self.start_server(peer.uid);
            }
            self.pending.push_back(Waiting { peer, connection });
        }
    }

    /// Whether the server takes clients of this uid.
    fn serves(&self, peer: &Peer) -> bool {
        self.servers.first().is_some_and(|server| {
            server.connection.is_some() && (self.multiuser || server.uid == peer.uid)
        })
    }

    /// Gives the client a descriptor that leads to the server, and waits for its word, as the real
    /// one does: a client that says nothing here stops everybody.
    fn admit(&self, client: &OwnedFd) {
        let Some(server) = self.servers.first().and_then(|server| server.connection.as_ref())
        else {
            return;
        };
        let Ok((ours, theirs)) = wire::pair() else { return };
        let handed = wire::say_int(server.as_fd(), order::CLIENT)
            .and_then(|()| wire::hand_over(server.as_fd(), ours.as_fd()))
            .and_then(|()| wire::hand_over(client.as_fd(), theirs.as_fd()));
        drop((ours, theirs));
        if handed.is_ok() {
            let _ = wire::receive(client.as_fd());
        }
    }

    /// Serves who waits, in their order; a server of another uid ends once its clients have.
    fn serve_pending(&mut self) {
        self.pending.retain(|waiting| is_open(&waiting.connection));
        while let Some(first) = self.pending.front() {
            if self.serves(&first.peer) {
                let Some(Waiting { connection, .. }) = self.pending.pop_front() else { return };
                self.admit(&connection);
                continue;
            }
            let uid = first.peer.uid;
            let idle = !self.has_clients();
            match self.servers.first_mut() {
                Some(server) if server.uid != uid && !self.multiuser && idle => {
                    let _ = server.child.kill();
                }
                None => self.start_server(uid),
                Some(_) => {}
            }
            return;
        }
    }

    pub(crate) fn execute(&mut self, line: &str, peer: &Peer) -> Reply {
        self.tick();
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["quit", rest @ ..] = words.as_slice() {
            if !peer.privileged {
                return Reply::Text("Not enough privilege to execute quit command\n".into());
            }
            let grace = match rest {
                ["-t", seconds] => Some(Duration::from_secs(seconds.parse().unwrap_or(0))),
                _ => None,
            };
            return Reply::Quit(grace);
        }
        Reply::Text(self.answer(&words, peer))
    }

    fn answer(&mut self, words: &[&str], peer: &Peer) -> String {
        // 535 checks no privileges on settings (measured).
        if words.first().is_some_and(|word| word.starts_with("set_"))
            && version() > 535
            && !peer.privileged
        {
            return format!(
                "Insufficient privileges for UID {}. Control deamon settings can only be modified by the user started it or by the root user.\n",
                peer.uid
            );
        }
        match words {
            ["get_server_list", ..] => {
                lines(self.servers.iter().map(|server| server.child.id().to_string()))
            }
            ["get_server_status"] if version() > 535 => "A server PID is required\n".into(),
            ["get_server_status", pid] if version() > 535 => match self.server(pid) {
                Some(Server { connection: None, .. }) => "INITIALIZING\n".into(),
                Some(server) => match server.ask(order::STATUS).and_then(|answer| answer.int()) {
                    Some(0) => "FAULT\n".into(),
                    _ => "ACTIVE\n".into(),
                },
                None => not_found(pid),
            },
            ["start_server", "-uid", uid, ..] => self.start_for(uid, peer),
            ["shutdown_server", pid, ..] => match self.server(pid) {
                Some(server) => {
                    let _ = server.child.kill();
                    String::new()
                }
                None => not_found(pid),
            },
            ["get_client_list", pid] => match self.server(pid) {
                Some(server) => lines(server.clients().iter().map(ToString::to_string)),
                None => not_found(pid),
            },
            ["terminate_client", server, client] => self.terminate(server, client),
            ["ps", "-p", pid] if self.server(pid).is_none() => not_found(pid).repeat(2),
            ["ps", ..] if self.servers.is_empty() => "Server not found\n".into(),
            ["ps", ..] => self.ps(),
            // On 580.159.04 (measured, on an H200).
            ["get_device_client_list", ..] if version() >= 580 => {
                let clients: Vec<_> = self.servers.iter().flat_map(Server::clients).collect();
                let name = (!clients.is_empty()).then(|| "[0] 00:00.0, FAKE".to_owned());
                lines(name.into_iter().chain(clients.iter().map(|pid| format!("  {pid}.1"))))
            }
            ["get_device_client_list", ..] => String::new(),
            ["set_default_active_thread_percentage", share, ..] => {
                self.share = percentage(share);
                format!("{:.1}\n", self.share)
            }
            ["get_default_active_thread_percentage", ..] => format!("{:.1}\n", self.share),
            ["get_active_thread_percentage", pid] => match self.server(pid) {
                Some(server) => server.share(),
                None => not_found(pid),
            },
            ["set_active_thread_percentage", pid, share] => match self.server(pid) {
                Some(server) => {
                    server.tell(order::SET_SHARE, &[&percentage(share).to_ne_bytes()]);
                    server.share()
                }
                None => not_found(pid),
            },
            ["set_default_client_priority", priority] => {
                self.priority = priority.parse().unwrap_or(0);
                String::new()
            }
            ["get_default_client_priority"] => format!("{}\n", self.priority),
            ["set_default_device_pinned_mem_limit", rest @ ..] => {
                if let [device, value, ..] = rest {
                    set_limit(&mut self.limits, device, value);
                }
                String::new()
            }
            ["get_default_device_pinned_mem_limit", device] => {
                match self.limits.get(*device).copied() {
                    Some(bytes) => format!("{}\n", render_limit(bytes)),
                    None => {
                        self.control("No default pinned memory limit set for the device!");
                        String::new()
                    }
                }
            }
            ["set_device_pinned_mem_limit", pid, device, value, ..] => match self.server(pid) {
                Some(server) => {
                    let bytes = limit_bytes(value).unwrap_or(0);
                    let device: i32 = device.parse().unwrap_or(0);
                    server.tell(order::SET_LIMIT, &[&device.to_ne_bytes(), &bytes.to_ne_bytes()]);
                    String::new()
                }
                None => not_found(pid),
            },
            ["get_device_pinned_mem_limit", pid, device] => match self.server(pid) {
                Some(server) => {
                    let device: i32 = device.parse().unwrap_or(0);
                    server.tell(order::GET_LIMIT, &[&device.to_ne_bytes()]);
                    match server.hear().and_then(|answer| answer.bytes.try_into().ok()) {
                        Some(bytes) if bytes != [0; 8] => {
                            format!("{}\n", render_limit(u64::from_ne_bytes(bytes)))
                        }
                        _ => String::new(),
                    }
                }
                None => not_found(pid),
            },
            _ => format!("Unknown command \"{}\"\n", words.first().unwrap_or(&"")),
        }
    }

    /// Each client. From 580 on with a head, the device's UUID and the client's PID namespace
    /// (measured on 580.159.04, on an H200).
    fn ps(&self) -> String {
        let of = |server: &Server, pid: i32| {
            let server = server.child.id();
            if version() < 580 {
                return format!("{pid} 0 FAKE {server} {pid} fake");
            }
            let device = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
            let namespace =
                std::fs::metadata(format!("/proc/{pid}/ns/pid")).map_or(0, |ns| ns.ino());
            let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            format!("{pid} 1 {server} {device} {namespace} {}", program.display())
        };
        let rows: Vec<String> = self
            .servers
            .iter()
            .flat_map(|server| server.clients().into_iter().map(move |pid| of(server, pid)))
            .collect();
        let head = (version() >= 580 && !rows.is_empty())
            .then(|| "PID ID SERVER DEVICE NAMESPACE COMMAND".to_owned());
        lines(head.into_iter().chain(rows))
    }

    fn start_for(&mut self, uid: &str, peer: &Peer) -> String {
        let uid = uid.parse().unwrap_or(0);
        if uid != peer.uid && peer.uid != 0 {
            let more = if version() > 535 {
                ". Only the root user may start server for another user."
            } else {
                ""
            };
            return format!("Insufficient privileges for UID {}{more}\n", peer.uid);
        }
        if self.servers.is_empty() {
            self.start_server(uid);
        }
        String::new()
    }

    fn terminate(&mut self, server: &str, client: &str) -> String {
        let Some(at) = self.server(server) else {
            return format!("Server {server} not found\nServer {server} not found!\n1\n");
        };
        let pid: i32 = client.parse().unwrap_or(0);
        at.tell(order::TERMINATE, &[&pid.to_ne_bytes()]);
        match at.hear().and_then(|answer| answer.int()) {
            Some(0) => "0\n".into(),
            // `CUDA_ERROR_INVALID_CONTEXT` (measured on 580.159.04, on an H200).
            _ if version() >= 580 => "201\n".into(),
            _ => format!("Invalid process {client}!\n1\n"),
        }
    }

    fn server(&mut self, pid: &str) -> Option<&mut Server> {
        self.servers.iter_mut().find(|server| server.child.id().to_string() == pid)
    }
}

impl Server {
    fn tell(&self, order: i32, more: &[&[u8]]) {
        if let Some(connection) = &self.connection {
            let _ = wire::say_int(connection.as_fd(), order);
            for bytes in more {
                let _ = wire::say(connection.as_fd(), bytes);
            }
        }
    }

    /// Waits for the server, however long it takes.
    fn hear(&self) -> Option<wire::Message> {
        wire::receive(self.connection.as_ref()?.as_fd())
    }

    fn ask(&self, order: i32) -> Option<wire::Message> {
        self.tell(order, &[]);
        self.hear()
    }

    fn clients(&self) -> Vec<i32> {
        let count = self.ask(order::CLIENT_LIST).and_then(|answer| answer.int()).unwrap_or(0);
        (0..count).map_while(|_| self.hear()?.int()).collect()
    }

    fn share(&self) -> String {
        let answer = self.ask(order::GET_SHARE).and_then(|answer| answer.bytes.try_into().ok());
        answer.map_or_else(String::new, |bytes| format!("{:.1}\n", f64::from_ne_bytes(bytes)))
    }
}

/// Who waits says nothing: what can be read is its end.
fn is_open(connection: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(connection.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, 0u16).unwrap_or(0) == 0
}

fn set_limit(limits: &mut BTreeMap<String, u64>, device: &str, value: &str) {
    match limit_bytes(value) {
        Some(bytes) => limits.insert(device.to_owned(), bytes),
        None => limits.remove(device),
    };
}

fn not_found(pid: &str) -> String {
    format!("Server {pid} not found\n")
}

fn lines(items: impl Iterator<Item = String>) -> String {
    items.map(|item| item + "\n").collect()
}
