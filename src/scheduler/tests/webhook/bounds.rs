//! What each bound of a review does: what is looked at, what is refused because it is too long, how
//! long an answer is, and that nothing keeps the webhook from the next review.

use super::long::long;
use super::*;

/// In a build for tests, on a machine that does other things as well. The benchmark holds what is
/// shipped to its budget; before there were bounds, one of these took that 12 s.
const PATIENCE: Duration = Duration::from_secs(10);

fn asking() -> Value {
    let mut pod = pod(json!({"aliyun.com/gpu-mem": "7"}));
    pod["spec"]["hostIPC"] = json!(true);
    pod
}

fn refused(response: &Value) -> &str {
    response["status"]["message"].as_str().unwrap_or_default()
}

/// `count` containers, each with so many mounts of one path of the host.
fn mounting(path: &str, count: usize, mounts: usize) -> Value {
    let mut pod = asking();
    pod["spec"]["volumes"] = json!([{"name": "v", "hostPath": {"path": path}}]);
    let mount = |n: usize| json!({"name": "v", "mountPath": format!("/m{n}")});
    let mounts: Vec<Value> = (0..mounts).map(mount).collect();
    let one = |n: usize| json!({"name": format!("i{n}"), "volumeMounts": mounts});
    pod["spec"]["initContainers"] = (0..count).map(one).collect();
    pod
}

#[test]
fn no_list_and_no_text_of_a_pod_keeps_the_webhook() {
    for (what, body) in long() {
        assert!(body.len() > 2 << 20 && body.len() < 4 << 20, "{what}: {}", body.len());
        let began = Instant::now();
        let answered = answer(&validate(body.as_bytes(), &both(), &known(), later()).unwrap());
        mutate(body.as_bytes(), &both(), later()).unwrap();
        let took = began.elapsed();
        assert!(took < PATIENCE, "{what}: {took:?}");
        let text = answered.to_string();
        assert!(text.len() < 12 << 10, "{what}: {} bytes of an answer", text.len());
    }
}

#[test]
fn what_is_too_long_is_refused_where_it_shows_something_of_gpus() {
    let path = format!("/dev/nvidia0{}", "/a".repeat(1_994));
    let tolerations = |pod: Value| {
        let mut pod = pod;
        pod["spec"]["tolerations"] =
            (0..10_001).map(|n| json!({"key": format!("k{n}"), "operator": "Exists"})).collect();
        pod
    };
    let variables = |pod: Value| {
        let mut pod = pod;
        let list: Vec<Value> = (0..10_001).map(|_| json!({"name": "NVIDIA_A"})).collect();
        pod["spec"]["initContainers"] = json!([{"name": "i", "env": list}]);
        pod
    };
    let class = |mut pod: Value| {
        pod["spec"]["runtimeClassName"] = json!("nvidia");
        pod
    };
    let containers = |mut pod: Value, count: usize| {
        pod["spec"]["initContainers"] =
            (0..count).map(|n| json!({"name": format!("c{n}")})).collect();
        pod
    };
    let quiet = || pod(json!({}));
    // What of it is too much, or nothing; and whether it is refused.
    for (pod, too_much, is_refused) in [
        (tolerations(asking()), Some("a list of more than 10000"), true),
        (tolerations(class(quiet())), Some("a list of more than 10000"), true),
        (tolerations(quiet()), Some("a list of more than 10000"), false),
        (variables(quiet()), Some("a list of more than 10000"), true),
        (containers(asking(), 511), None, false),
        (containers(asking(), 512), Some("more than 512 containers"), true),
        (containers(quiet(), 512), Some("more than 512 containers"), false),
        (mounting("/srv", 4, 1_024), None, false),
        (mounting("/srv", 5, 820), Some("more than 4096 volume mounts"), true),
        (mounting(&path, 1, 200), None, false),
        (mounting(&path, 1, 300), Some("more than 1048576 bytes of paths"), true),
        // Nothing that is looked for can be below it, so its mounts are no paths.
        (mounting(&path.replace("/dev/nvidia0", "/dev/nvme0n1"), 1, 4_000), None, false),
    ] {
        let response = evaluated(&of_pod(&pod));
        let said = response.to_string();
        assert_eq!(response["allowed"], !is_refused, "{too_much:?}: {said}");
        assert_eq!(too_much.is_some(), said.contains("too long to be looked at"), "{said}");
        if let Some(too_much) = too_much {
            assert!(said.contains(too_much), "{too_much}: {said}");
            assert_eq!(said.contains("[E_REQUEST]"), is_refused, "{said}");
            assert_eq!(said.contains("make it smaller: at most 512 containers"), is_refused);
            // Nothing is written into what was not looked at.
            assert_eq!(changed(&of_pod(&pod), &both()), None);
        }
    }
}

#[test]
fn what_is_too_long_is_refused_where_it_would_be_new_and_warned_of_elsewhere() {
    let mut long = asking();
    long["spec"]["tolerations"] = (0..10_001).map(|n| json!({"key": format!("k{n}")})).collect();
    let owner = json!({"metadata": {}, "spec": {"template": long}});
    for (what, review, is_refused) in [
        ("a pod", of_pod(&long), true),
        (
            "a container for it",
            review("Pod", "UPDATE", "ephemeralcontainers", long.clone(), asking()),
            true,
        ),
        ("a Deployment", review("Deployment", "CREATE", "", owner, Value::Null), false),
    ] {
        let response = evaluated(&review);
        assert_eq!(response["allowed"], !is_refused, "{what}: {response}");
        let text = response.to_string();
        assert!(text.contains("too long to be looked at") && text.contains("make it smaller"));
    }
    let gone = review("Pod", "DELETE", "", Value::Null, long);
    assert_eq!(evaluated(&gone), json!({"uid": "u-1", "allowed": true}));
}

/// Tolerations are what can be added to a pod that is there.
#[test]
fn an_update_that_makes_a_pod_too_long_opens_nothing() {
    let tolerating = |mut pod: Value, count: usize| {
        pod["spec"]["tolerations"] = (0..count).map(|n| json!({"key": format!("k{n}")})).collect();
        pod
    };
    let bound = |mut pod: Value| {
        pod["spec"]["nodeName"] = json!("gpu-1");
        pod
    };
    let counted = |mut pod: Value, cards: &str| {
        pod["metadata"]["labels"] = json!({"aliyun.com/gpu-count": cards});
        pod
    };
    let (short, long) = (|pod| tolerating(pod, 1), |pod| tolerating(pod, 10_001));
    let other = || counted(asking(), "2");
    for (what, now, then, is_refused) in [
        ("one that waits gets longer", long(asking()), short(asking()), true),
        ("one without GPUs", long(pod(json!({}))), short(pod(json!({}))), false),
        ("one that was too long", long(other()), long(asking()), false),
        ("one that has its node", long(bound(asking())), short(bound(asking())), false),
        ("its number of cards", short(bound(other())), short(bound(asking())), true),
        ("the same of a long one", long(bound(other())), long(bound(asking())), true),
    ] {
        let response = evaluated(&review("Pod", "UPDATE", "", now, then));
        assert_eq!(response["allowed"], !is_refused, "{what}: {response}");
    }
}

/// The API server writes `<`, `>` and `&` with six bytes each.
#[test]
fn what_is_long_as_json_alone_is_refused_where_it_shows_something_of_gpus() {
    const LETTERS: &str = "LETTERS";
    let with = |mut pod: Value| {
        let header = json!({"name": "x", "value": LETTERS});
        pod["spec"]["containers"][0]["lifecycle"] =
            json!({"postStart": {"httpGet": {"port": 80, "httpHeaders": [header]}}});
        pod
    };
    let tolerating = |mut pod: Value| {
        pod["spec"]["tolerations"] = json!([{"key": "new", "operator": "Exists"}]);
        pod
    };
    let bound = |mut pod: Value, cards: &str| {
        pod["spec"]["nodeName"] = json!("gpu-1");
        pod["metadata"]["labels"] = json!({"aliyun.com/gpu-count": cards});
        pod
    };
    let (long, quiet) = (|| with(asking()), || with(pod(json!({}))));
    let changed = |now: Value, then: Value| review("Pod", "UPDATE", "", now, then);
    let ephemeral = review("Pod", "UPDATE", "ephemeralcontainers", long(), long());
    let owner = json!({"metadata": {}, "spec": {"template": long()}});
    let owner = review("Deployment", "CREATE", "", owner, Value::Null);
    for (what, review, letters, is_seen, is_refused) in [
        ("a pod", of_pod(&long()), 1_450_000, false, true),
        ("one without GPUs", of_pod(&quiet()), 1_450_000, false, false),
        ("one that is just short enough", of_pod(&long()), 1_390_000, true, false),
        ("a container for it", ephemeral, 1_450_000, false, true),
        ("a Deployment", owner, 1_450_000, false, false),
        ("one gets longer", changed(tolerating(long()), asking()), 1_450_000, false, true),
        ("one that was longer", changed(tolerating(long()), long()), 1_450_000, false, false),
        ("old and new", changed(tolerating(long()), long()), 1_390_000, true, false),
        (
            "cards of one that has its node",
            changed(bound(long(), "2"), bound(long(), "1")),
            1_450_000,
            true,
            true,
        ),
    ] {
        let text = review.to_string().replace(LETTERS, &"\\u003c".repeat(letters));
        let response = evaluated_text(&text);
        assert_eq!(response["allowed"], !is_refused, "{what}: {response}");
        let said = response.to_string();
        assert_eq!(said.contains("more than 8 MiB of JSON"), !is_seen, "{what}: {said}");
        assert_eq!(said.contains("make it smaller"), !is_seen && what != "one without GPUs");
        if !is_seen {
            let changed = answer(&mutate(text.as_bytes(), &both(), later()).unwrap());
            assert_eq!(changed, json!({"uid": "u-1", "allowed": true}), "{what}");
        }
    }
}

#[test]
fn a_refusal_tells_of_the_first_containers_and_counts_the_others() {
    let of = |count: usize, limits: Value| {
        let mut pod = asking();
        let limits = json!({"limits": limits});
        let security = json!({"privileged": true});
        let one = |n: usize| json!({"name": format!("c{n}"), "resources": limits, "securityContext": security});
        pod["spec"]["containers"] = (0..count).map(one).collect();
        evaluated(&of_pod(&pod))
    };
    for (count, told, more) in [(1, 1, None), (4, 4, None), (5, 4, Some(1)), (500, 4, Some(496))] {
        let response = of(count, json!({"aliyun.com/gpu-mem": "1"}));
        let text = refused(&response);
        assert_eq!(text.matches("[E_PRIVILEGED]").count(), told, "{text}");
        let counted = more.map(|more| format!("\nmpsgate: and {more} more containers are refused"));
        match counted {
            Some(counted) => assert!(text.ends_with(&counted), "{text}"),
            None => assert!(!text.contains("more containers"), "{text}"),
        }
    }
    // Whatever is wrong with them, it is no longer, and its end says how many there are.
    let slices = (1..100).map(|n| (format!("nvidia.com/gpu-{n}gb"), json!("2"))).collect();
    let response = of(500, Value::Object(slices));
    let text = refused(&response);
    assert!(text.len() <= 4096, "{}", text.len());
    assert!(text.ends_with("…\nmpsgate: and 496 more containers are refused"), "{text}");
}

/// Its handler is the whole pod's.
#[test]
fn what_is_the_whole_pods_is_told_once() {
    let mut pod = asking();
    pod["spec"]["runtimeClassName"] = json!("nvidia");
    pod["spec"]["nodeSelector"] = json!({"pool": "round"});
    let one = |n: usize| json!({"name": format!("c{n}"), "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}});
    pod["spec"]["containers"] = (0..300).map(one).collect();
    let response = evaluated(&of_pod(&pod));
    let text = refused(&response);
    assert_eq!(text.matches("[E_HANDLER]").count(), 1, "{text}");
    assert!(text.contains(r#"refused container "c0""#) && !text.contains("more containers"));
}

#[test]
fn a_review_whose_time_is_over_is_no_answer() {
    let review = of_pod(&asking()).to_string();
    let over = Instant::now();
    for error in [
        validate(review.as_bytes(), &both(), &known(), over).unwrap_err(),
        mutate(review.as_bytes(), &both(), over).unwrap_err(),
    ] {
        assert!(matches!(error, Unreadable::Late), "{error}");
        assert!(error.to_string().contains("try again"));
    }
}
