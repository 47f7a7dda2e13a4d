//! Claims as kube-scheduler allocates them, and broken ones: what is read of each, and its entries
//! in the CDI file and in the claim's status.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::path::Path;

use k8s_openapi::api::resource::v1::ResourceClaim;
use mpsgate_dra::{
    AllocatedDeviceStatus, Here, device_id, device_name, file, file_name, news, read, status,
    variable,
};
use mpsgate_model::{
    ClaimName, Code, ComputeShare, GpuUuid, Mib, PreparedClaim, Priority, Refusal, example_gpu,
};
use mpsgate_testing::golden;
use serde_json::{Value, json};

const UID: &str = "0a1b2c3d-0000-4000-8000-000000000001";
const POD: &str = "0a1b2c3d-0000-4000-8000-0000000000aa";
const SHARE: &str = "0a1b2c3d-0000-4000-8000-0000000000bb";
const POOL: &str = "gpu-node-1";

fn asked() -> ClaimName {
    let [namespace, name, uid] = ["default", "gpu-7gi", UID].map(str::to_owned);
    ClaimName { namespace, name, uid }
}

fn card_of(device: &str) -> Option<GpuUuid> {
    [0_u32, 1].into_iter().map(example_gpu).find(|card| device_name(card) == device)
}

/// A result for this driver, on the first card.
fn result(request: &str) -> Value {
    json!({
        "request": request, "driver": "mpsgate.io", "pool": POOL,
        "device": device_name(&example_gpu(0)), "shareID": SHARE,
        "consumedCapacity": {"memory": "7516192768", "clients": "1", "compute": "0"},
    })
}

/// A claim with one share.
fn claim() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": "gpu-7gi", "uid": UID},
        "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "shared-gpu.mpsgate.io"}},
        ]}},
        "status": {
            "allocation": {"devices": {"results": [result("gpu")]}},
            "reservedFor": [{"resource": "pods", "name": "dra-sample", "uid": POD}],
        },
    })
}

/// The claim with another value at a JSON pointer, which is made if it is missing.
fn with(pointer: &str, value: Value) -> Value {
    let mut claim = claim();
    put(&mut claim, pointer, value);
    claim
}

fn put(claim: &mut Value, pointer: &str, value: Value) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = claim.pointer_mut(parent).unwrap();
    match parent {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        other => other[key] = value,
    }
}

const RESULTS: &str = "/status/allocation/devices/results";
const CONFIG: &str = "/status/allocation/devices/config";

/// The claim with another value in its one result.
fn with_result(key: &str, value: Value) -> Value {
    with(&format!("{RESULTS}/0/{key}"), value)
}

fn consumed(capacity: Value) -> Value {
    with_result("consumedCapacity", capacity)
}

fn read_here(claim: Value, asked: &ClaimName, here: &Here<'_>) -> Result<PreparedClaim, Refusal> {
    let claim: ResourceClaim = serde_json::from_value(claim).unwrap();
    read(&claim, asked, here)
}

/// A node that has prepared nothing, with the shipped settings.
fn here<'a>() -> Here<'a> {
    Here { pool: POOL, card_of: &card_of, prepared: None, extended_resources: false }
}

fn read_as(claim: Value, asked: &ClaimName) -> Result<PreparedClaim, Refusal> {
    read_here(claim, asked, &here())
}

fn read_it(claim: Value) -> Result<PreparedClaim, Refusal> {
    read_as(claim, &asked())
}

#[test]
fn an_allocated_claim_is_read() {
    let read = read_it(claim()).unwrap();
    assert_eq!(read.claim, asked());
    assert_eq!(read.pod_uid, POD);
    let [share] = &read.shares[..] else { panic!("{read:?}") };
    assert_eq!(share.request, "gpu");
    assert_eq!((share.pool.as_str(), &share.device), (POOL, &device_name(&example_gpu(0))));
    assert_eq!(share.share_id.as_deref(), Some(SHARE));
    assert_eq!((&share.card, share.memory), (&example_gpu(0), Mib(7168)));
    assert_eq!((share.compute, share.priority), (None, Priority::Normal));
}

#[test]
fn amounts_are_read_as_the_scheduler_wrote_them() {
    for (capacity, memory, compute) in [
        (json!({"memory": "7Gi"}), 7168, None),
        (json!({"memory": "1Mi"}), 1, None),
        (json!({"memory": "7168Mi", "compute": "30"}), 7168, Some(30)),
        (json!({"memory": "7168Mi", "compute": "100", "clients": "1"}), 7168, Some(100)),
        (json!({"mpsgate.io/memory": "7Gi", "mpsgate.io/compute": "1"}), 7168, Some(1)),
    ] {
        let read = read_it(consumed(capacity.clone())).unwrap();
        let share = &read.shares[0];
        assert_eq!(share.memory, Mib(memory), "{capacity}");
        assert_eq!(share.compute, compute.map(ComputeShare), "{capacity}");
    }
}

#[test]
fn shares_have_the_order_of_results_and_other_drivers_are_passed() {
    let mut second = result("small/half");
    second["device"] = json!(device_name(&example_gpu(1)));
    let other = json!({"request": "nic", "driver": "nic.example.com", "pool": "x", "device": "n"});
    let read = read_it(with(RESULTS, json!([second, other, result("gpu")]))).unwrap();
    let shares: Vec<_> = read.shares.iter().map(|s| (s.request.as_str(), &s.card)).collect();
    assert_eq!(shares, [("small/half", &example_gpu(1)), ("gpu", &example_gpu(0))]);
}

/// A claim that is deleted while a pod has it stays until that pod ends.
#[test]
fn a_claim_that_a_pod_still_has_is_given() {
    let deleted = with("/metadata/deletionTimestamp", json!("2026-09-01T00:00:00Z"));
    assert!(read_it(deleted).is_ok());
}

fn grant(fields: Value) -> Value {
    let mut parameters = json!({"apiVersion": "mpsgate.io/v1alpha1", "kind": "Grant"});
    parameters.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    parameters
}

fn entry(source: &str, requests: &[&str], parameters: Value) -> Value {
    let opaque = json!({"driver": "mpsgate.io", "parameters": parameters});
    json!({"source": source, "requests": requests, "opaque": opaque})
}

#[test]
fn of_class_and_claim_the_stricter_counts_and_of_one_of_them_what_it_says_last() {
    let (low, normal) = (json!({"priority": "low"}), json!({"priority": "normal"}));
    let percent = |n: u8| json!({"computePercent": n});
    let ceiling = json!({"priority": "low", "computePercent": 10});
    let class = |fields: &Value| entry("FromClass", &[], grant(fields.clone()));
    let own = |fields: &Value| entry("FromClaim", &[], grant(fields.clone()));
    let to = |requests: &[&str]| entry("FromClaim", requests, grant(json!({"priority": "low"})));
    let foreign = json!({
        "source": "FromClaim",
        "opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}},
    });
    for (config, request, priority, compute) in [
        (json!([]), "gpu", Priority::Normal, None),
        (json!([own(&low)]), "gpu", Priority::Low, None),
        (json!([own(&low), class(&normal)]), "gpu", Priority::Low, None),
        (json!([class(&low), own(&normal)]), "gpu", Priority::Low, None),
        (json!([own(&normal), class(&low)]), "gpu", Priority::Low, None),
        (json!([own(&low), own(&normal)]), "gpu", Priority::Normal, None),
        (json!([class(&normal), class(&low)]), "gpu", Priority::Low, None),
        (json!([class(&low), class(&normal)]), "gpu", Priority::Normal, None),
        (json!([own(&percent(30)), class(&low)]), "gpu", Priority::Low, Some(30)),
        (json!([own(&percent(60)), class(&percent(30))]), "gpu", Priority::Normal, Some(30)),
        (json!([class(&percent(60)), own(&percent(30))]), "gpu", Priority::Normal, Some(30)),
        (json!([own(&percent(30)), own(&percent(60))]), "gpu", Priority::Normal, Some(60)),
        (
            json!([class(&ceiling), own(&normal), own(&percent(100))]),
            "gpu",
            Priority::Low,
            Some(10),
        ),
        (json!([to(&["gpu"])]), "gpu", Priority::Low, None),
        (json!([to(&["other"])]), "gpu", Priority::Normal, None),
        (json!([to(&["other", "gpu"])]), "gpu", Priority::Low, None),
        (json!([to(&["gpu"])]), "gpu/half", Priority::Low, None),
        (json!([to(&["gpu/half"])]), "gpu/half", Priority::Low, None),
        (json!([to(&["gpu/whole"])]), "gpu/half", Priority::Normal, None),
        (json!([to(&["gpu/half"])]), "gpu", Priority::Normal, None),
        (json!([foreign.clone()]), "gpu", Priority::Normal, None),
        (json!([foreign, own(&low)]), "gpu", Priority::Low, None),
    ] {
        let mut claim = with(CONFIG, config.clone());
        put(&mut claim, &format!("{RESULTS}/0/request"), json!(request));
        let read = read_it(claim).unwrap();
        let share = &read.shares[0];
        assert_eq!(share.priority, priority, "{request}: {config}");
        assert_eq!(share.compute, compute.map(ComputeShare), "{request}: {config}");
    }
}

#[test]
fn of_two_shares_of_compute_the_smaller_counts() {
    for (taken, most, expected) in
        [("50", 30, 30), ("30", 50, 30), ("0", 50, 50), ("100", 100, 100)]
    {
        let mut claim = consumed(json!({"memory": "7Gi", "compute": taken}));
        let config = entry("FromClaim", &["gpu"], grant(json!({"computePercent": most})));
        put(&mut claim, CONFIG, json!([config]));
        let share = &read_it(claim).unwrap().shares[0];
        assert_eq!(share.compute, Some(ComputeShare(expected)), "{taken} and {most}");
    }
}

/// Each claim with a part of its refusal's sentence.
#[test]
fn what_cannot_be_held_to_is_refused() {
    let pod = |name: &str| json!({"resource": "pods", "name": name, "uid": POD});
    let own = |parameters: Value| with(CONFIG, json!([entry("FromClaim", &[], parameters)]));
    let reserved = |for_whom: Value| with("/status/reservedFor", for_whom);
    let gone = {
        let mut claim = with("/metadata/deletionTimestamp", json!("2026-09-01T00:00:00Z"));
        put(&mut claim, "/status/reservedFor", json!([]));
        claim
    };
    let two_cards = {
        let mut second = result("gpu");
        second["device"] = json!(device_name(&example_gpu(1)));
        with(RESULTS, json!([result("gpu"), second]))
    };
    let foreign =
        json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": POOL, "device": "g"});
    let many = |n: usize| (0..n).map(|i| result(&format!("r{i}"))).collect::<Vec<_>>();
    let forged = "gpu\u{1b}[2J\nmpsgate: all is well\u{202e}";
    for (claim, code, part) in [
        // The claim's identity.
        (with("/metadata/uid", json!("other")), Code::Claim, "another claim has its name now"),
        (with("/metadata/uid", Value::Null), Code::Claim, "another claim has its name now"),
        (gone, Code::Claim, "is being deleted, and no pod has it"),
        (with("/status", Value::Null), Code::Claim, "has no allocation"),
        (with("/status/allocation", Value::Null), Code::Claim, "has no allocation"),
        (with("/status/allocation", json!({})), Code::Claim, "has no allocation"),
        (with(RESULTS, json!([])), Code::Claim, "no device of mpsgate.io"),
        (with(RESULTS, json!([foreign])), Code::Claim, "no device of mpsgate.io"),
        (with(RESULTS, json!(many(33))), Code::Claim, "has 33 devices, of 32"),
        (with(RESULTS, json!(many(1000))), Code::Claim, "has 1000 devices, of 32"),
        (with_result("pool", json!("gpu-node-2")), Code::Claim, "of the pool \"gpu-node-2\""),
        (with_result("pool", json!(forged)), Code::Claim, "gpu\\u{1b}[2J\\nmpsgate: all is well"),
        // The claim's pod.
        (reserved(json!([])), Code::Claim, "is reserved for no pod"),
        (reserved(Value::Null), Code::Claim, "is reserved for no pod"),
        (reserved(json!([pod("a"), pod("b")])), Code::Claim, "is a claim of two pods"),
        (reserved(json!([pod("a"), pod("b"), pod("c")])), Code::Claim, "is a claim of 3 pods"),
        (
            reserved(json!([
                {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": POD}
            ])),
            Code::Claim,
            "\"podgroups\" of the API group \"scheduling.k8s.io\"",
        ),
        (
            reserved(json!([{"apiGroup": "x.io", "resource": "pods", "name": "g", "uid": POD}])),
            Code::Claim,
            "which is no pod",
        ),
        (
            reserved(json!([{"resource": "pods", "name": "g", "uid": "../a"}])),
            Code::Claim,
            "a pod with the uid \"../a\"",
        ),
        (
            reserved(json!([{"resource": "pods", "name": "g", "uid": ""}])),
            Code::Claim,
            "a pod with the uid \"\"",
        ),
        // The allocation.
        (
            with_result("request", json!(forged)),
            Code::Claim,
            "a name that Kubernetes takes for none",
        ),
        (
            with_result("request", json!("a=b")),
            Code::Claim,
            "a name that Kubernetes takes for none",
        ),
        (with_result("request", json!("a/b/c")), Code::Claim, "takes for none"),
        (with_result("request", json!("")), Code::Claim, "takes for none"),
        (with_result("request", json!("-a")), Code::Claim, "takes for none"),
        (with_result("request", json!("a".repeat(64))), Code::Claim, "takes for none"),
        (with_result("adminAccess", json!(true)), Code::Claim, "admin access in request \"gpu\""),
        (with_result("consumedCapacity", Value::Null), Code::Claim, "gave it a whole card"),
        (consumed(json!({})), Code::Claim, "gave it a whole card"),
        (consumed(json!({"compute": "1"})), Code::Claim, "gave it a whole card"),
        (
            consumed(json!({"memory": "0"})),
            Code::Claim,
            "\"0\" for the request \"gpu\", and it is zero",
        ),
        (consumed(json!({"memory": "1"})), Code::Claim, "not a whole number of MiB"),
        (consumed(json!({"memory": "7G"})), Code::Claim, "not a whole number of MiB"),
        (consumed(json!({"memory": "-7Gi"})), Code::Claim, "it is negative"),
        (consumed(json!({"memory": "16Ei"})), Code::Claim, "it is too large"),
        (consumed(json!({"memory": "seven"})), Code::Claim, "it is not a quantity"),
        (consumed(json!({"memory": forged})), Code::Claim, "it is not a quantity"),
        (consumed(json!({"memory": "7Gi", "compute": "101"})), Code::Claim, "not 1 to 100 percent"),
        (consumed(json!({"memory": "7Gi", "compute": "257"})), Code::Claim, "not 1 to 100 percent"),
        (consumed(json!({"memory": "7Gi", "compute": "-1"})), Code::Claim, "it is negative"),
        (consumed(json!({"memory": "7Gi", "compute": "500m"})), Code::Claim, "whole number"),
        (consumed(json!({"memory": "7Gi", "clients": "0"})), Code::Claim, "clients \"0\""),
        (
            consumed(json!({"memory": "7Gi", "clients": "4"})),
            Code::Claim,
            "clients \"4\" for the request \"gpu\", and a share is one",
        ),
        (consumed(json!({"memory": "7Gi", "clients": "-1"})), Code::Claim, "clients \"-1\""),
        (consumed(json!({"memory": "7Gi", "clients": "1.5"})), Code::Claim, "clients \"1.5\""),
        (with_result("device", json!("gpu-0")), Code::UnknownGpu, "has the device \"gpu-0\""),
        (with_result("device", json!(forged)), Code::UnknownGpu, "is no managed GPU of this node"),
        (two_cards, Code::MultiCard, "several cards for the request \"gpu\""),
        (
            with(RESULTS, json!([result("gpu/a"), result("gpu/b")])),
            Code::MultiCard,
            "several cards for the request \"gpu\"",
        ),
        // The parameters.
        (own(Value::Null), Code::Claim, "cannot be taken"),
        (own(json!({})), Code::Claim, "their apiVersion is \"\""),
        (own(grant(json!({"memory": "7Gi"}))), Code::Claim, "unknown field `memory`"),
        (own(grant(json!({"computePercent": 0}))), Code::Claim, "computePercent is 0"),
        (
            own(grant(json!({"priority": "x".repeat(11_000)}))),
            Code::Claim,
            "of 10240 that Kubernetes",
        ),
        (own(grant(json!({(forged): 1}))), Code::Claim, "cannot be taken"),
        (
            with(CONFIG, json!([entry("FromClass", &["other"], json!({"kind": "Grant"}))])),
            Code::Claim,
            "has parameters of its DeviceClass for mpsgate.io",
        ),
    ] {
        let shown = serde_json::to_string(&claim).unwrap();
        let Err(refusal) = read_it(claim) else { panic!("{shown} was read") };
        assert_eq!(refusal.code, code, "{refusal}: {shown}");
        assert!(refusal.sentence.starts_with("claim default/gpu-7gi "), "{refusal}");
        assert!(refusal.sentence.contains(part), "{refusal} does not have {part:?}");
        for text in [&refusal.sentence, &refusal.hint] {
            let obeyed = |c: char| c.is_control() || c == '\u{202e}';
            assert!(!text.is_empty() && !text.contains(obeyed), "{text:?}");
        }
    }
}

/// A claim as kube-scheduler makes it of `deviceclass.resource.kubernetes.io/CLASS: 1`, and of a
/// name that a DeviceClass has for it.
#[test]
fn a_claim_that_kube_scheduler_makes_of_limits_is_for_a_setting() {
    const NAME: &str = "resource.kubernetes.io/extended-resource-claim";
    let annotated = |value: Value| with("/metadata/annotations", value);
    for (annotations, is_made_of_limits) in [
        (json!({(NAME): "true"}), true),
        (json!({"other": "x", (NAME): "true"}), true),
        (json!({(NAME): "false"}), false),
        (json!({(NAME): ""}), false),
        (json!({"other": "true"}), false),
        (json!({}), false),
        (Value::Null, false),
    ] {
        let read = |extended_resources| {
            let claim = annotated(annotations.clone());
            read_here(claim, &asked(), &Here { extended_resources, ..here() })
        };
        match (read(false), is_made_of_limits) {
            (Err(refusal), true) => {
                assert_eq!(refusal.code, Code::Claim);
                assert!(refusal.sentence.contains("resources.limits"), "{refusal}");
                assert!(refusal.hint.contains("kubernetes.dra_extended_resources"), "{refusal}");
            }
            (Ok(_), false) => {}
            (other, _) => panic!("{annotations}: {other:?}"),
        }
        assert!(read(true).is_ok(), "{annotations}: the setting allows it");
    }
}

#[test]
fn what_is_prepared_is_not_decided_again() {
    let pod = |uid: &str| json!({"resource": "pods", "name": "p", "uid": uid});
    let prepared = read_it(claim()).unwrap();
    let again = |claim: Value| {
        let here = Here { prepared: Some(&prepared), ..here() };
        read_here(claim, &asked(), &here)
    };
    let reserved = |pods: Value| with("/status/reservedFor", pods);
    let config = |parameters: Value| with(CONFIG, json!([entry("FromClaim", &[], parameters)]));
    for same in [
        claim(),
        reserved(json!([pod(POD), pod("another")])),
        reserved(json!([pod("another"), pod(POD), pod("third")])),
        with("/metadata/deletionTimestamp", json!("2026-09-01T00:00:00Z")),
        // Checks of a claim that is prepared for the first time.
        config(grant(json!({"priority": "low"}))),
        config(json!({"kind": "of a younger release"})),
        with(
            "/metadata/annotations",
            json!({"resource.kubernetes.io/extended-resource-claim": "true"}),
        ),
        consumed(json!({"memory": "7Gi", "clients": "4"})),
    ] {
        assert_eq!(again(same.clone()).unwrap(), prepared, "{same}");
    }
    let two = json!([result("gpu"), result("more")]);
    for (other, part) in [
        (with("/metadata/uid", json!("other")), "another claim has its name now"),
        (reserved(json!([])), "is reserved for no pod"),
        (reserved(json!([pod("another"), pod("third")])), "is a claim of two pods"),
        (
            reserved(json!([
                {"apiGroup": "x.io", "resource": "pods", "name": "g", "uid": POD},
                {"resource": "podgroups", "name": "g", "uid": POD},
            ])),
            "is a claim of two pods",
        ),
        (with("/status/allocation", Value::Null), "has no allocation"),
        (with_result("adminAccess", json!(true)), "asks for admin access"),
        (consumed(json!({"compute": "1"})), "gave it a whole card"),
    ] {
        let refusal = again(other.clone()).unwrap_err();
        assert!(refusal.sentence.contains(part), "{refusal}: {other}");
    }
    // Another allocation, or one for another pod, is read as it is: the ledger refuses it.
    for other in [
        reserved(json!([pod("another")])),
        consumed(json!({"memory": "8Gi"})),
        with_result("shareID", json!("0a1b2c3d-0000-4000-8000-0000000000cc")),
        with_result("device", json!(device_name(&example_gpu(1)))),
        with(RESULTS, two),
    ] {
        let read = again(other.clone()).unwrap();
        assert_ne!(read, prepared, "{other}");
    }
}

#[test]
fn names_that_kubernetes_does_not_make_are_refused_before_anything_else() {
    for change in [
        |asked: &mut ClaimName| asked.name = "a; reboot".to_owned(),
        |asked: &mut ClaimName| asked.name = "a\nb".to_owned(),
        |asked: &mut ClaimName| asked.name = "a=b".to_owned(),
        |asked: &mut ClaimName| asked.namespace = String::new(),
        |asked: &mut ClaimName| asked.namespace = "a..b".to_owned(),
        |asked: &mut ClaimName| asked.uid = "../../etc/cron.d/x".to_owned(),
        |asked: &mut ClaimName| asked.uid = String::new(),
    ] {
        let mut asked = asked();
        change(&mut asked);
        let refusal = read_as(claim(), &asked).unwrap_err();
        assert!(refusal.sentence.contains("Kubernetes makes for none"), "{refusal}");
        assert!(!refusal.sentence.contains('\n') && !refusal.hint.contains("reboot"), "{refusal}");
    }
}

#[test]
fn names_for_the_engine_and_for_the_shim() {
    assert_eq!(device_id(UID, "gpu"), format!("mpsgate.io/claim={UID}-gpu"));
    assert_eq!(device_id(UID, "gpu/half"), format!("mpsgate.io/claim={UID}-gpu.half"));
    assert_eq!(variable("gpu-7gi", "gpu"), "MPSGATE_GRANT_gpu-7gi.gpu");
    // Names of claims may have dots, but no two shares have the same variable.
    assert_ne!(variable("a.b", "c"), variable("a", "b/c"));
    assert_eq!(file_name(UID), Some(format!("mpsgate.io-claim_{UID}.json")));
    for uid in ["", ".", "..", "a/b", "a.b", "-a", "a-", "a b", "a\0", "ü", &"a".repeat(64)] {
        assert_eq!(file_name(uid), None, "{uid:?}");
    }
}

#[test]
fn the_file_has_a_device_for_each_share_with_a_token() {
    let results = json!([result("gpu"), result("small/half"), result("late")]);
    let claim = read_it(with(RESULTS, results)).unwrap();
    let tokens = [("small/half", "v1.b"), ("gpu", "v1.a"), ("unknown", "v1.c")]
        .map(|(request, token)| (request.to_owned(), token.to_owned()));
    let text = file(&claim, &tokens);
    golden::compare(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cdi.json"), &text);
}

const NOW: &str = "2026-09-01T12:00:00Z";

#[test]
fn the_status_of_a_share_says_what_holds_it() {
    let share = &read_it(claim()).unwrap().shares[0];
    let entry = status(share, Ok(("mps+watchdog", "asked of this card", true)), NOW);
    assert_eq!(
        serde_json::to_value(entry).unwrap(),
        json!({
            "driver": "mpsgate.io", "pool": POOL, "device": device_name(&example_gpu(0)),
            "shareID": SHARE,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Prepared",
                "lastTransitionTime": NOW,
                "message": format!(
                    "7 GiB of {}, held by mps+watchdog: asked of this card", example_gpu(0)
                ),
            }],
            "data": {
                "guarantee": "mps+watchdog", "proof": "asked of this card", "proven": true,
                "memoryMiB": 7168,
            },
        })
    );
}

#[test]
fn the_status_of_a_refused_share_says_why_and_what_to_do() {
    let share = &read_it(claim()).unwrap().shares[0];
    let refusal = Refusal::new(Code::NoCapacity, "no card has so much left", "ask for less");
    let entry = serde_json::to_value(status(share, Err(&refusal), NOW)).unwrap();
    let condition = &entry["conditions"][0];
    assert_eq!(condition["status"], "False");
    assert_eq!(condition["reason"], "NoCapacity");
    assert_eq!(
        condition["message"],
        "no card has so much left [E_NO_CAPACITY]; hint: ask for less"
    );
    assert_eq!(entry.get("data"), None);
}

/// Kubelet asks again each minute for a refused claim.
#[test]
fn what_a_claim_shows_already_is_not_written_again() {
    let share = &read_it(claim()).unwrap().shares[0];
    let other_share = {
        let mut other = share.clone();
        other.share_id = Some("0a1b2c3d-0000-4000-8000-0000000000cc".to_owned());
        other
    };
    let refused = |share, sentence: &str, now| {
        let refusal = Refusal::new(Code::NoCapacity, sentence, "ask for less");
        status(share, Err(&refusal), now)
    };
    let ready = |proven, now| status(share, Ok(("mps+watchdog", "asked", proven)), now);
    let (then, now) = ("2026-09-01T12:00:00Z", "2026-09-01T12:01:00Z");
    let foreign = {
        let mut foreign = refused(share, "full", then);
        foreign.driver = "nic.example.com".to_owned();
        foreign
    };
    let time = |entry: &AllocatedDeviceStatus| {
        let condition = &entry.conditions.as_ref().unwrap()[0];
        serde_json::to_value(&condition.last_transition_time).unwrap()
    };
    for (shown, entry, written) in [
        (vec![], refused(share, "full", now), Some(now)),
        (vec![refused(share, "full", then)], refused(share, "full", now), None),
        (vec![refused(share, "fuller", then)], refused(share, "full", now), Some(then)),
        (vec![ready(true, then)], refused(share, "full", now), Some(now)),
        (vec![refused(share, "full", then)], ready(true, now), Some(now)),
        (vec![ready(true, then)], ready(true, now), None),
        (vec![ready(false, then)], ready(true, now), Some(then)),
        (vec![refused(&other_share, "full", then)], refused(share, "full", now), Some(now)),
        (vec![foreign.clone()], refused(share, "full", now), Some(now)),
        (vec![foreign, refused(share, "full", then)], refused(share, "full", now), None),
    ] {
        let news = news(vec![entry], &shown);
        let times: Vec<_> = news.iter().map(time).collect();
        assert_eq!(times, written.map(Value::from).into_iter().collect::<Vec<_>>(), "{shown:?}");
    }
    // All entries are written, or none: an apply replaces all entries of its owner.
    let shown = [refused(share, "full", then)];
    let both = vec![refused(share, "full", now), refused(&other_share, "full", now)];
    let times: Vec<_> = news(both, &shown).iter().map(time).collect();
    assert_eq!(times, [then, now].map(Value::from));
}

/// The API server refuses the whole status where one text is too long.
#[test]
fn texts_of_a_status_fit() {
    let share = &read_it(claim()).unwrap().shares[0];
    let long = "内".repeat(100_000);
    let entry = serde_json::to_value(status(share, Ok((&long, &long, false)), "today")).unwrap();
    let message = entry["conditions"][0]["message"].as_str().unwrap();
    assert!(message.len() <= 32_768 && entry["data"].to_string().len() <= 10_240);
    assert_eq!(entry["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    let refusal = Refusal { code: Code::Claim, sentence: long.clone(), hint: long };
    let entry = serde_json::to_value(status(share, Err(&refusal), NOW)).unwrap();
    assert!(entry["conditions"][0]["message"].as_str().unwrap().len() <= 32_768);
}
