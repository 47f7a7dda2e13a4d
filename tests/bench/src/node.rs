//! A node with eight simulated cards, the real daemon, and what the measurements ask of them.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mpsgate_api::{Call, CardState, Client, Reply, Status};
use mpsgate_config::paths;
use mpsgate_model::ledger::CgroupId;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::measure::Program;
use crate::{Failure, Workplace, fixture};

/// Cards of the node.
pub(crate) const CARDS: usize = 8;
/// MiB of each, of which 15 GiB can be granted.
const CARD_MIB: u64 = 16384;
/// For what must come.
const LIMIT: Duration = Duration::from_secs(60);

/// Memory of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// With what it shares: the C library, the driver's.
    pub(crate) resident_kib: u64,
    /// What is its alone.
    pub(crate) private_kib: u64,
}

/// The daemon; it ends with this value. Its control daemons end with the sandbox.
pub(crate) struct Node {
    daemon: Child,
}

/// Writes the settings and what the simulated NVML shows: so many cards, all managed.
pub(crate) fn prepare(at: &Workplace, count: usize) -> Result<(), Failure> {
    let control = at.products.join("fakes/nvidia-cuda-mps-control");
    prepare_with(at, count, &control)
}

fn prepare_with(at: &Workplace, count: usize, control: &Path) -> Result<(), Failure> {
    let nvml = at.scratch.join("nvml");
    std::fs::create_dir_all(&nvml)?;
    let library = nvml.join("libnvidia-ml.so.1");
    std::fs::copy(at.products.join("fakes/libnvidia-ml.so.1"), &library)?;
    write_cards(at, &cards(count, &[]))?;
    let mut settings = String::new();
    writeln!(settings, "[runtime]\npath = {:?}", at.runtime())?;
    writeln!(settings, "[gpus]\nmanage = \"all\"")?;
    writeln!(settings, "[inject]\nmode = \"devices\"")?;
    // 60 clients a card, as CUDA 13.1 has, or 400 grants would not fit on eight cards.
    writeln!(settings, "[mps]\nmax_clients = 60\ncontrol = {control:?}")?;
    writeln!(settings, "[nvml]\nlibrary = {library:?}")?;
    Ok(std::fs::write(paths::CONFIG_FILE, settings)?)
}

/// The daemon, to be started; it writes its log to a file.
pub(crate) fn command(at: &Workplace) -> Result<Command, Failure> {
    let output = File::create(log(at))?;
    let mut daemon = Command::new(at.products.join("mpsgated"));
    daemon.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    Ok(daemon)
}

fn log(at: &Workplace) -> PathBuf {
    at.scratch.join("mpsgated.log")
}

impl Node {
    /// Starts the daemon with eight cards, until all are ready.
    pub(crate) fn start(at: &Workplace) -> Result<Self, Failure> {
        prepare(at, CARDS)?;
        Self::run(at, CARDS)
    }

    /// The same with one card, whose control daemon is NVIDIA's where `MG_MPS_CONTROL` names it.
    pub(crate) fn start_gated(at: &Workplace) -> Result<Self, Failure> {
        let control = at.program("nvidia-cuda-mps-control");
        let fakes = at.products.join("fakes");
        let real = std::env::var_os("MG_MPS_CONTROL").filter(|path| !path.is_empty());
        std::fs::copy(
            real.map_or_else(|| fakes.join("nvidia-cuda-mps-control"), Into::into),
            &control,
        )?;
        let server = "nvidia-cuda-mps-server";
        std::fs::copy(fakes.join(server), at.program(server))?;
        end_control_daemons()?;
        prepare_with(at, 1, &control)?;
        Self::run(at, 1)
    }

    fn run(at: &Workplace, cards: usize) -> Result<Self, Failure> {
        let daemon = command(at)?.spawn()?;
        let mut node = Self { daemon };
        let ready = wait_for("all cards to be ready", || {
            if let Some(status) = node.daemon.try_wait()? {
                return Err(format!("mpsgated ended with {status}").into());
            }
            let Ok(status) = status() else { return Ok(false) };
            Ok(status.cards.iter().filter(|card| card.state == CardState::Ready).count() == cards)
        });
        ready.map_err(|error| {
            let log = std::fs::read_to_string(log(at)).unwrap_or_default();
            format!("{error}; mpsgated's log:\n{log}")
        })?;
        Ok(node)
    }

    /// What the daemon holds of memory.
    pub(crate) fn memory(&self) -> Result<Memory, Failure> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.daemon.id()))?;
        let kib = |name: &str| -> Result<u64, Failure> {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line.and_then(|line| line.split_whitespace().next());
            Ok(kib.ok_or_else(|| format!("no {name} in smaps_rollup"))?.parse()?)
        };
        Ok(Memory {
            resident_kib: kib("Rss")?,
            private_kib: kib("Private_Clean")? + kib("Private_Dirty")?,
        })
    }

    /// CPU time of the daemon, with the threads that have ended.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        let clock = clock_getcpuclockid(Pid::from_raw(self.daemon.id().try_into()?))?;
        Ok(clock_gettime(clock)?.into())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A process on a card, as the simulated NVML tells it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuProcess {
    pub(crate) card: usize,
    pub(crate) pid: u32,
    pub(crate) used_mib: u64,
}

/// From now on NVML lists these processes and no others.
pub(crate) fn list_processes(at: &Workplace, processes: &[GpuProcess]) -> Result<(), Failure> {
    write_cards(at, &cards(CARDS, processes))
}

/// The library reads the file at each call.
fn write_cards(at: &Workplace, cards: &Value) -> Result<(), Failure> {
    let file = at.scratch.join("nvml/nvml.json");
    let next = file.with_extension("next");
    std::fs::write(&next, cards.to_string())?;
    Ok(std::fs::rename(next, file)?)
}

fn cards(count: usize, processes: &[GpuProcess]) -> Value {
    let card = |index: usize| {
        let listed: Vec<_> = processes
            .iter()
            .filter(|process| process.card == index)
            .map(|process| json!({"pid": process.pid, "used_mib": process.used_mib, "kind": "mps"}))
            .collect();
        json!({
            "uuid": format!("GPU-00000000-0000-4000-8000-{index:012}"),
            "index": index, "minor": index, "name": "Simulated", "memory_total_mib": CARD_MIB,
            "memory_used_mib": 0, "compute_capability": "7.5", "mig": "unsupported",
            "compute_mode": "DEFAULT", "pci_bus_id": format!("00000000:{:02X}:00.0", 0x3A + index),
            "processes": listed
        })
    };
    json!({
        "driver_version": "550.163.01", "cuda_driver_version": "12.4",
        "cards": (0..count).map(card).collect::<Vec<_>>()
    })
}

/// Asks the daemon.
pub(crate) fn ask(call: Call) -> Result<Reply, Failure> {
    let client = Client::connect(Path::new(paths::SOCKET))?;
    match client.call(call, None, LIMIT)? {
        Reply::Refused(refusal) => Err(format!("{} [{}]", refusal.sentence, refusal.code).into()),
        reply => Ok(reply),
    }
}

/// What the daemon knows.
pub(crate) fn status() -> Result<Status, Failure> {
    match ask(Call::Status)? {
        Reply::Status(status) => Ok(*status),
        reply => Err(format!("not a status: {reply:?}").into()),
    }
}

/// Waits until `is_so`.
pub(crate) fn wait_for(
    what: &str,
    is_so: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    mpsgate_testing::try_wait_for(what, Duration::from_micros(200), is_so)
}

/// Ends what is left of a node before: a control daemon of another program is not adopted.
fn end_control_daemons() -> Result<(), Failure> {
    wait_for("the control daemons of before to end", || {
        let mut is_left = false;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // The kernel keeps 15 letters of a name.
            let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if name.trim_end() == "nvidia-cuda-mps" {
                is_left = true;
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        Ok(!is_left)
    })
}

/// Until reservations and grants other than `standing` ones are gone.
pub(crate) fn wait_until_left(standing: usize) -> Result<(), Failure> {
    wait_for("the daemon to see the memory free", || Ok(status()?.grants.len() == standing))
}

/// A bundle that holds nothing but a `config.json`, which can be put back.
pub(crate) struct Bundle {
    pub(crate) directory: PathBuf,
    text: String,
}

impl Bundle {
    pub(crate) fn new(at: &Workplace, name: &str, spec: &Value) -> Result<Self, Failure> {
        let directory = at.scratch.join(name);
        std::fs::create_dir_all(&directory)?;
        let bundle = Self { directory, text: spec.to_string() };
        bundle.restore()?;
        Ok(bundle)
    }

    fn file(&self) -> PathBuf {
        self.directory.join("config.json")
    }

    pub(crate) fn restore(&self) -> Result<(), Failure> {
        Ok(std::fs::write(self.file(), &self.text)?)
    }

    pub(crate) fn is_untouched(&self) -> Result<bool, Failure> {
        Ok(std::fs::read(self.file())? == self.text.as_bytes())
    }

    /// Whether a grant was applied.
    pub(crate) fn is_granted(&self) -> Result<bool, Failure> {
        Ok(std::fs::read_to_string(self.file())?.contains("CUDA_MPS_PIPE_DIRECTORY="))
    }

    /// What stands in it now.
    pub(crate) fn now(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(&std::fs::read(self.file())?)?)
    }
}

/// A process that is killed with this value.
pub(crate) struct Held(pub(crate) Pid);

impl Held {
    /// Starts a program that the stand-in runtime ends up in, and waits until it has.
    pub(crate) fn start(at: &Workplace, program: &Program) -> Result<Self, Failure> {
        let held = Self(program.clone().with_env("MPSGATE_BENCH_HOLD=1").spawn()?);
        let runtime = at.runtime();
        wait_for("the stand-in runtime", || {
            Ok(std::fs::read_link(format!("/proc/{}/exe", held.0))? == runtime)
        })?;
        Ok(held)
    }

    /// Puts it into a cgroup of its own, as a container's init is. The sandbox removes that.
    pub(crate) fn in_cgroup(&self, name: &str) -> Result<CgroupId, Failure> {
        // v1's own hierarchy of devices, else v2's only one.
        let devices = Path::new("/sys/fs/cgroup/devices");
        let root = if devices.is_dir() { devices } else { Path::new("/sys/fs/cgroup") };
        let own = std::env::var("MG_CGROUP")?;
        let directory = root.join(own.trim_start_matches('/')).join(name);
        std::fs::create_dir_all(&directory)?;
        std::fs::write(directory.join("cgroup.procs"), self.0.to_string())?;
        let path = directory.to_str().ok_or("a path that is no text")?.to_owned();
        Ok(CgroupId { path, inode: directory.metadata()?.ino() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
        let _ = waitpid(self.0, None);
    }
}

/// A container that has a reservation: the shim has run, and its runtime is still at work.
pub(crate) struct Reserved {
    _holder: Held,
    /// Arguments of the hook that the shim has added.
    pub(crate) hook_args: Vec<String>,
}

impl Reserved {
    pub(crate) fn new(at: &Workplace, bundle: &Bundle, id: &str) -> Result<Self, Failure> {
        bundle.restore()?;
        let holder = Held::start(at, &at.create(bundle, id))?;
        let spec = bundle.now()?;
        let args = spec["hooks"]["createRuntime"]
            .as_array()
            .and_then(|hooks| hooks.iter().find(|hook| hook["path"] == paths::HOOK))
            .and_then(|hook| hook["args"].as_array())
            .ok_or("the shim has added no hook")?;
        let hook_args = args.iter().skip(1).filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(Self { _holder: holder, hook_args })
    }

    /// The value of one of the hook's arguments.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        self.hook_args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='))
    }
}

/// A container made by the real runc, for its cgroup, whose device rules the hook tries; and the
/// mount namespace of one, whose mounts it looks at.
pub(crate) struct Container {
    root: PathBuf,
    mounts: Held,
    /// The directory that controls its devices.
    pub(crate) cgroup: PathBuf,
}

const CONTAINER: &str = "bench";
/// As runc leaves it when it calls the hook: the node's mounts and as many of the container's as
/// its spec has.
const MOUNTS: &str = r#"for _ in $(seq "$1"); do mount -t tmpfs none /mnt; done; exec "$0" init"#;

impl Container {
    /// Makes it; it may open the node of `minor` of NVIDIA's major and the shared nodes.
    pub(crate) fn create(at: &Workplace, minor: u32) -> Result<Self, Failure> {
        let (root, bundle) = (at.scratch.join("runc"), at.scratch.join("container"));
        let rootfs = bundle.join("rootfs");
        std::fs::create_dir_all(rootfs.join("proc"))?;
        std::fs::copy(at.runtime(), rootfs.join("init"))?;
        let mut rules = fixture::with_request()["linux"]["resources"]["devices"].clone();
        if let Some(rules) = rules.as_array_mut() {
            for minor in [Some(minor), Some(255)] {
                rules.push(json!({"allow": true, "type": "c", "major": 195, "minor": minor, "access": "rw"}));
            }
            let uvm: u32 = std::env::var("MG_UVM_MAJOR")?.parse()?;
            rules.push(json!({"allow": true, "type": "c", "major": uvm, "access": "rw"}));
        }
        let spec = json!({
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": ["/init"], "env": [], "cwd": "/"},
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {
                "namespaces": [{"type": "pid"}, {"type": "mount"}],
                "readonlyPaths": ["/proc/bus", "/proc/sys"],
                "cgroupsPath": format!("{}/bench", std::env::var("MG_CGROUP")?),
                "resources": {"devices": rules}
            }
        });
        std::fs::write(bundle.join("config.json"), spec.to_string())?;
        let log = File::create(at.scratch.join("runc.log"))?;
        let made = Command::new("runc")
            .arg("--root")
            .arg(&root)
            .args(["create", "--bundle"])
            .arg(&bundle)
            .arg(CONTAINER)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .status()?;
        if !made.success() {
            let log = std::fs::read_to_string(at.scratch.join("runc.log"))?;
            return Err(format!("runc create: {made}: {log}").into());
        }
        let (count, runtime) = (fixture::MOUNTS.to_string(), at.runtime());
        let runtime = runtime.to_str().ok_or("a path that is no text")?;
        let in_a_namespace = ["--mount", "/bin/sh", "-c", MOUNTS, runtime, &count];
        let mounts = Held::start(at, &Program::new(Path::new("/usr/bin/unshare"), in_a_namespace))?;
        let mut container = Self { root, mounts, cgroup: PathBuf::new() };
        let state: Value = serde_json::from_slice(
            &Command::new("runc")
                .arg("--root")
                .arg(&container.root)
                .args(["state", CONTAINER])
                .output()?
                .stdout,
        )?;
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", state["pid"]))?;
        // v1's own hierarchy of devices, else v2's only one: `hierarchy:controllers:path`.
        let line =
            |prefix: &str| text.lines().find_map(|l| Some(l.split_once(prefix)?.1.to_owned()));
        container.cgroup = match line(":devices:") {
            Some(path) => Path::new("/sys/fs/cgroup/devices").join(path.trim_start_matches('/')),
            None => {
                let path = line("0::").ok_or("the container has no cgroup")?;
                Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/'))
            }
        };
        // Its own init would keep the cgroup in use, and with it every grant. The rules stay.
        let init = Pid::from_raw(state["pid"].as_i64().unwrap_or_default().try_into()?);
        kill(init, Signal::SIGKILL)?;
        wait_for("the container's init to end", || {
            Ok(std::fs::read_to_string(container.cgroup.join("cgroup.procs"))?.is_empty())
        })?;
        Ok(container)
    }

    /// A process in its cgroup, among its mounts and in a PID namespace of its own, in place of a
    /// container's init.
    pub(crate) fn init(&self, at: &Workplace) -> Result<Held, Failure> {
        let (of, runtime) = (format!("--mount=/proc/{}/ns/mnt", self.mounts.0), at.runtime());
        let runtime = runtime.to_str().ok_or("a path that is no text")?;
        let enter = Program::new(Path::new("/usr/bin/nsenter"), [&of, runtime, "init"]);
        let own = File::open("/proc/self/ns/pid")?;
        // Only what starts next is in the new one.
        unshare(CloneFlags::CLONE_NEWPID)?;
        let started = Held::start(at, &enter);
        setns(own, CloneFlags::CLONE_NEWPID)?;
        let init = started?;
        std::fs::write(self.cgroup.join("cgroup.procs"), init.0.to_string())?;
        Ok(init)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let delete = ["delete", "--force", CONTAINER];
        let _ = Command::new("runc").arg("--root").arg(&self.root).args(delete).status();
    }
}
