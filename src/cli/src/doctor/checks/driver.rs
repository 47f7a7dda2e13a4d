//! The driver: its kernel module, NVML, what it offers, and the device nodes.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use nix::sys::stat::{major, minor};

use super::kernel::{MOUNT_PROC, UNIFIED};
use super::{Check, Finding, Told, fail, failed, ok, skip, warn};
use crate::doctor::node::{Cgroup, Node};
use crate::doctor::root::{Known, Root, Trouble, need, read};

/// What the driver's kernel module says of itself.
pub(in crate::doctor) const MODULE_FILE: &str = "/proc/driver/nvidia/version";
/// Major of `/dev/nvidia0` and `/dev/nvidiactl`, fixed (Linux devices.txt).
const NVIDIA_MAJOR: u64 = 195;
/// Minor of `/dev/nvidiactl`.
const CTL_MINOR: u64 = 255;
const LOAD: &str = "install the NVIDIA driver, or load it: modprobe nvidia; why it does not load: dmesg | grep -i nvrm";
const LOAD_DRIVER: &str = "nvidia-modprobe -u -c 0, or start nvidia-persistenced";

/// The kernel's half of the driver, and whether the library is of the same version. `None`: it is
/// not loaded.
pub(super) const MODULE: Check<Option<String>> = Check {
    name: "driver",
    gather: |root, node| if node.is_simulated() { Ok(None) } else { version(root) },
    judge: |module, node| vec![judge_module(module.as_deref(), node)],
    otherwise: LOAD,
};

fn version(root: Root<'_>) -> Known<Option<String>> {
    let path = root.below(MODULE_FILE);
    let Some(text) = read(&path)? else { return Ok(None) };
    // `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr 8 …`, the open one with
    // `for x86_64` between: the first word that is numbers and dots.
    let number =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let first = text.lines().next().unwrap_or_default();
    first
        .split_whitespace()
        .find(number)
        .map(|word| Some(word.to_owned()))
        .ok_or_else(|| Trouble::new(format!("{} names no version: {first}", path.display())))
}

fn judge_module(module: Option<&str>, node: &Node) -> Finding {
    if node.is_simulated() {
        return skip("the cards are simulated");
    }
    let Some(module) = module else { return fail("the kernel module nvidia is not loaded", LOAD) };
    let library = node.nvml.as_ref().ok().and_then(|nvml| nvml.driver.as_ref().ok());
    match library {
        Some(library) if library != module => fail(
            format!(
                "the kernel module is {module}, the library {library}: an upgrade of the driver was not finished"
            ),
            "drain the node and reboot it, or unload the old module: rmmod nvidia_uvm nvidia; modprobe nvidia",
        ),
        _ => ok(format!("kernel module {module}")),
    }
}

pub(super) const NVML: Told = Told { name: "nvml", judge: nvml };

fn nvml(node: &Node) -> Vec<Finding> {
    const LOOK: &str = "see what the driver says: nvidia-smi, and NVRM lines in dmesg";
    vec![match node.nvml.as_ref().map(|nvml| (&nvml.driver, nvml.simulated)) {
        Err(trouble) | Ok((Err(trouble), _)) => failed(trouble, LOOK),
        Ok((Ok(driver), false)) => ok(format!("driver {driver}")),
        Ok((Ok(driver), true)) => warn(
            format!("SIMULATED, driver {driver}: no GPU is behind it"),
            "for real GPUs, remove nvml.library from /etc/mpsgate/config.toml",
        ),
    }]
}

/// The way to the guarantee `cgroup`.
pub(super) const MEMORY_LIMITS: Told = Told { name: "memory-limits", judge: memory_limits };

fn memory_limits(node: &Node) -> Vec<Finding> {
    let Ok(nvml) = &node.nvml else { return vec![skip("NVML does not answer")] };
    vec![match (nvml.limits, node.cgroup) {
        (false, _) => ok(
            "none for cgroups by this driver (r615 and newer have them): MPS limits each process, and \
             mpsgated ends a container that takes more in sum",
        ),
        (true, Cgroup::V2 { dmem: true }) => {
            ok("offered for cgroups; this kernel counts them (dmem)")
        }
        (true, Cgroup::V2 { dmem: false }) => {
            ok("offered for cgroups; the driver counts them itself, as this kernel has no dmem")
        }
        (true, _) => warn("offered for cgroups, but only for those of v2", UNIFIED),
    }]
}

pub(super) const DEVICE_NODES: Check<Devices> = Check {
    name: "device-nodes",
    gather: devices,
    judge: |devices, node| vec![device_nodes(devices, node)],
    otherwise: MOUNT_PROC,
};

#[derive(Default)]
pub(super) struct Devices {
    /// NVIDIA's character devices of `/proc/devices`, by name.
    majors: BTreeMap<String, u64>,
    /// `/dev/nvidia*` by path: major and minor of a character device.
    nodes: BTreeMap<String, Option<(u64, u64)>>,
}

/// Of a machine with a card.
fn devices(root: Root<'_>, node: &Node) -> Known<Devices> {
    if node.is_simulated() || node.nvml.is_err() {
        return Ok(Devices::default());
    }
    let text = need(&root.below("/proc/devices"))?;
    // `Character devices:`, lines of major and name, an empty line, `Block devices:`.
    let character = text.split("\n\n").next().unwrap_or_default();
    let entry = |line: &str| {
        let (major, name) = line.trim().split_once(' ')?;
        Some((name.trim().to_owned(), major.parse().ok()?))
    };
    let all = character.lines().filter_map(entry);
    let majors = all.filter(|(name, _): &(String, u64)| name.starts_with("nvidia")).collect();
    let device = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_str().filter(|n| n.starts_with("nvidia"))?.to_owned();
        let metadata = entry.metadata().ok()?;
        let is_device = metadata.file_type().is_char_device();
        let numbers = is_device.then(|| (major(metadata.rdev()), minor(metadata.rdev())));
        Some((format!("/dev/{name}"), numbers))
    };
    Ok(Devices { majors, nodes: root.entries("/dev").filter_map(device).collect() })
}

fn device_nodes(Devices { majors, nodes }: &Devices, node: &Node) -> Finding {
    if node.is_simulated() {
        return skip("the cards are simulated");
    }
    if node.nvml.is_err() {
        return skip("NVML does not answer");
    }
    let mut wrong = Vec::new();
    // Named `nvidia-frontend` before driver 550.
    if !["nvidia", "nvidia-frontend"].iter().any(|name| majors.contains_key(*name)) {
        wrong.push("/proc/devices has no major for nvidia".to_owned());
    }
    let mut expect = |path: &str, major: u64, minor: u64| match nodes.get(path) {
        Some(Some(numbers)) if *numbers == (major, minor) => {}
        Some(Some((a, b))) => wrong.push(format!("{path} is {a}:{b}, not {major}:{minor}")),
        Some(None) => wrong.push(format!("{path} is no character device")),
        None => wrong.push(format!("{path} is missing")),
    };
    expect("/dev/nvidiactl", NVIDIA_MAJOR, CTL_MINOR);
    for card in node.cards() {
        expect(&format!("/dev/nvidia{}", card.minor), NVIDIA_MAJOR, u64::from(card.minor));
    }
    match majors.get("nvidia-uvm") {
        Some(major) => expect("/dev/nvidia-uvm", *major, 0),
        None => wrong.push("/proc/devices has no major for nvidia-uvm".to_owned()),
    }
    if wrong.is_empty() {
        ok(nodes.keys().map(String::as_str).collect::<Vec<_>>().join(" "))
    } else {
        fail(wrong.join(", "), LOAD_DRIVER)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::Outcome;
    use crate::doctor::checks::tests::{FAIL, WARN, node, trouble};

    fn devices() -> Devices {
        Devices {
            majors: [("nvidia".to_owned(), 195), ("nvidia-uvm".to_owned(), 507)].into(),
            nodes: [
                ("/dev/nvidiactl".to_owned(), Some((195, 255))),
                ("/dev/nvidia0".to_owned(), Some((195, 0))),
                ("/dev/nvidia-uvm".to_owned(), Some((507, 0))),
            ]
            .into(),
        }
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        MODULE.turns_red(|| Some("550.163.01".to_owned()), "NVIDIA driver", &[
            (|module, _| *module = None, FAIL, "not loaded", "modprobe nvidia"),
            (|module, _| *module = Some("535.1".into()), FAIL, "module is 535.1, the library 550.163.01", "reboot"),
        ]);
        NVML.turns_red(&[
            (|n| n.nvml = trouble("cannot load the NVML library"), FAIL, "cannot load", "nvidia-smi"),
            (|n| n.nvml().driver = trouble("driver gone"), FAIL, "driver gone", "nvidia-smi"),
            (|n| n.nvml().simulated = true, WARN, "SIMULATED", "nvml.library"),
        ]);
        MEMORY_LIMITS.turns_red(&[
            (|n| n.cgroup = Cgroup::Hybrid, WARN, "only for those of v2", "systemd.unified_cgroup_hierarchy=1"),
        ]);
        DEVICE_NODES.turns_red(devices, "mount -t proc", &[
            (|f, _| { f.nodes.remove("/dev/nvidia0"); }, FAIL, "/dev/nvidia0 is missing", "nvidia-modprobe"),
            (|f, _| { f.nodes.insert("/dev/nvidiactl".into(), None); }, FAIL, "/dev/nvidiactl is no character device", "nvidia-modprobe"),
            (|f, _| { f.nodes.insert("/dev/nvidia-uvm".into(), Some((500, 0))); }, FAIL, "/dev/nvidia-uvm is 500:0, not 507:0", "nvidia-modprobe"),
            (|f, _| f.majors.clear(), FAIL, "no major for nvidia, /proc/devices has no major for nvidia-uvm", "nvidia-modprobe"),
        ]);
    }

    #[test]
    fn simulated_cards_have_neither_module_nor_devices() {
        let mut node = node();
        node.nvml().simulated = true;
        assert_eq!(judge_module(None, &node).result, Outcome::Skip);
        assert_eq!(device_nodes(&Devices::default(), &node).result, Outcome::Skip);
    }

    #[test]
    fn a_driver_without_memory_limits_is_no_finding_and_who_counts_them_is_said() {
        let said = |limits, dmem| {
            let mut node = node();
            node.nvml().limits = limits;
            node.cgroup = Cgroup::V2 { dmem };
            let found = memory_limits(&node).remove(0);
            assert_eq!(found.result, Outcome::Ok);
            found.evidence
        };
        assert!(said(false, true).starts_with("none for cgroups by this driver"));
        assert!(said(true, true).contains("(dmem)"));
        assert!(said(true, false).contains("the driver counts them itself"));
    }
}
