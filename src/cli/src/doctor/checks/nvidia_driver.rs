//! The driver: its kernel module, NVML, what it offers, and the device nodes.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use nix::sys::stat::{major, minor};

use super::node_kernel::{MOUNT_PROC, UNIFIED};
use super::{Found, fail, failed, ok, or, skip, warn};
use crate::doctor::doctor_node::{Cgroup, Node};
use crate::doctor::trouble::{Known, Trouble, entries, need, read};

/// What the driver's kernel module says of itself.
pub(in crate::doctor) const MODULE_FILE: &str = "/proc/driver/nvidia/version";
/// Major of `/dev/nvidia0` and `/dev/nvidiactl`, fixed (Linux devices.txt).
const NVIDIA_MAJOR: u64 = 195;
/// Minor of `/dev/nvidiactl`.
const CTL_MINOR: u64 = 255;
const LOAD: &str = "install the NVIDIA driver, or load it: modprobe nvidia; why it does not load: dmesg | grep -i nvrm";
const LOAD_DRIVER: &str = "nvidia-modprobe -u -c 0, or start nvidia-persistenced";

/// The kernel's half of the driver, and whether the library is of the same version.
pub(super) fn module(node: &Node) -> Found {
    judge_module(version(&node.below(MODULE_FILE)), node)
}

/// `None`: it is not loaded.
fn version(path: &Path) -> Known<Option<String>> {
    let Some(text) = read(path)? else { return Ok(None) };
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

fn judge_module(module: Known<Option<String>>, node: &Node) -> Found {
    if node.is_simulated() {
        return Err(skip("the cards are simulated"));
    }
    let Some(module) = or(module, LOAD)? else {
        return Err(fail("the kernel module nvidia is not loaded", LOAD));
    };
    let library = node.nvml.as_ref().ok().and_then(|nvml| nvml.driver.as_ref().ok());
    Ok(vec![match library {
        Some(library) if *library != module => fail(
            format!(
                "the kernel module is {module}, the library {library}: an upgrade of the driver was not finished"
            ),
            "drain the node and reboot it, or unload the old module: rmmod nvidia_uvm nvidia; modprobe nvidia",
        ),
        _ => ok(format!("kernel module {module}")),
    }])
}

pub(super) fn nvml(node: &Node) -> Found {
    const LOOK: &str = "see what the driver says: nvidia-smi, and NVRM lines in dmesg";
    Ok(vec![match node.nvml.as_ref().map(|nvml| (&nvml.driver, nvml.simulated)) {
        Err(trouble) | Ok((Err(trouble), _)) => failed(trouble, LOOK),
        Ok((Ok(driver), false)) => ok(format!("driver {driver}")),
        Ok((Ok(driver), true)) => warn(
            format!("SIMULATED, driver {driver}: no GPU is behind it"),
            "for real GPUs, remove nvml.library from /etc/mpsgate/config.toml",
        ),
    }])
}

/// The way to the guarantee `cgroup`.
pub(super) fn memory_limits(node: &Node) -> Found {
    let Ok(nvml) = &node.nvml else { return Err(skip("NVML does not answer")) };
    Ok(vec![match (nvml.limits, node.cgroup) {
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
    }])
}

/// `/dev/nvidia*` by path: major and minor of a character device.
type Nodes = BTreeMap<String, Option<(u64, u64)>>;

pub(super) fn device_nodes(node: &Node) -> Found {
    let device = |entry: std::fs::DirEntry| {
        let name = entry.file_name().to_str().filter(|n| n.starts_with("nvidia"))?.to_owned();
        let metadata = entry.metadata().ok()?;
        let is_device = metadata.file_type().is_char_device();
        let numbers = is_device.then(|| (major(metadata.rdev()), minor(metadata.rdev())));
        Some((format!("/dev/{name}"), numbers))
    };
    let nodes = entries(&node.below("/dev")).filter_map(device).collect();
    judge_device_nodes((majors(&node.below("/proc/devices")), nodes), node)
}

/// NVIDIA's character devices of `/proc/devices`, by name.
fn majors(path: &Path) -> Known<BTreeMap<String, u64>> {
    let text = need(path)?;
    // `Character devices:`, lines of major and name, an empty line, `Block devices:`.
    let character = text.split("\n\n").next().unwrap_or_default();
    let entry = |line: &str| {
        let (major, name) = line.trim().split_once(' ')?;
        Some((name.trim().to_owned(), major.parse().ok()?))
    };
    let all = character.lines().filter_map(entry);
    Ok(all.filter(|(name, _): &(String, u64)| name.starts_with("nvidia")).collect())
}

fn judge_device_nodes(
    (majors, nodes): (Known<BTreeMap<String, u64>>, Nodes),
    node: &Node,
) -> Found {
    if node.is_simulated() {
        return Err(skip("the cards are simulated"));
    }
    if node.nvml.is_err() {
        return Err(skip("NVML does not answer"));
    }
    let majors = or(majors, MOUNT_PROC)?;
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
    Ok(vec![if wrong.is_empty() {
        ok(nodes.keys().map(String::as_str).collect::<Vec<_>>().join(" "))
    } else {
        fail(wrong.join(", "), LOAD_DRIVER)
    }])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::Outcome;
    use crate::doctor::checks::tests::{FAIL, WARN, node, trouble, turns_red};

    fn devices() -> (Known<BTreeMap<String, u64>>, Nodes) {
        let majors = [("nvidia".to_owned(), 195), ("nvidia-uvm".to_owned(), 507)].into();
        let nodes = [("ctl", (195, 255)), ("0", (195, 0)), ("-uvm", (507, 0))]
            .map(|(name, numbers)| (format!("/dev/nvidia{name}"), Some(numbers)));
        (Ok(majors), nodes.into())
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("driver", judge_module, || Ok(Some("550.163.01".to_owned())), &[
            (|f, _| *f = Ok(None), FAIL, "not loaded", "modprobe nvidia"),
            (|f, _| *f = trouble("names no version"), FAIL, "names no version", "NVIDIA driver"),
            (|f, _| *f = Ok(Some("535.1".into())), FAIL, "module is 535.1, the library 550.163.01", "reboot"),
        ]);
        turns_red("nvml", |(), n| nvml(n), || (), &[
            (|(), n| n.nvml = trouble("cannot load the NVML library"), FAIL, "cannot load", "nvidia-smi"),
            (|(), n| n.nvml().driver = trouble("driver gone"), FAIL, "driver gone", "nvidia-smi"),
            (|(), n| n.nvml().simulated = true, WARN, "SIMULATED", "nvml.library"),
        ]);
        turns_red("memory-limits", |(), n| memory_limits(n), || (), &[
            (|(), n| n.cgroup = Cgroup::Hybrid, WARN, "only for those of v2", "systemd.unified_cgroup_hierarchy=1"),
        ]);
        turns_red("device-nodes", judge_device_nodes, devices, &[
            (|f, _| { f.1.remove("/dev/nvidia0"); }, FAIL, "/dev/nvidia0 is missing", "nvidia-modprobe"),
            (|f, _| { f.1.insert("/dev/nvidiactl".into(), None); }, FAIL, "/dev/nvidiactl is no character device", "nvidia-modprobe"),
            (|f, _| { f.1.insert("/dev/nvidia-uvm".into(), Some((500, 0))); }, FAIL, "/dev/nvidia-uvm is 500:0, not 507:0", "nvidia-modprobe"),
            (|f, _| f.0 = Ok(BTreeMap::new()), FAIL, "no major for nvidia, /proc/devices has no major for nvidia-uvm", "nvidia-modprobe"),
            (|f, _| f.0 = trouble("no /proc"), FAIL, "no /proc", "mount -t proc"),
        ]);
        let mut simulated = node();
        simulated.nvml().simulated = true;
        for found in [judge_module(Ok(None), &simulated), judge_device_nodes(devices(), &simulated)] {
            assert_eq!(found.unwrap_err().result, Outcome::Skip);
        }
    }

    #[test]
    fn a_driver_without_memory_limits_is_no_finding_and_who_counts_them_is_said() {
        let said = |limits, dmem| {
            let mut node = node();
            node.nvml().limits = limits;
            node.cgroup = Cgroup::V2 { dmem };
            let found = memory_limits(&node).unwrap().remove(0);
            assert_eq!(found.result, Outcome::Ok);
            found.evidence
        };
        assert!(said(false, true).starts_with("none for cgroups by this driver"));
        assert!(said(true, true).contains("(dmem)"));
        assert!(said(true, false).contains("the driver counts them itself"));
    }
}
