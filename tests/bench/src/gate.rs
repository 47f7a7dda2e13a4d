//! What the gate adds to an attach: the first words of a CUDA client through a container's door, in
//! turns with the same words at the control daemon's own socket. The control daemon is NVIDIA's
//! where `tests/bench/run` finds it; the server is the tests' own.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mpsgate_api::{Activate, Call, Engine, Reply, Reserve};
use mpsgate_config::paths;
use mpsgate_model::ledger::CgroupId;
use mpsgate_model::{ContainerId, GpuSelector, Grant, GrantKey, Instance, Mib, Priority, Request};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, connect, recv,
    recvmsg, send, sendmsg, socket_with,
};
use rustix::process::{getgid, getpid, getuid};

use crate::node::{Node, ask, status, wait_for};
use crate::{Failure, Workplace};

/// Attaches of a round: each connects twice, and the gate lets 256 connections come at once.
const ROUND: usize = 100;
/// One for so many of the bench's runs.
const RUNS_TO_ROUND: usize = 200;
/// For the gate to let as many come again.
const PAUSE: Duration = Duration::from_millis(1300);
/// What one server takes.
const CLIENTS: usize = 60;
/// A pair of attaches that find the limit of another container's in force, for so many.
const RUNS_TO_PAIR: usize = 20;
/// What the gate may add, in the middle.
const BUDGET: Duration = Duration::from_millis(1);
/// The same where the server's limit has to be set.
const LIMITED_BUDGET: Duration = Duration::from_millis(40);
/// What the gate may hold with [`CLIENTS`] clients.
const RESIDENT_KIB: u64 = 4096;
const WORD: i32 = 2;

/// What came of it.
pub(crate) struct Figures {
    direct: Vec<Duration>,
    gated: Vec<Duration>,
    limited: Vec<Duration>,
    resident_kib: u64,
}

impl Figures {
    pub(crate) fn print(&self) -> bool {
        let percentile =
            |times: &[Duration], of: usize| times[(times.len() * of / 100).min(times.len() - 1)];
        let us = |times: &[Duration]| [50, 90, 99].map(|of| percentile(times, of).as_micros());
        println!("\nan attach, {} times each in turns; µs at 50, 90 and 99 %\n", self.direct.len());
        println!("{:32} {:?}", "the control daemon's own socket", us(&self.direct));
        println!("{:32} {:?}", "a door", us(&self.gated));
        println!("{:32} {:?}", "a door, with a limit to set", us(&self.limited));
        let over =
            |times: &[Duration]| percentile(times, 50).saturating_sub(percentile(&self.direct, 50));
        let (added, limited) = (over(&self.gated), over(&self.limited));
        let sum: Duration = self.gated.iter().sum();
        let rate = self.gated.len() as u128 * 1_000_000 / sum.as_micros().max(1);
        println!("one after the other: {rate} a second");
        println!("added at 50 %: {} µs, budget {}", added.as_micros(), BUDGET.as_micros());
        println!(
            "with a limit to set: {} µs, budget {}",
            limited.as_micros(),
            LIMITED_BUDGET.as_micros()
        );
        println!(
            "resident with {CLIENTS} clients: {} KiB, budget {RESIDENT_KIB}",
            self.resident_kib
        );
        added <= BUDGET && limited <= LIMITED_BUDGET && self.resident_kib <= RESIDENT_KIB
    }
}

pub(crate) fn measure(at: &Workplace, runs: usize) -> Result<Figures, Failure> {
    let _node = Node::start_gated(at)?;
    let (other, other_grant) = granted(2)?;
    let (one, grant) = granted(1)?;
    let door = Path::new(&grant.client_dir).join("control");
    let other_door = Path::new(&other_grant.client_dir).join("control");
    let minor = grant.cards.first().ok_or("a grant without a card")?.minor;
    let card = Path::new(paths::MPS_DIR).join(minor.to_string());
    let status = status()?;
    let mps = status.cards.first().and_then(|card| card.mps.as_ref()?.pid);
    // Its directory is a mount that only its own mount namespace has.
    let private = format!("/proc/{}/root", mps.ok_or("no control daemon")?);
    let own = format!("{private}{}/pipe/control", card.display());
    let own = Path::new(&own);
    let (mut direct, mut gated, mut limited) = (Vec::new(), Vec::new(), Vec::new());
    eprintln!("measuring: attaches");
    for _ in 0..runs.div_ceil(RUNS_TO_ROUND) {
        for _ in 0..ROUND {
            direct.push(attach(own, true)?.0);
            gated.push(attach(&door, false)?.0);
        }
        std::thread::sleep(PAUSE);
    }
    eprintln!("measuring: attaches with a limit to set");
    for _ in 0..runs.div_ceil(RUNS_TO_PAIR) {
        for (cgroup, door) in [(&other, &other_door), (&one, &door)] {
            enter(cgroup)?;
            limited.push(attach(door, false)?.0);
        }
    }
    direct.sort_unstable();
    gated.sort_unstable();
    limited.sort_unstable();
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        held.push(attach(&door, false)?);
    }
    let resident_kib = resident(&gate_of(&card)?)?;
    Ok(Figures { direct, gated, limited, resident_kib })
}

fn enter(cgroup: &Path) -> std::io::Result<()> {
    std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string())
}

/// A grant of so many GiB of this process, which is in a cgroup of its own from then on.
fn granted(gib: u8) -> Result<(PathBuf, Grant), Failure> {
    let devices = Path::new("/sys/fs/cgroup/devices");
    let root = if devices.is_dir() { devices } else { Path::new("/sys/fs/cgroup") };
    let directory =
        root.join(std::env::var("MG_CGROUP")?.trim_start_matches('/')).join(format!("gate-{gib}"));
    std::fs::create_dir_all(&directory)?;
    enter(&directory)?;
    let key = GrantKey {
        runtime_root: "/run/bench".to_owned(),
        container_id: ContainerId::parse(&format!("gate-{gib}"))?,
        instance: Instance::from_bytes([gib; 16]),
    };
    let request = Request {
        memory: Some(Mib(u64::from(gib) * 1024)),
        cards: std::num::NonZeroU32::MIN,
        gpu: Some(GpuSelector::Index(0)),
        compute: None,
        priority: Priority::default(),
        uid: None,
        token: None,
    };
    let engine = Engine::Local;
    let call = Reserve { key, request, uid: 0, engine, pod: None, for_parent: false, user: None };
    let Reply::Reserved { grant, .. } = ask(Call::Reserve(call))? else {
        return Err("not a reservation".into());
    };
    let path = directory.to_str().ok_or("a path that is no text")?.to_owned();
    let cgroup = Some(CgroupId { path, inode: directory.metadata()?.ino() });
    let key = grant.key.clone();
    ask(Call::Activate(Activate { key, pid: std::process::id(), cgroup, grant: None }))?;
    Ok((directory, *grant))
}

/// As NVIDIA's client does: it connects to read the hello, and again to say who it is and what it
/// wants. Until it has its descriptor.
fn attach(path: &Path, acknowledge: bool) -> Result<(Duration, OwnedFd), Failure> {
    let start = Instant::now();
    drop(greeted(path)?);
    let client = greeted(path)?;
    let own = UCred { pid: getpid(), uid: getuid(), gid: getgid() };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut named = SendAncillaryBuffer::new(&mut space);
    named.push(SendAncillaryMessage::ScmCredentials(own));
    sendmsg(&client, &[IoSlice::new(b"OUTBCRED\0")], &mut named, SendFlags::empty())?;
    send(&client, &WORD.to_ne_bytes(), SendFlags::empty())?;
    let mut bytes = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1), ScmCredentials(1))];
    let mut given = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(&client, &mut [IoSliceMut::new(&mut bytes)], &mut given, flags)?;
    if !given.drain().any(|message| matches!(message, RecvAncillaryMessage::ScmRights(_))) {
        return Err("an answer without a descriptor".into());
    }
    if acknowledge {
        send(&client, &[0; 4], SendFlags::empty())?;
    }
    Ok((start.elapsed(), client))
}

fn greeted(path: &Path) -> Result<OwnedFd, Failure> {
    let kind = SocketType::SEQPACKET;
    let client = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    connect(&client, &SocketAddrUnix::new(path)?)?;
    match recv(&client, &mut [0_u8; 64], RecvFlags::empty())?.1 {
        9 => Ok(client),
        other => Err(format!("a hello of {other} bytes").into()),
    }
}

/// The directory in /proc of the card's gate.
fn gate_of(card: &Path) -> Result<String, Failure> {
    let number = card.file_name().and_then(|name| name.to_str()).ok_or("a card without a name")?;
    let mut found = None;
    wait_for("the gate", || {
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            let words: Vec<&str> = line.split('\0').collect();
            if words[0].ends_with("mpsgate-gate") && words.get(2) == Some(&number) {
                found = Some(entry.path().display().to_string());
            }
        }
        Ok(found.is_some())
    })?;
    found.ok_or_else(|| "no gate".into())
}

fn resident(process: &str) -> Result<u64, Failure> {
    let text = std::fs::read_to_string(format!("{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.and_then(|line| line.split_whitespace().next()).ok_or("no VmRSS")?.parse()?)
}
