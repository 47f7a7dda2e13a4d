//! A ResourceSlice's name, and what of it an API server has not kept. Pure; `resource_slice` does
//! it.

use mpsgate_model::parse_nanos;
use serde_json::Value;

/// The longest name of an object (kubernetes `IsDNS1123Subdomain`).
const LONGEST_NAME: usize = 253;
/// The name of this node's slice: the same after each start, so that there never are two.
pub(crate) fn name(node: &str, driver: &str) -> String {
    let end = format!("-{driver}");
    if node.len() + end.len() <= LONGEST_NAME {
        return format!("{node}{end}");
    }
    // FNV-1a of 64 bits: the same in every release, and nobody chooses names of nodes to collide.
    let hash = node.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let end = format!("-{hash:016x}{end}");
    let kept: String = node.chars().take(LONGEST_NAME.saturating_sub(end.len())).collect();
    // A part of a name between dots begins with no hyphen.
    format!("{}{end}", kept.trim_end_matches(['.', '-']))
}

/// What of a written slice an API server has not kept.
pub(crate) struct Lack {
    /// It cannot say that a card is shared.
    pub(crate) whole_cards: bool,
    /// In words, with what to do.
    pub(crate) line: String,
}

impl Lack {
    /// `None` where all is there, whatever there is beside it.
    pub(crate) fn find(kept: &Value, written: &Value) -> Option<Self> {
        let at = missing(kept, written, "")?;
        let devices = |spec: &Value| spec["devices"].as_array().cloned().unwrap_or_default();
        // Both fields are of that gate (`dropDisabledDRAConsumableCapacityFields`).
        let lacks = |(written, kept): &(Value, Value)| {
            let shares = |device: &Value| device["allowMultipleAllocations"] == true;
            let policies = |device: &Value| {
                let all = device["capacity"].as_object().into_iter().flatten();
                all.filter(|(_, one)| !one["requestPolicy"].is_null()).count()
            };
            (shares(written) && !shares(kept)) || policies(kept) < policies(written)
        };
        let whole_cards = devices(written).into_iter().zip(devices(kept)).any(|both| lacks(&both));
        let hint = if whole_cards {
            "the feature gate DRAConsumableCapacity is off: on by default from Kubernetes 1.36; no \
             ResourceSlice is published, as it would hand out whole cards"
        } else if at.contains(".taints") {
            "the feature gate DRADeviceTaints is off: on by default from Kubernetes 1.36; until \
             then claims can be allocated on sick cards, and are refused on the node"
        } else {
            "look for an admission webhook that changes ResourceSlices, or a feature gate that is \
             off"
        };
        let at = at.trim_start_matches('.');
        let line = format!("the API server does not keep {at} of the ResourceSlice; {hint}");
        Some(Self { whole_cards, line })
    }
}

/// Where `kept` has not what was written, as a path. 1024Mi is kept as 1Gi, and what is empty is
/// left out.
fn missing(kept: &Value, written: &Value, at: &str) -> Option<String> {
    let below = |kept: &Value, (key, value): (&dyn std::fmt::Display, &Value)| {
        missing(kept, value, &format!("{at}.{key}"))
    };
    match (kept, written) {
        (kept, Value::Object(all)) => all
            .iter()
            .find_map(|(key, value)| below(kept.get(key).unwrap_or(&Value::Null), (key, value))),
        (Value::Array(kept), Value::Array(all)) if kept.len() == all.len() => {
            let mut pairs = kept.iter().zip(all).enumerate();
            pairs.find_map(|(index, (kept, value))| below(kept, (&index, value)))
        }
        (Value::Null, Value::Array(all)) if all.is_empty() => None,
        (Value::String(kept), Value::String(written)) if at.contains(".capacity.") => {
            let nanos = parse_nanos(written);
            (kept != written && (nanos.is_none() || nanos != parse_nanos(kept)))
                .then(|| at.to_owned())
        }
        (kept, written) => (kept != written).then(|| at.to_owned()),
    }
}

/// `wanted` with the times of taints that stay, as kubelet's helper for drivers keeps them: else
/// the API server would set the time anew with each write.
pub(crate) fn keep_times(wanted: &mut Value, shown: &Value) {
    let devices = |spec: &Value| spec["devices"].as_array().cloned().unwrap_or_default();
    let before = devices(shown);
    for device in wanted["devices"].as_array_mut().into_iter().flatten() {
        let Some(before) = before.iter().find(|one| one["name"] == device["name"]) else {
            continue;
        };
        for taint in device["taints"].as_array_mut().into_iter().flatten() {
            let same =
                |one: &&Value| ["key", "value", "effect"].iter().all(|key| one[key] == taint[key]);
            let found = before["taints"].as_array().into_iter().flatten().find(same);
            let time = found.and_then(|found| found.get("timeAdded"));
            if let (Some(time), Some(taint)) = (time, taint.as_object_mut()) {
                taint.entry("timeAdded").or_insert_with(|| time.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> Value {
        json!({
            "driver": "mpsgate.io", "nodeName": "gpu-1",
            "pool": {"name": "gpu-1", "generation": 0, "resourceSliceCount": 1},
            "devices": [{
                "name": "gpu-0", "allowMultipleAllocations": true,
                "attributes": {"uuid": {"string": "GPU-1"}},
                "capacity": {"memory": {"value": "15360Mi", "requestPolicy": {"default": "15360Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}}},
                "taints": [{"key": "mpsgate.io/sick", "effect": "NoSchedule"}],
            }],
        })
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut spec = spec();
        match pointer.rsplit_once('/') {
            Some((parent, last)) => match spec.pointer_mut(parent).expect("there") {
                Value::Array(all) => all.push(value),
                parent => parent[last] = value,
            },
            None => panic!("{pointer}"),
        }
        spec
    }

    fn lack(kept: &Value, written: &Value) -> Option<String> {
        missing(kept, written, "").map(|at| at.trim_start_matches('.').to_owned())
    }

    #[test]
    fn what_an_api_server_writes_in_its_own_way_or_adds_is_no_lack() {
        let memory = "/devices/0/capacity/memory";
        for kept in [
            with(&format!("{memory}/value"), json!("15Gi")),
            with(&format!("{memory}/requestPolicy/default"), json!("16106127360")),
            with("/devices/0/taints/0/timeAdded", json!("2026-01-31T12:00:00Z")),
            with("/devices/0/bindsToNode", json!(false)),
            with("/devices/0/bindingConditions", json!(["never"])),
            with("/devices/0/nodeSelector", json!({})),
            with("/devices/0/attributes/mine", json!({"bool": true})),
            with("/devices/0/capacity/more", json!({"value": "1"})),
            with("/perDeviceNodeSelection", json!(null)),
            with("/pool/ofAYoungerRelease", json!("x")),
        ] {
            assert_eq!(lack(&kept, &spec()), None, "{kept}");
        }
        // What is empty is left out.
        let mut bare = spec();
        bare["devices"][0].as_object_mut().expect("a device").remove("taints");
        let mut empty = spec();
        empty["devices"][0]["taints"] = json!([]);
        assert_eq!(lack(&bare, &empty), None);
    }

    #[test]
    fn what_is_not_kept_is_told_with_its_place_and_what_to_do() {
        let of = |kept: &Value| Lack::find(kept, &spec()).map(|lack| (lack.whole_cards, lack.line));
        for (pointer, value, place, whole_cards, hint) in [
            (
                "/devices/0/allowMultipleAllocations",
                json!(null),
                "devices.0.allowMultipleAllocations",
                true,
                "DRAConsumableCapacity",
            ),
            (
                "/devices/0/capacity/memory/requestPolicy",
                json!(null),
                "devices.0.capacity.memory.requestPolicy",
                true,
                "DRAConsumableCapacity",
            ),
            (
                "/devices/0/capacity/memory/value",
                json!("16Gi"),
                "devices.0.capacity.memory.value",
                false,
                "webhook",
            ),
            (
                "/devices/0/attributes/uuid/string",
                json!("GPU-2"),
                "devices.0.attributes.uuid.string",
                false,
                "webhook",
            ),
            ("/devices/0/taints", json!(null), "devices.0.taints", false, "DRADeviceTaints"),
            (
                "/devices/0/taints/1",
                json!({"key": "x", "effect": "NoSchedule"}),
                "devices.0.taints",
                false,
                "DRADeviceTaints",
            ),
            ("/devices/1", json!({"name": "gpu-9"}), "devices", false, "webhook"),
            ("/pool/generation", json!(7), "pool.generation", false, "webhook"),
            ("/pool/resourceSliceCount", json!(2), "pool.resourceSliceCount", false, "webhook"),
        ] {
            let (whole, line) = of(&with(pointer, value)).expect("a lack");
            let begin = format!("the API server does not keep {place}");
            assert!(line.starts_with(&begin) && line.contains(hint), "{pointer}: {line}");
            assert_eq!(whole, whole_cards, "{pointer}");
        }
        // An attribute is no quantity.
        let of = |text: &str| json!({"attributes": {"x": {"string": text}}});
        assert_eq!(lack(&of("1Gi"), &of("1024Mi")).as_deref(), Some("attributes.x.string"));
    }

    #[test]
    fn the_time_of_a_taint_that_stays_stays() {
        let shown = with("/devices/0/taints/0/timeAdded", json!("2026-01-31T12:00:00Z"));
        let mut wanted = with("/devices/0/taints/1", json!({"key": "new", "effect": "NoSchedule"}));
        keep_times(&mut wanted, &shown);
        let taints = &wanted["devices"][0]["taints"];
        assert_eq!(taints[0]["timeAdded"], "2026-01-31T12:00:00Z");
        assert_eq!(taints[1].get("timeAdded"), None);
    }

    #[test]
    fn a_name_is_the_nodes_or_short_enough_and_its_own() {
        assert_eq!(name("gpu-1", "mpsgate.io"), "gpu-1-mpsgate.io");
        let longest = "n".repeat(242);
        assert_eq!(name(&longest, "mpsgate.io"), format!("{longest}-mpsgate.io"));
        let (a, b) = (format!("{longest}x"), format!("{longest}y"));
        let (a, b) = (name(&a, "mpsgate.io"), name(&b, "mpsgate.io"));
        assert!(a.len() == 253 && b.len() == 253 && a != b, "{a} {b}");
        let dots = name(&format!("{}{}", "n".repeat(220), ".a".repeat(16)), "mpsgate.io");
        assert!(!dots.contains(".-") && dots.len() <= 253, "{dots}");
    }
}
