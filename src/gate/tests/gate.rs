//! The gate between NVIDIA's own client library and NVIDIA's own control daemon, and what a
//! container may try at its door. The server is the fake's: NVIDIA's needs a GPU.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a failing unwrap is the test's failure, and a test may sleep"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mpsgate_gate::Container;
use mpsgate_host::cgroup::{self, CgroupId, Membership};
use mpsgate_host::door_place::Kind as DoorKind;
use mpsgate_model::Instance;
use mpsgate_model::door_file::{Counts, Question, Reason};
use mpsgate_mps::{ControlDaemon, MpsInstance, Signal};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    recvmsg, send, sendmsg, socket_with,
};

#[path = "../../mps/tests/contract/harness.rs"]
#[allow(dead_code, reason = "shared with the contract of mps, which uses all of it")]
mod harness;

use harness::{Bench, Kind, bench, libcuda, need, root, wait_for};

const MINE: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "fedcba9876543210fedcba9876543210";
/// A code that no library says by itself: it came from the server.
const SERVERS_WORD: i32 = 4711;
/// `CUDA_ERROR_MPS_CONNECTION_FAILED`: somebody greeted, and then nothing came.
const CONNECTION_FAILED: i32 = 805;

/// `CUDA_ERROR_NO_DEVICE`: it found no MPS, and went on without.
const WITHOUT_MPS: i32 = 100;

struct Stage {
    bench: Bench,
    card: MpsInstance,
    daemon: ControlDaemon,
    program: PathBuf,
    library: PathBuf,
    gate: u32,
    mpsgated: Arc<Mpsgated>,
}

/// Answers the gate's questions as mpsgated does, or otherwise.
struct Mpsgated {
    mood: Mutex<Mood>,
    asked: Mutex<Vec<Question>>,
    /// The directory of the control daemon, which it hands out.
    pipe: Mutex<OwnedFd>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    Says(&'static [u8]),
    Silent,
    /// As one that was before clients were named: what it does not know it does not answer.
    Older,
}

const READY: Mood = Mood::Says(b"\"ready\"\n");
const LATER: Mood = Mood::Says(b"\"later\"\n");

impl Mpsgated {
    /// It goes with the test's process.
    fn start(card: &MpsInstance) -> Arc<Self> {
        let listener = UnixListener::bind(card.dirs().gate_socket()).unwrap();
        let pipe = Mutex::new(card.pipe().unwrap().unwrap());
        let this = Arc::new(Self { mood: Mutex::new(READY), asked: Mutex::default(), pipe });
        let shared = Arc::clone(&this);
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming().flatten() {
                let mut line = Vec::new();
                BufReader::new(&stream).read_until(b'\n', &mut line).unwrap();
                // A gate may be killed before it has asked.
                if line.is_empty() {
                    continue;
                }
                let question = Question::read(&line).unwrap();
                let mood = match question {
                    Question::Daemon => READY,
                    _ => *shared.mood.lock().unwrap(),
                };
                let is_known = question.of_before().is_none();
                shared.asked.lock().unwrap().push(question);
                match mood {
                    Mood::Says(line) => shared.say(&stream, line),
                    Mood::Silent => held.push(stream),
                    Mood::Older if is_known => shared.say(&stream, b"\"ready\"\n"),
                    Mood::Older => {}
                }
            }
        });
        this
    }

    fn say(&self, stream: &UnixStream, line: &[u8]) {
        let pipe = self.pipe.lock().unwrap();
        let pipe = [pipe.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        assert!(rights.push(SendAncillaryMessage::ScmRights(&pipe)));
        // A gate may be killed before it has heard.
        let _ = sendmsg(stream, &[IoSlice::new(line)], &mut rights, SendFlags::NOSIGNAL);
    }

    /// The control daemon is another one.
    fn hands_out(&self, pipe: OwnedFd) {
        *self.pipe.lock().unwrap() = pipe;
    }

    fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// What the gate has counted, each time that it said so.
    fn counts(&self) -> Vec<Counts> {
        let asked = self.asked.lock().unwrap();
        let of = |question: &Question| match question {
            Question::Counts(counts) => Some(counts.clone()),
            _ => None,
        };
        asked.iter().filter_map(of).collect()
    }

    /// But for the counts, which it says every 5 s, and for the control daemon.
    fn asked(&self) -> Vec<Question> {
        let mut asked = std::mem::take(&mut *self.asked.lock().unwrap());
        asked.retain(|question| !matches!(question, Question::Counts(_) | Question::Daemon));
        asked
    }
}

impl Stage {
    fn new(kind: Kind, version: u32) -> Result<Self, String> {
        root()?;
        let bench = bench(kind, version)?;
        let library = bench.readable(&libcuda(version)?.canonicalize().unwrap());
        bench.with_server()?;
        let (card, daemon) = bench.started();
        let status = card.dirs().log_dir().join("fake-server-status");
        fs::write(status, SERVERS_WORD.to_string()).unwrap();
        let program = bench.cuda_client();
        let mpsgated = Mpsgated::start(&card);
        let gate = start(&bench);
        Ok(Self { bench, card, daemon, program, library, gate, mpsgated })
    }

    fn log(&self) -> String {
        self.card.dirs().log_file().since(0).unwrap()
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.card.dirs().door_dir(DoorKind::Process, name)
    }

    /// As mpsgated does at reserve and activate. A plain process's door, which its path leads to.
    fn tell(&self, name: &str, uid: u32, cgroup: Option<CgroupId>) {
        let container = Container { id: "c".into(), uid, any_uid: false, debug: false, cgroup };
        self.card.dirs().put_door(DoorKind::Process, name, &container.write().unwrap()).unwrap();
    }

    /// As mpsgated does at the container's end.
    fn release(&self, name: &str) {
        self.card.dirs().remove_door(name).unwrap();
    }

    fn reserve(&self, name: &str) {
        self.tell(name, 0, None);
        wait_for("the gate serves it", || self.card.dirs().is_open_door(DoorKind::Process, name));
        let meta = self.directory(name).join("control").symlink_metadata().unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o7777, 0o666);
        assert_eq!(fs::read_dir(self.directory(name)).unwrap().count(), 1);
    }

    /// What cuInit says to a client at that door, started below `around`.
    fn attach(&self, name: &str, around: &[&str]) -> i32 {
        said(&mut self.client(name, around))
    }

    fn client(&self, name: &str, around: &[&str]) -> std::process::Child {
        self.client_at(&self.directory(name), around, &[])
    }

    fn client_at(&self, door: &Path, around: &[&str], more: &[&str]) -> std::process::Child {
        let mut line: Vec<&str> = around.to_vec();
        line.extend(["setpriv", "--bounding-set", "-mknod", "--"]);
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).arg(&self.program).arg(&self.library).args(more);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
        command.env("CUDA_MPS_PIPE_DIRECTORY", door);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Who the control daemon has seen: pid and uid of each client.
    fn seen(&self) -> Vec<(u32, u32)> {
        self.card.channel().server_list().unwrap();
        let log = self.log();
        let clients = log.lines().filter_map(|line| line.split_once("NEW CLIENT "));
        let numbers = clients.map(|(_, rest)| {
            let words: Vec<&str> = rest.split([' ', ':']).collect();
            (words[0].parse().unwrap(), words[3].parse().unwrap())
        });
        numbers.collect()
    }
}

fn start(bench: &Bench) -> u32 {
    bench.readable(Path::new(env!("CARGO_BIN_EXE_mpsgate-gate")));
    start_again(bench)
}

fn start_again(bench: &Bench) -> u32 {
    let program = bench.dir.path().join("mpsgate-gate");
    let mut command = Command::new(program);
    command.env_clear().args(["--card", "0", "--mps"]).arg(bench.dir.path().join("mps"));
    bench.keep(command)
}

/// Asks a program of the bench to end, and waits for it.
fn end(bench: &Bench, pid: u32) -> Option<i32> {
    let raw = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(raw, Signal::TERM).unwrap();
    bench.status_of(pid)
}

/// A cgroup that this test's processes are in.
fn own_cgroup() -> CgroupId {
    let text = cgroup::text_of(std::process::id()).unwrap();
    let dirs = text.lines().filter_map(|line| {
        let line = Membership::parse(line)?;
        let hierarchy = line.controllers.split(',').next()?;
        Some(Path::new(cgroup::MOUNT).join(hierarchy).join(line.below()?))
    });
    let found = dirs.map(|dir| CgroupId::of(&dir)).find_map(|id| id);
    found.unwrap_or_else(|| panic!("no cgroup of {text}"))
}

fn attaches_through_its_door(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    stage.tell(MINE, 0, Some(own_cgroup()));
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
    assert_eq!(stage.attach(MINE, &["unshare", "--user", "--map-root-user"]), SERVERS_WORD);
    let as_1000 = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"];
    assert_eq!(stage.attach(MINE, &as_1000), CONNECTION_FAILED, "its grant is uid 0's");
    // The daemon knows the gate's pid and the client's uid.
    assert_eq!(stage.seen(), [(stage.gate, 0), (stage.gate, 0)]);
}

fn a_client_waits_for_its_grant_and_no_other_container_is_served(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    stage.reserve(OTHER);
    let mut waiting = stage.client(MINE, &[]);
    let nowhere = CgroupId { path: "/sys/fs/cgroup/nowhere".into(), inode: 1 };
    stage.tell(OTHER, 0, Some(nowhere));
    assert_eq!(stage.attach(OTHER, &[]), CONNECTION_FAILED);
    assert!(stage.seen().is_empty());
    stage.tell(MINE, 0, Some(own_cgroup()));
    let mut said = String::new();
    BufReader::new(waiting.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.ends_with(&format!(" {SERVERS_WORD}\n")), "{said}");
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    drop(dial(&stage.directory(OTHER)).unwrap());
    stage.release(OTHER);
    wait_for("the door is closed", || dial(&stage.directory(OTHER)).is_err());
}

/// A container's door is where only root gets to. It serves whoever it is bound for, and whoever
/// has its name finds nothing.
fn a_containers_door_is_bound_and_no_path_leads_to_it(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    let container = Container {
        id: "c".into(),
        uid: 1000,
        any_uid: false,
        debug: false,
        cgroup: Some(own_cgroup()),
    };
    let dirs = stage.card.dirs();
    dirs.put_door(DoorKind::Container, MINE, &container.write().unwrap()).unwrap();
    wait_for("the gate serves it", || dirs.is_open_door(DoorKind::Container, MINE));
    let door = dirs.door_dir(DoorKind::Container, MINE);
    let bind = "mount --bind \"$CUDA_MPS_PIPE_DIRECTORY\" /mnt && \
                CUDA_MPS_PIPE_DIRECTORY=/mnt exec \"$@\"";
    let as_1000 = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"];
    let bound = [&["unshare", "--mount", "sh", "-c", bind, "sh"], as_1000.as_slice()].concat();
    assert_eq!(said(&mut stage.client_at(&door, &bound, &[])), SERVERS_WORD);
    assert_eq!(said(&mut stage.client_at(&door, &as_1000, &[])), WITHOUT_MPS, "by its name");
    let mut walk = Command::new(as_1000[0]);
    walk.args(&as_1000[1..]).arg("stat").arg(door.join("control")).env("LC_ALL", "C");
    let seen = walk.output().unwrap();
    let why = String::from_utf8_lossy(&seen.stderr).into_owned();
    assert!(!seen.status.success() && why.contains("Permission denied"), "{why}");
}

/// A process lives until its last thread has ended. Of a first one that has, the kernel says that
/// it is a zombie, and under v1 that it is in no cgroup.
fn a_process_whose_first_thread_has_ended_is_served(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    let below = Below::new("mpsgate-leaderless");
    stage.tell(MINE, 0, Some(below.0.clone()));
    let enter = below.enter();
    let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
    let mut client = stage.client_at(&stage.directory(MINE), &enter, &["leaderless"]);
    assert_eq!(said(&mut client), SERVERS_WORD);
}

/// Who reaches a plain process's door and is not of it: ended at once, however often and however
/// many come, silent or not, before any of the door's own has to wait.
fn strangers_take_nothing_of_a_door(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    let own = Below::new("mpsgate-own");
    stage.tell(MINE, 0, Some(own.0.clone()));
    let enter = own.enter();
    let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
    assert_eq!(stage.attach(MINE, &enter), SERVERS_WORD);
    let door = stage.directory(MINE);
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicUsize::new(0));
    let strangers: Vec<_> = (0..5)
        .map(|_| {
            let (door, over, ended) = (door.clone(), Arc::clone(&over), Arc::clone(&ended));
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    // More than wait for their word, and than a burst has.
                    let held: Vec<OwnedFd> = (0..200).map(|_| dial(&door).unwrap()).collect();
                    for socket in held {
                        // It has its hello, and then nothing: a client would end with 805.
                        assert_eq!([heard(&socket), heard(&socket)], [9, 0]);
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        })
        .collect();
    let before = |count| wait_for("strangers", || ended.load(Ordering::Relaxed) >= count);
    for round in 1..=3 {
        before(round * 1000);
        assert_eq!(stage.attach(MINE, &enter), SERVERS_WORD, "beside them");
    }
    over.store(true, Ordering::Relaxed);
    strangers.into_iter().for_each(|stranger| stranger.join().unwrap());
    let all = u64::try_from(ended.load(Ordering::Relaxed)).unwrap();
    let is_last = |counts: &Counts| counts.ended.get(&Reason::Elsewhere) == Some(&all);
    wait_for("the gate tells", || stage.mpsgated.counts().iter().any(is_last));
    let counts = stage.mpsgated.counts().into_iter().find(is_last).unwrap();
    // None was given two seconds for its word, and none was in the queue.
    assert_eq!(counts.ended.keys().collect::<Vec<_>>(), [&Reason::Elsewhere]);
    assert_eq!(counts.handed_over, 4);
}

/// A client that says what it likes, after its hello.
fn raw(directory: &Path) -> OwnedFd {
    let socket = dial(directory).unwrap();
    assert_eq!(heard(&socket), 9, "the hello");
    socket
}

fn dial(directory: &Path) -> rustix::io::Result<OwnedFd> {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new(directory.join("control"))?)?;
    Ok(socket)
}

/// Bytes of the next message; 0 where the gate has closed the connection.
fn heard(socket: &OwnedFd) -> usize {
    recv(socket, &mut [0_u8; 64], RecvFlags::empty()).map_or(0, |(_, length)| length)
}

fn tell(socket: &OwnedFd, bytes: &[u8]) {
    // A connection that was ended takes nothing.
    let _ = send(socket, bytes, SendFlags::NOSIGNAL);
}

fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// A cgroup below the tests' own, for a neighbour; gone with the value.
struct Below(CgroupId);

impl Below {
    fn new(name: &str) -> Self {
        let path = Path::new(&own_cgroup().path).join(format!("{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(CgroupId::of(&path).unwrap())
    }

    /// A command line that goes there first.
    fn enter(&self) -> Vec<String> {
        let into = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.0.path);
        vec!["sh".into(), "-c".into(), into, "sh".into()]
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0.path);
    }
}

const CREDENTIALS: &[u8] = b"OUTBCRED\0";

fn what_one_container_sends_hurts_no_other(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    stage.reserve(OTHER);
    let neighbour = Below::new("mpsgate-gate");
    stage.tell(OTHER, 0, Some(neighbour.0.clone()));
    stage.tell(MINE, 0, Some(own_cgroup()));
    let enter = neighbour.enter();
    let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
    let served = |what: &str| assert_eq!(stage.attach(OTHER, &enter), SERVERS_WORD, "{what}");
    served("at first");
    let daemon = u32::try_from(stage.daemon.process.pid()).unwrap();
    let before = descriptors(daemon);
    let door = stage.directory(MINE);

    for word in [0, 1, 3, 4, 5, 255, -1_i32] {
        let socket = raw(&door);
        tell(&socket, CREDENTIALS);
        tell(&socket, &word.to_ne_bytes());
        assert_eq!(heard(&socket), 0, "word {word}");
    }
    for first in [b"O".as_slice(), &CREDENTIALS[..8], &[b'O'; 100_000], &2_i32.to_ne_bytes()] {
        let socket = raw(&door);
        tell(&socket, first);
        assert_eq!(heard(&socket), 0, "{} bytes", first.len());
    }
    let socket = raw(&door);
    let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let many: Vec<BorrowedFd<'_>> = vec![socket.as_fd(); 253];
    let held = descriptors(stage.gate);
    assert!(rights.push(SendAncillaryMessage::ScmRights(&many)));
    sendmsg(&socket, &[IoSlice::new(CREDENTIALS)], &mut rights, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(heard(&socket), 0, "253 descriptors");
    wait_for("it took none of them", || descriptors(stage.gate) < held);
    served("after other words");
    assert_eq!(descriptors(daemon), before, "a word that it does not know costs it one for ever");

    let silent: Vec<OwnedFd> = (0..60).map(|_| raw(&door)).collect();
    served("beside silent connections");
    drop(silent);
    let takes = || {
        let socket = raw(&door);
        tell(&socket, CREDENTIALS);
        tell(&socket, &2_i32.to_ne_bytes());
        socket
    };
    // Closed between the descriptor and the answer, before it, or never.
    (0..40).for_each(|_| drop(takes()));
    served("beside clients that go");
    let kept: Vec<OwnedFd> = (0..40).map(|_| takes()).collect();
    assert!(kept.iter().all(|socket| heard(socket) == 9), "each got its answer");
    served("beside clients that never answer");
    assert!(descriptors(daemon) < 64, "{} of the daemon's", descriptors(daemon));
    drop(kept);
}

/// What systemd does for the gate's unit: keeps the sockets that it is given, and passes them on.
struct Manager<'a> {
    stage: &'a Stage,
    notify: UnixDatagram,
    kept: BTreeMap<String, OwnedFd>,
}

impl<'a> Manager<'a> {
    fn new(stage: &'a Stage) -> Self {
        let notify = UnixDatagram::bind(stage.bench.dir.path().join("notify")).unwrap();
        // A message that does not come is a failure.
        notify.set_read_timeout(Some(harness::LIMIT)).unwrap();
        Self { stage, notify, kept: BTreeMap::new() }
    }

    /// Returns when the gate says that it is ready.
    fn start(&mut self) -> u32 {
        let pid = self.spawn("");
        while !self.heard().contains("READY=1") {}
        pid
    }

    /// A gate that is killed when it makes this system call for the n-th time.
    fn start_to_die(&mut self, call: &str, n: usize) -> u32 {
        // The tracer is no parent of the gate, which keeps the pid that its sockets are meant for.
        let inject = format!("{call}:signal=KILL:when={n}");
        self.spawn(&format!("strace -D -qq -o /dev/null -e trace={call} -e inject={inject}"))
    }

    fn spawn(&mut self, below: &str) -> u32 {
        // What an earlier one said.
        let mut bytes = [0; 512];
        while recv(&self.notify, &mut bytes, RecvFlags::DONTWAIT).is_ok() {}
        let mut line = String::new();
        let mut names = Vec::new();
        for (at, (name, socket)) in self.kept.iter().enumerate() {
            rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty()).unwrap();
            line += &format!("exec {}<&{}; ", at + 3, socket.as_raw_fd());
            names.push(name.clone());
        }
        let program = self.stage.bench.dir.path().join("mpsgate-gate");
        let mps = self.stage.bench.dir.path().join("mps");
        line += &format!(
            "LISTEN_PID=$$ exec {below} {} --card 0 --mps {}",
            program.display(),
            mps.display()
        );
        let mut command = Command::new("bash");
        command
            .arg("-c")
            .arg(line)
            .env("NOTIFY_SOCKET", self.stage.bench.dir.path().join("notify"));
        if !names.is_empty() {
            command.env("LISTEN_FDS", names.len().to_string());
            command.env("LISTEN_FDNAMES", names.join(":"));
        }
        self.stage.bench.keep(command)
    }

    /// The next message; a socket that comes with it is kept.
    fn heard(&mut self) -> String {
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let length = recvmsg(&self.notify, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
        let text = String::from_utf8(bytes[..length.unwrap().bytes].to_vec()).unwrap();
        let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
        for message in control.drain() {
            let RecvAncillaryMessage::ScmRights(rights) = message else { continue };
            self.kept.extend(rights.map(|socket| (name.clone().unwrap(), socket)));
        }
        if text.contains("FDSTOREREMOVE=1") {
            self.kept.remove(&name.unwrap());
        }
        text
    }
}

impl Manager<'_> {
    /// A gate that serves the containers of this test, whose sockets are kept; the inode of one.
    fn serve_both(&mut self) -> (u32, u64) {
        let stage = self.stage;
        let gate = self.start();
        stage.reserve(MINE);
        stage.reserve(OTHER);
        while self.kept.len() < 2 {
            self.heard();
        }
        stage.tell(MINE, 0, Some(own_cgroup()));
        (gate, self.socket())
    }

    fn socket(&self) -> u64 {
        self.stage.directory(MINE).join("control").metadata().unwrap().ino()
    }

    /// Ends and starts the gate this often, while clients attach all the time: what cuInit said to
    /// them, and the last gate. Somebody was served between any two ends.
    fn restart(&mut self, mut gate: u32, times: usize, end: fn(&Bench, u32)) -> (Codes, u32) {
        const AT_ONCE: usize = 4;
        let stage = self.stage;
        let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
        let mut codes = Codes::new();
        std::thread::scope(|scope| {
            let attach = || {
                let mut codes = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    let code = stage.attach(MINE, &[]);
                    codes.push(code);
                    served.fetch_add(usize::from(code == SERVERS_WORD), Ordering::Relaxed);
                }
                codes
            };
            let attaching: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(attach)).collect();
            // Also where this test fails: who is in a scope is waited for.
            let over = set_at_end(&is_over);
            for time in 0..times {
                let before = served.load(Ordering::Relaxed);
                wait_for("a client is served", || served.load(Ordering::Relaxed) > before);
                // Another moment of the next one's time.
                let moment = u64::try_from(time * 7919 % 20_000).unwrap();
                std::thread::sleep(Duration::from_micros(moment));
                end(&stage.bench, gate);
                gate = self.start();
            }
            drop(over);
            for code in attaching.into_iter().flat_map(|one| one.join().unwrap()) {
                *codes.entry(code).or_default() += 1;
            }
        });
        eprintln!("{times} times under {AT_ONCE} clients at a time: {codes:?}");
        (codes, gate)
    }
}

/// Sets a flag when it is dropped.
fn set_at_end(flag: &AtomicBool) -> impl Drop {
    struct Sets<'a>(&'a AtomicBool);
    impl Drop for Sets<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    Sets(flag)
}

/// How many clients heard what of cuInit.
type Codes = BTreeMap<i32, usize>;

/// On SIGTERM no client is refused or ended.
fn a_restart_is_a_wait(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    end(&stage.bench, stage.gate);
    let mut manager = Manager::new(&stage);
    let (gate, socket) = manager.serve_both();
    let (codes, gate) = manager.restart(gate, count("MPSGATE_TEST_RESTARTS", 10), |bench, gate| {
        assert_eq!(end(bench, gate), Some(0));
    });
    assert!(codes.keys().eq([&SERVERS_WORD]), "{codes:?}");
    assert_eq!(manager.socket(), socket);
    // What ends with its container is kept no longer, whether the gate sees it end or not.
    stage.release(OTHER);
    while manager.kept.contains_key(OTHER) {
        manager.heard();
    }
    end(&stage.bench, gate);
    stage.release(MINE);
    manager.start();
    while manager.kept.contains_key(MINE) {
        manager.heard();
    }
}

/// On SIGKILL at any moment a client that was accepted and has not had its hello goes on without
/// MPS, and one that was waiting ends: both are counted, and nothing else may happen.
fn a_death_is_a_restart(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    end(&stage.bench, stage.gate);
    let mut manager = Manager::new(&stage);
    let (gate, socket) = manager.serve_both();
    let (codes, _) = manager.restart(gate, count("MPSGATE_TEST_KILLS", 5), |bench, gate| {
        let pid = rustix::process::Pid::from_raw(gate.try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        bench.status_of(gate);
    });
    let known = [SERVERS_WORD, WITHOUT_MPS, CONNECTION_FAILED];
    assert!(codes.keys().all(|code| known.contains(code)), "{codes:?}");
    assert_eq!(manager.socket(), socket);
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
}

/// How often, where a variable does not say it.
/// What a gate does from its start to a hand-over. A death at each passing of each of them: the
/// next gate serves who was not accepted, nobody that is attached ends, and the socket stays. Only
/// between a connection's acceptance and its hello a client goes on without MPS.
const CALLS: [&str; 5] = ["accept4", "sendto", "recvmsg", "sendmsg", "connect"];
const MORE_CALLS: [&str; 12] = [
    "openat",
    "read",
    "close",
    "socket",
    "fcntl",
    "getsockopt",
    "recvfrom",
    "epoll_ctl",
    "epoll_pwait",
    "write",
    "newfstatat",
    "getdents64",
];

fn a_death_at_any_call_is_a_restart(kind: Kind, version: u32) {
    need!(strace());
    let stage = need!(Stage::new(kind, version));
    end(&stage.bench, stage.gate);
    let mut manager = Manager::new(&stage);
    let (gate, socket) = manager.serve_both();
    let mut attached = stage.client(MINE, &[]);
    assert_eq!(first_word(&mut attached), SERVERS_WORD);
    end(&stage.bench, gate);
    let all = std::env::var_os("MPSGATE_TEST_CALLS").is_some();
    let more = MORE_CALLS.iter().filter(|_| all);
    let mut died: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for call in CALLS.iter().chain(more) {
        for n in 1.. {
            let gate = manager.start_to_die(call, n);
            let mut client = stage.client(MINE, &[]);
            let code = std::thread::spawn(move || said(&mut client));
            wait_for("a death, or a client that is served", || {
                code.is_finished() || has_ended(gate)
            });
            if code.is_finished() && !has_ended(gate) {
                let code = code.join().unwrap();
                if code == SERVERS_WORD {
                    // It is not called that often.
                    end(&stage.bench, gate);
                    break;
                }
                // Its end was seen by the client first.
                died.entry(code).or_default().push(format!("{call} {n}"));
                wait_for("the gate's death", || has_ended(gate));
                stage.bench.status_of(gate);
                continue;
            }
            let next = manager.start();
            let code = code.join().unwrap();
            end(&stage.bench, next);
            stage.bench.status_of(gate);
            died.entry(code).or_default().push(format!("{call} {n}"));
        }
    }
    let deaths: usize = died.values().map(Vec::len).sum();
    eprintln!("{deaths} deaths: {died:?}");
    assert!(deaths >= 2 * CALLS.len(), "{died:?}");
    let known = [SERVERS_WORD, WITHOUT_MPS, CONNECTION_FAILED];
    assert!(died.keys().all(|code| known.contains(code)), "{died:?}");
    let without = died.remove(&WITHOUT_MPS).unwrap_or_default();
    assert!(without.iter().all(|at| at.starts_with("accept4") || at.starts_with("sendto")));
    assert!(attached.try_wait().unwrap().is_none(), "an attached client ended");
    attached.kill().unwrap();
    attached.wait().unwrap();
    assert_eq!(manager.socket(), socket);
    manager.start();
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
}

fn strace() -> Result<(), &'static str> {
    let found = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    found.map(drop).map_err(|_| "needs strace")
}

/// Whether a program of the bench is gone, and nobody has asked for its status.
fn has_ended(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
}

fn count(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Capabilities of the running gate: two, and none that could come back.
fn holds_two_capabilities(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    let status = fs::read_to_string(format!("/proc/{}/status", stage.gate)).unwrap();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned()).unwrap_or_default()
    };
    // CAP_SETGID is 6 and CAP_SETUID 7.
    for name in ["CapPrm:", "CapEff:", "CapBnd:"] {
        assert_eq!(u64::from_str_radix(&of(name), 16).unwrap(), 1 << 6 | 1 << 7, "{name}");
    }
    for name in ["CapInh:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&of(name), 16).unwrap(), 0, "{name}");
    }
    assert_eq!(of("NoNewPrivs:"), "1");
    assert_eq!(of("Seccomp:"), "2", "a filter of system calls");
    drop(stage.bench);
}

/// Which gate serves a card is known by its lock; a second one does not begin.
fn serves_a_card_alone(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    let gate = stage.card.gate().unwrap().unwrap();
    assert_eq!(u32::try_from(gate.pid()).unwrap(), stage.gate);
    let other = start_again(&stage.bench);
    assert_eq!(stage.bench.status_of(other), Some(2));
    assert!(stage.card.dirs().is_open_door(DoorKind::Process, MINE));
    end(&stage.bench, stage.gate);
    assert!(stage.card.gate().unwrap().is_none());
}

/// Without a capability that it needs it would fail at each client of another uid.
fn does_not_begin_without_its_capabilities(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    end(&stage.bench, stage.gate);
    for capability in ["setuid", "setgid"] {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", &format!("-{capability}"), "--"]);
        command.arg(stage.bench.dir.path().join("mpsgate-gate")).args(["--card", "0", "--mps"]);
        command.arg(stage.bench.dir.path().join("mps"));
        let run = command.output().unwrap();
        let said = String::from_utf8_lossy(&run.stderr).into_owned();
        assert_eq!(run.status.code(), Some(2), "{said}");
        let named = format!("the capability CAP_{} is missing", capability.to_uppercase());
        assert!(said.contains(&named), "{said}");
    }
}

/// Clients wait for a control daemon that is stopped, and are served when it goes on; those of a
/// dead one wait for the next, whose directory comes with mpsgated's next answer.
fn a_daemon_that_hangs_or_dies_is_waited_for(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    stage.tell(MINE, 0, Some(own_cgroup()));
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
    let signal = |signal| stage.daemon.process.signal(signal).unwrap();
    signal(Signal::STOP);
    let mut waiting = stage.client(MINE, &[]);
    // Longer than the gate waits for one answer.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(waiting.try_wait().unwrap().is_none());
    signal(Signal::CONT);
    assert_eq!(said(&mut waiting), SERVERS_WORD);

    signal(Signal::KILL);
    stage.card.servers_alive().iter().for_each(|server| server.signal(Signal::KILL).unwrap());
    let mut waiting = stage.client(MINE, &[]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.try_wait().unwrap().is_none());
    wait_for("servers are gone", || stage.card.servers_alive().is_empty());
    let limit = Duration::from_secs(10);
    stage.card.ensure_running(&stage.bench.spawner(), limit).unwrap();
    stage.mpsgated.hands_out(stage.card.pipe().unwrap().unwrap());
    assert_eq!(said(&mut waiting), SERVERS_WORD);
}

/// mpsgated is asked for each client, by its container, and nobody is handed over before it says
/// so: clients wait while it is away, cannot prepare, says nothing, or nonsense.
fn nobody_is_handed_over_unprepared(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    stage.tell(MINE, 0, Some(own_cgroup()));
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
    let instance = Instance::parse(MINE).unwrap();
    let is_its = |asked: &Question| {
        let Question::Prepare { instance: of, client } = asked else { return false };
        *of == instance && client.is_some()
    };
    let asked = stage.mpsgated.asked();
    assert!(asked.len() == 1 && is_its(&asked[0]), "{asked:?}");
    let socket = stage.card.dirs().gate_socket();
    let away = socket.with_extension("away");
    let moods = [None, Some(LATER), Some(Mood::Silent), Some(Mood::Says(b"\"maybe\"\n"))];
    for mood in moods {
        match mood {
            Some(mood) => stage.mpsgated.is(mood),
            None => fs::rename(&socket, &away).unwrap(),
        }
        let seen = stage.seen().len();
        let mut waiting = stage.client(MINE, &[]);
        std::thread::sleep(Duration::from_millis(400));
        assert!(waiting.try_wait().unwrap().is_none(), "{mood:?}");
        assert_eq!(stage.seen().len(), seen, "{mood:?}: handed over");
        if mood.is_none() {
            fs::rename(&away, &socket).unwrap();
        }
        stage.mpsgated.is(READY);
        assert_eq!(said(&mut waiting), SERVERS_WORD, "{mood:?}");
        assert!(stage.mpsgated.asked().iter().all(is_its), "{mood:?}");
    }
}

/// A downgrade leaves the gate: the mpsgated of before prepares clients for it without their names,
/// and does not have to be told of each that it does not know what is said.
fn an_older_mpsgated_is_asked_as_it_understands(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    stage.tell(MINE, 0, Some(own_cgroup()));
    let named = || {
        let asked = stage.mpsgated.asked();
        asked.iter().map(|question| question.of_before().is_some()).collect::<Vec<_>>()
    };
    stage.mpsgated.is(Mood::Older);
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
    assert_eq!(named(), [true, false]);
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
    assert_eq!(named(), [false]);
    // What answers neither may be another one, which is told all.
    stage.mpsgated.is(Mood::Says(b"\"maybe\"\n"));
    let mut waiting = stage.client(MINE, &[]);
    std::thread::sleep(Duration::from_millis(400));
    stage.mpsgated.is(READY);
    assert_eq!(said(&mut waiting), SERVERS_WORD);
    let named = named();
    assert_eq!((named.first(), named.last()), (Some(&false), Some(&true)), "{named:?}");
}

/// What cuInit says to a client that was started before.
fn said(client: &mut std::process::Child) -> i32 {
    let code = first_word(client);
    drop(client.stdin.take());
    client.wait().unwrap();
    code
}

/// The same; the client stays.
fn first_word(client: &mut std::process::Child) -> i32 {
    let mut said = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut said).unwrap();
    said.trim().split_once(' ').unwrap_or_else(|| panic!("{said:?}")).1.parse().unwrap()
}

/// A link in the place of a container's directory leads nowhere, and hurts no other container.
fn a_directory_that_is_a_link_is_not_served(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    let elsewhere = stage.bench.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, stage.directory(OTHER)).unwrap();
    let container =
        Container { id: "c".into(), uid: 0, any_uid: false, debug: false, cgroup: None };
    let file = stage.card.dirs().door_file(OTHER);
    fs::write(&file, container.write().unwrap()).unwrap();
    stage.reserve(MINE);
    stage.tell(MINE, 0, Some(own_cgroup()));
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

/// Where it has no descriptors left it waits until it has, and no client goes on without MPS.
fn without_descriptors_clients_wait(kind: Kind, version: u32) {
    let stage = need!(Stage::new(kind, version));
    stage.reserve(MINE);
    stage.tell(MINE, 0, Some(own_cgroup()));
    let has = u64::try_from(descriptors(stage.gate)).unwrap();
    let limit = rustix::process::Rlimit { current: Some(has + 8), maximum: Some(has + 8) };
    let gate = rustix::process::Pid::from_raw(stage.gate.try_into().unwrap());
    rustix::process::prlimit(gate, rustix::process::Resource::Nofile, limit).unwrap();
    let held: Vec<OwnedFd> = (0..40).map(|_| dial(&stage.directory(MINE)).unwrap()).collect();
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD, "when those that say nothing are ended");
    drop(held);
    assert_eq!(stage.attach(MINE, &[]), SERVERS_WORD);
}

/// A control daemon that speaks otherwise is not served: clients wait, and none goes on without it.
#[test]
fn a_hello_of_another_length_is_not_passed_on() {
    /// How often it is asked for, and the gate's rest between two times.
    const TIMES: u32 = 5;
    const RETRY: Duration = Duration::from_millis(100);
    let stage = need!(Stage::new(Kind::Fake, 550));
    end(&stage.bench, stage.gate);
    let elsewhere = stage.bench.dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let control = elsewhere.join("control");
    stage.mpsgated.hands_out(fs::File::open(&elsewhere).unwrap().into());
    let other = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let other = other.unwrap();
    rustix::net::bind(&other, &SocketAddrUnix::new(&control).unwrap()).unwrap();
    rustix::net::listen(&other, 8).unwrap();
    let log = stage.bench.dir.path().join("gate.log");
    let mut command = Command::new(stage.bench.dir.path().join("mpsgate-gate"));
    command.args(["--card", "0", "--mps"]).arg(stage.bench.dir.path().join("mps"));
    command.env_clear().stderr(fs::File::create(&log).unwrap());
    stage.bench.keep(command);
    stage.reserve(MINE);
    let client = dial(&stage.directory(MINE)).unwrap();
    let asked = rustix::net::accept(&other).unwrap();
    send(&asked, b"ten bytes.", SendFlags::NOSIGNAL).unwrap();
    wait_for("the gate says it", || {
        fs::read_to_string(&log).unwrap().contains("its hello has 10 bytes, and 9 are known")
    });
    let why = "its hello has 10 bytes, and 9 are known".to_owned();
    wait_for("mpsgated is told", || {
        stage.mpsgated.asked().contains(&Question::Unserved { why: why.clone() })
    });
    let nothing = recv(&client, &mut [0_u8; 64], RecvFlags::DONTWAIT);
    assert_eq!(nothing.unwrap_err(), rustix::io::Errno::AGAIN, "no hello, and not closed");
    // It asks again, and rests between two questions.
    let began = Instant::now();
    for _ in 0..TIMES {
        let asked = rustix::net::accept(&other).unwrap();
        send(&asked, b"ten bytes.", SendFlags::NOSIGNAL).unwrap();
    }
    // One may have waited already.
    let rests = RETRY * (TIMES - 2);
    assert!(began.elapsed() >= rests, "{TIMES} times in {:?}", began.elapsed());
}

macro_rules! on_each {
    ($($name:ident)+) => {
        mod real_535 { $(#[test] fn $name() { super::$name(super::Kind::Real, 535); })+ }
        mod real_550 { $(#[test] fn $name() { super::$name(super::Kind::Real, 550); })+ }
        mod fake_550 { $(#[test] fn $name() { super::$name(super::Kind::Fake, 550); })+ }
    };
}

on_each! {
    attaches_through_its_door
    a_containers_door_is_bound_and_no_path_leads_to_it
    a_process_whose_first_thread_has_ended_is_served
    strangers_take_nothing_of_a_door
    a_client_waits_for_its_grant_and_no_other_container_is_served
    what_one_container_sends_hurts_no_other
    a_restart_is_a_wait
    a_death_is_a_restart
    a_death_at_any_call_is_a_restart
    holds_two_capabilities
    serves_a_card_alone
    does_not_begin_without_its_capabilities
    a_daemon_that_hangs_or_dies_is_waited_for
    a_directory_that_is_a_link_is_not_served
    without_descriptors_clients_wait
    nobody_is_handed_over_unprepared
    an_older_mpsgated_is_asked_as_it_understands
}
