//! The machine: kernel, driver, cards, devices, namespaces.

use mpsgate_gpu::Card;
use mpsgate_policy::SharedMemory;

use super::{Finding, fail, failed, ok, skip, warn};
use crate::doctor::facts::{Cgroup, DeviceFile, Facts};

/// Major of `/dev/nvidia0` and `/dev/nvidiactl`, fixed (Linux devices.txt).
const NVIDIA_MAJOR: u64 = 195;
/// Minor of `/dev/nvidiactl`.
const CTL_MINOR: u64 = 255;
/// What the MPS server needs, else it cannot make its shared memory (NVIDIA MPS documentation,
/// known issues).
const OPEN_FILES: u64 = 16384;
/// Oldest kernel of a distribution that is still maintained and that the driver supports: RHEL 8.
const OLDEST_KERNEL: (u32, u32) = (4, 18);

/// For v2.
const UNIFIED: &str = "boot with systemd.unified_cgroup_hierarchy=1 for v2";

const LOAD_DRIVER: &str = "nvidia-modprobe -u -c 0, or start nvidia-persistenced";

pub(super) fn kernel(facts: &Facts) -> Vec<Finding> {
    let release = match &facts.kernel {
        Ok(release) => release,
        Err(trouble) => return vec![failed(trouble, "mount /proc: mount -t proc proc /proc")],
    };
    let mut numbers = release.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let found = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor),
        _ => return vec![warn(format!("{release}: no version"), "uname -r")],
    };
    vec![if found < OLDEST_KERNEL {
        warn(
            format!("{release}, older than any that mpsgate was tried on"),
            "upgrade to a kernel of 4.18 or newer",
        )
    } else {
        ok(release.clone())
    }]
}

pub(super) fn pidfd(facts: &Facts) -> Vec<Finding> {
    vec![match &facts.pidfd {
        Ok(()) => ok("pidfd_open works: the end of a container is seen at once"),
        Err(trouble) => warn(
            format!("{}: the end of a container is found by polling", trouble.what),
            "upgrade to a kernel of 5.3 or newer; in a container, allow pidfd_open in its seccomp \
             profile",
        ),
    }]
}

pub(super) fn cgroup(facts: &Facts) -> Vec<Finding> {
    vec![match facts.cgroup {
        Cgroup::V2 => ok("v2"),
        Cgroup::Hybrid => {
            warn("hybrid: crun does not run on it, and the driver's own limits need v2", UNIFIED)
        }
        Cgroup::V1 => warn("v1: the driver's own memory limits (r615) need v2", UNIFIED),
        Cgroup::None => {
            fail("no cgroup file system at /sys/fs/cgroup", "mount -t cgroup2 none /sys/fs/cgroup")
        }
    }]
}

pub(super) fn nvml(facts: &Facts) -> Vec<Finding> {
    const LOOK: &str = "see what the driver says: nvidia-smi, and NVRM lines in dmesg";
    vec![match facts.nvml.as_ref().map(|nvml| (&nvml.driver, nvml.simulated)) {
        Err(trouble) | Ok((Err(trouble), _)) => failed(trouble, LOOK),
        Ok((Ok(driver), false)) => ok(format!("driver {driver}")),
        Ok((Ok(driver), true)) => warn(
            format!("SIMULATED, driver {driver}: no GPU is behind it"),
            "for real GPUs, remove nvml.library from /etc/mpsgate/config.toml",
        ),
    }]
}

pub(super) fn cards(facts: &Facts) -> Vec<Finding> {
    const LOOK: &str = "see which cards the driver finds: nvidia-smi -L, and NVRM lines in dmesg";
    let cards = match facts.nvml.as_ref().map(|nvml| &nvml.cards) {
        Err(_) => return vec![skip("NVML does not answer")],
        Ok(Err(trouble)) => return vec![failed(trouble, LOOK)],
        Ok(Ok(cards)) if cards.is_empty() => return vec![fail("NVML finds no card", LOOK)],
        Ok(Ok(cards)) => cards,
    };
    let managed = facts.managed();
    let one = |card: &Card| {
        let is_managed = managed.contains(&card.uuid);
        let (major, minor) = card.compute_capability;
        let finding = match card.fitness() {
            Ok(()) => ok(format!(
                "{} ({}), compute capability {major}.{minor}, {}",
                card.name,
                card.uuid,
                if is_managed { "managed" } else { "not managed" }
            )),
            Err(unfit) if is_managed => fail(format!("{unfit}, and is managed"), unfit.hint()),
            Err(unfit) => warn(format!("{unfit}; not managed"), unfit.hint()),
        };
        finding.about(card.index)
    };
    let mut findings: Vec<_> = cards
        .iter()
        .map(|card| match card {
            Ok(card) => one(card),
            Err(trouble) => failed(trouble, LOOK),
        })
        .collect();
    let seen = |uuid: &String| facts.cards().any(|card| card.uuid == *uuid);
    findings.extend(managed.iter().filter(|uuid| !seen(uuid)).map(|uuid| {
        fail(
            format!("{uuid} is managed, but NVML does not find it"),
            format!("see NVRM lines in dmesg; where it was taken out: mpsgate disable {uuid}"),
        )
    }));
    findings
}

/// The way to the guarantee `cgroup`.
pub(super) fn memory_limits(facts: &Facts) -> Vec<Finding> {
    let Ok(nvml) = &facts.nvml else { return vec![skip("NVML does not answer")] };
    vec![match (nvml.limits, facts.cgroup, facts.dmem) {
        (false, _, _) => ok(
            "none for cgroups by this driver (r615 and newer have them): MPS limits each process, and \
             mpsgated ends a container that takes more in sum",
        ),
        (true, Cgroup::V2, true) => ok("offered for cgroups; this kernel counts them (dmem)"),
        (true, Cgroup::V2, false) => {
            ok("offered for cgroups; the driver counts them itself, as this kernel has no dmem")
        }
        (true, _, _) => warn("offered for cgroups, but only for those of v2", UNIFIED),
    }]
}

pub(super) fn device_nodes(facts: &Facts) -> Vec<Finding> {
    if facts.is_simulated() {
        return vec![skip("the cards are simulated")];
    }
    if facts.nvml.is_err() {
        return vec![skip("NVML does not answer")];
    }
    let majors = match &facts.majors {
        Ok(majors) => majors,
        Err(trouble) => return vec![failed(trouble, "mount /proc: mount -t proc proc /proc")],
    };
    let mut wrong = Vec::new();
    // Named `nvidia-frontend` before driver 550.
    if !["nvidia", "nvidia-frontend"].iter().any(|name| majors.contains_key(*name)) {
        wrong.push("/proc/devices has no major for nvidia".to_owned());
    }
    let mut expect = |path: String, major: u64, minor: u64| match facts.nodes.get(&path) {
        Some(DeviceFile::Char { major: a, minor: b }) if (*a, *b) == (major, minor) => {}
        Some(DeviceFile::Char { major: a, minor: b }) => {
            wrong.push(format!("{path} is {a}:{b}, not {major}:{minor}"));
        }
        Some(DeviceFile::Other) => wrong.push(format!("{path} is no character device")),
        None => wrong.push(format!("{path} is missing")),
    };
    expect("/dev/nvidiactl".to_owned(), NVIDIA_MAJOR, CTL_MINOR);
    for card in facts.cards() {
        expect(format!("/dev/nvidia{}", card.minor), NVIDIA_MAJOR, u64::from(card.minor));
    }
    match majors.get("nvidia-uvm") {
        Some(major) => expect("/dev/nvidia-uvm".to_owned(), *major, 0),
        None => wrong.push("/proc/devices has no major for nvidia-uvm".to_owned()),
    }
    vec![if wrong.is_empty() {
        let names: Vec<_> = facts.nodes.keys().map(String::as_str).collect();
        ok(names.join(" "))
    } else {
        fail(wrong.join(", "), LOAD_DRIVER)
    }]
}

pub(super) fn ipc(facts: &Facts) -> Vec<Finding> {
    let own = match &facts.ipc_inode {
        Ok(own) => own,
        Err(trouble) => return vec![failed(trouble, "mount /proc: mount -t proc proc /proc")],
    };
    let Ok(Some(snapshot)) = &facts.snapshot else {
        return vec![skip(format!("here ipc:[{own}]; mpsgated's is not known"))];
    };
    vec![if snapshot.ipc_inode == *own {
        let needs = match SharedMemory::of_word(&snapshot.shared_memory) {
            SharedMemory::Unknown => "",
            SharedMemory::Anonymous => {
                "; this driver's CUDA processes need neither it nor the host's /dev/shm (policy.ipc)"
            }
            SharedMemory::Named => {
                "; this driver's CUDA processes look for what the MPS server has in /dev/shm"
            }
            SharedMemory::Required => {
                "; CUDA processes without the host's /dev/shm do not attach here, and are refused"
            }
        };
        ok(format!("ipc:[{own}], as the MPS servers{needs}"))
    } else {
        fail(
            format!("here ipc:[{own}], the MPS servers are in ipc:[{}]", snapshot.ipc_inode),
            "run the doctor on the host itself; if this is the host, remove PrivateIPC= from the \
             units: systemctl cat mpsgated 'mpsgate-mps@*' mpsgate-hold",
        )
    }]
}

pub(super) fn open_files(facts: &Facts) -> Vec<Finding> {
    if facts.open_files.is_empty() {
        return vec![skip("neither mpsgated nor an MPS process runs")];
    }
    let one = |process: &crate::doctor::facts::OpenFiles| {
        let finding = match &process.hard {
            Ok(None) => ok("unlimited"),
            Ok(Some(hard)) if *hard >= OPEN_FILES => ok(format!("hard limit {hard}")),
            Ok(Some(hard)) => fail(
                format!("hard limit {hard}, MPS needs {OPEN_FILES}"),
                "set LimitNOFILE=16384 in its unit: systemctl edit mpsgated 'mpsgate-mps@.service' mpsgate-hold",
            ),
            Err(trouble) => failed(trouble, "run it with sudo, or as root"),
        };
        finding.about(&process.process)
    };
    facts.open_files.iter().map(one).collect()
}
