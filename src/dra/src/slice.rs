//! The node's offer to kube-scheduler: one ResourceSlice with a device for each managed card.
//!
//! Field names and rules are those of k8s.io/api resource/v1 and of Kubernetes'
//! pkg/apis/resource/validation (`validateDevice`, `validateRequestPolicyRange`), read at commit
//! 009801d930e2. The API server refuses a slice that breaks one of them as a whole, and the node
//! then offers nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceAttribute, DeviceCapacity,
    DeviceTaint, ResourcePool, ResourceSliceSpec,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use mpsgate_model::{DRIVER, GpuUuid, Mib};

use crate::claim_status::cut;

/// The most devices of a slice in which any has a taint
/// (`ResourceSliceMaxDevicesWithAdvancedFeatures`; without taints it is 128). It always applies, so
/// that a card does not come and go with another card's trouble.
pub const DEVICES_MAX: usize = 64;
/// The key of the taint of a card that takes no new claims.
pub const TROUBLE_TAINT: &str = "mpsgate.io/trouble";
/// The most bytes of an attribute's text (`DeviceAttributeMaxValueLength`).
const ATTRIBUTE_MAX: usize = 64;
/// The most MiB that Kubernetes can count, in bytes of 63 bits.
const MIB_MAX: u64 = (i64::MAX as u64) >> 20;

/// One card of the offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The card.
    pub uuid: GpuUuid,
    /// NVIDIA's name for it, as `Tesla V100-SXM2-16GB`.
    pub model: String,
    /// The version of NVIDIA's driver, as `580.159.04`.
    pub driver_version: String,
    /// What enforces a container's memory there, as `mps+watchdog`.
    pub guarantee: String,
    /// The proof of that.
    pub proof: String,
    /// Whether it was proved on this node.
    pub proven: bool,
    /// Memory for claims in all, without what local containers hold.
    pub memory: Mib,
    /// The number of claims that it takes, by the clients of its MPS server.
    pub clients: u32,
    /// Compute for claims in all, in percent. Zero if it is not divided.
    pub compute: u8,
    /// Whether its MPS server serves every uid.
    pub multiuser: bool,
    /// The one uid that it serves now.
    pub uid: Option<u32>,
    /// Why it takes no new claims, in one sentence. The health of the device has it, because a
    /// taint's value is one word.
    pub trouble: Option<String>,
}

/// The device's name: the card's UUID in lower case, `gpu-8d4ff3a6-0000-4000-8000-00000000beef`.
///
/// It is a DNS label of 40 characters, as the API requires. Unlike an index it stays the same
/// card's after a reboot and when cards are added or removed, and a claim keeps it for as long.
#[must_use]
pub fn device_name(uuid: &GpuUuid) -> String {
    uuid.as_str().to_ascii_lowercase()
}

/// Why a card is not in the slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unoffered {
    /// None of its memory is left for claims.
    #[error("none of its memory is left for claims")]
    Memory,
    /// Its MPS server takes no process.
    #[error("its MPS server takes no process")]
    Clients,
    /// The slice is full.
    #[error("a slice has at most {DEVICES_MAX} devices")]
    Full,
}

/// Separates the cards of the slice from those that are left out. A card without memory or clients
/// is left out, although the API would accept a capacity of zero with a taint. Zero has no valid
/// policy (`min` plus `step` may not be more than the value). Without one, a claim without an
/// amount consumes "the full value": nothing, any number of times, if it tolerates the taint or the
/// cluster has taints switched off. A claim that has a share of the card keeps it: its allocation
/// names the device, and the slice is not read.
fn sorted(offers: &[Offer]) -> (Vec<&Offer>, Vec<(&GpuUuid, Unoffered)>) {
    let (mut offered, mut left_out) = (Vec::new(), Vec::new());
    for offer in offers {
        if offer.memory == Mib(0) {
            left_out.push((&offer.uuid, Unoffered::Memory));
        } else if offer.clients == 0 {
            left_out.push((&offer.uuid, Unoffered::Clients));
        } else if offered.len() == DEVICES_MAX {
            left_out.push((&offer.uuid, Unoffered::Full));
        } else {
            offered.push(offer);
        }
    }
    (offered, left_out)
}

/// The cards that [`spec`] leaves out, with the reasons.
#[must_use]
pub fn left_out(offers: &[Offer]) -> Vec<(&GpuUuid, Unoffered)> {
    sorted(offers).1
}

/// The slice of a node, in the order of `offers`. `None` if no card can be offered.
///
/// Its pool has the generation 0; the writer of the slice counts it up with each change. See
/// [`left_out`] for the cards that it lacks.
#[must_use]
pub fn spec(node: &str, offers: &[Offer]) -> Option<ResourceSliceSpec> {
    if offers.is_empty() {
        return None;
    }
    Some(ResourceSliceSpec {
        devices: Some(sorted(offers).0.into_iter().map(device).collect()),
        driver: DRIVER.to_owned(),
        node_name: Some(node.to_owned()),
        pool: ResourcePool { name: node.to_owned(), generation: 0, resource_slice_count: 1 },
        ..ResourceSliceSpec::default()
    })
}

fn device(offer: &Offer) -> Device {
    let taint = |_: &String| DeviceTaint {
        // Never `NoExecute`: Kubernetes would delete pods that did no wrong.
        effect: "NoSchedule".to_owned(),
        key: TROUBLE_TAINT.to_owned(),
        time_added: None,
        value: None,
    };
    Device {
        allow_multiple_allocations: Some(true),
        attributes: Some(attributes(offer)),
        capacity: Some(capacities(offer)),
        name: device_name(&offer.uuid),
        taints: offer.trouble.as_ref().map(taint).map(|taint| vec![taint]),
        ..Device::default()
    }
}

/// Names without a domain belong to the driver's domain.
fn attributes(offer: &Offer) -> BTreeMap<String, DeviceAttribute> {
    let text = |value: &str| DeviceAttribute {
        string: Some(cut(value, ATTRIBUTE_MAX).to_owned()),
        ..DeviceAttribute::default()
    };
    let flag = |value| DeviceAttribute { bool: Some(value), ..DeviceAttribute::default() };
    let uid = offer
        .uid
        .map(|uid| DeviceAttribute { int: Some(i64::from(uid)), ..DeviceAttribute::default() });
    let version = semantic(&offer.driver_version)
        .map(|version| DeviceAttribute { version: Some(version), ..DeviceAttribute::default() });
    let all = [
        ("uuid", Some(text(offer.uuid.as_str()))),
        ("model", Some(text(&offer.model))),
        ("driverVersion", version),
        ("guarantee", Some(text(&offer.guarantee))),
        ("proof", Some(text(&offer.proof))),
        ("proven", Some(flag(offer.proven))),
        ("multiuser", Some(flag(offer.multiuser))),
        ("uid", uid),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn capacities(offer: &Offer) -> BTreeMap<String, DeviceCapacity> {
    let memory = offer.memory.0.min(MIB_MAX);
    // A claim without an amount gets the whole card, never "some".
    let memory = capacity(memory, "Mi", 1, memory);
    let clients = each_takes_one(u64::from(offer.clients));
    // Most claims name no compute, and take nothing from those that do.
    let compute =
        (offer.compute > 0).then(|| capacity(u64::from(offer.compute.min(100)), "", 0, 0));
    let all = [("memory", Some(memory)), ("clients", Some(clients)), ("compute", compute)];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// A capacity of which each claim takes exactly one, because a limit of several could not be
/// enforced.
fn each_takes_one(all: u64) -> DeviceCapacity {
    let one = Quantity("1".to_owned());
    let policy = CapacityRequestPolicy {
        default: Some(one.clone()),
        valid_range: None,
        valid_values: Some(vec![one]),
    };
    DeviceCapacity { request_policy: Some(policy), value: Quantity(all.to_string()) }
}

/// A capacity that claims take in whole units, from `least` up to all of it.
fn capacity(all: u64, unit: &str, least: u64, default: u64) -> DeviceCapacity {
    let amount = |number: u64| match number {
        0 => Quantity("0".to_owned()),
        number => Quantity(format!("{number}{unit}")),
    };
    // A range needs room for one step above the least. If the least is everything, there is one
    // value.
    let policy = if all > least {
        CapacityRequestPolicy {
            default: Some(amount(default)),
            valid_range: Some(CapacityRequestPolicyRange {
                max: Some(amount(all)),
                min: amount(least),
                step: Some(amount(1)),
            }),
            valid_values: None,
        }
    } else {
        CapacityRequestPolicy {
            default: Some(amount(all)),
            valid_range: None,
            valid_values: Some(vec![amount(all)]),
        }
    };
    DeviceCapacity { request_policy: Some(policy), value: amount(all) }
}

/// A version in the form of semver.org, with three numbers and no leading zeros: `580.159.04` is
/// `580.159.4`, `390.157` is `390.157.0`. `None` if it has other parts.
fn semantic(version: &str) -> Option<String> {
    let number = |part: &str| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let trimmed = part.trim_start_matches('0');
        digits.then(|| if trimmed.is_empty() { "0" } else { trimmed }.to_owned())
    };
    let mut parts = version.split('.').map(number).collect::<Option<Vec<_>>>()?;
    if parts.len() > 3 {
        return None;
    }
    parts.resize(3, "0".to_owned());
    Some(parts.join(".")).filter(|version| version.len() <= ATTRIBUTE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_semantic_or_left_out() {
        for (version, expected) in [
            ("580.159.04", Some("580.159.4")),
            ("535.261.03", Some("535.261.3")),
            ("610.43.00", Some("610.43.0")),
            ("390.157", Some("390.157.0")),
            ("580", Some("580.0.0")),
            ("", None),
            ("580.", None),
            ("580.1.2.3", None),
            ("580.65-open", None),
            ("580.٠.1", None),
            (&"1".repeat(80), None),
        ] {
            assert_eq!(semantic(version).as_deref(), expected, "{version}");
        }
    }
}
