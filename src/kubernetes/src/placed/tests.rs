use super::*;

fn pod(node: &str, annotations: serde_json::Value) -> Pod {
    let limits = |gib: &str| json!({"limits": {"aliyun.com/gpu-mem": gib}});
    let wire = json!({
        "metadata": {"uid": "u", "annotations": annotations},
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": "i", "resources": limits("2")}],
            "containers": [{"name": "a", "resources": limits("4")}, {"name": "b", "resources": limits("3")}, {"name": "c"}],
        },
    });
    Pod::parse(&wire.to_string()).expect("a pod")
}

fn placed() -> Placed {
    let on = |card, mib| BTreeMap::from([(card, Mib(mib))]);
    Placed {
        node: "n1".to_owned(),
        time_ms: 1_769_860_800_123,
        containers: Layout(BTreeMap::from([
            ("i".to_owned(), on(1, 2048)),
            ("a".to_owned(), on(1, 4096)),
            ("b".to_owned(), on(0, 2500)),
        ])),
        core: BTreeMap::from([("a".to_owned(), 25)]),
    }
}

#[test]
fn what_is_written_is_read_and_says_the_same_to_the_tools_of_the_seed_systems() {
    let written =
        placed().annotations(&pod("n1", json!({})), &BTreeMap::from([(0, 15360), (1, 23028)]));
    let shown: Vec<_> = written.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(
        shown,
        [
            "ALIYUN_COM_GPU_MEM_ASSIGNED=false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME=1769860800123000000",
            "ALIYUN_COM_GPU_MEM_DEV=22",
            "ALIYUN_COM_GPU_MEM_IDX=1",
            "ALIYUN_COM_GPU_MEM_POD=7",
            r#"mpsgate.io/placement={"version":1,"node":"n1","time":"2026-01-31T12:00:00.123Z","containers":{"a":{"1":4096},"b":{"0":2500},"i":{"1":2048}},"core":{"a":25}}"#,
            r#"scheduler.framework.gpushare.allocation={"0":{"1":4},"1":{"0":3}}"#,
            "scheduler.framework.gpushare.assigned=false",
            "scheduler.framework.gpushare.assume-time=1769860800123000000",
        ]
    );
    let pod = pod("n1", json!(written));
    assert_eq!(pod.placed(), Some(placed()));
    assert_eq!(pod.allocation(), Some(placed().containers));
}

#[test]
fn ours_comes_before_v2_before_v1_and_only_for_the_node_that_it_names() {
    let ours = placed().render();
    let v1 = json!({V1_INDEX: "3"});
    let v2 = json!({V1_INDEX: "3", V2_ALLOCATION: r#"{"0":{"1":2,"2":2},"1":{"0":3}}"#});
    let all = json!({PLACEMENT: ours, V1_INDEX: "3", V2_ALLOCATION: "{}"});
    for (node, annotations, a, b, i) in [
        ("n1", all.clone(), vec![(1, 4096)], vec![(0, 2500)], vec![(1, 2048)]),
        ("n2", all, vec![(3, 4096)], vec![(3, 3072)], vec![(3, 2048)]),
        ("n2", v2, vec![(1, 2048), (2, 2048)], vec![(0, 3072)], vec![(1, 1024), (2, 1024)]),
        ("n2", v1, vec![(3, 4096)], vec![(3, 3072)], vec![(3, 2048)]),
    ] {
        let Layout(found) = pod(node, annotations.clone()).allocation().expect("somewhere");
        let of = |name: &str| {
            found.get(name).into_iter().flatten().map(|(c, m)| (*c, m.0)).collect::<Vec<_>>()
        };
        assert_eq!((of("a"), of("b"), of("i")), (a, b, i), "{annotations}");
        assert!(!found.contains_key("c"), "it asks for nothing");
    }
    for nothing in
        [json!({}), json!({V1_INDEX: "-1"}), json!({V2_ALLOCATION: "{"}), json!({PLACEMENT: "{}"})]
    {
        assert_eq!(pod("n1", nothing.clone()).allocation(), None, "{nothing}");
    }
}
