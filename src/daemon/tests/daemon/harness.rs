//! A node of its own for each test: directories, simulated cards, control daemons, and the daemon
//! in a thread.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{env, fs};

use mpsgate_api::{
    Activate, ApiError, Call, CardState, CardStatus, Client, Engine, Release, Reply, Reserve,
    Status, WireRefusal,
};
use mpsgate_config::paths::GATE_ORDERS;
use mpsgate_config::{Config, Listen, Manage};
use mpsgate_daemon::{DaemonError, Files, Paths, serve};
use mpsgate_model::ledger::CgroupId;
use mpsgate_model::{ContainerId, GpuSelector, Grant, GrantKey, Instance, Mib, Priority, Request};
use mpsgate_mps::{HoldSpawner, MpsDirectories, MpsInstance};
/// In the place of a container's init.
pub(crate) use mpsgate_testing::Spawned as Container;
use mpsgate_testing::programs::{Holder, fake_mps_control, mpsgate_gate, mpsgated};
pub(crate) use mpsgate_testing::{LIMIT, need, root, wait_for};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::disk::Disk;
use crate::grants::Cgroup;

/// Those that [`Running::activate`] has made, by the socket of their node: they go with it.
static CGROUPS: Mutex<Vec<(PathBuf, Cgroup)>> = Mutex::new(Vec::new());

/// A node with simulated cards of 15 GiB to give.
pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) paths: Paths,
    pub(crate) config: Config,
    /// For how long kubelet is not told of a card that was never asked.
    pub(crate) qualify_first: Duration,
    /// Where it writes.
    pub(crate) disk: Disk,
    cards: u32,
    /// As mpsgated starts one where no systemd runs. Of the test's, so that it ends with it.
    holder: Mutex<Option<Holder>>,
}

/// The daemon of a node, in a thread. Dropping it is a crash: nothing is tidied up.
pub(crate) struct Running {
    pub(crate) socket: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), DaemonError>>>,
}

pub(crate) fn uuid(n: u32) -> String {
    format!("GPU-{n:08x}-0000-0000-0000-000000000000")
}

impl Node {
    /// All cards managed by the settings.
    pub(crate) fn new(cards: u32) -> Self {
        let dir = tempfile::Builder::new().prefix("mgd").tempdir().unwrap();
        let (gate, program) = (mpsgate_gate(), mpsgated());
        let paths = Paths { gate, program, ..Paths::below(dir.path()) };
        let state = json!({
            "driver_version": "550.163.01",
            "cuda_driver_version": "12.4",
            "cards": (0..cards).map(card).collect::<Vec<_>>(),
        });
        let library = fake_nvml::install(dir.path(), &state.to_string()).unwrap();
        let mut config = Config::default();
        config.nvml.library = library;
        config.gpus.manage = Manage::All;
        config.mps.control = control();
        config.mps.start_timeout_s = 10;
        // Tests run side by side.
        config.metrics.listen = Listen::Off;
        let holder = Mutex::default();
        let (disk, qualify_first) = (Disk::default(), Duration::ZERO);
        Self { dir, paths, config, cards, disk, qualify_first, holder }
    }

    /// No card managed yet.
    pub(crate) fn unmanaged(cards: u32) -> Self {
        let mut node = Self::new(cards);
        node.config.gpus.manage = Manage::Uuids(Vec::new());
        node
    }

    /// Changes what NVML shows.
    pub(crate) fn nvml(&self, edit: impl FnOnce(&mut Value)) {
        let path = self.dir.path().join("nvml.json");
        let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut state);
        let next = path.with_extension("next");
        fs::write(&next, state.to_string()).unwrap();
        fs::rename(next, path).unwrap();
    }

    pub(crate) fn compute_mode(&self, card: usize) -> String {
        let state: Value =
            serde_json::from_slice(&fs::read(self.dir.path().join("nvml.json")).unwrap()).unwrap();
        state["cards"][card]["compute_mode"].as_str().unwrap().to_owned()
    }

    /// Starts the daemon and waits until every managed card has been tried.
    pub(crate) fn start(&self) -> Running {
        self.settled(self.start_unready())
    }

    /// The same, with a settings file that a reload reads; what it says now is in `config`, too.
    pub(crate) fn start_with(&self, settings: &Path) -> Running {
        let _ = fs::remove_file(self.paths.socket());
        self.settled(self.listening(self.run(Some(settings.to_owned()))))
    }

    fn settled(&self, running: Running) -> Running {
        wait_for("all cards are tried", || {
            let status = running.status();
            status.nvml_error.as_deref().is_none_or(|e| !e.contains("not answered yet"))
                && status.cards.iter().all(|card| card.state != CardState::Starting)
        });
        running
    }

    /// Starts the daemon and waits until it listens.
    pub(crate) fn start_unready(&self) -> Running {
        // A socket of a previous instance must not be taken for this one's.
        let _ = fs::remove_file(self.paths.socket());
        self.listening(self.try_start())
    }

    fn listening(&self, running: Running) -> Running {
        wait_for("the daemon listens", || {
            assert!(!running.has_ended(), "the daemon ended: {:?}", running.socket);
            Client::connect(&running.socket).is_ok()
        });
        running
    }

    pub(crate) fn try_start(&self) -> Running {
        self.run(None)
    }

    fn run(&self, settings: Option<PathBuf>) -> Running {
        init_log();
        self.hold();
        let (paths, config, disk) = (self.paths.clone(), self.config.clone(), self.disk.clone());
        let files = Files::start(move |kind| disk.pass(kind)).unwrap();
        let qualify_first = self.qualify_first;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let result =
                runtime.block_on(serve(paths, files, config, settings, qualify_first, async {
                    let _ = stopped.await;
                    "test"
                }));
            runtime.shutdown_timeout(LIMIT);
            result
        });
        Running { socket: self.paths.socket(), stop: Some(stop), thread: Some(thread) }
    }

    /// Starts the node's holder, where there is none yet.
    fn hold(&self) {
        let mut holder = self.holder.lock().unwrap();
        if holder.is_none() {
            let (control, gate) = (&self.config.mps.control, &self.paths.gate);
            *holder =
                Some(Holder::start(&self.paths.hold(), &self.paths.mps(), control, Some(gate)));
        }
    }

    /// Asks the node's holder.
    pub(crate) fn spawner(&self) -> HoldSpawner {
        HoldSpawner::new(self.paths.hold(), self.paths.mps().join(GATE_ORDERS))
    }

    /// A card's control daemon, looked at from outside.
    pub(crate) fn mps(&self, card: u32) -> MpsInstance {
        let dirs = MpsDirectories::new(&self.paths.mps(), card).unwrap();
        MpsInstance::new(card, uuid(card), &self.config.mps.control, dirs)
            .with_holder(self.paths.hold())
    }

    /// The directory of a card's control daemon, as root sees it: the daemon's own.
    pub(crate) fn pipe(&self, card: u32) -> PathBuf {
        let pid = self.control_pid(card).unwrap();
        let path = self.mps(card).dirs().pipe_dir();
        PathBuf::from(format!("/proc/{pid}/root{}", path.display()))
    }

    pub(crate) fn control_pid(&self, card: u32) -> Option<i32> {
        // One that is just ending is nobody's.
        self.mps(card).find_running().ok().flatten().map(|daemon| daemon.process.pid())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for card in 0..self.cards {
            let _ = self.mps(card).stop(&self.spawner(), Duration::ZERO);
        }
        // One that mpsgated has started itself outlives it.
        let (hold, ours) =
            (self.paths.hold(), self.holder.lock().unwrap().as_ref().map(Holder::pid));
        for pid in mpsgate_host::process::all().into_iter().filter(|pid| Some(*pid) != ours) {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split(|byte| *byte == 0);
            if words.any(|word| word == hold.as_os_str().as_bytes()) {
                let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap());
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            }
        }
        let socket = self.paths.socket();
        let mut cgroups = CGROUPS.lock().unwrap();
        cgroups.retain(|(its, _)| *its != socket);
    }
}

fn card(n: u32) -> Value {
    json!({
        "uuid": uuid(n), "index": n, "minor": n, "name": "Tesla T4",
        "memory_total_mib": 16384, "memory_used_mib": 0, "compute_capability": "7.5",
        "mig": "unsupported", "compute_mode": "DEFAULT",
        "pci_bus_id": format!("00000000:{n:02X}:00.0"), "processes": [],
    })
}

impl Running {
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it as SIGTERM does.
    pub(crate) fn stop(mut self) -> Result<(), DaemonError> {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits for its own end.
    pub(crate) fn ended(mut self) -> Result<(), DaemonError> {
        self.thread.take().unwrap().join().unwrap()
    }

    pub(crate) fn try_call(&self, call: Call) -> Result<Reply, ApiError> {
        Client::connect(&self.socket)?.call(call, None, LIMIT)
    }

    pub(crate) fn call(&self, call: Call) -> Reply {
        self.try_call(call).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        match self.call(Call::Status) {
            Reply::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn card(&self, n: usize) -> CardStatus {
        self.status().cards.swap_remove(n)
    }

    pub(crate) fn state(&self, n: usize) -> String {
        self.card(n).state.to_string()
    }

    pub(crate) fn reserve(&self, call: Reserve) -> Result<Grant, WireRefusal> {
        match self.call(Call::Reserve(call)) {
            Reply::Reserved { grant, .. } => Ok(*grant),
            Reply::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn done(&self, call: Call) -> Result<String, WireRefusal> {
        match self.call(call) {
            Reply::Done { text } => Ok(text),
            Reply::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    /// Puts a process into a cgroup of its own, which goes with the node.
    pub(crate) fn own_cgroup(&self, pid: u32) -> CgroupId {
        let own = Cgroup::new(&format!("init-{pid}")).unwrap();
        own.add_pid(pid);
        let id = own.id();
        CGROUPS.lock().unwrap().push((self.socket.clone(), own));
        id
    }

    /// As the hook does, with a pidfd. `cgroup`: one that the test looks at; else init gets one, as
    /// every container has.
    pub(crate) fn activate(
        &self,
        grant: &Grant,
        init: &Container,
        cgroup: Option<CgroupId>,
    ) -> Result<String, WireRefusal> {
        let cgroup = cgroup.or_else(|| Some(self.own_cgroup(init.pid())));
        let call = Activate {
            key: grant.key.clone(),
            pid: init.pid(),
            cgroup,
            grant: Some(Box::new(grant.clone())),
        };
        self.activate_with(call, init.pid())
    }

    /// With a pidfd of `pid`, whatever the call says.
    pub(crate) fn activate_with(&self, call: Activate, pid: u32) -> Result<String, WireRefusal> {
        use std::os::fd::AsFd;
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let client = Client::connect(&self.socket).unwrap();
        match client.call::<Status>(Call::Activate(call), Some(fd.as_fd()), LIMIT).unwrap() {
            Reply::Done { text } => Ok(text),
            Reply::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn release(&self, key: &GrantKey) -> String {
        self.done(Call::Release(Release { key: key.clone() })).unwrap()
    }

    pub(crate) fn granted_mib(&self) -> u64 {
        self.status().cards.iter().map(|card| card.granted_mib).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn key(container: &str, instance: u8) -> GrantKey {
    // Nobody else's: a door is named by it.
    let mut bytes = [instance; 16];
    bytes.iter_mut().skip(1).zip(container.bytes()).for_each(|(byte, of)| *byte = of);
    GrantKey {
        runtime_root: "/run/runc".to_owned(),
        container_id: ContainerId::parse(container).unwrap(),
        instance: Instance::from_bytes(bytes),
    }
}

/// A request of a local engine for `gib` GiB as the user of this test: for another one, only root's
/// control daemon starts a server.
pub(crate) fn request(container: &str, gib: u64) -> Reserve {
    Reserve {
        key: key(container, 1),
        request: Request {
            memory: Some(Mib(gib * 1024)),
            cards: std::num::NonZeroU32::MIN,
            gpu: None,
            compute: None,
            priority: Priority::Normal,
            uid: None,
            token: None,
        },
        uid: rustix::process::geteuid().as_raw(),
        engine: Engine::Local,
        pod: None,
        for_parent: false,
        user: None,
    }
}

pub(crate) fn on_card(mut call: Reserve, index: u32) -> Reserve {
    call.request.gpu = Some(GpuSelector::Index(index));
    call
}

/// Fails where `MPSGATE_TEST_DAEMON_CONTROL` names the control program: a real one has no server
/// here.
pub(crate) fn servers() -> Result<(), &'static str> {
    let fake = env::var_os("MPSGATE_TEST_DAEMON_CONTROL").is_none();
    fake.then_some(()).ok_or("needs the fake control program: a real one has no server here")
}

/// The fake control program, or the one that `MPSGATE_TEST_DAEMON_CONTROL` names: the real one
/// passes what needs no server.
pub(crate) fn control() -> PathBuf {
    env::var_os("MPSGATE_TEST_DAEMON_CONTROL").map_or_else(fake_mps_control, PathBuf::from)
}

/// `MPSGATE_TEST_LOG=1` shows the daemon's lines.
fn init_log() {
    if env::var_os("MPSGATE_TEST_LOG").is_some() {
        // A test of this process has installed it already.
        let _ = mpsgate_edge::logging::to_stderr(mpsgate_config::LogLevel::Debug);
    }
}

/// Files below a directory, for "nothing is left".
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// A uid that a server can be started for: any as root, else our own.
pub(crate) fn server_uid() -> u32 {
    let own = rustix::process::geteuid().as_raw();
    if own == 0 { 65_534 } else { own }
}
