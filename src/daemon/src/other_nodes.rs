//! Nodes of managed cards that other drivers than NVIDIA's have made, as sysfs tells: through them
//! a card's memory can be had, or the whole card passed through, without NVIDIA's own nodes.
//!
//! ```text
//! /proc/driver/nvidia/gpus/0000:3b:00.0/information        Device Minor: 0
//! /sys/bus/pci/devices/0000:3b:00.0/drm/renderD128/dev     226:128   nvidia-drm: /dev/dri/renderD128
//!                              …/vfio-dev/vfio0/dev        243:0     /dev/vfio/devices/vfio0
//!                              …/iommu_group -> …/12       /sys/class/vfio/12/dev: /dev/vfio/12
//!                              …/virtfn0 -> ../0000:3b:00.4          the same of each virtual function
//! /sys/class/misc/dxg/dev                                  10:125    WSL's way to every card
//! ```
//! The paths are the kernel's ABI (Documentation/ABI, `sysfs-bus-pci`,
//! `sysfs-devices-vfio-dev`), the minor NVIDIA's (driver README, "The /proc Interface").

use std::fs;
use std::path::{Path, PathBuf};

use mpsgate_host::procfs;
use mpsgate_model::DeviceNode;

/// The nodes of the cards with these minors, below `root` (`/`, but for tests), in the order of
/// their paths.
pub(crate) fn find(root: &Path, minors: &[u32]) -> Vec<DeviceNode> {
    let mut nodes = Vec::new();
    for card in entries(&root.join("proc/driver/nvidia/gpus")) {
        let information = procfs::text(card.join("information")).unwrap_or_default();
        let managed = device_minor(&information).is_some_and(|minor| minors.contains(&minor));
        let Some(address) = card.file_name().filter(|_| managed) else { continue };
        let device = root.join("sys/bus/pci/devices").join(address);
        of_function(root, &device, &mut nodes);
        let is_virtual = |path: &Path| name(path).starts_with("virtfn");
        for function in entries(&device).iter().filter(|path| is_virtual(path)) {
            of_function(root, function, &mut nodes);
        }
    }
    if !minors.is_empty() {
        nodes.extend(node(&root.join("sys/class/misc/dxg"), "/dev/dxg".to_owned()));
    }
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    nodes.dedup();
    nodes
}

/// Of one PCI function.
fn of_function(root: &Path, device: &Path, nodes: &mut Vec<DeviceNode>) {
    for display in entries(&device.join("drm")) {
        nodes.extend(node(&display, format!("/dev/dri/{}", name(&display))));
    }
    for passed in entries(&device.join("vfio-dev")) {
        nodes.extend(node(&passed, format!("/dev/vfio/devices/{}", name(&passed))));
    }
    if let Ok(group) = fs::read_link(device.join("iommu_group")) {
        let group = name(&group);
        nodes.extend(node(&root.join("sys/class/vfio").join(&group), format!("/dev/vfio/{group}")));
    }
}

/// The node that a class device stands for; `None` where it has none.
fn node(class_device: &Path, path: String) -> Option<DeviceNode> {
    let text = fs::read_to_string(class_device.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(DeviceNode { path, major: major.parse().ok()?, minor: minor.parse().ok()? })
}

fn device_minor(information: &str) -> Option<u32> {
    let line = information.lines().find_map(|line| line.strip_prefix("Device Minor:"))?;
    line.trim().parse().ok()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_managed_cards_other_nodes_are_found_and_no_other_cards() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (address, minor, group) in [("0000:3b:00.0", 0, "12"), ("0000:af:00.0", 1, "30")] {
            let device = format!("sys/bus/pci/devices/{address}");
            let information = format!("Model: \t\t T4\nDevice Minor: \t {minor}\n");
            write(root, &format!("proc/driver/nvidia/gpus/{address}/information"), &information);
            write(root, &format!("{device}/drm/card{minor}/dev"), &format!("226:{minor}\n"));
            write(
                root,
                &format!("{device}/drm/renderD{}/dev", 128 + minor),
                &format!("226:{}\n", 128 + minor),
            );
            write(root, &format!("{device}/drm/card{minor}-DP-1/status"), "connected\n");
            std::os::unix::fs::symlink(
                format!("/sys/kernel/iommu_groups/{group}"),
                root.join(&device).join("iommu_group"),
            )
            .unwrap();
            write(root, &format!("sys/class/vfio/{group}/dev"), &format!("243:{minor}\n"));
        }
        write(root, "sys/bus/pci/devices/0000:3b:00.4/vfio-dev/vfio7/dev", "244:7\n");
        std::os::unix::fs::symlink(
            "../0000:3b:00.4",
            root.join("sys/bus/pci/devices/0000:3b:00.0/virtfn0"),
        )
        .unwrap();
        // Another vendor's display: the NVIDIA driver does not list it.
        write(root, "sys/bus/pci/devices/0000:00:02.0/drm/card2/dev", "226:2\n");
        let found = |minors: &[u32]| -> Vec<String> {
            find(root, minors)
                .into_iter()
                .map(|node| format!("{} {}:{}", node.path, node.major, node.minor))
                .collect()
        };
        assert_eq!(
            found(&[0]),
            [
                "/dev/dri/card0 226:0",
                "/dev/dri/renderD128 226:128",
                "/dev/vfio/12 243:0",
                "/dev/vfio/devices/vfio7 244:7"
            ]
        );
        assert_eq!(
            found(&[1]),
            ["/dev/dri/card1 226:1", "/dev/dri/renderD129 226:129", "/dev/vfio/30 243:1"]
        );
        assert_eq!(found(&[]), Vec::<String>::new());
        write(root, "sys/class/misc/dxg/dev", "10:125\n");
        assert!(found(&[0]).contains(&"/dev/dxg 10:125".to_owned()));
        assert_eq!(found(&[]), Vec::<String>::new(), "no card is managed");
    }
}
