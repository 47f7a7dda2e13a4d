//! The node against what should be there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use mpsgate_api::{GrantState, Status};
use mpsgate_config::paths;
use mpsgate_host::door_place::Kind;
use serde_json::Value;

use crate::churn::{Churn, Live};
use crate::container::{cgroup_of, is_alive};
use crate::daemon::status;
use crate::node::{GATE, MANAGED, uuid};
use crate::{Failure, Workplace};

/// How long the node may take to be as it should: what has ended is noticed, what expired is
/// written.
const LIMIT: Duration = Duration::from_secs(20);

/// What may not change while a node is hurt.
#[derive(Debug)]
pub(crate) struct Before {
    mounts: BTreeSet<String>,
    control: BTreeMap<String, u32>,
}

impl Before {
    pub(crate) fn take(at: &Workplace) -> Result<Self, Failure> {
        Ok(Self { mounts: mounts(at)?, control: control_pids()? })
    }

    /// The control daemons of the cards that the settings manage, now.
    pub(crate) fn renew_control(&mut self) -> Result<(), Failure> {
        self.control = control_pids()?;
        Ok(())
    }
}

/// Waits until the node is as it should be; else says what is not. Nobody else may be at work.
pub(crate) fn node(churn: &Churn, before: &Before, daemon: u32) -> Result<(), Failure> {
    let live = churn.live();
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut wrong = grants(&live)?;
        wrong.extend(processes(&churn.at, &live, daemon)?);
        wrong.extend(leftovers()?);
        wrong.extend(gates()?);
        for left in mounts(&churn.at)?.difference(&before.mounts) {
            wrong.push(format!("mount {left}"));
        }
        if wrong.is_empty() {
            break;
        }
        if Instant::now() > deadline {
            return Err(wrong.join("; ").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let control = control_pids()?;
    if control != before.control {
        return Err(format!("control daemons {control:?}, before {:?}", before.control).into());
    }
    Ok(())
}

/// Waits until the grants of runc's own containers are what lives, while an engine makes others.
pub(crate) fn runcs_grants(churn: &Churn) -> Result<(), Failure> {
    let live = churn.live();
    let wanted: BTreeMap<String, (u64, u32)> = granted(&live).collect();
    let deadline = Instant::now() + LIMIT;
    loop {
        let grants = status()?.grants;
        let ours = grants.iter().filter(|grant| grant.container_id.starts_with('w'));
        let found: BTreeMap<String, (u64, u32)> =
            ours.map(|g| (g.container_id.clone(), (g.memory_mib, g.pid))).collect();
        if found == wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("grants {found:?}, containers {wanted:?}; {}", who_holds()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Containers that must have a grant, with size and init.
fn granted(live: &BTreeMap<String, Live>) -> impl Iterator<Item = (String, (u64, u32))> {
    let granted = live.iter().filter(|(_, live)| live.mib > 0);
    granted.map(|(id, live)| (id.clone(), (live.mib, live.pid)))
}

/// The ledger, as told and on disk, against the containers that live.
fn grants(live: &BTreeMap<String, Live>) -> Result<Vec<String>, Failure> {
    let mut wrong = Vec::new();
    let Ok(Status { cards, grants, .. }) = status() else {
        return Ok(vec!["mpsgated does not answer".to_owned()]);
    };
    let wanted: BTreeMap<String, (u64, u32)> = granted(live).collect();
    let found: BTreeMap<String, (u64, u32)> = grants
        .iter()
        .filter(|grant| grant.state == GrantState::Active)
        .map(|grant| (grant.container_id.clone(), (grant.memory_mib, grant.pid)))
        .collect();
    if found != wanted || grants.len() != wanted.len() {
        let states: Vec<_> = grants
            .iter()
            .map(|g| format!("{} {} {}", g.container_id, g.state, g.memory_mib))
            .collect();
        wrong.push(format!("grants {states:?}, containers {wanted:?}"));
    }
    for card in &cards {
        let sum: u64 = grants.iter().filter(|g| g.card == card.uuid).map(|g| g.memory_mib).sum();
        if sum > card.memory_mib || sum != card.granted_mib {
            wrong
                .push(format!("{} MiB of {} granted on card {}", sum, card.memory_mib, card.index));
        }
    }
    let file = Path::new(paths::LEDGER_DIR).join("ledger.json");
    // A daemon that never had a grant has written none.
    let ledger: Value = match std::fs::read(file) {
        Ok(text) => serde_json::from_slice(&text)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Value::Null,
        Err(error) => return Err(error.into()),
    };
    let entries = ledger["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let id = |entry: &Value| entry["grant"]["key"]["container_id"].as_str().map(str::to_owned);
    let on_disk: BTreeSet<String> = entries.iter().filter_map(id).collect();
    if entries.len() != wanted.len() || !on_disk.iter().eq(wanted.keys()) {
        wrong.push(format!("{} holds {on_disk:?}", paths::LEDGER_DIR));
    }
    Ok(wrong)
}

/// Containers that should live do, and nobody else does.
fn processes(
    at: &Workplace,
    live: &BTreeMap<String, Live>,
    daemon: u32,
) -> Result<Vec<String>, Failure> {
    let mut wrong = Vec::new();
    for (id, Live { pid, .. }) in live {
        if !is_alive(at, id, *pid) {
            wrong.push(format!("container {id}, pid {pid}, has ended"));
        }
    }
    let control: BTreeSet<u32> = all_control_pids()?.into_iter().collect();
    let mut holders = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Some(cgroup) = cgroup_of(pid) else { continue };
        if command(pid).starts_with("mpsgated hold ") {
            holders.push(pid);
            continue;
        }
        let in_live = live.keys().any(|id| cgroup == format!("{}/{id}", at.cgroup));
        let known = pid == 1
            || pid == std::process::id()
            || pid == daemon
            || control.contains(&pid)
            || name(pid) == GATE
            || in_live
            || is_bystander(pid);
        if !known {
            wrong.push(format!("stray process {pid}: {}", command(pid)));
        }
    }
    if holders.len() != 1 {
        wrong.push(format!("holders of control daemons: {holders:?}, and there has to be one"));
    }
    Ok(wrong)
}

/// Each card and grant, with the process behind it: for the message when something does not end.
pub(crate) fn who_holds() -> String {
    let Ok(status) = status() else { return "mpsgated does not answer".to_owned() };
    let cards = status.cards.iter().map(|card| format!("card {}: {}", card.index, card.state));
    let grants = status.grants.iter().map(|grant| {
        let parent = std::fs::read_to_string(format!("/proc/{}/stat", grant.pid))
            .ok()
            .and_then(|stat| stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok())
            .unwrap_or_default();
        format!(
            "{} {} on card {}: pid {} ({}), child of {parent} ({})",
            grant.container_id,
            grant.state,
            grant.card_index,
            grant.pid,
            command(grant.pid),
            command(parent)
        )
    });
    cards.chain(grants).collect::<Vec<_>>().join("; ")
}

fn command(pid: u32) -> String {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ").trim().to_owned()
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// The shells that this program was started by.
fn is_bystander(pid: u32) -> bool {
    name(pid) == "bash" || std::os::unix::process::parent_id() == pid
}

/// As many gates as cards with MPS.
fn gates() -> Result<Vec<String>, Failure> {
    let Ok(status) = status() else { return Ok(Vec::new()) };
    let cards =
        status.cards.iter().filter(|card| card.mps.as_ref().is_some_and(|m| m.pid.is_some()));
    let mut gates = 0;
    for entry in std::fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        gates += usize::from(pid.is_some_and(|pid| name(pid) == GATE && cgroup_of(pid).is_some()));
    }
    let cards = cards.count();
    Ok((gates != cards).then(|| format!("{gates} gates of {cards} cards")).into_iter().collect())
}

/// Control daemons of all cards, by the name that the kernel keeps 15 letters of.
fn all_control_pids() -> Result<Vec<u32>, Failure> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if name(pid) == "nvidia-cuda-mps" && cgroup_of(pid).is_some() {
            pids.push(pid);
        }
    }
    Ok(pids)
}

/// The control daemons of the cards that stay managed, as the daemon names them.
pub(crate) fn control_pids() -> Result<BTreeMap<String, u32>, Failure> {
    let stay: Vec<String> = (0..MANAGED).map(uuid).collect();
    let cards = status()?.cards.into_iter().filter(|card| stay.contains(&card.uuid));
    Ok(cards.filter_map(|card| Some((card.uuid, card.mps?.pid?))).collect())
}

/// Files that a write leaves when it is cut short.
fn leftovers() -> Result<Vec<String>, Failure> {
    let mut wrong = Vec::new();
    let mut look = |directory: &Path, is_left: &dyn Fn(&str) -> bool| -> Result<(), Failure> {
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if is_left(&name) {
                wrong.push(format!("left: {}/{name}", directory.display()));
            }
        }
        Ok(())
    };
    let hidden = |name: &str| name.starts_with('.');
    look(Path::new(paths::RUN_DIR), &hidden)?;
    look(Path::new(paths::GRANTS_DIR), &hidden)?;
    look(Path::new(paths::STATE_DIR), &hidden)?;
    look(&Path::new(paths::STATE_DIR).join("compute-mode"), &hidden)?;
    look(Path::new(paths::LEDGER_DIR), &|name| !matches!(name, "ledger.json" | "lock"))?;
    look(Path::new("/dev"), &hidden)?;
    for card in 0..16 {
        let before_doors = Path::new(paths::MPS_DIR).join(card.to_string()).join("client");
        look(&before_doors, &|_| true)?;
    }
    let mut doors = 0;
    for (card, kind) in (0..16).flat_map(|card| Kind::ALL.map(|kind| (card, kind))) {
        let above = Path::new(paths::MPS_DIR).join(card.to_string()).join(kind.directory());
        look(&above, &hidden)?;
        doors += std::fs::read_dir(above).map(Iterator::count).unwrap_or_default();
    }
    let granted = status().map(|status| status.grants.len()).unwrap_or_default();
    let records = std::fs::read_dir(paths::GRANTS_DIR).map(Iterator::count).unwrap_or_default();
    if records != granted {
        wrong.push(format!("{records} records of {granted} grants"));
    }
    // Each is a directory and a file.
    if doors != 2 * granted {
        wrong.push(format!("{doors} directories and files of {granted} doors"));
    }
    Ok(wrong)
}

/// Where mounts of ours and of containers are, each with its id; Docker's own come and go with it.
/// Fewer than before are no fault: the kernel takes a mount away from all namespaces where its
/// directory is removed (`detach_mounts`, since 3.18).
fn mounts(at: &Workplace) -> Result<BTreeSet<String>, Failure> {
    let docker = at.scratch.join("docker").to_string_lossy().into_owned();
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    let lines = text.lines().filter(|line| !line.contains(&docker));
    Ok(lines
        .filter_map(|line| {
            let mut fields = line.split(' ');
            Some(format!("{} {}", fields.next()?, fields.nth(3)?))
        })
        .collect())
}

/// Names of containers that have a cgroup, with a process in it or without.
pub(crate) fn cgroups(at: &Workplace) -> BTreeSet<String> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let roots = hierarchies.map(|entry| entry.path()).chain(["/sys/fs/cgroup".into()]);
    let ours = roots.map(|root| root.join(at.cgroup.trim_start_matches('/')));
    let below = ours.filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    let names = below.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name());
    names.map(|name| name.to_string_lossy().into_owned()).collect()
}
