//! The device nodes that a grant is made of.

use std::collections::BTreeMap;

use mpsgate_model::{DeviceNode, UVM_TOOLS};
use mpsgate_policy::{CTL_MINOR, NVIDIA_MAJOR};

/// The nodes that a CUDA process needs: its card's, and the driver's shared ones; `majors` are
/// NVIDIA's by name.
pub(super) fn nodes(minor: u32, majors: &BTreeMap<String, u32>) -> Vec<DeviceNode> {
    let node = |path: String, major, minor| DeviceNode { path, major, minor };
    let mut nodes = vec![
        node(format!("/dev/nvidia{minor}"), NVIDIA_MAJOR, minor),
        node("/dev/nvidiactl".to_owned(), NVIDIA_MAJOR, CTL_MINOR),
    ];
    // Minors 0 and 1: the uvm module has made them so since its first version.
    if let Some(uvm) = majors.get("nvidia-uvm") {
        nodes.push(node("/dev/nvidia-uvm".to_owned(), *uvm, 0));
        nodes.push(node(UVM_TOOLS.to_owned(), *uvm, 1));
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uvm_comes_with_the_major_that_the_kernel_gave_it() {
        let majors = BTreeMap::from([("nvidia-uvm".to_owned(), 510)]);
        assert_eq!(nodes(3, &BTreeMap::new()).len(), 2);
        let paths: Vec<_> =
            nodes(3, &majors).into_iter().map(|n| (n.path, n.major, n.minor)).collect();
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
