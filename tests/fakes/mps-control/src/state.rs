//! The control daemon's books: limits, servers, clients, and the commands on them.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, poll};

use crate::value::{limit_bytes, percentage, render_limit};
use crate::{send_text, version};

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

struct Server {
    child: Child,
    uid: u32,
    ready: bool,
    faulted: bool,
    share: f64,
    limits: BTreeMap<String, u64>,
}

struct Client {
    pid: i32,
    server: u32,
    connection: OwnedFd,
}

/// A client that waits for a server of its uid.
struct Waiting {
    peer: Peer,
    connection: OwnedFd,
}

pub(crate) struct State {
    log: File,
    log_dir: PathBuf,
    multiuser: bool,
    share: f64,
    priority: u32,
    limits: BTreeMap<String, u64>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// First come, first served: one of another uid holds up all who come later
    /// (nebuly-ai/nos issue 19).
    pending: VecDeque<Waiting>,
    /// Connections that said a word which it does not know.
    lost: Vec<OwnedFd>,
    last_status: u8,
}

impl State {
    pub(crate) fn new(log: File, log_dir: PathBuf, multiuser: bool) -> Self {
        Self {
            log,
            log_dir,
            multiuser,
            share: 100.0,
            priority: 0,
            limits: BTreeMap::new(),
            servers: Vec::new(),
            clients: Vec::new(),
            pending: VecDeque::new(),
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

    pub(crate) fn client_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.clients.iter().map(|client| client.connection.as_fd())
    }

    pub(crate) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    fn steered(&self, file: &str) -> bool {
        self.log_dir.join(file).exists()
    }

    /// What happened since the last look: servers that ended or are up, clients that left, faults.
    pub(crate) fn tick(&mut self) {
        self.clients.retain(|client| is_open(&client.connection));
        let mut ended = Vec::new();
        self.servers.retain_mut(|server| match server.child.try_wait() {
            Ok(Some(status)) => {
                // What is printed for one that a signal ended is not known.
                ended.push((server.child.id(), status.code().unwrap_or(137)));
                false
            }
            _ => true,
        });
        for (pid, code) in ended {
            self.last_status = u8::try_from(code).unwrap_or(1);
            self.clients.retain(|client| client.server != pid);
            self.control(&format!("Server {pid} exited with status {code}"));
            self.control("Removed Shm file at ");
        }
        let slow = self.steered("fake-server-slow") || self.steered("fake-server-dies");
        let fault = self.steered("fake-fault");
        let culprit = std::fs::read_to_string(self.log_dir.join("fake-fault")).ok();
        let culprit = culprit.map(|pid| pid.trim().to_owned()).filter(|pid| !pid.is_empty());
        let mut lines = Vec::new();
        for server in &mut self.servers {
            let pid = server.child.id();
            if !server.ready && !slow {
                server.ready = true;
                lines.push((
                    "Server",
                    pid,
                    "Creating server context on device 0 (FAKE)".to_owned(),
                ));
                lines.push((
                    "Server",
                    pid,
                    format!("Active Threads Percentage set to {:.1}", server.share),
                ));
                if let Some(bytes) = server.limits.get("0") {
                    lines.push((
                        "Server",
                        pid,
                        format!("Device pinned memory limit for device 0 set to {bytes:#x} bytes"),
                    ));
                }
                lines.push(("Server", pid, "Server has started".to_owned()));
                lines.push(("Control", std::process::id(), format!("NEW SERVER {pid}: Ready")));
            }
            let affected = self.clients.iter().any(|client| client.server == pid);
            if fault && !server.faulted {
                server.faulted = true;
                lines.push((
                    "Server",
                    pid,
                    "Volta MPS: Server is handling a fatal GPU error.".to_owned(),
                ));
                // The documentation says that the culprit is named, not how.
                if let Some(culprit) = &culprit {
                    let text = format!("Fatal memory fault caused by client PID {culprit}");
                    lines.push(("Server", pid, text));
                }
            } else if server.faulted && !fault && !affected {
                server.faulted = false;
                lines.push((
                    "Server",
                    pid,
                    "Creating server context on device 0 (FAKE)".to_owned(),
                ));
            }
        }
        for (component, pid, text) in lines {
            self.log(component, pid, &text);
        }
        self.serve_pending();
    }

    fn start_server(&mut self, uid: u32) {
        let uid = if self.multiuser { nix::unistd::geteuid().as_raw() } else { uid };
        // PATH decides which server program runs, as with the real daemon (measured); without one
        // the child ends with 1.
        let child = Command::new("nvidia-cuda-mps-server")
            .uid(uid)
            .spawn()
            .or_else(|_| Command::new("/bin/false").spawn());
        let Ok(child) = child else { return };
        self.control(&format!("Starting new server {} for user {uid}", child.id()));
        let (share, limits) = (self.share, self.limits.clone());
        self.servers.push(Server { child, uid, ready: false, faulted: false, share, limits });
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
        if self.servers.is_empty() {
            self.start_server(peer.uid);
            self.tick();
        }
        let faulted = self.servers.first().is_some_and(|server| server.faulted);
        let now = self.pending.is_empty() && self.serves(&peer);
        let what = if now || faulted {
            "Server already exists"
        } else {
            "Server is not ready, push client to pending list"
        };
        self.control(&format!("NEW CLIENT {} from user {}: {what}", peer.pid, peer.uid));
        if faulted {
            let _ = send_text(&connection, "CUDA_ERROR_MPS_SERVER_NOT_READY");
        } else if now {
            self.admit(peer.pid, connection);
        } else {
            let _ = send_text(&connection, "PENDING");
            self.pending.push_back(Waiting { peer, connection });
        }
    }

    /// Whether the server takes clients of this uid.
    fn serves(&self, peer: &Peer) -> bool {
        self.servers.first().is_some_and(|server| {
            server.ready && !server.faulted && (self.multiuser || server.uid == peer.uid)
        })
    }

    fn admit(&mut self, pid: i32, connection: OwnedFd) {
        let Some(server) = self.servers.first() else { return };
        let limit = server.limits.get("0").copied().unwrap_or(0);
        let server = server.child.id();
        if send_text(&connection, &format!("SERVER {server} {limit}")).is_ok() {
            self.clients.push(Client { pid, server, connection });
        }
    }

    /// Serves who waits, in their order; a server of another uid ends once its clients have.
    fn serve_pending(&mut self) {
        self.pending.retain(|waiting| is_open(&waiting.connection));
        while let Some(first) = self.pending.front() {
            if self.serves(&first.peer) {
                let Some(Waiting { peer, connection }) = self.pending.pop_front() else { return };
                self.admit(peer.pid, connection);
                continue;
            }
            let uid = first.peer.uid;
            let idle = self.clients.is_empty();
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
                Some(server) if server.faulted => "FAULT\n".into(),
                Some(server) if server.ready => "ACTIVE\n".into(),
                Some(_) => "INITIALIZING\n".into(),
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
            ["get_client_list", pid] => match self.server(pid).map(|server| server.child.id()) {
                Some(id) => lines(
                    self.clients
                        .iter()
                        .filter(|client| client.server == id)
                        .map(|client| client.pid.to_string()),
                ),
                None => not_found(pid),
            },
            ["terminate_client", server, client] => self.terminate(server, client),
            ["ps", "-p", pid] if self.server(pid).is_none() => not_found(pid).repeat(2),
            ["ps", ..] if self.servers.is_empty() => "Server not found\n".into(),
            ["ps", ..] => lines(self.clients.iter().map(|client| {
                format!("{} 0 FAKE {} {} fake", client.pid, client.server, client.pid)
            })),
            ["get_device_client_list", ..] => String::new(),
            ["set_default_active_thread_percentage", share, ..] => {
                self.share = percentage(share);
                format!("{:.1}\n", self.share)
            }
            ["get_default_active_thread_percentage", ..] => format!("{:.1}\n", self.share),
            ["get_active_thread_percentage", pid] => match self.server(pid) {
                Some(server) => format!("{:.1}\n", server.share),
                None => not_found(pid),
            },
            ["set_active_thread_percentage", pid, share] => match self.server(pid) {
                Some(server) => {
                    server.share = percentage(share);
                    format!("{:.1}\n", server.share)
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
                    set_limit(&mut server.limits, device, value);
                    String::new()
                }
                None => not_found(pid),
            },
            ["get_device_pinned_mem_limit", pid, device] => match self.server(pid) {
                Some(server) => server
                    .limits
                    .get(*device)
                    .map_or_else(String::new, |bytes| format!("{}\n", render_limit(*bytes))),
                None => not_found(pid),
            },
            _ => format!("Unknown command \"{}\"\n", words.first().unwrap_or(&"")),
        }
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
        let Some(id) = self.server(server).map(|server| server.child.id()) else {
            return format!("Server {server} not found\nServer {server} not found!\n1\n");
        };
        let known = |entry: &Client| entry.server == id && entry.pid.to_string() == client;
        match self.clients.iter().position(known) {
            Some(position) => {
                let client = self.clients.remove(position);
                let _ = send_text(&client.connection, "TERMINATE");
                "0\n".into()
            }
            None => format!("Invalid process {client}!\n1\n"),
        }
    }

    fn server(&mut self, pid: &str) -> Option<&mut Server> {
        self.servers.iter_mut().find(|server| server.child.id().to_string() == pid)
    }
}

/// A client says nothing once it is attached: what can be read is its end.
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
