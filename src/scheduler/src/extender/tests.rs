use mpsgate_cluster::Node;
use mpsgate_model::{CardReport, Mib, Placement};
use mpsgate_policy::schedule::Word;
use serde_json::{Value, json};

use super::*;

mod steered;

/// Every node's handlers lead.
fn open(_: &Pod) -> Result<Closed, String> {
    Ok(Closed::default())
}

fn ledger() -> Snapshot {
    let mut ledger = Ledger::new(Placement::Binpack);
    for (name, schedule, gib) in
        [("n1", Word::Mps, 15), ("n2", Word::Mps, 4), ("n3", Word::Share, 15)]
    {
        let card =
            |index| CardReport::example(format!("GPU-{name}-{index}"), index, Mib(gib << 10));
        ledger.set_node(Node {
            name: name.to_owned(),
            schedule,
            placement: None,
            max_pods: None,
            cards: vec![card(0), card(1)],
        });
    }
    ledger.snapshot()
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// As kube-scheduler writes a pod: Go's empty values are there.
fn pod(gib: u64, labels: Value) -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "u", "creationTimestamp": null, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"aliyun.com/gpu-mem": gib.to_string()}}}]},
        "status": {},
    })
}

fn filtered(args: &Value) -> Value {
    json!(filter(&ledger(), open, args.to_string().as_bytes(), later()).expect("read"))
}

#[test]
fn names_and_whole_nodes_are_filtered_alike_and_whole_nodes_come_back_as_they_came() {
    let names = ["n1", "n2", "n3", "n4"];
    let by_name = filtered(&json!({"Pod": pod(7, json!({})), "Nodes": null, "NodeNames": names}));
    assert_eq!(by_name["NodeNames"], json!(["n1", "n3"]));
    assert_eq!(by_name["Nodes"], Value::Null);
    assert_eq!(by_name["Error"], "");
    let whole: Vec<_> = names
        .iter()
        .map(|name| json!({"metadata": {"name": name}, "status": {"x": 1.50}}))
        .collect();
    // As schedulers before 1.16 write it.
    for (pod_key, nodes_key) in [("Pod", "Nodes"), ("pod", "nodes")] {
        let by_node = filtered(
            &json!({pod_key: pod(7, json!({})), nodes_key: {"metadata": {}, "items": whole}}),
        );
        assert_eq!(by_node["Nodes"]["items"], json!([whole[0], whole[2]]));
        assert_eq!(by_node["NodeNames"], Value::Null);
        assert_eq!(by_node["FailedAndUnresolvableNodes"], by_name["FailedAndUnresolvableNodes"]);
    }
    let failed = by_name["FailedAndUnresolvableNodes"].as_object().expect("a map");
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["n2", "n4"]);
}

#[test]
fn several_cards_are_for_share_nodes_and_what_cannot_be_asked_is_refused_everywhere() {
    let two = filtered(
        &json!({"Pod": pod(8, json!({"aliyun.com/gpu-count": "2"})), "NodeNames": ["n1", "n3"]}),
    );
    assert_eq!(two["NodeNames"], json!(["n3"]), "{two}");
    for (count, said) in
        [("3", "asks for 3 cards"), ("0", "no number of cards"), ("x", "set it to 1 or more")]
    {
        let none = filtered(
            &json!({"Pod": pod(8, json!({"aliyun.com/gpu-count": count})), "NodeNames": ["n1", "n3"]}),
        );
        assert_eq!(none["NodeNames"], json!([]));
        assert!(
            none["FailedAndUnresolvableNodes"]["n3"].as_str().is_some_and(|why| why.contains(said)),
            "{none}"
        );
    }
}

#[test]
fn a_pod_that_asks_for_nothing_of_ours_passes_untouched() {
    let args = json!({"Pod": {"metadata": {"name": "a"}, "spec": {"containers": null}}, "NodeNames": ["n1", "elsewhere"]});
    assert_eq!(filtered(&args)["NodeNames"], json!(["n1", "elsewhere"]));
    let scores = prioritize(&ledger(), args.to_string().as_bytes(), later()).expect("read");
    assert_eq!(
        json!(scores),
        json!([{"Host": "n1", "Score": 0}, {"Host": "elsewhere", "Score": 0}])
    );
}

#[test]
fn what_cannot_be_read_is_an_error_in_the_answer() {
    for body in ["", "{}", "[]", r#"{"Pod":null}"#, r#"{"Pod":{},"Nodes":{"items":[{}]}}"#] {
        let error = filter(&ledger(), open, body.as_bytes(), later()).expect_err(body);
        assert!(error.contains("cannot be read"), "{body}: {error}");
    }
}

#[test]
fn preemption_keeps_the_nodes_where_the_pod_fits_once_the_victims_are_gone() {
    let victims = json!({"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}, "n2": {"Pods": [{"UID": "w"}], "NumPDBViolations": 0}});
    let meta = json!({"Pod": pod(7, json!({})), "NodeNameToVictims": null, "NodeNameToMetaVictims": victims});
    let expected =
        json!({"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}});
    assert_eq!(
        json!(preempt(&ledger(), open, meta.to_string().as_bytes(), later()).expect("read")),
        expected
    );
    let whole = json!({"n1": {"Pods": [{"metadata": {"uid": "v"}}], "NumPDBViolations": 1}});
    let whole = json!({"Pod": pod(7, json!({})), "NodeNameToVictims": whole, "NodeNameToMetaVictims": null});
    assert_eq!(
        json!(preempt(&ledger(), open, whole.to_string().as_bytes(), later()).expect("read")),
        expected
    );
}

/// What `filter` and `prioritize` say to a body.
fn errors(args: &Value) -> [String; 2] {
    let body = args.to_string();
    [
        filter(&ledger(), open, body.as_bytes(), later()).map(|_| ()).expect_err(&body[..80]),
        prioritize(&ledger(), body.as_bytes(), later()).map(|_| ()).expect_err(&body[..80]),
    ]
}

#[test]
fn more_nodes_than_there_are_are_not_looked_for_and_none_twice() {
    let many: Vec<_> = (0..300).map(|_| "n1").collect();
    let whole: Vec<_> = (0..300).map(|_| json!({"metadata": {"name": "n1"}})).collect();
    for (key, nodes) in [("NodeNames", json!(many)), ("Nodes", json!({"items": whole}))] {
        for error in errors(&json!({"Pod": pod(7, json!({})), key: nodes})) {
            assert!(error.contains("names more than"), "{key}: {error}");
        }
    }
    let victims: serde_json::Map<_, _> =
        (0..300).map(|n| (format!("x{n}"), json!({"Pods": [], "NumPDBViolations": 0}))).collect();
    let args = json!({"Pod": pod(7, json!({})), "NodeNameToMetaVictims": victims}).to_string();
    let error = preempt(&ledger(), open, args.as_bytes(), later()).expect_err("too many");
    assert!(error.contains("names more than"), "{error}");
    // As many as a watch that is ahead may know.
    let ahead: Vec<_> = (0..200).map(|n| format!("new{n}")).chain(["n1".to_owned()]).collect();
    let some = filtered(&json!({"Pod": pod(7, json!({})), "NodeNames": ahead}));
    assert_eq!(some["NodeNames"], json!(["n1"]));
    let twice = json!({"Pod": pod(7, json!({})), "NodeNames": ["n1", "n3", "n1"],
        "Nodes": {"items": [{"metadata": {"name": "n1"}, "a": 1}, {"metadata": {"name": "n1"}, "a": 2}]}});
    let once = filtered(&twice);
    assert_eq!(once["NodeNames"], json!(["n1", "n3"]));
    assert_eq!(once["Nodes"]["items"], json!([{"metadata": {"name": "n1"}, "a": 1}]));
}

#[test]
fn names_that_are_none_are_refused_and_shown_escaped_and_short() {
    let long = "x".repeat(300_000);
    for name in ["", "../../nodes/n1?", "n1\n", "\u{1b}[2J", "N1", "n1/x", &long] {
        let whole = json!({"items": [{"metadata": {"name": name}}]});
        for (key, nodes) in [("NodeNames", json!(["n1", name])), ("Nodes", whole)] {
            for error in errors(&json!({"Pod": pod(7, json!({})), key: nodes})) {
                assert!(error.contains("no name of a node"), "{error}");
                assert!(error.len() < 400 && !error.contains(char::is_control), "{error:?}");
            }
        }
        let good = ["web", "default", "u-1", "n1"];
        for (place, said) in
            ["name of a pod", "name of a namespace", "uid of a pod", "name of a node"]
                .iter()
                .enumerate()
        {
            let mut four = good.map(ToOwned::to_owned);
            four[place] = name.to_owned();
            // Upper case is in uids.
            if place == 2 && name == "N1" {
                continue;
            }
            let [pod, namespace, uid, node] = four;
            let args =
                json!({"PodName": pod, "PodNamespace": namespace, "PodUID": uid, "Node": node});
            let error = binding(args.to_string().as_bytes()).expect_err(said);
            assert!(error.contains(said), "{said}: {error}");
            assert!(error.len() < 400 && !error.contains(char::is_control), "{error:?}");
        }
    }
    let error = binding(json!(long).to_string().as_bytes()).expect_err("no object");
    assert!(error.len() < 400, "serde says what it found");
    let good = json!({"PodName": "web-0.x", "PodNamespace": "kube-system", "PodUID": "d41d8cd98f00b204e9800998ecf8427e", "Node": "n1.example.com"});
    assert!(binding(good.to_string().as_bytes()).is_ok());
}

#[test]
fn a_search_whose_time_is_over_says_so() {
    let args = json!({"Pod": pod(7, json!({})), "NodeNames": ["n1"]}).to_string();
    let error =
        filter(&ledger(), open, args.as_bytes(), Instant::now()).map(|_| ()).expect_err("late");
    assert!(error.contains("too long"), "{error}");
    assert!(prioritize(&ledger(), args.as_bytes(), Instant::now()).is_err());
}

/// What is said of `n3`, a node with two cards of 15 GiB each, for so many containers of 1 GiB on
/// so many cards each.
fn said_of_many(containers: usize, cards: u32) -> Option<String> {
    let amounts = json!({"aliyun.com/gpu-mem": "1"});
    let one = |n| json!({"name": format!("c{n}"), "resources": {"limits": amounts}});
    let containers: Vec<_> = (0..containers).map(one).collect();
    let labels = json!({"aliyun.com/gpu-count": cards.to_string()});
    let pod = json!({"metadata": {"name": "a", "uid": "u", "labels": labels}, "spec": {"containers": containers}});
    let answer = filtered(&json!({"Pod": pod, "NodeNames": ["n3"]}));
    let why = answer["FailedNodes"]["n3"].as_str().map(ToOwned::to_owned);
    assert_eq!(why.is_none(), answer["NodeNames"] == json!(["n3"]), "{answer}");
    why
}

#[test]
fn a_pod_of_more_parts_than_any_has_is_refused_and_told_what_to_do() {
    for (containers, cards, said) in [
        (15, 1, None),
        (30, 1, None),
        // Looked for, and not there.
        (32, 1, Some("do not fit beside each other")),
        (2, 2, Some("in equal parts")),
        (1, 64, Some("asks for 64 cards")),
        // Not looked for.
        (33, 1, Some("more than 32 containers")),
        (1000, 1, Some("more than 32 containers")),
        (1, 65, Some("are 65, and more than 64")),
        (32, 3, Some("(32 times 3) are 96, and more than 64")),
    ] {
        let why = said_of_many(containers, cards);
        let as_said = match said {
            None => why.is_none(),
            Some(said) => why.as_ref().is_some_and(|why| why.contains(said)),
        };
        assert!(as_said, "{containers} on {cards}: {why:?}");
        if said.is_some_and(|said| said.contains("more than")) {
            assert!(why.is_some_and(|why| why.contains("make several pods of it")));
        }
    }
}

/// A pod of so many containers of 1 GiB, as it is searched for.
fn candidate(containers: usize) -> Candidate {
    let one =
        |n| json!({"name": format!("c{n}"), "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}});
    let containers: Vec<_> = (0..containers).map(one).collect();
    let pod = json!({"metadata": {"name": "a", "uid": "u"}, "spec": {"containers": containers}});
    let pod = Pod::parse(&pod.to_string()).expect("a pod");
    ledger_input::request(&pod).map(|asked| asked.map(|asked| ledger_input::candidate(&pod, asked)))
}

#[test]
fn a_search_that_takes_too_long_is_a_plain_no_for_the_nodes_that_are_left() {
    let ledger = ledger();
    for containers in [1, 4, 32] {
        let candidate = candidate(containers);
        let over = Search { end: Instant::now(), ..Search::new(&ledger, later()) };
        for look in over.looks(&candidate, &["n1", "n2", "n4"]).expect("no error") {
            let Failed { why, unresolvable } = look.expect_err("nobody has searched");
            assert!(unresolvable, "nobody tries whose going would help");
            assert!(why.contains("ends after 200 ms: make several pods of it"), "{why}");
        }
    }
}

#[test]
fn what_is_not_searched_for_is_answered_also_when_a_search_would_be_over() {
    let ledger = ledger();
    let over = Search { end: Instant::now(), ..Search::new(&ledger, later()) };
    for look in over.looks(&Ok(None), &["n1", "n2"]).expect("no error") {
        assert!(look.is_ok(), "it asks for nothing of ours");
    }
    let why = "more than any node has";
    for look in over.looks(&Err(why.to_owned()), &["n1", "n2"]).expect("no error") {
        assert!(look.is_err_and(|failed| failed.why == why));
    }
}

#[test]
fn nodes_in_one_state_are_answered_as_if_each_were_searched() {
    let names = ["n1", "n2", "n1-too", "n4", "n2-too", "n3"];
    let mut ledger = Ledger::new(Placement::Binpack);
    let card = |index, gib: u64| CardReport::example(format!("GPU-{index}"), index, Mib(gib << 10));
    for (name, gib) in [("n1", 15), ("n1-too", 15), ("n2", 4), ("n2-too", 4), ("n3", 40)] {
        ledger.set_node(Node {
            name: name.to_owned(),
            schedule: Word::Mps,
            placement: None,
            max_pods: None,
            cards: vec![card(0, gib), card(1, gib)],
        });
    }
    let ledger = ledger.snapshot();
    for containers in [1, 4, 5, 9, 30] {
        let candidate = candidate(containers);
        let search = Search::new(&ledger, later());
        let all = search.looks(&candidate, &names).expect("looks");
        let pod = candidate.expect("asks").expect("asks");
        let scores = search.scores(&pod, &names).expect("scores");
        for ((name, look), score) in names.into_iter().zip(all).zip(scores) {
            let why = look.err().map(|failed| failed.why);
            let own = ledger.takes(name, &pod).err().map(|reason| reason.text);
            assert_eq!(why, own, "{containers} on {name}");
            let own = ledger.score(name, &pod).map_or(0, i64::from);
            assert_eq!(score, own, "{containers} on {name}");
        }
    }
}

fn with_claims(gib: u64, claims: &[&str]) -> Value {
    let mut pod = pod(gib, json!({}));
    if gib == 0 {
        pod["spec"]["containers"][0]["resources"] = json!({});
    }
    let made = |name: &&str| json!({"name": "gpu", "resourceClaimName": name});
    pod["spec"]["resourceClaims"] =
        json!([{"name": "gpu", "resourceClaimTemplateName": "template"}]);
    pod["status"]["resourceClaimStatuses"] = claims.iter().map(made).collect();
    pod
}

#[test]
fn nodes_are_scored_for_claims_where_limits_ask_for_nothing() {
    let scored = |pod: &Value, memory: Result<Vec<Mib>, &str>| {
        let args = json!({"Pod": pod, "NodeNames": ["n1", "n2", "n3", "n4"]}).to_string();
        let found = prioritize_claims(&ledger(), args.as_bytes(), later(), |pod| {
            assert_eq!(pod.claims, ["web-gpu"], "what is read");
            memory.map_err(str::to_owned)
        });
        found.map(|scores| scores.iter().map(|one| one.score).collect::<Vec<_>>())
    };
    let pod = with_claims(0, &["web-gpu"]);
    // As a pod of the same memory is scored by its limits.
    let limits = |gib: u64| {
        let args = json!({"Pod": self::pod(gib, json!({})), "NodeNames": ["n1", "n2", "n3", "n4"]});
        let scores = prioritize(&ledger(), args.to_string().as_bytes(), later());
        scores.expect("read").iter().map(|one| one.score).collect::<Vec<_>>()
    };
    for gib in [2, 4, 7, 15, 16] {
        assert_eq!(scored(&pod, Ok(vec![Mib(gib << 10)])), Ok(limits(gib)), "{gib} GiB");
    }
    assert_ne!(limits(4), [0; 4]);
    assert_eq!(scored(&pod, Ok(vec![Mib(9216), Mib(9216)])), Ok(vec![6, 0, 6, 0]), "on two cards");
    for nothing in [vec![], vec![Mib(u64::MAX)], vec![Mib(1 << 20); 300]] {
        assert_eq!(scored(&pod, Ok(nothing)), Ok(vec![0; 4]));
    }
    assert_eq!(scored(&pod, Err("no")), Err("no".to_owned()));
}

#[test]
fn claims_are_read_of_pods_that_have_some_and_by_names_alone() {
    let asked = |pod: &Value| {
        let args = json!({"Pod": pod, "NodeNames": ["n1"]}).to_string();
        let mut read = false;
        let found = prioritize_claims(&ledger(), args.as_bytes(), later(), |_| {
            read = true;
            Ok(Vec::new())
        });
        found.map(|_| read)
    };
    assert_eq!(asked(&with_claims(0, &["web-gpu"])), Ok(true));
    for none in [pod(7, json!({})), with_claims(0, &[]), with_claims(7, &["web-gpu"])] {
        assert_eq!(asked(&none), Ok(false), "{none}");
    }
    let mut elsewhere = with_claims(0, &["web-gpu"]);
    elsewhere["metadata"]["namespace"] = json!("../x");
    let forged = with_claims(0, &["web-gpu", "../../../../api/v1/secrets"]);
    for (pod, said) in [(elsewhere, "no name of a namespace"), (forged, "no name of a claim")] {
        assert!(asked(&pod).is_err_and(|why| why.contains(said)), "{pod}");
    }
}
