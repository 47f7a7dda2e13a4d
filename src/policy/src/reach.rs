//! Devices of managed cards that a spec leaves within a container's reach: by its nodes, by its
//! rules.

use std::collections::HashSet;

use mpsgate_model::Code;
use mpsgate_oci::spec::{Device, Edit, OpenDevices, View};

use crate::node_facts::{CTL_MINOR, NVIDIA_MAJOR, Node};
use crate::path::clean;
use crate::{Cards, Unruled};

/// A container that was started as privileged: every capability and every device.
#[must_use]
pub fn is_privileged(view: View<'_>) -> bool {
    view.may_gain("CAP_SYS_ADMIN") && view.device_rules().any(|r| r.allows_all())
}

/// The numbers of a card's own node, not those of the driver's shared ones.
pub(crate) fn is_card(major: u32, minor: u32) -> bool {
    major == NVIDIA_MAJOR && minor < CTL_MINOR - 1
}

/// What a node of a managed card is, as the end of a sentence.
pub(crate) fn managed(node: &Node, device: &Device<'_>) -> Option<(Code, &'static str)> {
    if !device.is_character() {
        return None;
    }
    let is = |major: Option<u32>, directory: &str| {
        major == Some(device.major)
            || (major.is_none() && clean(device.path).starts_with(directory))
    };
    if device.major == NVIDIA_MAJOR && node.manages_minor(device.minor) {
        Some((Code::DeviceNode, "a managed GPU"))
    } else if node.other_node(device.major, device.minor).is_some() {
        Some((Code::DeviceNode, "a managed GPU by another driver"))
    } else if is(node.majors.imex, "/dev/nvidia-caps-imex-channels/") {
        Some((Code::ImexChannel, "an IMEX channel"))
    } else if is(node.majors.caps, "/dev/nvidia-caps/") {
        Some((Code::MigCaps, "a MIG capability"))
    } else {
        None
    }
}

/// Devices of managed cards that the rules open, but for some: a minor of `None` is any of the
/// major.
pub(crate) fn opened(
    view: View<'_>,
    node: &Node,
    unruled: Unruled,
    but: &[(u32, u32)],
) -> Vec<(u32, Option<u32>)> {
    let capabilities = [node.majors.caps, node.majors.imex].into_iter().flatten();
    let mut majors = vec![NVIDIA_MAJOR];
    majors.extend(capabilities.clone());
    majors.extend(node.other_nodes.iter().map(|other| other.major));
    let open = OpenDevices::of(view, majors, unruled.is_open(view));
    let everything = unruled == Unruled::NoCgroup;
    let excepted = |major: u32, minor: u32| but.contains(&(major, minor));
    let mut found = Vec::new();
    let mut any = |major: u32, counts: &dyn Fn(u32) -> bool| {
        if everything || open.is_any_open(major, |minor| counts(minor) && !excepted(major, minor)) {
            found.push((major, None));
        }
    };
    if node.cards == Cards::AssumeManaged {
        any(NVIDIA_MAJOR, &|minor| node.manages_minor(minor));
    }
    capabilities.for_each(|major| any(major, &|_| true));
    let cards = match &node.cards {
        Cards::Known(cards) => cards.as_slice(),
        Cards::AssumeManaged => &[],
    };
    let cards = cards.iter().filter(|card| card.managed).map(|card| (NVIDIA_MAJOR, card.minor));
    let others = node.other_nodes.iter().map(|other| (other.major, other.minor));
    let single = cards.chain(others).filter(|(major, minor)| {
        (everything || open.is_open(*major, *minor)) && !excepted(*major, *minor)
    });
    found.extend(single.map(|(major, minor)| (major, Some(minor))));
    found
}

/// Takes the nodes of devices away, each once: a spec may name one many times.
pub(crate) fn nodes_away<'a>(devices: impl Iterator<Item = Device<'a>>) -> Vec<Edit> {
    let mut gone = HashSet::new();
    devices
        .map(|device| (device.major, device.minor))
        .filter(|numbers| gone.insert(*numbers))
        .map(|(major, minor)| Edit::RemoveDevice { major, minor })
        .collect()
}
