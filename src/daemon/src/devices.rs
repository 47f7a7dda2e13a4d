//! NVIDIA's device numbers on this node.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use mpsgate_model::{DeviceNode, UVM_TOOLS};

/// `/dev/nvidia<n>` and `/dev/nvidiactl`: assigned for good (kernel's devices.txt).
pub(crate) const NVIDIA_MAJOR: u32 = 195;
const NVIDIACTL_MINOR: u32 = 255;

/// NVIDIA's character majors by name, from `/proc/devices`; `nvidia` is there in any case, because
/// it is assigned for good.
pub(crate) fn majors() -> BTreeMap<String, u32> {
    parse_majors(&std::fs::read_to_string("/proc/devices").unwrap_or_default())
}

pub(crate) fn parse_majors(text: &str) -> BTreeMap<String, u32> {
    let mut majors: BTreeMap<String, u32> = text
        .lines()
        .skip_while(|line| *line != "Character devices:")
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.trim_start().split_once(' '))
        .filter(|(_, name)| name.starts_with("nvidia"))
        .filter_map(|(major, name)| Some((name.to_owned(), major.parse().ok()?)))
        .collect();
    majors.entry("nvidia".to_owned()).or_insert(NVIDIA_MAJOR);
    majors
}

/// The nodes that a CUDA process needs: its card's, and the driver's shared ones.
///
/// Where the cards are simulated, only those that exist: no driver made them.
pub(crate) fn nodes(
    minor: u32,
    majors: &BTreeMap<String, u32>,
    simulated: bool,
) -> Vec<DeviceNode> {
    let node = |path: String, major, minor| DeviceNode { path, major, minor };
    let mut nodes = vec![
        node(format!("/dev/nvidia{minor}"), NVIDIA_MAJOR, minor),
        node("/dev/nvidiactl".to_owned(), NVIDIA_MAJOR, NVIDIACTL_MINOR),
    ];
    // Minors 0 and 1: the uvm module has made them so since its first version.
    if let Some(uvm) = majors.get("nvidia-uvm") {
        nodes.push(node("/dev/nvidia-uvm".to_owned(), *uvm, 0));
        nodes.push(node(UVM_TOOLS.to_owned(), *uvm, 1));
    }
    if simulated {
        nodes.retain(exists);
    }
    nodes
}

fn exists(node: &DeviceNode) -> bool {
    std::fs::metadata(&node.path).is_ok_and(|found| {
        let device = found.rdev();
        found.file_type().is_char_device()
            && rustix::fs::major(device) == node.major
            && rustix::fs::minor(device) == node.minor
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_nvidias_character_majors_and_no_others() {
        let text = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n510 nvidia-uvm\n\n\
                    Block devices:\n  9 md\n300 nvidia-block\n";
        let majors = parse_majors(text);
        let found: Vec<_> = majors.iter().map(|(name, major)| (name.as_str(), *major)).collect();
        assert_eq!(found, [("nvidia", 195), ("nvidia-uvm", 510), ("nvidiactl", 195)]);
    }

    #[test]
    fn the_assigned_major_is_known_without_a_driver() {
        let majors = parse_majors("Character devices:\n  1 mem\n\nBlock devices:\n");
        assert_eq!(majors.get("nvidia"), Some(&NVIDIA_MAJOR));
        assert_eq!(nodes(3, &majors, false).len(), 2);
    }

    #[test]
    fn uvm_comes_with_the_major_that_the_kernel_gave_it() {
        let majors = parse_majors("Character devices:\n195 nvidia\n510 nvidia-uvm\n\n");
        let paths: Vec<_> =
            nodes(3, &majors, false).into_iter().map(|n| (n.path, n.major, n.minor)).collect();
        assert_eq!(
            paths,
            [
                ("/dev/nvidia3".to_owned(), 195, 3),
                ("/dev/nvidiactl".to_owned(), 195, 255),
                ("/dev/nvidia-uvm".to_owned(), 510, 0),
                ("/dev/nvidia-uvm-tools".to_owned(), 510, 1),
            ]
        );
    }
}
