//! The webhook's table: objects in, what their author reads out, as golden text. `MPSGATE_BLESS=1
//! cargo test -p mpsgate-scheduler --test webhook` rewrites it. Then what holds for every body.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "test code fails by panicking, and writes its golden text"
)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mpsgate_config::Ipc;
use mpsgate_scheduler::webhook::{MUTATE, Mutation, Unreadable, VALIDATE, mutate, validate};
use mpsgate_testing::golden::{compare, together};
use proptest::prelude::*;
use serde_json::{Value, json};

mod bounds;
mod cases;
mod long;

use cases::handlers::{exempt, known};
use cases::{SCHEDULER, cases, of_pod, pod, review};

/// When no test is still waiting.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn answer(bytes: &[u8]) -> Value {
    let answer: Value = serde_json::from_slice(bytes).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    answer["response"].clone()
}

fn evaluated(review: &Value) -> Value {
    evaluated_text(&review.to_string())
}

fn evaluated_text(review: &str) -> Value {
    let account = Mutation {
        scheduler_account: Some(SCHEDULER.to_owned()),
        steered_schedulers: vec!["mpsgate".to_owned()],
        exempt: exempt(),
        ..Mutation::default()
    };
    answer(&validate(review.as_bytes(), &account, &known(), later()).unwrap())
}

fn changed(review: &Value, mutation: &Mutation) -> Option<Value> {
    let response = answer(&mutate(review.to_string().as_bytes(), mutation, later()).unwrap());
    assert_eq!(response["allowed"], true, "a change refuses nothing");
    let patch = response.get("patch")?.as_str()?;
    assert_eq!(response["patchType"], "JSONPatch");
    Some(serde_json::from_slice(&STANDARD.decode(patch).unwrap()).unwrap())
}

/// RFC 6902's `add` of a member of `/spec`, the one operation there is.
fn apply(pod: &mut Value, patch: &Value) {
    for operation in patch.as_array().unwrap() {
        assert_eq!(operation["op"], "add");
        let key = operation["path"].as_str().unwrap().strip_prefix("/spec/").unwrap();
        assert!(!key.contains(['/', '~']), "{key}");
        pod["spec"].as_object_mut().unwrap().insert(key.to_owned(), operation["value"].clone());
    }
}

fn both() -> Mutation {
    Mutation {
        host_ipc: true,
        scheduler_name: Some("mpsgate".to_owned()),
        replaced_schedulers: vec!["ack-co-scheduler".to_owned()],
        steered_schedulers: vec!["mpsgate".to_owned()],
        scheduler_account: Some(SCHEDULER.to_owned()),
        ipc: Ipc::RequireHost,
        extended_resources: false,
        exempt: exempt(),
    }
}

#[test]
fn the_table_reads_as_recorded() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/webhook.txt");
    let blocks = cases().into_iter().map(|(name, review)| {
        let response = evaluated(&review);
        let mut text = String::new();
        if response["allowed"] == true {
            text.push_str("allowed\n");
        } else {
            assert_eq!(response["status"]["code"], 403);
            for line in response["status"]["message"].as_str().unwrap().lines() {
                writeln!(text, "  {line}").unwrap();
            }
        }
        for warning in response["warnings"].as_array().into_iter().flatten() {
            writeln!(text, "  warning: {}", warning.as_str().unwrap()).unwrap();
        }
        if let Some(patch) = changed(&review, &both()) {
            writeln!(text, "  patch: {patch}").unwrap();
        }
        (format!("# {name}\n"), text)
    });
    compare(path, &together(blocks).join("\n"));
}

/// The chart's conditions keep from the webhook what is nothing to it: `tests/chart` evaluates them
/// over this file.
#[test]
fn what_the_webhook_has_a_word_on_is_recorded_for_the_charts_conditions() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/webhook.jsonl");
    let mut text = String::new();
    // Of the longest one its length alone is of interest, and no condition looks at that.
    for (name, review) in cases().into_iter().filter(|(name, _)| !name.contains("too long")) {
        let response = evaluated(&review);
        let evaluated = response["allowed"] != true || response.get("warnings").is_some();
        let line = json!({"name": name, "evaluated": evaluated, "changed": changed(&review, &both()).is_some(), "review": review});
        writeln!(text, "{line}").unwrap();
    }
    compare(path, &text);
}

#[test]
fn the_chart_has_the_webhook_called_at_its_paths() {
    let template = include_str!("../../../../packaging/kubernetes/chart/templates/webhook.yaml");
    let called = template.split(r#"include "mpsgate.webhook-client" (list "#).skip(1);
    let paths: BTreeSet<_> = called.filter_map(|rest| rest.split('"').nth(1)).collect();
    assert_eq!(paths, [MUTATE, VALIDATE].into());
}

#[test]
fn without_an_account_nobody_says_where_a_pod_was_placed() {
    let case = |name: &str| cases().into_iter().find(|(other, _)| *other == name).unwrap().1;
    for name in ["the same, by the scheduler", "a placement changes, by the scheduler"] {
        let response = |mutation: &Mutation| {
            answer(
                &validate(case(name).to_string().as_bytes(), mutation, &known(), later()).unwrap(),
            )
        };
        assert_eq!(response(&both())["allowed"], true, "{name}");
        assert_eq!(response(&Mutation::default())["allowed"], false, "{name}");
        let mut nameless = case(name);
        nameless["request"]["userInfo"] = json!({});
        assert_eq!(evaluated(&nameless)["allowed"], false, "{name}");
    }
}

/// What the process has had at most, KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_body_costs_some_times_its_bytes_whatever_is_in_it() {
    const MIB: usize = 1 << 20;
    let many = |what: &str| vec![what; 2 * MIB / (what.len() + 1)].join(",");
    // Of more containers than some of these none is looked at.
    let most = |what: &str| vec![what; 500].join(",");
    let review = |object: &str, more: &str| {
        format!(
            r#"{{"request":{{"uid":"1","kind":{{"kind":"Pod"}},"operation":"CREATE","object":{object}{more}}}}}"#
        )
    };
    let spec = |fields: &str| review(&format!(r#"{{"spec":{{{fields}}}}}"#), "");
    for body in [
        review(&format!("[{}]", many("{}")), ""),
        review("{}", &format!(r#","other":[{}]"#, many("{}"))),
        spec(&format!(r#""containers":[{}]"#, many("{}"))),
        spec(&format!(r#""containers":[{}]"#, many("0"))),
        spec(&format!(r#""nodeSelector":{{{}}}"#, many(r#""a":"""#))),
        spec(&format!(r#""tolerations":[{}]"#, many("{}"))),
        spec(&format!(r#""volumes":[{}]"#, many(r#"{"name":"v"}"#))),
        spec(&format!(r#""containers":[{{"env":[{}]}}]"#, many(r#"{"name":"A"}"#))),
        spec(&format!(r#""containers":[{{"resources":{{"limits":{{{}}}}}}}]"#, many(r#""a":1"#))),
        // A card's node by a long path, and whoever mounts it.
        spec(&format!(
            r#""volumes":[{{"name":"v","hostPath":{{"path":"/dev/nvidia{}"}}}}],"containers":[{}]"#,
            "0".repeat(MIB),
            most(r#"{"volumeMounts":[{"name":"v","mountPath":"/x"}]}"#)
        )),
        // One volume, and whoever mounts it.
        spec(&format!(
            r#""volumes":[{{"name":"v","{}":{{}}}}],"containers":[{}]"#,
            "k".repeat(MIB),
            most(
                r#"{"volumeMounts":[{"name":"v","mountPath":"/dev/shm"}],"resources":{"limits":{"aliyun.com/gpu-mem":1}}}"#
            )
        )),
        review(&format!(r#"{{"metadata":{{"annotations":{{{}}}}}}}"#, many(r#""a":"""#)), ""),
        "[".repeat(2 * MIB),
    ] {
        let before = peak_memory();
        let _ = validate(body.as_bytes(), &both(), &known(), later());
        let took = peak_memory().saturating_sub(before);
        assert!(took < 16 << 10, "{took} KiB for {}…", &body[..100]);
    }
}

#[test]
fn what_is_no_review_is_refused_by_http_alone_where_nobody_asked_a_question() {
    for (body, json) in [("", false), ("{", false), ("\u{0}", false), ("[]", true), ("{}", true)] {
        let error = validate(body.as_bytes(), &both(), &known(), later()).unwrap_err();
        assert_eq!(matches!(error, Unreadable::Json(_)), !json, "{body:?}: {error}");
    }
    for uid in [json!(null), json!(7), json!("")] {
        let error =
            mutate(json!({"request": {"uid": uid}}).to_string().as_bytes(), &both(), later());
        assert!(matches!(error, Err(Unreadable::NoUid)), "{uid}");
    }
}

#[test]
fn a_pod_that_cannot_be_looked_at_is_allowed_with_a_warning() {
    for object in [json!(null), json!([]), json!({"spec": 7}), json!({"spec": null})] {
        let review = review("Pod", "CREATE", "", object, Value::Null);
        let response = evaluated(&review);
        assert_eq!(response["uid"], "u-1");
        assert_eq!(response["allowed"], true);
        assert_eq!(
            response["warnings"],
            json!(["mpsgate: this object has no pod in it that could be looked at"])
        );
        assert_eq!(changed(&review, &both()), None);
    }
}

#[test]
fn a_limit_that_becomes_a_claim_of_a_whole_card_is_refused_unless_nodes_allow_it() {
    let of = |class: &str| {
        let limit = format!("deviceclass.resource.kubernetes.io/{class}");
        pod(json!({limit: "1"}))
    };
    let mut begins = pod(json!({}));
    begins["spec"]["initContainers"] = of("shared-gpu.mpsgate.io")["spec"]["containers"].clone();
    for (pod, is_refused) in [
        (of("shared-gpu.mpsgate.io"), true),
        (of("low.mpsgate.io"), true),
        (begins, true),
        (of("nic.example.com"), false),
        (of("mpsgate.io.example.com"), false),
    ] {
        let response = evaluated(&of_pod(&pod));
        assert_eq!(response["allowed"], !is_refused, "{pod}");
        assert_eq!(response.to_string().contains("[E_CLAIM]"), is_refused, "{response}");
        let owner = json!({"metadata": {}, "spec": {"template": pod}});
        let warned = evaluated(&review("Deployment", "CREATE", "", owner, Value::Null));
        assert_eq!(warned["allowed"], true);
        assert_eq!(warned.to_string().contains("[E_CLAIM]"), is_refused, "{warned}");
        let told = Mutation { extended_resources: true, ..both() };
        let body = of_pod(&pod).to_string();
        let allowed = answer(&validate(body.as_bytes(), &told, &known(), later()).unwrap());
        assert_eq!(allowed, json!({"uid": "u-1", "allowed": true}));
    }
}

#[test]
fn nothing_is_changed_unless_it_is_switched_on() {
    let review = of_pod(&pod(json!({"aliyun.com/gpu-mem": "7"})));
    assert_eq!(changed(&review, &Mutation::default()), None);
    let host_ipc = Mutation { host_ipc: true, ..Mutation::default() };
    let patch = changed(&review, &host_ipc);
    assert_eq!(patch, Some(json!([{"op": "add", "path": "/spec/hostIPC", "value": true}])));
}

/// As Pod Security `baseline` and `hostUsers: false` want it.
#[test]
fn without_host_ipc_a_pod_is_left_to_the_nodes_where_their_policy_says_so() {
    for (ipc, leaves) in [(Ipc::RequireHost, false), (Ipc::Auto, true), (Ipc::Any, true)] {
        let told = Mutation { ipc, ..both() };
        for users in [Value::Null, json!(false)] {
            let mut pod = pod(json!({"aliyun.com/gpu-mem": "7"}));
            pod["spec"]["hostUsers"] = users.clone();
            pod["spec"]["schedulerName"] = json!("mpsgate");
            for review in [
                of_pod(&pod),
                review("Deployment", "CREATE", "", json!({"spec": {"template": pod}}), Value::Null),
            ] {
                let told_nothing = Mutation { host_ipc: false, ..told.clone() };
                let response = answer(
                    &validate(review.to_string().as_bytes(), &told_nothing, &known(), later())
                        .unwrap(),
                );
                let is_silent = response["allowed"] == true && response.get("warnings").is_none();
                assert_eq!(is_silent, leaves, "{ipc} {users}: {response}");
            }
            let is_changed = changed(&of_pod(&pod), &told).is_some();
            assert_eq!(is_changed, !leaves && users.is_null(), "{ipc} {users}");
        }
        // What else is wrong is refused as ever, and a volume is warned of.
        let mut pod = pod(json!({"aliyun.com/gpu-mem": "7"}));
        pod["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
        pod["spec"]["containers"][0]["volumeMounts"] =
            json!([{"name": "dshm", "mountPath": "/dev/shm"}]);
        pod["spec"]["volumes"] = json!([{"name": "dshm", "emptyDir": {"medium": "Memory"}}]);
        let review = of_pod(&pod).to_string();
        let response = answer(&validate(review.as_bytes(), &told, &known(), later()).unwrap());
        let text = response.to_string();
        assert!(text.contains("[E_PRIVILEGED]") && text.contains("[W_SHM]"), "{text}");
        assert_eq!(text.contains("[E_NO_HOST_IPC]"), !leaves, "{text}");
    }
}

#[test]
fn a_template_is_evaluated_as_its_pods_will_be() {
    let review = cases().into_iter().find(|(name, _)| *name == "a Deployment").unwrap().1;
    let warnings = |mutation: &Mutation| {
        let response =
            answer(&validate(review.to_string().as_bytes(), mutation, &known(), later()).unwrap());
        response["warnings"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(warnings(&Mutation::default()), 2);
    assert_eq!(warnings(&both()), 0);
}

#[test]
fn a_template_is_steered_by_the_scheduler_that_its_pods_will_have() {
    let name = "a Deployment of nvidia's class with GPU memory";
    let review = cases().into_iter().find(|(other, _)| *other == name).unwrap().1;
    let refuses = |mutation: &Mutation| {
        let text =
            answer(&validate(review.to_string().as_bytes(), mutation, &known(), later()).unwrap());
        text.to_string().contains("bypasses mpsgate on node gpu-1")
    };
    assert!(refuses(&Mutation::default()));
    // Its pods say nothing of a scheduler, and get one.
    assert!(!refuses(&both()));
    assert!(refuses(&Mutation { steered_schedulers: Vec::new(), ..both() }));
}

#[test]
fn a_scheduler_that_a_pod_names_itself_stays_unless_it_is_to_be_replaced() {
    for (now, replaced) in [
        (json!(null), true),
        (json!("default-scheduler"), true),
        (json!("ack-co-scheduler"), true),
        (json!("volcano"), false),
        (json!("mpsgate"), false),
    ] {
        let mut pod = pod(json!({"aliyun.com/gpu-mem": "7"}));
        pod["spec"]["hostIPC"] = json!(true);
        pod["spec"]["schedulerName"] = now.clone();
        assert_eq!(changed(&of_pod(&pod), &both()).is_some(), replaced, "{now}");
        pod["spec"]["nodeName"] = json!("n1");
        assert_eq!(changed(&of_pod(&pod), &both()), None, "it has its node");
    }
}

#[test]
fn a_warning_fits_a_header_of_http() {
    let mut pod = pod(json!({}));
    let value = format!("GPU-{}\n\u{7}\"", "ü".repeat(400));
    pod["spec"]["containers"][0]["env"] =
        json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]);
    for warning in evaluated(&of_pod(&pod))["warnings"].as_array().unwrap() {
        let text = warning.as_str().unwrap();
        assert!(text.chars().count() <= 256, "{text}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

/// JSON of any shape, with the words that matter often among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    const WORDS: [&str; 44] = [
        "spec",
        "containers",
        "initContainers",
        "ephemeralContainers",
        "metadata",
        "labels",
        "annotations",
        "name",
        "resources",
        "limits",
        "requests",
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-count",
        "aliyun.com/gpu-core.percentage",
        "nvidia.com/gpu-10gb",
        "mpsgate.io/gpu-mem-512mi",
        "securityContext",
        "privileged",
        "capabilities",
        "add",
        "env",
        "value",
        "NVIDIA_VISIBLE_DEVICES",
        "volumes",
        "hostPath",
        "path",
        "emptyDir",
        "volumeMounts",
        "mountPath",
        "/dev/shm",
        "nodeSelector",
        "ack.node.gpu.schedule",
        "hostIPC",
        "template",
        "runtimeClassName",
        "nvidia",
        "nodeName",
        "pool",
        "tolerations",
        "affinity",
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
        "matchExpressions",
    ];
    let word = prop::sample::select(WORDS.to_vec()).prop_map(ToOwned::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[-+.0-9eEkmKMGi]{0,6}|.{0,12}".prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 96, 8, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((word.clone(), inner), 0..8)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_json_breaks_it_and_what_has_a_uid_is_answered(
        object in any_json(),
        old in any_json(),
        kind in prop::sample::select(vec!["Pod", "Deployment", "CronJob", "Job", "Secret"]),
        operation in prop::sample::select(vec!["CREATE", "UPDATE", "DELETE", "CONNECT"]),
        part in prop::sample::select(vec!["", "ephemeralcontainers", "status"]),
    ) {
        let review = review(kind, operation, part, object, old);
        prop_assert_eq!(&evaluated(&review)["uid"], "u-1");
        changed(&review, &both());
    }

    #[test]
    fn no_bytes_break_it(body in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(validate(&body, &both(), &known(), later()).is_err());
        prop_assert!(mutate(&body, &both(), later()).is_err());
    }

    /// Refused for want of hostIPC before, never after; and nothing is changed twice.
    #[test]
    fn a_pod_that_was_changed_is_accepted_and_left_alone(
        gib in 1u64..200,
        resource in prop::sample::select(vec!["aliyun.com/gpu-mem", "nvidia.com/gpu-10gb", "mpsgate.io/gpu-mem-512mi"]),
        core in prop::option::of((1u64..=20).prop_map(|steps| steps * 5)),
        host_ipc in prop::option::of(any::<bool>()),
        scheduler in prop::option::of(prop::sample::select(vec!["default-scheduler", "ack-co-scheduler", "volcano"])),
        word in prop::option::of(prop::sample::select(vec!["mps", "share"])),
        cards in prop::option::of(1u64..2),
    ) {
        let count = if resource.starts_with("nvidia.com/") { 1 } else { gib };
        let mut pod = pod(json!({resource: count.to_string()}));
        if let Some(core) = core {
            pod["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-core.percentage"] = json!(core);
        }
        if let Some(set) = host_ipc {
            pod["spec"]["hostIPC"] = json!(set);
        }
        if let Some(name) = scheduler {
            pod["spec"]["schedulerName"] = json!(name);
        }
        if let Some(word) = word {
            pod["spec"]["nodeSelector"] = json!({"ack.node.gpu.schedule": word});
        }
        if let Some(cards) = cards {
            pod["metadata"]["labels"] = json!({"aliyun.com/gpu-count": cards.to_string()});
        }
        let wants = word != Some("share") && host_ipc != Some(true);
        prop_assert_eq!(&evaluated(&of_pod(&pod))["allowed"], &json!(!wants));
        if let Some(patch) = changed(&of_pod(&pod), &both()) {
            apply(&mut pod, &patch);
        }
        prop_assert_eq!(changed(&of_pod(&pod), &both()), None);
        prop_assert_eq!(&evaluated(&of_pod(&pod))["allowed"], &json!(true));
        if scheduler != Some("volcano") {
            prop_assert_eq!(&pod["spec"]["schedulerName"], "mpsgate");
        }
    }
}
