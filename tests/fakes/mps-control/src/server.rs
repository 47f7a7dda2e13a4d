//! The server: of this crate's control daemon, and a stand-in for NVIDIA's own under NVIDIA's
//! control daemon, which takes the first `nvidia-cuda-mps-server` of its PATH.
//!
//! It keeps limits and clients, says what it is asked, and gives clients the first words of a
//! server: a real libcuda gets as far as the driver of a card that is not there. Nothing is ever
//! computed.
//!
//! Files in the log directory steer it: `fake-server-dies` (at its start), `fake-server-slow` (it
//! waits before it connects), `fake-server-late-user` (until it is gone, the server has the user of
//! the control daemon: the real one forks it with that), `fake-server-status` (a number: what
//! `cuInit` gives to clients, 0 without), `fake-server-region` (`named` or `anonymous`, or both
//! words, which it then says one after the other: it makes the region that clients map, and logs
//! it; without, a real client finds none: 205), and `fake-fault` (a fault; what it holds is the pid
//! of the client to blame).

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::unistd::{Uid, setuid};

use crate::wire::{self, DEVICES, order, word};
use crate::{log_dir, pipe_dir, record};

/// `CUDA_ERROR_MPS_SERVER_NOT_READY`.
const NOT_READY: i32 = 807;
/// `CUDA_ERROR_MPS_CLIENT_TERMINATED`.
pub(crate) const TERMINATED: i32 = 810;
/// Bytes of the region that a client maps.
const REGION: u64 = 4096;
const REGION_NUMBER: u64 = 1;
/// What a client says of itself: its pid, and two words that nobody here reads.
const WORDS_OF_A_CLIENT: u32 = 3;

struct Client {
    fd: OwnedFd,
    pid: i32,
    /// Of its words, how many have come.
    words: u32,
}

struct Server {
    daemon: OwnedFd,
    /// The other end of what the daemon was given.
    _lifeline: OwnedFd,
    region: PathBuf,
    log: Option<File>,
    limits: [u64; DEVICES],
    share: f64,
    clients: Vec<Client>,
    faulted: bool,
}

fn steered(file: &str) -> Option<String> {
    fs::read_to_string(log_dir().join(file)).ok()
}

/// The user that a server is to have later.
pub(crate) const USER: &str = "FAKE_SERVER_USER";

pub(crate) fn late_user() -> bool {
    steered("fake-server-late-user").is_some()
}

/// Runs the server and gives its exit status.
pub fn serve() -> u8 {
    if steered("fake-server-dies").is_some() {
        return 1;
    }
    while steered("fake-server-slow").is_some() || late_user() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let user = std::env::var(USER).ok().and_then(|user| user.parse().ok());
    if user.is_some_and(|user| setuid(Uid::from_raw(user)).is_err()) {
        return 1;
    }
    let Some(mut server) = start() else { return 1 };
    while let Some(status) = server.turn() {
        if let Some(status) = status {
            let _ = fs::remove_file(&server.region);
            return status;
        }
    }
    // Ends by signal only, as an orphan must outlive its control daemon.
    server.clients.clear();
    loop {
        std::thread::park();
    }
}

fn start() -> Option<Server> {
    let daemon = wire::introduced(&pipe_dir().join("control"), word::SERVER)?;
    let (lifeline, theirs) = wire::pair().ok()?;
    wire::hand_over(daemon.as_fd(), theirs.as_fd()).ok()?;
    let share = wire::receive(daemon.as_fd())?.bytes;
    let count = wire::receive(daemon.as_fd())?.bytes;
    let count = usize::try_from(u64::from_ne_bytes(count.try_into().ok()?)).ok()?;
    let mut limits = [0; DEVICES];
    for index in 0..count {
        let bytes = wire::receive(daemon.as_fd())?.bytes;
        if let Some(limit) = limits.get_mut(index) {
            *limit = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
    }
    let _priority = wire::receive(daemon.as_fd())?;
    let fifo =
        OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(pipe_dir().join("log"));
    let mut server = Server {
        daemon,
        _lifeline: lifeline,
        region: region(),
        log: fifo.ok(),
        limits,
        share: f64::from_ne_bytes(share.try_into().ok()?),
        clients: Vec::new(),
        faulted: false,
    };
    server.say("Creating server context on device 0 (FAKE)");
    server.say(&format!("Active Threads Percentage set to {:.1}", server.share));
    let bytes = server.limits[0];
    if bytes > 0 {
        server.say(&format!("Device pinned memory limit for device 0 set to {bytes:#x} bytes"));
    }
    server.make_region();
    server.say("Server has started");
    Some(server)
}

/// `/dev/shm/cuda.shm.UID.PID.NUMBER`, in hexadecimal: where the real client looks for it, by what
/// the server told it.
fn region() -> PathBuf {
    let (uid, pid) = (nix::unistd::geteuid().as_raw(), std::process::id());
    PathBuf::from(format!("/dev/shm/cuda.shm.{uid:x}.{pid:x}.{REGION_NUMBER:x}"))
}

/// Maps a region for as long as the process lives, as its server does.
#[expect(unsafe_code, reason = "nix has no safe mmap")]
fn map(region: &File) {
    let (Some(length), access) = (NonZeroUsize::new(4096), ProtFlags::PROT_READ) else { return };
    // SAFETY: the kernel chooses a free place, and nothing here reads from it.
    let _ = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, region, 0) };
}

impl Server {
    /// Named, 0600 and of 4 KiB, as those of drivers up to 555 at least (NVIDIA/k8s-device-plugin
    /// issues 467, 1118); from 580 on it has no name (bottlerocket-kernel-kit pull request 415).
    fn make_region(&mut self) {
        let Some(kind) = steered("fake-server-region") else { return };
        let name = self.region.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for kind in kind.split_whitespace() {
            self.say(&format!("Created {kind} shared memory region {name}"));
        }
        if kind.split_whitespace().any(|kind| kind == "named") {
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&self.region);
            if let Ok(file) = file
                && file.set_len(REGION).is_ok()
            {
                map(&file);
            }
        }
    }

    /// A line of the daemon's log.
    fn say(&mut self, text: &str) {
        if let Some(log) = &mut self.log {
            let _ = log.write_all(&record::bytes(record::SERVER, std::process::id(), text));
        }
    }

    /// One look at everything. `None` once the daemon has gone, `Some(Some(status))` to end.
    fn turn(&mut self) -> Option<Option<u8>> {
        self.look_for_faults();
        let ready = {
            let mut fds = vec![PollFd::new(self.daemon.as_fd(), PollFlags::POLLIN)];
            fds.extend(self.clients.iter().map(|c| PollFd::new(c.fd.as_fd(), PollFlags::POLLIN)));
            let _ = poll(&mut fds, 10_u16);
            fds.iter().map(|fd| fd.any().unwrap_or(false)).collect::<Vec<_>>()
        };
        let status = match steered("fake-server-status") {
            _ if self.faulted => NOT_READY,
            Some(text) => text.trim().parse().unwrap_or(0),
            None => 0,
        };
        let mut of_clients = ready[1..].iter();
        self.clients.retain_mut(|client| of_clients.next() != Some(&true) || client.hears(status));
        if !ready[0] {
            return Some(None);
        }
        let order = wire::receive(self.daemon.as_fd())?.int()?;
        self.obey(order)
    }

    fn obey(&mut self, order: i32) -> Option<Option<u8>> {
        let daemon = self.daemon.as_fd();
        let next = || wire::receive(daemon);
        match order {
            order::CLIENT => {
                if let Some(fd) = next()?.descriptors.pop() {
                    self.greet(fd);
                }
            }
            order::SHUTDOWN => return Some(Some(0)),
            order::CLIENT_LIST => {
                let clients = || self.clients.iter().filter(|client| client.is_attached());
                wire::say_int(daemon, i32::try_from(clients().count()).ok()?).ok()?;
                for client in clients() {
                    wire::say_int(daemon, client.pid).ok()?;
                }
            }
            order::DEVICE_CLIENT_LIST => wire::say_int(daemon, 0).ok()?,
            order::PS => {
                wire::say_int(daemon, 0).ok()?;
                next()?;
            }
            order::GET_SHARE => wire::say(daemon, &self.share.to_ne_bytes()).ok()?,
            order::SET_SHARE => self.share = f64::from_ne_bytes(next()?.bytes.try_into().ok()?),
            order::GET_LIMIT => {
                let device = usize::try_from(next()?.int()?).ok()?;
                let limit = self.limits.get(device).copied().unwrap_or(0);
                wire::say(daemon, &limit.to_ne_bytes()).ok()?;
            }
            order::SET_LIMIT => {
                let device = usize::try_from(next()?.int()?).ok()?;
                let bytes = u64::from_ne_bytes(next()?.bytes.try_into().ok()?);
                if let Some(limit) = self.limits.get_mut(device) {
                    *limit = bytes;
                }
            }
            order::TERMINATE => {
                let pid = next()?.int()?;
                let before = self.clients.len();
                self.clients.retain(|client| {
                    client.pid != pid || wire::say_int(client.fd.as_fd(), TERMINATED).is_err()
                });
                wire::say_int(daemon, (before == self.clients.len()).into()).ok()?;
            }
            order::STATUS => wire::say_int(daemon, (!self.faulted).into()).ok()?,
            _ => {}
        }
        Some(None)
    }

    /// Four descriptors, of which the first holds where the region is, and a byte that asks for a
    /// pid.
    fn greet(&mut self, fd: OwnedFd) {
        let sent = (0..4)
            .try_for_each(|_| wire::hand_over(fd.as_fd(), self.region_told()?.as_fd()))
            .and_then(|()| wire::say(fd.as_fd(), &[1]));
        if sent.is_ok() {
            self.clients.push(Client { fd, pid: 0, words: 0 });
        }
    }

    /// Size, who made it and its number; our own client reads the limit behind them.
    fn region_told(&self) -> nix::Result<OwnedFd> {
        let told = memfd_create("fake-mps-client", MFdFlags::MFD_CLOEXEC)?;
        let words = [REGION, std::process::id().into(), REGION_NUMBER, self.limits[0]];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut file = File::from(told);
        let _ = file.write_all(&bytes);
        let _ = file.rewind();
        // A real client maps what it was handed.
        let _ = file.set_len(1 << 20);
        Ok(file.into())
    }

    /// In the words of 580.159.04, seen on an H100: it blames one client, then speaks of all.
    fn tell_fault(&mut self, culprit: &str) {
        if !culprit.is_empty() {
            self.say(&format!(
                "Client {{PID: {culprit}, Context: 1}} encountered a fatal GPU error."
            ));
        }
        self.say("Server is handling a fatal GPU error.");
        let attached = self.clients.iter().filter(|client| client.is_attached());
        let pids: Vec<i32> = attached.map(|client| client.pid).collect();
        for pid in &pids {
            self.say(&format!("Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down"));
        }
        for pid in &pids {
            self.say(&format!(
                "All clients belonging to error trigging process {pid} will be torn down"
            ));
            self.say(&format!(
                "Client {{PID: {pid}, Context ID: 1}} on the error-trigging process {pid} to be torn \
                 down"
            ));
        }
        self.say("The following devices will be reset:");
        self.say("0");
        self.say("The following client process have a sticky error set:");
        for pid in &pids {
            self.say(&pid.to_string());
        }
    }

    /// Whom a fault concerns ends with it; until then the server serves nobody.
    fn look_for_faults(&mut self) {
        let fault = steered("fake-fault");
        if let Some(culprit) = &fault
            && !self.faulted
        {
            self.faulted = true;
            self.tell_fault(culprit.trim());
        } else if fault.is_none() && self.faulted && self.clients.is_empty() {
            self.faulted = false;
            self.say("Creating server context on device 0 (FAKE)");
        }
    }
}

impl Client {
    fn is_attached(&self) -> bool {
        self.words == WORDS_OF_A_CLIENT
    }

    /// Takes what it said; whether it stays. Attached, a client says nothing but its end.
    fn hears(&mut self, status: i32) -> bool {
        let Some(message) = wire::receive(self.fd.as_fd()) else { return false };
        if self.is_attached() {
            return true;
        }
        // Not what it says: what the kernel says.
        if let Some(who) = message.sender {
            self.pid = who.pid();
        }
        self.words += 1;
        !self.is_attached() || wire::say_int(self.fd.as_fd(), status).is_ok() && status == 0
    }
}
