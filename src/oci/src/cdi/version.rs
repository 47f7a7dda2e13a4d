//! Which version a specification claims, and whether that one has what it uses.
//!
//! This does what the reference implementation does (`specs-go/version.go`, CDI 1.1.0): containerd,
//! CRI-O, Docker and Podman refuse a file that uses more than its version has. An unknown version
//! may have a meaning that no reader of today knows.

use super::{ContainerEdits, Spec};

/// The released versions, from the oldest. 0.8.0 and 1.0.0 changed the reference's interface, not
/// the format.
const VERSIONS: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

pub(super) fn check(spec: &Spec) -> Result<(), String> {
    let claimed = spec.cdi_version.trim_start_matches('v');
    let rank = |version: &str| VERSIONS.iter().position(|known| *known == version);
    let Some(claimed_rank) = rank(claimed) else {
        return Err(format!("cdiVersion {claimed:?} is none that is known"));
    };
    let (needed, what) = needed(spec);
    if rank(needed) > Some(claimed_rank) {
        return Err(format!(
            "it says cdiVersion {claimed} and has {what}, which begins with {needed}"
        ));
    }
    Ok(())
}

/// The lowest version that has everything the file uses, and the feature that needs it.
fn needed(spec: &Spec) -> (&'static str, &'static str) {
    let parts = || {
        std::iter::once(&spec.container_edits)
            .chain(spec.devices.iter().map(|d| &d.container_edits))
    };
    let any = |uses: fn(&ContainerEdits) -> bool| parts().any(uses);
    let class = spec.kind.split_once('/').map_or("", |(_, class)| class);
    let letter = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic());
    if any(|edits| !edits.net_devices.is_empty()) {
        ("1.1.0", "netDevices")
    } else if any(|edits| edits.intel_rdt.is_some() || !edits.additional_gids.is_empty()) {
        ("0.7.0", "intelRdt or additionalGids")
    } else if !spec.annotations.is_empty() || spec.devices.iter().any(|d| !d.annotations.is_empty())
    {
        ("0.6.0", "annotations")
    } else if class.contains('.') {
        ("0.6.0", "a dot in the class of its kind")
    } else if spec.devices.iter().any(|d| !d.name.is_empty() && !letter(&d.name)) {
        ("0.5.0", "a device whose name begins with a digit")
    } else if any(|edits| edits.device_nodes.iter().any(|node| node.host_path.is_some())) {
        ("0.5.0", "a hostPath of a device node")
    } else if any(|edits| edits.mounts.iter().any(|mount| mount.kind.is_some())) {
        ("0.4.0", "the type of a mount")
    } else {
        ("0.3.0", "nothing newer")
    }
}
