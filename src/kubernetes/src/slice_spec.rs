//! Whether a ResourceSlice is as it was wanted, though the API server writes it in its own way; and
//! its name. Pure; `slices` does it.
//!
//! An API server sets the time of a taint, leaves out what is empty, and writes 1024Mi as 1Gi. None
//! of that is another slice. Everything else in it that was not wanted is somebody's: a field that
//! nobody here knows may keep a card's claims waiting for ever (`bindingConditions`). Fields that a
//! newer server adds by itself are told from those by what it answers to a write (`slices`).

use mpsgate_model::parse_nanos;
use serde_json::Value;

/// The longest name of an object (kubernetes `IsDNS1123Subdomain`).
const LONGEST_NAME: usize = 253;
/// Switches of a slice and a device that are off where they are `false`, as where they are left out
/// (k8s.io/api resource/v1). That of an attribute is a value.
const OFF: [&str; 3] = ["allNodes", "bindsToNode", "perDeviceNodeSelection"];

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

/// Where `shown` is not as `wanted`, as a path; `None` where it is.
pub(crate) fn difference(shown: &Value, wanted: &Value) -> Option<String> {
    missing(shown, wanted).or_else(|| added(shown, wanted, ""))
}

/// Where `shown` has not what is wanted, whatever it has beside.
pub(crate) fn missing(shown: &Value, wanted: &Value) -> Option<String> {
    differs(shown, wanted, "", false)
}

/// Where `shown` has what was not wanted. Lists of other lengths are for [`missing`].
fn added(shown: &Value, wanted: &Value, at: &str) -> Option<String> {
    match (shown, wanted) {
        (Value::Object(shown), Value::Object(wanted)) => shown.iter().find_map(|(key, value)| {
            let here = format!("{at}.{key}");
            match wanted.get(key) {
                Some(wanted) => added(value, wanted, &here),
                None if is_servers(at, key) || says_nothing(key, value) => None,
                None => Some(here.trim_start_matches('.').to_owned()),
            }
        }),
        (Value::Array(shown), Value::Array(wanted)) => {
            let mut pairs = shown.iter().zip(wanted).enumerate();
            pairs
                .find_map(|(index, (shown, wanted))| added(shown, wanted, &format!("{at}.{index}")))
        }
        _ => None,
    }
}

fn differs(shown: &Value, wanted: &Value, at: &str, quantities: bool) -> Option<String> {
    let here = || Some(at.trim_start_matches('.').to_owned());
    match wanted {
        Value::Object(wanted) => {
            let of = |key: &str| shown.get(key).unwrap_or(&Value::Null);
            let mut all = wanted.iter().filter(|(key, _)| !is_servers(at, key));
            all.find_map(|(key, value)| {
                let quantities = quantities || key == "capacity";
                differs(of(key), value, &format!("{at}.{key}"), quantities)
            })
        }
        Value::Array(wanted) => {
            let shown = shown.as_array().map(Vec::as_slice).unwrap_or_default();
            if shown.len() != wanted.len() {
                return here();
            }
            let mut pairs = shown.iter().zip(wanted).enumerate();
            pairs.find_map(|(index, (shown, wanted))| {
                differs(shown, wanted, &format!("{at}.{index}"), quantities)
            })
        }
        wanted if wanted == shown => None,
        wanted => match (nanos(wanted), nanos(shown)) {
            (Some(wanted), Some(shown)) if quantities && wanted == shown => None,
            _ => here(),
        },
    }
}

/// The generation is set when it is written, and the time of a taint by the API server. An
/// attribute or a capacity may have that name, too.
fn is_servers(at: &str, key: &str) -> bool {
    (key == "timeAdded" && at.contains(".taints.")) || (at == ".pool" && key == "generation")
}

fn says_nothing(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(all) => all.is_empty(),
        Value::Array(all) => all.is_empty(),
        Value::Bool(false) => OFF.contains(&key),
        _ => false,
    }
}

/// What a quantity comes to, as text or as a number.
fn nanos(value: &Value) -> Option<i128> {
    match value {
        Value::String(text) => parse_nanos(text),
        Value::Number(number) => parse_nanos(&number.to_string()),
        _ => None,
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

    #[test]
    fn what_an_api_server_writes_in_its_own_way_is_the_same_slice() {
        let memory = "/devices/0/capacity/memory";
        for same in [
            with("/pool/generation", json!(7)),
            with(&format!("{memory}/value"), json!("15Gi")),
            with(&format!("{memory}/requestPolicy/default"), json!("16106127360")),
            with("/devices/0/taints/0/timeAdded", json!("2026-01-31T12:00:00Z")),
            with("/devices/0/bindsToNode", json!(false)),
            with("/devices/0/allNodes", json!(false)),
            with("/devices/0/bindingConditions", json!([])),
            with("/devices/0/nodeSelector", json!({})),
            with("/perDeviceNodeSelection", json!(null)),
            with("/perDeviceNodeSelection", json!(false)),
        ] {
            assert_eq!(difference(&same, &spec()), None, "{same}");
            assert_eq!(missing(&same, &spec()), None, "{same}");
        }
        // What is empty is left out.
        let mut bare = spec();
        bare["devices"][0].as_object_mut().expect("a device").remove("taints");
        assert_eq!(difference(&bare, &with("/devices/0/taints", json!([]))), None);
    }

    #[test]
    fn every_other_difference_is_one_and_says_where() {
        for (pointer, value, place) in [
            (
                "/devices/0/allowMultipleAllocations",
                json!(null),
                "devices.0.allowMultipleAllocations",
            ),
            ("/devices/0/capacity/memory/value", json!("16Gi"), "devices.0.capacity.memory.value"),
            (
                "/devices/0/capacity/memory/requestPolicy",
                json!(null),
                "devices.0.capacity.memory.requestPolicy",
            ),
            ("/devices/0/capacity/more", json!({"value": "1"}), "devices.0.capacity.more"),
            ("/devices/0/attributes/mine", json!({"bool": true}), "devices.0.attributes.mine"),
            (
                "/devices/0/attributes/uuid",
                json!({"string": "GPU-2"}),
                "devices.0.attributes.uuid.string",
            ),
            ("/devices/0/taints", json!([]), "devices.0.taints"),
            (
                "/devices/0/taints/1",
                json!({"key": "x", "effect": "NoSchedule"}),
                "devices.0.taints",
            ),
            ("/devices/1", json!({"name": "gpu-9"}), "devices"),
            ("/pool/resourceSliceCount", json!(2), "pool.resourceSliceCount"),
        ] {
            let found = difference(&with(pointer, value.clone()), &spec());
            assert!(found.is_some_and(|at| at.starts_with(place)), "{pointer} {value}");
        }
        // A taint that nobody wants any more.
        let mut healthy = spec();
        healthy["devices"][0].as_object_mut().expect("a device").remove("taints");
        assert_eq!(difference(&spec(), &healthy).as_deref(), Some("devices.0.taints"));
    }

    /// Each as somebody may write it who may write slices.
    #[test]
    fn what_was_not_wanted_is_a_difference_wherever_it_stands_and_nothing_is_missing() {
        for (pointer, value, place) in [
            ("/sharedCounters", json!([{"name": "c"}]), "sharedCounters"),
            ("/allNodes", json!(true), "allNodes"),
            ("/perDeviceNodeSelection", json!(true), "perDeviceNodeSelection"),
            ("/nodeSelector", json!({"nodeSelectorTerms": []}), "nodeSelector"),
            ("/pool/ofAYoungerRelease", json!("x"), "pool.ofAYoungerRelease"),
            ("/devices/0/bindingConditions", json!(["never"]), "devices.0.bindingConditions"),
            (
                "/devices/0/bindingFailureConditions",
                json!(["x"]),
                "devices.0.bindingFailureConditions",
            ),
            ("/devices/0/bindsToNode", json!(true), "devices.0.bindsToNode"),
            ("/devices/0/nodeName", json!("other"), "devices.0.nodeName"),
            ("/devices/0/allNodes", json!(true), "devices.0.allNodes"),
            (
                "/devices/0/consumesCounters",
                json!([{"counterSet": "c"}]),
                "devices.0.consumesCounters",
            ),
            ("/devices/0/attributes/mine", json!({"bool": false}), "devices.0.attributes.mine"),
            ("/devices/0/attributes/uuid/bool", json!(false), "devices.0.attributes.uuid.bool"),
            (
                "/devices/0/attributes/timeAdded",
                json!({"bool": true}),
                "devices.0.attributes.timeAdded",
            ),
            ("/devices/0/generation", json!(7), "devices.0.generation"),
            (
                "/devices/0/capacity/memory/requestPolicy/validRange/max",
                json!("15Gi"),
                "devices.0.capacity.memory.requestPolicy.validRange.max",
            ),
            (
                "/devices/0/capacity/memory/requestPolicy/validValues",
                json!(["15Gi"]),
                "devices.0.capacity.memory.requestPolicy.validValues",
            ),
            ("/devices/0/taints/0/value", json!("x"), "devices.0.taints.0.value"),
        ] {
            let shown = with(pointer, value);
            assert_eq!(difference(&shown, &spec()).as_deref(), Some(place), "{shown}");
            assert_eq!(missing(&shown, &spec()), None, "{shown}");
        }
    }

    #[test]
    fn quantities_are_numbers_and_attributes_are_not() {
        assert_eq!(nanos(&json!(5)), nanos(&json!("5")));
        assert_eq!(nanos(&json!("one")), None);
        let of = |text: &str| json!({"attributes": {"x": {"string": text}}});
        assert!(difference(&of("1Gi"), &of("1024Mi")).is_some());
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
