//! The slice of a node as the API server gets it, and the API's rules that it follows.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::path::Path;

use mpsgate_dra::{DEVICES_MAX, Offer, Unoffered, device_name, left_out, spec};
use mpsgate_model::{GpuUuid, Mib, example_gpu};
use mpsgate_testing::golden;
use serde_json::{Value, json};

fn offer(n: u32) -> Offer {
    Offer {
        uuid: example_gpu(n),
        model: "Tesla V100-SXM2-16GB".to_owned(),
        driver_version: "580.159.04".to_owned(),
        guarantee: "mps+watchdog".to_owned(),
        proof: "asked of this card".to_owned(),
        proven: true,
        memory: Mib(15_360),
        clients: 48,
        compute: 100,
        multiuser: false,
        uid: Some(1000),
        trouble: None,
    }
}

/// The devices of a slice, as JSON.
fn devices(offers: &[Offer]) -> Vec<Value> {
    let slice = serde_json::to_value(spec("gpu-node-1", offers).unwrap()).unwrap();
    slice["devices"].as_array().unwrap().clone()
}

#[test]
fn the_slice_is_as_recorded() {
    let sick = Offer {
        memory: Mib(23_552),
        proven: false,
        compute: 0,
        multiuser: true,
        uid: None,
        driver_version: "a build of ours".to_owned(),
        trouble: Some("its MPS control daemon ended".to_owned()),
        ..offer(1)
    };
    let slice = spec("gpu-node-1", &[offer(0), sick]).unwrap();
    let text = serde_json::to_string_pretty(&slice).unwrap() + "\n";
    golden::compare(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/slice.json"), &text);
}

#[test]
fn a_node_without_cards_has_no_slice() {
    assert_eq!(spec("gpu-node-1", &[]), None);
}

/// Kubelet and allocations keep this name, so it must stay the same card's.
#[test]
fn the_name_of_a_device_is_a_dns_label_of_the_uuid() {
    let uuid = GpuUuid::parse("GPU-8d4ff3a6-0000-4000-8000-00000000BEEF").unwrap();
    let name = device_name(&uuid);
    assert_eq!(name, "gpu-8d4ff3a6-0000-4000-8000-00000000beef");
    assert!(name.len() <= 63);
}

#[test]
fn a_card_without_memory_or_clients_is_left_out_with_its_reason() {
    let full = Offer { memory: Mib(0), ..offer(1) };
    let closed = Offer { clients: 0, ..offer(2) };
    let offers = [offer(0), full, closed];
    let names: Vec<Value> = devices(&offers).iter().map(|d| d["name"].clone()).collect();
    assert_eq!(names, [json!(device_name(&example_gpu(0)))]);
    assert_eq!(
        left_out(&offers),
        [(&example_gpu(1), Unoffered::Memory), (&example_gpu(2), Unoffered::Clients)]
    );
    // The node still has a slice, so that its pool is known to be whole.
    assert_eq!(devices(&offers[1..]), Vec::<Value>::new());
}

#[test]
fn a_slice_has_at_most_so_many_devices() {
    let offers: Vec<Offer> = (0..66).map(offer).collect();
    assert_eq!(devices(&offers).len(), DEVICES_MAX);
    assert_eq!(
        left_out(&offers),
        [(&example_gpu(64), Unoffered::Full), (&example_gpu(65), Unoffered::Full)]
    );
}

#[test]
fn texts_are_cut_to_what_an_attribute_takes() {
    let long = Offer { model: "ä".repeat(40), proof: "x".repeat(200), ..offer(0) };
    let device = &devices(&[long])[0];
    assert_eq!(device["attributes"]["model"]["string"], "ä".repeat(32));
    assert_eq!(device["attributes"]["proof"]["string"], "x".repeat(64));
}

/// In bytes, or as a number.
fn number(quantity: &Value) -> u64 {
    let text = quantity.as_str().unwrap();
    match text.strip_suffix("Mi") {
        Some(mib) => mib.parse::<u64>().unwrap() << 20,
        None => text.parse().unwrap(),
    }
}

/// `validateRequestPolicyRange` and `validateRequestPolicyValidValues` of Kubernetes.
#[test]
fn every_capacity_is_one_that_the_api_server_takes() {
    for memory in [1, 2, 3, 15_361, u64::MAX >> 20, u64::MAX] {
        for clients in [1, 2, 48, u32::MAX] {
            for compute in [0, 1, 100, 255] {
                let card = Offer { memory: Mib(memory), clients, compute, ..offer(0) };
                let device = &devices(&[card])[0];
                let capacity = device["capacity"].as_object().unwrap();
                assert_eq!(capacity.contains_key("compute"), compute > 0);
                for (name, capacity) in capacity {
                    let value = number(&capacity["value"]);
                    let policy = &capacity["requestPolicy"];
                    let default = number(&policy["default"]);
                    assert!(i64::try_from(value).is_ok(), "{name}: {capacity}");
                    if name == "clients" {
                        assert_eq!((default, value), (1, u64::from(clients)), "each takes one");
                    }
                    if let Some(values) = policy.get("validValues") {
                        assert!(policy.get("validRange").is_none(), "{name}: {capacity}");
                        assert_eq!(values, &json!([policy["default"]]), "{name}: {capacity}");
                        assert!(default <= value);
                        continue;
                    }
                    let range = &policy["validRange"];
                    let bound = |name: &str| number(&range[name]);
                    let (min, max, step) = (bound("min"), bound("max"), bound("step"));
                    assert!(min <= default && default <= max && max <= value, "{name}: {capacity}");
                    assert!(step > 0 && min + step <= value, "{name}: {capacity}");
                    assert_eq!((default - min) % step, 0, "{name}: {capacity}");
                    assert_eq!((max - min) % step, 0, "{name}: {capacity}");
                }
            }
        }
    }
}

#[test]
fn a_card_in_trouble_takes_nothing_new_and_keeps_what_it_has() {
    let sick = Offer { trouble: Some("Xid 79".to_owned()), ..offer(0) };
    let device = &devices(&[sick])[0];
    assert_eq!(device["taints"], json!([{"key": "mpsgate.io/trouble", "effect": "NoSchedule"}]));
    assert!(devices(&[offer(0)])[0].get("taints").is_none());
}
