//! What NVML is asked for a cgroup's limit, and what its answer is worth. All of it blocks.
//!
//! What the driver does where it counts by itself is `memacct.c` of NVIDIA's open kernel modules,
//! 615.71.09 (`tests/fakes/nvml/src/limits.rs` names the functions):
//!
//! - it charges a cgroup from the limit on, and nothing that was there before;
//! - it charges, and reads back, the nearest directory alone that has a limit, upwards;
//! - no entry ever ends, but with the card: one is by the cgroup's address in the kernel, so that a
//!   later cgroup may inherit it, and one that was cleared hides a limit above it;
//! - it refuses a limit below what it has charged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mpsgate_gpu::{GpuError, MemoryLimit, MemoryLimits, Nvml};
use mpsgate_model::{GpuUuid, Mib};
use mpsgate_node::card::Trouble;

use super::{CardTarget, Target};
use crate::container_cgroup::{self, dmem};
use crate::hardware::{Hardware, gpu_trouble};

const BYTES_PER_MIB: u64 = 1 << 20;
const LOOK_HERE: &str = "journalctl -u mpsgated -n 50";

/// Why a container is not held by its cgroup.
#[derive(Debug)]
pub(super) struct Lack {
    /// The card; `None`: on all of them.
    pub(super) uuid: Option<GpuUuid>,
    pub(super) trouble: Trouble,
    /// The limit, where it is there and does not hold all that the container has.
    pub(super) hard: Option<Mib>,
}

impl Lack {
    /// Whether to set the limit again may help.
    pub(super) fn is_gone(&self) -> bool {
        self.uuid.is_some() && self.hard.is_none()
    }

    fn everywhere(trouble: Trouble) -> Self {
        Self { uuid: None, trouble, hard: None }
    }

    fn on(card: &CardTarget, trouble: Trouble) -> Self {
        Self { uuid: Some(card.uuid.clone()), trouble, hard: None }
    }
}

/// Sets the limit on each card and reads it back. What cannot be seen to be there is taken away
/// again, so that no container has a limit that nobody knows. Returns the smallest.
pub(super) fn set(hardware: &Hardware, root: &Path, target: &Target) -> Result<Mib, Lack> {
    let nvml = offered(hardware, root, target).map_err(Lack::everywhere)?;
    let enabled = dmem::enable(root, Path::new(&target.cgroup.path)).map_err(|error| {
        Lack::everywhere(Trouble::new(crate::error::chain(&error), error.hint()))
    })?;
    if !enabled.is_empty() {
        log::info!(directories:? = enabled; "dmem controller enabled, which the runtime had not");
    }
    let limits = limits(&nvml).map_err(Lack::everywhere)?;
    let set = set_on_all(&nvml, &limits, target);
    if set.is_err() {
        take_away(&limits, target);
    }
    set
}

/// Changes the limit of a container that had one of `had` MiB, on each of its cards or on none.
/// Returns the smallest.
pub(super) fn change(
    hardware: &Hardware,
    root: &Path,
    target: &Target,
    had: Mib,
) -> Result<Mib, Lack> {
    let nvml = offered(hardware, root, target).map_err(Lack::everywhere)?;
    let limits = limits(&nvml).map_err(Lack::everywhere)?;
    set_on_all(&nvml, &limits, target).inspect_err(|_| {
        let before = Target { grant: had, ..target.clone() };
        if let Err(lack) = set_on_all(&nvml, &limits, &before) {
            // The next look sets it, or names the container.
            let container = target.name.as_str();
            log::warn!(container, reason = lack.trouble.why.as_str(); "the limit of before is not there again");
        }
    })
}

fn set_on_all(nvml: &Nvml, limits: &MemoryLimits<'_>, target: &Target) -> Result<Mib, Lack> {
    let path = Path::new(&target.cgroup.path);
    let mut smallest = Mib(u64::MAX);
    for card in &target.cards {
        let uuid = card.uuid.as_str();
        let set = limits.set(uuid, path, target.grant.0).map_err(|error| {
            let below = limits.get(uuid, path).ok().and_then(|read| below_use(&read, target));
            below.unwrap_or_else(|| refused(nvml, &error))
        });
        let read = set.and_then(|()| limits.get(uuid, path).map_err(|e| refused(nvml, &e)));
        let hard = read.and_then(|read| holds(&read, target, card));
        smallest = smallest.min(hard.map_err(|trouble| Lack::on(card, trouble))?);
    }
    Ok(smallest)
}

/// Reads the limit back on each card, and decides whether it holds all that the container has.
/// Returns the smallest.
pub(super) fn held(hardware: &Hardware, root: &Path, target: &Target) -> Result<Mib, Lack> {
    let nvml = offered(hardware, root, target).map_err(Lack::everywhere)?;
    let limits = limits(&nvml).map_err(Lack::everywhere)?;
    let by_kernel = dmem::counts(root);
    let mut smallest = Mib(u64::MAX);
    for card in &target.cards {
        let path = Path::new(&target.cgroup.path);
        let read = limits.get(card.uuid.as_str(), path);
        let read = read.map_err(|error| Lack::on(card, refused(&nvml, &error)))?;
        let hard = holds(&read, target, card).map_err(|trouble| Lack::on(card, trouble))?;
        smallest = smallest.min(hard);
        if by_kernel {
            continue;
        }
        if !target.recorded {
            is_own(&limits, &read, root, path, card).map_err(|trouble| Lack::on(card, trouble))?;
        }
        counts_all(&limits, &read, target, card)
            .map_err(|trouble| Lack { hard: Some(hard), ..Lack::on(card, trouble) })?;
    }
    Ok(smallest)
}

/// A cgroup that nothing is recorded of may read as a directory above it.
fn is_own(
    limits: &MemoryLimits<'_>,
    read: &MemoryLimit,
    root: &Path,
    path: &Path,
    card: &CardTarget,
) -> Result<(), Trouble> {
    let above = path.parent().filter(|above| *above != root);
    let above = above.and_then(|above| limits.get(card.uuid.as_str(), above).ok());
    let why =
        format!("{} has no limit of its own, but one of a directory above it", path.display());
    if above.as_ref() == Some(read) { Err(Trouble::new(why, ask_for(path, card))) } else { Ok(()) }
}

/// Whether a driver that counts by itself counts all of the container.
fn counts_all(
    limits: &MemoryLimits<'_>,
    read: &MemoryLimit,
    target: &Target,
    card: &CardTarget,
) -> Result<(), Trouble> {
    let path = Path::new(&target.cgroup.path);
    if target.late {
        counts_earlier(read, card).map_err(|why| Trouble::new(why, "start the container anew"))?;
    }
    let below = container_cgroup::paths(path, &target.others, container_cgroup::MOST_PATHS);
    let below = below.map_err(|error| Trouble::new(error.to_string(), LOOK_HERE))?;
    let Some(below) = below else {
        let (path, most) = (path.display(), container_cgroup::MOST_PATHS);
        let why = format!(
            "there are more than {most} cgroups in {path}, or one too deep to name: the driver is not asked for each"
        );
        return Err(Trouble::new(why, "mpsgate status names the container"));
    };
    let mut own = None;
    for below in below.iter().skip(1) {
        if hides(limits, path, below, card)? {
            own = Some(below);
            break;
        }
    }
    let Some(own) = own else { return Ok(()) };
    // Nothing takes an entry away. At least it does not leave its processes without a limit.
    if let Err(error) = limits.set(card.uuid.as_str(), own, target.grant.0) {
        log::warn!(cgroup = own.display().to_string().as_str(), reason = crate::error::chain(&error); "a cgroup of a container keeps a limit of its own");
    }
    let why = format!(
        "{} has a memory limit of its own, which mpsgate did not set and which hides that of the container",
        own.display()
    );
    Err(Trouble::new(why, ask_for(own, card)))
}

/// A cgroup without a limit of its own reads as the nearest directory above that has one: in every
/// figure. What is read between two looks at that one may be of another moment.
fn hides(
    limits: &MemoryLimits<'_>,
    above: &Path,
    below: &Path,
    card: &CardTarget,
) -> Result<bool, Trouble> {
    let get = |path| limits.get(card.uuid.as_str(), path);
    for _ in 0..3 {
        let (before, there, after) = (get(above).ok(), get(below), get(above).ok());
        match there {
            Err(_) if !below.exists() => return Ok(false),
            Err(error) => return Err(gpu_trouble(&error)),
            Ok(there) if Some(there) == before || Some(there) == after => return Ok(false),
            Ok(_) if before == after => return Ok(true),
            Ok(_) => {}
        }
    }
    // It allocates without pause: the limit alone is compared.
    let hard = |read: Result<MemoryLimit, GpuError>| read.ok().map(|read| read.hard_bytes);
    Ok(hard(get(above)) != hard(get(below)))
}

/// Whether a limit that came late counts what the container had before: all that NVML shows of it.
fn counts_earlier(read: &MemoryLimit, card: &CardTarget) -> Result<(), String> {
    let since = "the limit was set when the container may have run already, and this driver counts from then on";
    let counted = Mib(read.used_bytes.div_ceil(BYTES_PER_MIB));
    match card.seen {
        None => Err(format!("{since}: nobody sees what it had before")),
        Some(seen) if counted < seen => {
            Err(format!("{since}: {counted} of the {seen} that it uses"))
        }
        Some(_) => Ok(()),
    }
}

/// Takes the limit away while its cgroup is there, and those of cgroups below it. A driver that
/// counts by itself keeps an entry by the cgroup's address in the kernel, which nobody can name any
/// more once it has gone.
pub(super) fn clear(hardware: &Hardware, root: &Path, target: &Target) {
    let Ok(nvml) = hardware.nvml() else { return };
    let Some(limits) = nvml.memory_limits() else { return };
    let in_time =
        container_cgroup::is_same(&target.cgroup).unwrap_or(false) && take_away(&limits, target);
    if dmem::counts(root) {
        // There a limit ends with its cgroup.
        return;
    }
    if in_time {
        clear_below(&limits, target);
    } else if target.recorded {
        log::warn!(
            container = target.name.as_str(), cgroup = target.cgroup.path.as_str();
            "its cgroup had gone before the driver's limit of it was cleared: whichever cgroup the driver takes for it later is found and cleared"
        );
    }
}

/// Those that the container's own limit, which is cleared, does not explain.
fn clear_below(limits: &MemoryLimits<'_>, target: &Target) {
    let path = Path::new(&target.cgroup.path);
    let Ok(Some(below)) =
        container_cgroup::paths(path, &target.others, container_cgroup::MOST_PATHS)
    else {
        return;
    };
    for below in below.iter().skip(1) {
        for card in &target.cards {
            let uuid = card.uuid.as_str();
            let Ok(read) = limits.get(uuid, below) else { continue };
            if read.is_none() {
                continue;
            }
            if let Err(error) = limits.clear(uuid, below)
                && below.exists()
            {
                let (reason, cgroup) = (crate::error::chain(&error), below.display().to_string());
                log::warn!(cgroup, uuid, reason; "a limit could not be cleared");
            }
        }
    }
}

/// Whether the cgroup was there for all of it.
fn take_away(limits: &MemoryLimits<'_>, target: &Target) -> bool {
    let mut in_time = true;
    for card in &target.cards {
        let cleared = limits.clear(card.uuid.as_str(), Path::new(&target.cgroup.path));
        let Err(error) = cleared else { continue };
        if error.is_no_limits() {
            continue;
        }
        // The runtime removes it at this very time.
        if container_cgroup::is_same(&target.cgroup).unwrap_or(false) {
            let (reason, container) = (crate::error::chain(&error), target.name.as_str());
            log::warn!(container, uuid = card.uuid.as_str(), reason; "a limit could not be cleared");
        } else {
            in_time = false;
        }
    }
    in_time
}

/// NVML, where node and cgroup are such that a limit can be asked for.
fn offered(hardware: &Hardware, root: &Path, target: &Target) -> Result<Arc<Nvml>, Trouble> {
    let path = PathBuf::from(&target.cgroup.path);
    if !dmem::is_v2(root) {
        return Err(Trouble::new(
            "the driver's memory limits need cgroup v2, and this node has v1 or both",
            "boot with systemd.unified_cgroup_hierarchy=1",
        ));
    }
    if path == root || !path.starts_with(root) {
        let why = format!("{} is no cgroup of a container", path.display());
        return Err(Trouble::new(why, LOOK_HERE));
    }
    if !container_cgroup::is_same(&target.cgroup).unwrap_or(false) {
        let why = format!("{} is not the cgroup any more that it was", path.display());
        return Err(Trouble::new(why, LOOK_HERE));
    }
    hardware.nvml()
}

fn limits(nvml: &Nvml) -> Result<MemoryLimits<'_>, Trouble> {
    nvml.memory_limits().ok_or_else(|| absent(nvml))
}

fn absent(nvml: &Nvml) -> Trouble {
    let driver = nvml.driver_version().unwrap_or_else(|_| "of this node".to_owned());
    Trouble::new(
        format!("driver {driver} offers no memory limits for cgroups"),
        "a driver of r615 or newer does",
    )
}

fn refused(nvml: &Nvml, error: &GpuError) -> Trouble {
    if error.is_no_limits() { absent(nvml) } else { gpu_trouble(error) }
}

/// The sentence where a limit was refused because more than that is in use.
fn below_use(read: &MemoryLimit, target: &Target) -> Option<Trouble> {
    let (used, grant) = (Mib(read.used_bytes.div_ceil(BYTES_PER_MIB)), target.grant);
    let why = format!(
        "{} uses {used} of the card, more than the {grant} granted: the driver takes no limit below what is in use",
        target.cgroup.path
    );
    (used > grant)
        .then(|| Trouble::new(why, "end what uses the memory, or start the container anew"))
}

/// Whether what was read back holds the container to its grant. The driver may round up: 4000 MiB
/// were read back as 4096 (NVIDIA MPS documentation, r615).
fn holds(read: &MemoryLimit, target: &Target, card: &CardTarget) -> Result<Mib, Trouble> {
    let hard = Mib(read.hard_bytes.div_ceil(BYTES_PER_MIB));
    let shown = if read.hard_bytes == u64::MAX { "none".to_owned() } else { hard.to_string() };
    let soft = read.soft_bytes / BYTES_PER_MIB;
    let why = if read.soft_bytes != 0 {
        format!("shows a soft limit of {soft} MiB, which mpsgate never sets")
    } else if read.hard_bytes / BYTES_PER_MIB < target.grant.0 {
        format!("shows a hard limit of {shown}, less than the {} granted", target.grant)
    } else if hard >= card.total {
        format!("shows a hard limit of {shown}, which holds nobody on a card of {}", card.total)
    } else {
        return Ok(hard);
    };
    let path = Path::new(&target.cgroup.path);
    Err(Trouble::new(format!("for {} the driver {why}", path.display()), ask_for(path, card)))
}

fn ask_for(cgroup: &Path, card: &CardTarget) -> String {
    format!("nvidia-smi memory-limits --get -n {} -i {}", cgroup.display(), card.uuid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::collections::BTreeSet;

    use mpsgate_model::ledger::CgroupId;
    use mpsgate_model::{ContainerId, GrantKey, Instance};

    use super::*;

    fn card(seen: Option<Mib>) -> CardTarget {
        let uuid = GpuUuid::parse("GPU-00000000-0000-0000-0000-000000000000").unwrap();
        CardTarget { uuid, total: Mib(16384), seen }
    }

    fn target() -> Target {
        Target {
            key: GrantKey {
                runtime_root: "/run/runc".to_owned(),
                container_id: ContainerId::parse("web").unwrap(),
                instance: Instance::from_bytes([1; 16]),
            },
            name: "web".to_owned(),
            cgroup: CgroupId { path: "/sys/fs/cgroup/web".to_owned(), inode: 1 },
            others: BTreeSet::new(),
            grant: Mib(4000),
            cards: vec![card(None)],
            recorded: false,
            late: false,
        }
    }

    #[test]
    fn only_a_hard_limit_from_the_grant_up_to_below_the_card_holds() {
        let read = |soft_bytes, hard_bytes| {
            holds(&MemoryLimit { soft_bytes, hard_bytes, used_bytes: 0 }, &target(), &card(None))
        };
        let mib = |mib: u64| mib << 20;
        assert_eq!(read(0, mib(4000)).unwrap(), Mib(4000));
        assert_eq!(read(0, mib(4096)).unwrap(), Mib(4096), "rounded up");
        assert_eq!(read(0, mib(16384) - mib(1)).unwrap(), Mib(16383));
        for (soft, hard, why) in [
            (0, u64::MAX, "shows a hard limit of none, which holds nobody"),
            (0, mib(16384), "which holds nobody on a card of 16 GiB"),
            (0, mib(4000) - 1, "less than the 4000 MiB granted"),
            (0, 0, "less than the 4000 MiB granted"),
            (mib(1), mib(4000), "a soft limit of 1 MiB, which mpsgate never sets"),
        ] {
            let trouble = read(soft, hard).unwrap_err();
            assert!(trouble.why.contains(why), "{trouble:?}");
            assert!(
                trouble.hint.starts_with("nvidia-smi memory-limits --get -n /sys/fs/cgroup/web ")
            );
        }
    }

    #[test]
    fn a_limit_that_came_late_is_worth_what_the_driver_counts_of_what_is_seen() {
        let read = |used_bytes| MemoryLimit { soft_bytes: 0, hard_bytes: 4000 << 20, used_bytes };
        let counts = |used, seen| counts_earlier(&read(used), &card(seen));
        assert_eq!(counts(0, Some(Mib(0))), Ok(()), "it has had none");
        assert_eq!(counts(500 << 20, Some(Mib(500))), Ok(()));
        assert_eq!(counts((500 << 20) - 1, Some(Mib(500))), Ok(()), "part of a MiB counts whole");
        let why = counts(0, Some(Mib(500))).unwrap_err();
        assert!(why.ends_with("counts from then on: 0 MiB of the 500 MiB that it uses"), "{why}");
        assert!(counts(0, None).unwrap_err().ends_with("nobody sees what it had before"));
    }

    #[test]
    fn a_refusal_below_what_is_in_use_says_how_much_that_is() {
        let read = |used_bytes| MemoryLimit { soft_bytes: 0, hard_bytes: u64::MAX, used_bytes };
        assert!(below_use(&read(4000 << 20), &target()).is_none());
        let trouble = below_use(&read(5000 << 20), &target()).unwrap();
        assert!(
            trouble.why.starts_with(
                "/sys/fs/cgroup/web uses 5000 MiB of the card, more than the 4000 MiB granted"
            ),
            "{trouble:?}"
        );
    }
}
