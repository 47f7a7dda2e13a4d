//! What a decision must know of the node: its cards, NVIDIA's majors, the MPS servers' IPC
//! namespace.

use mpsgate_config::Schedule;
use mpsgate_model::{DeviceNode, NodeCard};

use crate::SharedMemory;

/// Major of NVIDIA's card nodes, fixed since the driver's first release.
pub const NVIDIA_MAJOR: u32 = 195;
/// Minor of `/dev/nvidiactl`.
pub const CTL_MINOR: u32 = 255;
/// Minor of `/dev/nvidia-modeset`.
const MODESET_MINOR: u32 = 254;

/// The node's cards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cards {
    /// Not known: every card that anybody names counts as managed.
    AssumeManaged,
    /// As the daemon found them.
    Known(Vec<NodeCard>),
}

/// NVIDIA's dynamic character majors, as `/proc/devices` names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Majors {
    /// `nvidia-caps`: MIG capabilities.
    pub caps: Option<u32>,
    /// `nvidia-caps-imex-channels`.
    pub imex: Option<u32>,
    /// `nvidia-nvswitch`: the fabric that joins the cards.
    pub nvswitch: Option<u32>,
    /// `nvidia-uvm`, `nvidia-nvlink`, `nvidia-fs` and others.
    pub others: Vec<u32>,
}

impl Majors {
    /// Sorts one line of `/proc/devices` in. Names that are not NVIDIA's are ignored.
    pub fn insert(&mut self, name: &str, major: u32) {
        match name {
            "nvidia-caps" => self.caps = Some(major),
            "nvidia-caps-imex-channels" => self.imex = Some(major),
            "nvidia-nvswitch" => self.nvswitch = Some(major),
            _ if name.starts_with("nvidia") && major != NVIDIA_MAJOR => self.others.push(major),
            _ => {}
        }
    }

    /// Every major of NVIDIA's.
    #[must_use]
    pub fn all(&self) -> Vec<u32> {
        let single = [self.caps, self.imex, self.nvswitch].into_iter().flatten();
        let dynamic = single.chain(self.others.iter().copied());
        std::iter::once(NVIDIA_MAJOR).chain(dynamic).collect()
    }
}

/// What a decision must know of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The cards.
    pub cards: Cards,
    /// NVIDIA's dynamic majors.
    pub majors: Majors,
    /// Inode of the MPS servers' IPC namespace; `None` where it is not known.
    pub ipc_inode: Option<u64>,
    /// What the MPS servers have at `/dev/shm`, by device and inode; `None` where it is not known.
    pub shm: Option<(u64, u64)>,
    /// How the MPS servers share memory with their clients.
    pub shared_memory: SharedMemory,
    /// Names of swarm resource variables that stand for GPUs.
    pub swarm_resources: Vec<String>,
    /// Prefixes of annotations by which NVIDIA's toolkit injects CDI devices, besides its own.
    pub annotation_prefixes: Vec<String>,
    /// Nodes of managed cards that other drivers than NVIDIA's have made: the kernel's for displays
    /// (`/dev/dri`), VFIO's, WSL's. None where the daemon has not spoken.
    pub other_nodes: Vec<DeviceNode>,
    /// How its cards are shared.
    pub schedule: Schedule,
    /// Whether mpsgate's device plugin serves here: a pod's container then asks by its limits, for
    /// which it has a token, and by its pod's annotations it asks for nothing.
    pub device_plugin: bool,
}

impl Node {
    /// A node of which nothing is known: every card counts as managed.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            cards: Cards::AssumeManaged,
            majors: Majors::default(),
            ipc_inode: None,
            shm: None,
            shared_memory: SharedMemory::Unknown,
            swarm_resources: Vec::new(),
            annotation_prefixes: Vec::new(),
            other_nodes: Vec::new(),
            schedule: Schedule::Mps,
            device_plugin: false,
        }
    }

    /// The node of a managed card that another driver has made, by its numbers.
    pub(crate) fn other_node(&self, major: u32, minor: u32) -> Option<&DeviceNode> {
        self.other_nodes.iter().find(|node| (node.major, node.minor) == (major, minor))
    }

    /// Whether a character device is one of a managed card, or opens one of its parts.
    #[must_use]
    pub fn manages_device(&self, major: u32, minor: u32) -> bool {
        (major == NVIDIA_MAJOR && self.manages_minor(minor))
            || self.other_node(major, minor).is_some()
            || [self.majors.caps, self.majors.imex].contains(&Some(major))
    }

    /// Majors that stay closed where a rule for all devices is taken away.
    pub(crate) fn closed_majors(&self) -> Vec<u32> {
        let mut majors = self.majors.all();
        for node in &self.other_nodes {
            if !majors.contains(&node.major) {
                majors.push(node.major);
            }
        }
        majors
    }

    /// Whether no card is handed to mpsgate: then nothing is its business but requests.
    #[must_use]
    pub fn manages_nothing(&self) -> bool {
        matches!(&self.cards, Cards::Known(cards) if cards.iter().all(|c| !c.managed))
    }

    /// Whether the card with this minor is managed; one that is not known counts as managed.
    #[must_use]
    pub fn manages_minor(&self, minor: u32) -> bool {
        if matches!(minor, CTL_MINOR | MODESET_MINOR) {
            return false;
        }
        match &self.cards {
            Cards::AssumeManaged => true,
            Cards::Known(cards) => {
                !self.manages_nothing()
                    && cards.iter().find(|c| c.minor == minor).is_none_or(|c| c.managed)
            }
        }
    }

    /// Whether a name that the NVIDIA tools understand reaches a managed card. A name that is not
    /// known counts as reaching one.
    #[must_use]
    pub fn manages_name(&self, name: &str) -> bool {
        let cards = match &self.cards {
            Cards::AssumeManaged => return true,
            Cards::Known(cards) => cards,
        };
        if self.manages_nothing() {
            return false;
        }
        let device = match name.split_once('=') {
            // A fully qualified CDI name, vendor/class=device.
            Some((kind, device)) if kind.contains('/') => device,
            _ => name,
        };
        // `0:1` is MIG instance 1 of card 0.
        let index = device.split_once(':').map_or(device, |(index, _)| index);
        let named = if let Ok(index) = index.parse::<u32>() {
            cards.iter().find(|c| c.index == index)
        } else if device.len() >= 12 && device.is_ascii() {
            // nvidia-container-cli takes any beginning of a UUID.
            let mut found = cards.iter().filter(|c| {
                c.uuid.as_str().get(..device.len()).is_some_and(|u| u.eq_ignore_ascii_case(device))
            });
            found.next().filter(|_| found.next().is_none())
        } else {
            None
        };
        named.is_none_or(|card| card.managed)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::example_gpu;

    use super::*;

    pub(crate) fn node(managed: &[bool]) -> Node {
        let cards = managed.iter().zip(0..).map(|(managed, index)| NodeCard {
            uuid: example_gpu(index),
            index,
            minor: index + 4,
            managed: *managed,
        });
        let mut majors = Majors::default();
        for (name, major) in
            [("nvidia-caps", 236), ("nvidia-uvm", 507), ("nvidia", 195), ("ttyS", 4)]
        {
            majors.insert(name, major);
        }
        Node {
            cards: Cards::Known(cards.collect()),
            majors,
            ipc_inode: Some(77),
            swarm_resources: vec!["DOCKER_RESOURCE_TESLA".to_owned()],
            ..Node::unknown()
        }
    }

    #[test]
    fn names_that_are_not_known_count_as_managed() {
        let node = node(&[false, true]);
        for (name, managed) in [
            ("0", false),
            ("1", true),
            ("2", true),
            ("0:3", false),
            ("1:0", true),
            ("nvidia.com/gpu=0", false),
            ("nvidia.com/gpu=1", true),
            ("nvidia.com/gpu=all", true),
            ("GPU-00000000-0000-0000-0000-000000000000", false),
            ("gpu-00000000-0000", false),
            ("GPU-00000001", true),
            ("GPU-0000000", true),
            ("GPU-0", true),
            ("MIG-00000000-0000-0000-0000-000000000000", true),
            ("all", true),
        ] {
            assert_eq!(node.manages_name(name), managed, "{name}");
        }
        assert!(!node.manages_minor(4) && node.manages_minor(5) && node.manages_minor(9));
        assert!(!node.manages_minor(255));
        assert_eq!(node.majors.all(), [195, 236, 507]);
    }

    #[test]
    fn nothing_is_managed_after_installation() {
        let node = node(&[false, false]);
        assert!(node.manages_nothing() && !node.manages_name("all") && !node.manages_minor(9));
    }
}
