//! Every check sees a healthy node, and a node with one thing broken.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use mpsgate_api::{
    ApiServerStatus, CardState, CardStatus, ClaimsStatus, ControlState, FILES_FORMAT, GateStatus,
    MpsStatus, NodeSnapshot, ResourceStatus, Status,
};
use mpsgate_config::{Config, Manage};
use mpsgate_gpu::{Card, MigState};
use mpsgate_model::{ComputeMode, GpuUuid, NodeCard, QUESTIONS, Qualification, Subject};
use mpsgate_mps::{Capabilities, MpsState, WedgeCause};
use mpsgate_policy::schedule::Word;
use mpsgate_testing::{ODD, assert_printable, odd};

use super::checks::{self, CHECKS, Finding, Outcome};
use super::facts::*;
use super::report;

const UUID: &str = "GPU-00000000-0000-0000-0000-000000000000";
const OTHER: &str = "GPU-11111111-1111-1111-1111-111111111111";
const IPC: u64 = 4_026_531_839;

fn trouble<T>(what: &str) -> Known<T> {
    Err(Trouble { what: what.to_owned(), hint: None })
}

fn card() -> Card {
    Card {
        uuid: UUID.to_owned(),
        index: 0,
        minor: 0,
        name: "Tesla T4".to_owned(),
        memory_total_mib: 16384,
        memory_used_mib: 0,
        compute_capability: (7, 5),
        mig: MigState::Unsupported,
        compute_mode: ComputeMode::ExclusiveProcess,
        pci_bus_id: "00000000:3B:00.0".to_owned(),
    }
}

fn status() -> Status {
    Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        simulated: false,
        driver: Some("550.163.01".to_owned()),
        nvml_error: None,
        kubelet: false,
        cards: vec![CardStatus {
            uuid: UUID.to_owned(),
            index: 0,
            minor: 0,
            name: "Tesla T4".to_owned(),
            managed: true,
            total_mib: 16384,
            memory_mib: 15360,
            granted_mib: 0,
            promised_mib: 0,
            free_mib: 15360,
            used_mib: Some(0),
            compute_mode: ComputeMode::ExclusiveProcess.into(),
            clients: 0,
            max_clients: 48,
            state: CardState::Ready.into(),
            hint: None,
            mps: Some(mps()),
            memory: None,
            unwatched: None,
            unlimited: None,
            gate: None,
            qualification: Some(Qualification::new(
                Subject {
                    card: GpuUuid::parse(UUID).unwrap(),
                    driver: "550.163.01".to_owned(),
                    control: String::new(),
                    questions: QUESTIONS,
                    simulated: false,
                },
                Vec::new(),
            )),
            failures: Vec::new(),
            qualify: None,
        }],
        grants: Vec::new(),
        refusals: BTreeMap::new(),
        notes: BTreeMap::new(),
        clients_terminated: 0,
        kills_unprepared: 0,
        actions: Vec::new(),
        metrics_listen: Some("127.0.0.1:19400".to_owned()),
        metrics_error: None,
        device_plugin: Vec::new(),
        claims: None,
        slurm: None,
        api_server: None,
        schedule: Word::Mps.into(),
        overrides: Vec::new(),
        schedule_wanted: None,
        schedule_waits_for: Vec::new(),
    }
}

fn mps() -> MpsStatus {
    MpsStatus {
        state: ControlState::Running.into(),
        pid: Some(7),
        default_limit_mib: Some(1024),
        servers: Vec::new(),
    }
}

fn followed(problem: Option<&str>, events_dropped: u64) -> ApiServerStatus {
    ApiServerStatus {
        node: "gpu-1".to_owned(),
        pods: 2,
        problem: problem.map(ToOwned::to_owned),
        hint: problem.map(|_| "look there".to_owned()),
        events_dropped,
        left_out: Vec::new(),
    }
}

/// As with a kubelet before 1.27.
fn unread() -> ResourceStatus {
    ResourceStatus {
        resource: "aliyun.com/gpu-mem".to_owned(),
        registered_ms: None,
        devices: 0,
        healthy: 0,
        allocations: 0,
        problem: Some("kubelet's request was refused as malformed HTTP/2".to_owned()),
        hint: Some("upgrade kubelet to 1.27 or newer".to_owned()),
    }
}

/// As with a kubelet whose feature gate is off.
fn unclaimed() -> ClaimsStatus {
    ClaimsStatus {
        registered_ms: None,
        prepared: 0,
        problem: Some("kubelet does not ask who serves claims".to_owned()),
        hint: Some("journalctl -u kubelet -n 50".to_owned()),
    }
}

fn snapshot() -> NodeSnapshot {
    NodeSnapshot {
        format: FILES_FORMAT,
        ipc_inode: IPC,
        shm: Some((1, 2)),
        shared_memory: String::new(),
        kubelet: false,
        cards: vec![NodeCard {
            uuid: GpuUuid::parse(UUID).unwrap(),
            index: 0,
            minor: 0,
            managed: true,
        }],
        majors: BTreeMap::new(),
        swarm_resources: Vec::new(),
        annotation_prefixes: Vec::new(),
        other_nodes: Vec::new(),
        device_plugin: false,
        share: false,
    }
}

fn program(path: &str) -> Program {
    let file = ProgramFile { uid: 0, mode: 0o755, linking: Linking::Static };
    Program { path: path.into(), file: Ok(Some(file)) }
}

fn healthy() -> Facts {
    Facts {
        euid: 0,
        config: Ok(Settings { config: Config::default(), file: None }),
        nvml: Ok(NvmlFacts {
            driver: Ok("550.163.01".to_owned()),
            simulated: false,
            cards: Ok(vec![Ok(card())]),
            limits: true,
        }),
        majors: Ok([("nvidia".to_owned(), 195), ("nvidia-uvm".to_owned(), 507)].into()),
        nodes: [
            ("/dev/nvidiactl".to_owned(), DeviceFile::Char { major: 195, minor: 255 }),
            ("/dev/nvidia0".to_owned(), DeviceFile::Char { major: 195, minor: 0 }),
            ("/dev/nvidia-uvm".to_owned(), DeviceFile::Char { major: 507, minor: 0 }),
        ]
        .into(),
        control: program("/usr/bin/nvidia-cuda-mps-control"),
        capabilities: Some(Ok(Capabilities { multiuser: false, server_status: true })),
        runtime: RuntimeFacts {
            name: "runc".into(),
            path: Some("/usr/sbin/runc".into()),
            version: Some(Ok("runc version 1.1.5".to_owned())),
        },
        own_programs: vec![program("/usr/bin/mpsgate-runtime"), program("/usr/bin/mpsgate-hook")],
        daemon: Ok(status()),
        ledger: Ok(Some(0)),
        enabled: Ok([UUID.to_owned()].into()),
        snapshot: Ok(Some(snapshot())),
        runtime_link: Ok(Some("/usr/sbin/runc".into())),
        cgroup: Cgroup::V2,
        dmem: true,
        pidfd: Ok(()),
        kernel: Ok("6.1.0-28-amd64".to_owned()),
        ipc_inode: Ok(IPC),
        mps_states: Ok([(0, Ok(MpsState::Running { pid: 7, servers: Vec::new() }))].into()),
        leases: Ok(vec![Ok(LeaseFacts { uuid: UUID.to_owned(), previous: "DEFAULT" })]),
        sockets: vec![PathBuf::from("/run/mpsgate/mpsgated.sock")],
        open_files: vec![OpenFiles {
            process: "mpsgated (pid 7)".to_owned(),
            hard: Ok(Some(16384)),
        }],
        default_mps: false,
        module: Ok(Some("550.163.01".to_owned())),
        mps_version: None,
        engines: vec![engine("docker", &["default runtime mpsgate: through mpsgate"], &[])],
        doubts: BTreeSet::new(),
        cpu_manager: Ok(Some("none".to_owned())),
        security: Security { selinux: None, apparmor: true, client_types: BTreeMap::new() },
        clock: Clock { now: 1_800_000_000, newest: Some(("/l".into(), 1_800_000_030)) },
        tokens: Ok(vec![KeyFile { path: "/t".into(), uid: 0, mode: 0o700, allowed: 0o700 }]),
    }
}

fn engine(name: &'static str, through: &[&str], round: &[&str]) -> EngineFacts {
    let sentences = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
    let ways = Ways { through: sentences(through), round: sentences(round), stale: None };
    EngineFacts { name, version: None, in_use: true, ways: Ok(ways) }
}

fn selinux(facts: &mut Facts, label: Option<&str>) {
    let client = PathBuf::from("/run/mpsgate/mps/0/containers");
    facts.security.selinux = Some(true);
    facts.security.client_types = [(client, label.map(str::to_owned))].into();
}

fn with_cards(facts: &mut Facts, cards: Vec<Known<Card>>) {
    facts.nvml.as_mut().unwrap().cards = Ok(cards);
}

fn with_card(facts: &mut Facts, change: impl FnOnce(&mut Card)) {
    let mut card = card();
    change(&mut card);
    with_cards(facts, vec![Ok(card)]);
}

fn file(facts: &mut Facts) -> &mut ProgramFile {
    let hook = facts.own_programs.get_mut(1).unwrap();
    hook.file.as_mut().unwrap().as_mut().unwrap()
}

fn state(facts: &mut Facts, state: MpsState) {
    facts.mps_states = Ok([(3, Ok(state))].into());
}

/// Name of the check, what is broken, and what the finding then says: result, evidence, hint.
type Broken = (&'static str, fn(&mut Facts), Outcome, &'static str, &'static str);

const FAIL: Outcome = Outcome::Fail;
const WARN: Outcome = Outcome::Warn;

#[rustfmt::skip]
const BROKEN: &[Broken] = &[
    ("root", |f| f.euid = 1000, WARN, "uid 1000", "sudo mpsgate doctor"),
    ("config", |f| f.config = Err(Trouble { what: "/etc/mpsgate/config.toml:3: unknown key `gpu`".into(), hint: Some("known here: gpus".into()) }), FAIL, "unknown key `gpu`", "known here: gpus"),
    ("kernel", |f| f.kernel = Ok("3.10.0-1160.el7".into()), WARN, "3.10.0-1160.el7, older", "4.18"),
    ("kernel", |f| f.kernel = Ok("unknown".into()), WARN, "no version", "uname -r"),
    ("kernel", |f| f.kernel = trouble("/proc is missing"), FAIL, "missing", "mount -t proc"),
    ("pidfd", |f| f.pidfd = trouble("pidfd_open: ENOSYS"), WARN, "ENOSYS: the end", "5.3"),
    ("cgroup", |f| f.cgroup = Cgroup::Hybrid, WARN, "hybrid", "systemd.unified_cgroup_hierarchy=1"),
    ("cgroup", |f| f.cgroup = Cgroup::V1, WARN, "v1", "systemd.unified_cgroup_hierarchy=1"),
    ("cgroup", |f| f.cgroup = Cgroup::None, FAIL, "/sys/fs/cgroup", "mount -t cgroup2"),
    ("nvml", |f| f.nvml = trouble("cannot load the NVML library"), FAIL, "cannot load", "nvidia-smi"),
    ("nvml", |f| f.nvml.as_mut().unwrap().driver = trouble("driver gone"), FAIL, "driver gone", "nvidia-smi"),
    ("nvml", |f| f.nvml.as_mut().unwrap().simulated = true, WARN, "SIMULATED", "nvml.library"),
    ("card", |f| with_card(f, |c| c.compute_capability = (6, 1)), FAIL, "needs 7.0 (Volta) or newer, and is managed", "gpus.manage"),
    ("card", |f| with_card(f, |c| c.mig = MigState::Enabled), FAIL, "is in MIG mode", "-mig 0"),
    ("card", |f| with_cards(f, vec![Ok(card()), Ok(Card { uuid: OTHER.into(), compute_capability: (6, 0), ..card() })]), WARN, "; not managed", "gpus.manage"),
    ("card", |f| with_cards(f, vec![Ok(card()), trouble("cannot open card 1")]), FAIL, "cannot open card 1", "nvidia-smi -L"),
    ("card", |f| with_cards(f, Vec::new()), FAIL, "no card", "nvidia-smi -L"),
    ("card", |f| with_card(f, |c| c.uuid = OTHER.into()), FAIL, "is managed, but NVML does not find it", "mpsgate disable GPU-00000000"),
    ("card", |f| f.nvml.as_mut().unwrap().cards = trouble("cannot count the cards"), FAIL, "cannot count", "nvidia-smi -L"),
    ("clock", |f| f.clock.now = 86_400, WARN, "86400 s since 1970", "timedatectl"),
    ("clock", |f| f.clock.newest = Some(("/run/l".into(), 1_800_000_100)), WARN, "/run/l was written 100 s from now", "chronyc makestep"),
    ("security-module", |f| selinux(f, Some("var_run_t")), WARN, "containers has the type var_run_t", "docs/selinux.md"),
    ("security-module", |f| selinux(f, None), WARN, "type unknown", "restorecon"),
    ("driver", |f| f.module = Ok(None), FAIL, "not loaded", "modprobe nvidia"),
    ("driver", |f| f.module = trouble("names no version"), FAIL, "names no version", "NVIDIA driver"),
    ("driver", |f| f.module = Ok(Some("535.1".into())), FAIL, "module is 535.1, the library 550.163.01", "reboot"),
    ("engine", |f| f.engines = vec![engine("docker", &[], &["default runtime runc: bypasses mpsgate"])], FAIL, "bypasses mpsgate", "mpsgate configure docker"),
    ("engine", |f| f.engines = vec![EngineFacts { in_use: false, ..engine("podman", &["x"], &["y bypasses mpsgate"]) }], WARN, "y bypasses mpsgate", "mpsgate configure podman"),
    ("engine", |f| f.engines = vec![engine("crio", &[], &[])], FAIL, "nothing in it leads", "mpsgate configure crio"),
    ("engine", |f| f.engines.get_mut(0).unwrap().ways = trouble("/etc/docker/daemon.json: not JSON"), FAIL, "not JSON", "mpsgate configure docker --check"),
    ("engine", |f| f.engines.get_mut(0).unwrap().ways.as_mut().unwrap().stale = Some(9), FAIL, "pid 9", "systemctl restart docker"),
    ("engine", |f| f.doubts = ["pid 9 runs /srv/dockerd, and is not taken for an engine".to_owned()].into(), WARN, "pid 9 runs /srv/dockerd", "chmod go-w"),
    ("engine", |f| { f.engines.clear(); f.doubts = ["whether crio runs is not known".to_owned()].into(); }, WARN, "whether crio runs", "sudo mpsgate doctor"),
    ("kubelet", |f| f.cpu_manager = Ok(Some("static".into())), WARN, "policy static", "cpuManagerPolicy: none"),
    ("kubelet", |f| f.cpu_manager = trouble("names no policy"), FAIL, "names no policy", "journalctl -u kubelet"),
    ("tokens", |f| f.tokens.as_mut().unwrap().get_mut(0).unwrap().mode = 0o750, FAIL, "/t (uid 0, mode 0750)", "chmod 700 /t"),
    ("tokens", |f| f.tokens.as_mut().unwrap().get_mut(0).unwrap().uid = 7, FAIL, "uid 7", "chown root: /t"),
    ("tokens", |f| f.tokens = trouble("denied"), FAIL, "denied", "journalctl"),
    ("memory-limits", |f| f.cgroup = Cgroup::Hybrid, WARN, "only for those of v2", "systemd.unified_cgroup_hierarchy=1"),
    ("device-nodes", |f| { f.nodes.remove("/dev/nvidia0"); }, FAIL, "/dev/nvidia0 is missing", "nvidia-modprobe"),
    ("device-nodes", |f| { f.nodes.insert("/dev/nvidiactl".into(), DeviceFile::Other); }, FAIL, "/dev/nvidiactl is no character device", "nvidia-modprobe"),
    ("device-nodes", |f| { f.nodes.insert("/dev/nvidia-uvm".into(), DeviceFile::Char { major: 500, minor: 0 }); }, FAIL, "/dev/nvidia-uvm is 500:0, not 507:0", "nvidia-modprobe"),
    ("device-nodes", |f| f.majors = Ok(BTreeMap::new()), FAIL, "no major for nvidia, /proc/devices has no major for nvidia-uvm", "nvidia-modprobe"),
    ("device-nodes", |f| f.majors = trouble("no /proc"), FAIL, "no /proc", "mount -t proc"),
    ("runtime", |f| f.runtime.path = None, FAIL, "no program \"runc\"", "runtime.path"),
    ("runtime", |f| f.runtime.version = Some(trouble("runc --version failed")), FAIL, "failed", "--version"),
    ("programs", |f| f.own_programs.get_mut(0).unwrap().file = Ok(None), FAIL, "/usr/bin/mpsgate-runtime is missing", "reinstall"),
    ("programs", |f| f.own_programs.get_mut(0).unwrap().file = trouble("not a regular file"), FAIL, "not a regular", "reinstall"),
    ("programs", |f| file(f).uid = 1000, FAIL, "mpsgate-hook belongs to uid 1000", "chown root: /usr/bin/mpsgate-hook"),
    ("programs", |f| file(f).mode = 0o775, FAIL, "mode 0775", "chmod 755"),
    ("programs", |f| file(f).mode = 0o644, FAIL, "cannot be run", "chmod 755"),
    ("programs", |f| file(f).linking = Linking::Dynamic, WARN, "dynamically", "static"),
    ("programs", |f| file(f).linking = Linking::NotElf64, FAIL, "no 64-bit ELF", "reinstall"),
    ("daemon", |f| f.daemon = trouble("mpsgated is not running"), FAIL, "not running", "journalctl -u mpsgated"),
    ("daemon", |f| f.daemon.as_mut().unwrap().version = "0.0.9".into(), WARN, "version 0.0.9", "systemctl restart mpsgated"),
    ("daemon", |f| f.daemon.as_mut().unwrap().nvml_error = Some("driver gone".into()), FAIL, "driver gone", "check nvml"),
    ("metrics", |f| f.daemon.as_mut().unwrap().metrics_error = Some("Address already in use".into()), WARN, "not served at 127.0.0.1:19400: Address already in use", "ss -ltnp 'sport = :19400'"),
    ("device-plugin", |f| f.daemon.as_mut().unwrap().device_plugin = vec![unread()], WARN, "malformed HTTP/2", "upgrade kubelet to 1.27"),
    ("device-plugin", |f| f.daemon.as_mut().unwrap().kubelet = true, WARN, "nothing is served to it", "journalctl"),
    ("claims", |f| f.daemon.as_mut().unwrap().claims = Some(unclaimed()), WARN, "kubelet does not ask", "journalctl -u kubelet"),
    ("slurm", |f| f.daemon.as_mut().unwrap().slurm = Some(vec!["Slurm has 20 shards".into()]), WARN, "Slurm has 20 shards", "gres.conf"),
    ("api-server", |f| f.daemon.as_mut().unwrap().api_server = Some(followed(Some("connection refused"), 0)), WARN, "connection refused", "look there"),
    ("api-server", |f| f.daemon.as_mut().unwrap().api_server = Some(followed(None, 3)), WARN, "2 pods are known; 3 events were not written", "journalctl"),
    ("api-server", |f| f.daemon.as_mut().unwrap().api_server = Some(ApiServerStatus { left_out: vec!["Pod n/p: x".to_owned()], ..followed(None, 0) }), WARN, "2 pods are known; 1 cannot be read as a whole: Pod n/p: x", "kubectl get"),
    ("socket-paths", |f| f.sockets.push(format!("/{}", "x".repeat(107)).into()), FAIL, "has 108 bytes, a socket's path at most 107", "shorter"),
    ("ledger", |f| f.ledger = trouble("ledger.json is no ledger"), FAIL, "no ledger", "journalctl"),
    ("enabled", |f| f.enabled = trouble("managed.json is no list"), FAIL, "no list", "journalctl"),
    ("snapshot", |f| f.snapshot = Ok(None), FAIL, "written none", "systemctl restart mpsgated"),
    ("snapshot", |f| { f.snapshot = Ok(None); f.daemon = trouble("down"); }, WARN, "every card for managed", "systemctl start mpsgated"),
    ("snapshot", |f| f.snapshot = trouble("node.json is no node snapshot"), FAIL, "no node snapshot", "systemctl restart mpsgated"),
    ("snapshot", |f| f.daemon.as_mut().unwrap().cards.clear(), FAIL, "differs from mpsgated says", "systemctl restart mpsgated"),
    ("snapshot", |f| { f.daemon = trouble("down"); with_card(f, |c| c.minor = 4); }, FAIL, "differs from NVML says", "systemctl restart mpsgated"),
    ("runtime-link", |f| f.runtime_link = Ok(None), FAIL, "made none", "systemctl restart mpsgated"),
    ("runtime-link", |f| { f.runtime_link = Ok(None); f.daemon = trouble("down"); }, WARN, "for every verb", "systemctl start mpsgated"),
    ("runtime-link", |f| f.runtime_link = Ok(Some("/usr/bin/crun".into())), FAIL, "leads to /usr/bin/crun, the configuration says /usr/sbin/runc", "systemctl restart mpsgated"),
    ("runtime-link", |f| f.runtime_link = trouble("is no link"), FAIL, "is no link", "systemctl restart mpsgated"),
    ("ipc", |f| f.ipc_inode = Ok(1), FAIL, "here ipc:[1], the MPS servers are in ipc:[4026531839]", "PrivateIPC="),
    ("ipc", |f| f.ipc_inode = trouble("no /proc"), FAIL, "no /proc", "mount -t proc"),
    ("open-files", |f| f.open_files.get_mut(0).unwrap().hard = Ok(Some(4096)), FAIL, "hard limit 4096", "LimitNOFILE=16384"),
    ("open-files", |f| f.open_files.get_mut(0).unwrap().hard = trouble("denied"), FAIL, "denied", "sudo"),
    ("mps-control", |f| f.control.file = Ok(None), FAIL, "is missing", "nvidia-cuda-mps"),
    ("mps-control", |f| f.control.file = trouble("denied"), FAIL, "denied", "mps.control"),
    ("mps-control", |f| f.control.file.as_mut().unwrap().as_mut().unwrap().mode = 0o644, FAIL, "mode 0644", "chmod 755"),
    ("mps-control", |f| f.control.file.as_mut().unwrap().as_mut().unwrap().uid = 7, FAIL, "uid 7", "reinstall"),
    ("mps-control", |f| f.capabilities = Some(trouble("ended at once")), FAIL, "ended at once", "nvidia-cuda-mps"),
    ("mps-state", |f| state(f, MpsState::Dead { orphans: Vec::new() }), FAIL, "no control daemon runs", "mpsgate-mps@3"),
    ("mps-state", |f| state(f, MpsState::Dead { orphans: vec![9] }), FAIL, "[9] still hold the card", "mpsgate status"),
    ("mps-state", |f| state(f, MpsState::Wedged { pid: 7, cause: WedgeCause::Stopped }), FAIL, "somebody stopped it", "kill -CONT 7"),
    ("mps-state", |f| state(f, MpsState::Wedged { pid: 7, cause: WedgeCause::ServerStopped { server: 9 } }), FAIL, "somebody stopped its server, pid 9", "kill -CONT 9"),
    ("mps-state", |f| state(f, MpsState::Wedged { pid: 7, cause: WedgeCause::LogBlocked }), FAIL, "log is full", "systemctl restart mpsgated"),
    ("mps-state", |f| state(f, MpsState::Wedged { pid: 7, cause: WedgeCause::Unknown }), FAIL, "does not answer", "/proc/7/stack"),
    ("mps-state", |f| state(f, MpsState::Fault { pid: 7, servers: Vec::new() }), FAIL, "fatal GPU error", "Xid"),
    ("mps-state", |f| f.mps_states = Ok(BTreeMap::new()), FAIL, "1 cards are managed, 0 have", "systemctl restart mpsgated"),
    ("mps-state", |f| f.mps_states = trouble("denied"), FAIL, "denied", "journalctl"),
    ("mps-state", |f| *f.mps_states.as_mut().unwrap().get_mut(&0).unwrap() = trouble("locked by pid 8"), FAIL, "locked by pid 8", "journalctl"),
    ("mps-gate", |f| f.daemon.as_mut().unwrap().cards.get_mut(0).unwrap().gate = Some(GateStatus { ended: [("uid".to_owned(), 2)].into(), ..GateStatus::default() }), WARN, "clients handed over 0, waiting 0, ended: uid 2", "journalctl -u mpsgate-gate@"),
    ("qualified", |f| f.daemon.as_mut().unwrap().cards.get_mut(0).unwrap().failures = vec!["The memory limit does not hold on this card: a client with 1024 MiB got 4096".to_owned()], FAIL, "got 4096", "mpsgate qualify 0"),
    ("qualified", |f| f.daemon.as_mut().unwrap().cards.get_mut(0).unwrap().qualify = Some("it was never asked".to_owned()), WARN, "not proven: it was never asked", "mpsgate qualify 0"),
    ("compute-mode", |f| with_card(f, |c| c.compute_mode = ComputeMode::Default), FAIL, "DEFAULT: a process that bypasses MPS", "systemctl restart mpsgated"),
    ("lease", |f| f.leases = Ok(vec![Ok(LeaseFacts { uuid: OTHER.into(), previous: "DEFAULT" })]), WARN, "not given back its mode DEFAULT", "nvidia-smi -i GPU-11111111-1111-1111-1111-111111111111 -c DEFAULT"),
    ("lease", |f| f.leases = Ok(vec![trouble("the lease cannot be read")]), FAIL, "cannot be read", "journalctl"),
    ("lease", |f| f.leases = trouble("denied"), FAIL, "denied", "journalctl"),
    ("default-mps", |f| f.default_mps = true, WARN, "/tmp/nvidia-mps exists", "rm -r /tmp/nvidia-mps"),
];

fn is_red(finding: &Finding) -> bool {
    matches!(finding.result, Outcome::Warn | Outcome::Fail)
}

#[test]
fn a_healthy_node_has_nothing_to_do() {
    let findings = checks::all(&healthy());
    for finding in &findings {
        assert_eq!((finding.result, &finding.hint), (Outcome::Ok, &None), "{finding:?}");
    }
    assert_eq!(
        CHECKS.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        {
            let mut names: Vec<_> = findings.iter().map(|f| f.name).collect();
            names.dedup();
            names
        },
        "each check finds something"
    );
}

#[test]
fn each_check_turns_red_for_what_it_is_about() {
    for (name, break_it, result, evidence, hint) in BROKEN {
        let mut facts = healthy();
        break_it(&mut facts);
        let findings = checks::all(&facts);
        let red: Vec<_> = findings.iter().filter(|f| f.name == *name && is_red(f)).collect();
        let [finding] = red.as_slice() else { panic!("{name}, {evidence}: {red:#?}") };
        assert_eq!(finding.result, *result, "{finding:?}");
        assert!(finding.evidence.contains(evidence), "{evidence}: {finding:?}");
        let found = finding.hint.as_deref().unwrap_or_default();
        assert!(found.contains(hint), "{hint}: {finding:?}");
    }
}

#[test]
fn what_the_driver_needs_of_shared_memory_is_told_beside_the_namespace() {
    for (seen, told) in [
        ("unknown", "as the MPS servers"),
        ("anonymous", "need neither it nor the host's /dev/shm"),
        ("named", "look for what the MPS server has in /dev/shm"),
        ("required", "without the host's /dev/shm do not attach"),
    ] {
        let mut facts = healthy();
        seen.clone_into(&mut facts.snapshot.as_mut().unwrap().as_mut().unwrap().shared_memory);
        let findings = checks::all(&facts);
        let ipc = findings.iter().find(|finding| finding.name == "ipc").unwrap();
        assert_eq!(ipc.result, Outcome::Ok, "{ipc:?}");
        assert!(ipc.evidence.contains(told), "{ipc:?}");
    }
}

#[test]
fn a_program_that_was_built_without_musl_is_named_and_is_no_failure() {
    let mut facts = healthy();
    file(&mut facts).linking = Linking::StaticGlibc;
    let findings = checks::all(&facts);
    assert!(!findings.iter().any(is_red), "{findings:#?}");
    let told: Vec<_> =
        findings.iter().filter(|f| f.evidence.contains("static with glibc")).collect();
    assert_eq!(told.len(), 1, "{findings:#?}");
}

#[test]
fn an_mpsgated_that_tells_nothing_of_answers_is_not_taken_for_one_that_has_them() {
    let mut facts = healthy();
    facts.daemon.as_mut().unwrap().cards.get_mut(0).unwrap().qualification = None;
    let findings = checks::all(&facts);
    let qualified = findings.iter().find(|finding| finding.name == "qualified").unwrap();
    assert_eq!(qualified.result, Outcome::Skip, "{qualified:?}");
}

#[test]
fn no_check_is_without_a_broken_node() {
    for (name, _) in CHECKS {
        assert!(BROKEN.iter().any(|(broken, ..)| broken == name), "{name}");
    }
}

#[test]
fn whoever_finds_something_says_what_to_do() {
    for (_, break_it, ..) in BROKEN {
        let mut facts = healthy();
        break_it(&mut facts);
        for finding in checks::all(&facts) {
            assert_eq!(is_red(&finding), finding.hint.is_some(), "{finding:?}");
        }
    }
}

#[test]
fn nothing_is_managed_after_installation_and_that_is_no_failure() {
    let mut facts = healthy();
    facts.daemon.as_mut().unwrap().cards.get_mut(0).unwrap().managed = false;
    facts.snapshot.as_mut().unwrap().as_mut().unwrap().cards.get_mut(0).unwrap().managed = false;
    facts.mps_states = Ok(BTreeMap::new());
    facts.leases = Ok(Vec::new());
    with_card(&mut facts, |c| c.compute_mode = ComputeMode::Default);
    let findings = checks::all(&facts);
    assert!(!findings.iter().any(is_red), "{findings:#?}");
    assert!(findings.iter().any(|f| f.evidence == "no card is managed: mpsgate enable GPU"));
}

#[test]
fn a_containerd_that_only_docker_uses_is_not_evaluated_and_no_engine_at_all_is_said() {
    let found = |engines| {
        let mut facts = healthy();
        facts.engines = engines;
        checks::all(&facts).into_iter().find(|f| f.name == "engine").unwrap()
    };
    let unused =
        EngineFacts { in_use: false, ..engine("containerd", &[], &["runc bypasses mpsgate"]) };
    assert_eq!(found(vec![unused]).result, Outcome::Skip);
    assert_eq!(found(Vec::new()).result, Outcome::Skip);
}

#[test]
fn selinux_is_no_finding_where_the_directories_have_their_type_or_it_only_reports() {
    let mut facts = healthy();
    selinux(&mut facts, Some("container_file_t"));
    assert!(!checks::all(&facts).iter().any(is_red));
    selinux(&mut facts, Some("var_run_t"));
    facts.security.selinux = Some(false);
    assert!(!checks::all(&facts).iter().any(is_red));
}

#[test]
fn who_manages_is_asked_of_the_daemon_then_the_snapshot_then_the_settings() {
    let mut facts = healthy();
    facts.daemon.as_mut().unwrap().cards.clear();
    assert!(facts.managed().is_empty());
    facts.daemon = trouble("down");
    assert_eq!(facts.managed(), [UUID.to_owned()].into());
    facts.snapshot = Ok(None);
    assert_eq!(facts.managed(), [UUID.to_owned()].into());
    facts.enabled = Ok(BTreeSet::new());
    assert!(facts.managed().is_empty());
    facts.config.as_mut().unwrap().config.gpus.manage = Manage::Uuids(vec![OTHER.to_owned()]);
    assert_eq!(facts.managed(), [OTHER.to_owned()].into());
    facts.config.as_mut().unwrap().config.gpus.manage = Manage::All;
    assert_eq!(facts.managed(), [UUID.to_owned()].into());
}

#[test]
fn a_driver_without_memory_limits_is_no_finding_and_who_counts_them_is_said() {
    let said = |limits, dmem| {
        let mut facts = healthy();
        facts.nvml.as_mut().unwrap().limits = limits;
        facts.dmem = dmem;
        let found = checks::all(&facts).into_iter().find(|f| f.name == "memory-limits").unwrap();
        assert_eq!(found.result, Outcome::Ok);
        found.evidence
    };
    assert!(said(false, true).starts_with("none for cgroups by this driver"));
    assert!(said(true, true).contains("(dmem)"));
    assert!(said(true, false).contains("the driver counts them itself"));
}

#[test]
fn the_text_says_simulated_first_and_counts_at_the_end() {
    let mut facts = healthy();
    facts.nvml.as_mut().unwrap().simulated = true;
    let text = report::render_text(&checks::all(&facts), true, false);
    assert!(text.starts_with("SIMULATED: no GPU"), "{text}");
    assert!(text.ends_with(" ok, 1 warn, 0 fail, 2 skip\n"), "{text}");
    assert!(!text.contains('\x1b'));
    assert!(report::render_text(&checks::all(&facts), true, true).contains("\x1b[33mwarn\x1b[0m"));
}

#[test]
fn what_others_wrote_is_escaped_in_the_document() {
    let mut findings = checks::all(&healthy());
    let finding = findings.first_mut().unwrap();
    finding.subject = Some(ODD.to_owned());
    finding.evidence = odd(1 << 20);
    finding.hint = Some(ODD.to_owned());
    let text = report::render_json(&findings, false).unwrap();
    assert_printable(&text);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["checks"][0]["subject"], ODD);
    assert_eq!(value["checks"][0]["evidence"], odd(1 << 20));
}

#[test]
fn the_document_has_a_schema_and_every_finding() {
    let mut facts = healthy();
    facts.default_mps = true;
    let findings = checks::all(&facts);
    let text = report::render_json(&findings, false).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["schema"], 1);
    assert_eq!(value["checks"].as_array().unwrap().len(), findings.len());
    let last = value["checks"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["name"], &last["result"]), (&"default-mps".into(), &"warn".into()));
    assert!(last["hint"].as_str().unwrap().contains("rm -r"));
}
