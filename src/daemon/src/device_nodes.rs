//! NVIDIA's device numbers on this node.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use mpsgate_host::procfs;
use mpsgate_model::DeviceNode;
use mpsgate_policy::NVIDIA_MAJOR;

/// NVIDIA's character majors by name, from `/proc/devices`; `nvidia` is there in any case, because
/// it is assigned for good.
pub(crate) fn majors() -> BTreeMap<String, u32> {
    parse_majors(&procfs::text("/proc/devices").unwrap_or_default())
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

/// Whether a node is there, and the one that its numbers say.
pub(crate) fn exists(node: &DeviceNode) -> bool {
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
    }
}
