//! What a pod's author is told of IPC namespace and `/dev/shm`, by where the pod may come; and of
//! a handler that bypasses mpsgate, by who chooses the pod's node.

#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_cluster::admission::{
    Container, Evaluated, Nodes, Pod, ShmVolume, evaluate, evaluate_way, is_shm,
};
use mpsgate_cluster::bypass::{Expression, Known, Placer, Term, Where};
use mpsgate_cluster::cards::Cards;
use mpsgate_config::Ipc;
use mpsgate_model::{Code, GpuNode, HandlerReport, Mib, Refusal, RuntimeClass};
use mpsgate_policy::schedule::Word;

fn container(name: &str, gib: u64, volume: Option<&str>) -> Container {
    Container {
        name: name.to_owned(),
        privileged: false,
        capabilities: Vec::new(),
        visible_devices: None,
        other_card: None,
        names_cards: false,
        limits: Ok((gib > 0)
            .then(|| ("aliyun.com/gpu-mem".to_owned(), Mib(gib * 1024)))
            .into_iter()
            .collect()),
        core_percentage: 0,
        device_mounts: Vec::new(),
        processes: None,
        ours: None,
        shm: volume.map(|kind| ShmVolume { name: "dshm".to_owned(), kind: kind.to_owned() }),
        exempt: false,
    }
}

fn pod(containers: Vec<Container>) -> Pod {
    Pod {
        nodes: Nodes::Any,
        place: Where::default(),
        scheduler: Placer::Other,
        class: None,
        host_ipc: true,
        host_pids: false,
        own_users: false,
        gpu_count: None,
        asks_by_annotation: false,
        annotates_cards: false,
        containers,
    }
}

/// The containers that are warned of their volume. Nobody is refused for it.
fn warned(pod: &Pod) -> Vec<String> {
    let evaluated = evaluate(pod, &Known::default(), Ipc::RequireHost);
    assert!(evaluated.refused.iter().all(|(_, refusal)| refusal.code != Code::Shm));
    let of_shm = evaluated.warned.into_iter().filter(|(_, refusal)| refusal.code == Code::Shm);
    of_shm.map(|(container, _)| container).collect()
}

#[test]
fn each_container_that_asks_is_warned_of_its_volume_where_it_may_come_under_mps() {
    let both = || vec![container("a", 7, Some("emptyDir")), container("b", 1, Some("nfs"))];
    for (nodes, cards, expected) in [
        (Nodes::Any, None, &["a", "b"][..]),
        (Nodes::Any, Some("1"), &["a", "b"]),
        (Nodes::Any, Some("2"), &[]),
        (Nodes::Any, Some("two"), &[]),
        (Nodes::Only(Word::Mps), None, &["a", "b"]),
        (Nodes::Only(Word::Share), None, &[]),
        (Nodes::Only(Word::Off), None, &[]),
    ] {
        let pod = Pod { nodes, gpu_count: cards.map(ToOwned::to_owned), ..pod(both()) };
        assert_eq!(warned(&pod), expected, "{nodes:?} {cards:?}");
    }
    let one = pod(vec![container("a", 0, Some("emptyDir")), container("b", 1, None)]);
    assert_eq!(warned(&one), [""; 0], "one that does not ask, and one without a volume");
}

#[test]
fn the_sentence_names_the_volume_and_the_hint_can_be_followed() {
    for (own_users, hint) in [
        (false, "remove the volume mount at /dev/shm, hostIPC: true brings the host's"),
        (true, "remove the volume mount at /dev/shm and hostUsers: false"),
    ] {
        let pod = Pod { own_users, ..pod(vec![container("a", 7, Some("empty\u{1b}Dir"))]) };
        let (_, refusal) = evaluate(&pod, &Known::default(), Ipc::RequireHost)
            .warned
            .into_iter()
            .find(|(_, refusal)| refusal.code == Code::Shm)
            .unwrap();
        let text = refusal.to_string();
        assert!(
            text.contains(r#"it mounts the volume "dshm" (empty\u{1b}Dir) at /dev/shm"#),
            "{text}"
        );
        assert!(text.contains("CUDA_ERROR_MAP_FAILED, 205") && text.ends_with("[W_SHM]"), "{text}");
        assert!(refusal.hint.contains(hint), "{}", refusal.hint);
    }
}

#[test]
fn a_path_is_dev_shm_however_it_is_written() {
    for (path, expected) in [
        ("/dev/shm", true),
        ("/dev/shm/", true),
        ("//dev/shm", true),
        ("/dev/./shm/../shm", true),
        ("dev/shm", true),
        ("/dev", false),
        ("/dev/shm/x", false),
        ("/dev/shmem", false),
        ("", false),
    ] {
        assert_eq!(is_shm(path), expected, "{path:?}");
    }
}

#[test]
fn the_hosts_ipc_namespace_is_given_and_wanted_under_one_policy_alone() {
    let alone = || Pod { host_ipc: false, ..pod(vec![container("a", 7, None)]) };
    let own_users = || Pod { own_users: true, ..alone() };
    let share = || Pod { nodes: Nodes::Only(Word::Share), ..alone() };
    let has_it = || pod(vec![container("a", 7, None)]);
    for (ipc, pod, refused, takes) in [
        (Ipc::RequireHost, alone(), true, true),
        (Ipc::RequireHost, own_users(), true, false),
        (Ipc::RequireHost, share(), false, false),
        (Ipc::RequireHost, has_it(), false, false),
        (Ipc::Auto, alone(), false, false),
        (Ipc::Auto, own_users(), false, false),
        (Ipc::Any, alone(), false, false),
        (Ipc::Any, own_users(), false, false),
    ] {
        let evaluated = evaluate(&pod, &Known::default(), ipc);
        let is_refused =
            evaluated.refused.iter().any(|(_, refusal)| refusal.code == Code::NoHostIpc);
        assert_eq!((is_refused, pod.takes_host_ipc(ipc)), (refused, takes), "{ipc} {pod:?}");
    }
}

/// Nodes by name; on those that are `true` the handler `nvidia` bypasses mpsgate.
fn nodes(bypass: &[(&str, bool)]) -> Known {
    let node = |(name, bypasses): &(&str, bool)| {
        let nvidia = ["nvidia".to_owned()].into();
        let none = BTreeSet::new();
        let (led, round) = if *bypasses { (none, nvidia) } else { (nvidia, none) };
        let handlers = Ok(HandlerReport { led, round, ..HandlerReport::default() });
        let node = GpuNode { labels: BTreeMap::new(), is_switched: true, handlers };
        ((*name).to_owned(), node)
    };
    let class = RuntimeClass { handler: "nvidia".to_owned(), ..RuntimeClass::default() };
    Known {
        classes: Some([("nvidia".to_owned(), class)].into()),
        nodes: bypass.iter().map(node).collect(),
        ..Known::default()
    }
}

#[test]
fn an_extender_steers_pods_that_ask_for_gpu_memory_and_name_no_node() {
    let class = || Some("nvidia".to_owned());
    let asks = |scheduler| Pod { class: class(), scheduler, ..pod(vec![container("a", 7, None)]) };
    let shows = |scheduler| {
        let visible_devices = Some("all".to_owned());
        let all = Container { visible_devices, ..container("a", 0, None) };
        Pod { class: class(), scheduler, ..pod(vec![all]) }
    };
    let on = |scheduler| {
        let place = Where { node: Some("n1".to_owned()), ..Where::default() };
        Pod { place, ..asks(scheduler) }
    };
    let known = nodes(&[("n1", true), ("n2", false)]);
    for (pod, refused) in [
        (asks(Placer::Other), true),
        (asks(Placer::Extender), false),
        // kube-scheduler asks no extender about these.
        (shows(Placer::Extender), true),
        (on(Placer::Extender), true),
    ] {
        let of_way = |evaluated: Evaluated| {
            evaluated.refused.iter().any(|(_, refusal)| refusal.code == Code::Handler)
        };
        assert_eq!(of_way(evaluate(&pod, &known, Ipc::Any)), refused, "{pod:?}");
        assert_eq!(of_way(evaluate_way(&pod, &known)), refused, "{pod:?}");
        // Where each of them bypasses, nobody can steer.
        let each = nodes(&[("n1", true), ("n2", true)]);
        assert!(of_way(evaluate(&pod, &each, Ipc::Any)), "{pod:?}");
    }
}

#[test]
fn a_pod_that_may_go_elsewhere_by_now_is_evaluated_by_its_handler_alone() {
    let mut pod = pod(vec![container("a", 7, None)]);
    pod.host_ipc = false;
    pod.class = Some("nvidia".to_owned());
    let known = nodes(&[("n1", false)]);
    assert!(!evaluate(&pod, &known, Ipc::RequireHost).refused.is_empty());
    assert_eq!(evaluate_way(&pod, &known), Evaluated::default());
    let known = nodes(&[("n1", true)]);
    assert_eq!(evaluate_way(&pod, &known).refused.len(), 1);
    pod.nodes = Nodes::Only(Word::Off);
    assert_eq!(evaluate_way(&pod, &known), Evaluated::default());
}

/// One node, `n1` of the pool `a`, with a card of 15 GiB. The class `b` leaves another pool.
fn fifteen() -> Known {
    let largest = [("n1".to_owned(), Some(Mib(15_360)))].into();
    let pool = |name: &str| BTreeMap::from([("pool".to_owned(), name.to_owned())]);
    let mut known = nodes(&[("n1", false)]);
    known.nodes.values_mut().for_each(|node| node.labels = pool("a"));
    let b = RuntimeClass { selector: pool("b"), ..RuntimeClass::default() };
    known.classes.get_or_insert_default().insert("b".to_owned(), b);
    Known { cards: Cards { largest, is_current: true }, ..known }
}

/// The hints of what a pod is refused, and of what it is warned of, for an amount that no card has.
fn beyond(pod: &Pod) -> (Vec<String>, Vec<String>) {
    let evaluated = evaluate(pod, &fifteen(), Ipc::Any);
    let hints = |all: Vec<(String, Refusal)>| {
        let ours = all.into_iter().filter(|(_, refusal)| refusal.sentence.contains("largest"));
        ours.map(|(_, refusal)| refusal.hint).collect()
    };
    (hints(evaluated.refused), hints(evaluated.warned))
}

#[test]
fn an_amount_in_another_unit_is_refused_beside_what_else_is_wrong() {
    let of = |gib: u64, cards: Option<&str>, nodes: Nodes| {
        let gpu_count = cards.map(ToOwned::to_owned);
        beyond(&Pod { gpu_count, nodes, ..pod(vec![container("a", gib, None)]) })
    };
    let (refused, warned) = of(7_516_192_768, None, Nodes::Any);
    let meant = |hint: &String| hint.ends_with("aliyun.com/gpu-mem counts GiB: write 7");
    assert!(refused.iter().any(meant) && warned.is_empty(), "{refused:?} {warned:?}");
    let (refused, warned) = of(40, None, Nodes::Any);
    assert_eq!((refused.len(), warned.len()), (0, 1), "an autoscaler may bring such a node");
    for (gib, cards, nodes) in [
        (15, None, Nodes::Any),
        (30, Some("2"), Nodes::Only(Word::Share)),
        // Another system's nodes.
        (8138, None, Nodes::Only(Word::Off)),
        // Refused for its number of cards.
        (8138, Some("two"), Nodes::Any),
    ] {
        assert_eq!(of(gib, cards, nodes), (vec![], vec![]), "{gib} {cards:?} {nodes:?}");
    }
    // Refused for their number, of which there may be thousands.
    let names = ["aliyun.com/gpu-mem", "mpsgate.io/gpu-mem-512mi"];
    let limits = Ok(names.map(|name| (name.to_owned(), Mib(8138 * 1024))).into());
    let two = Container { limits, ..container("a", 0, None) };
    assert_eq!(beyond(&pod(vec![two])), (vec![], vec![]));
}

/// What they are for may have no node now: an autoscaler brings one only where a pod waits for it.
#[test]
fn an_amount_is_only_warned_of_where_the_pod_may_go_to_none_of_these_nodes() {
    let by_label = |key: &str, value: &str| Where {
        selector: [(key.to_owned(), value.to_owned())].into(),
        ..Where::default()
    };
    let on = |node: &str| Where { node: Some(node.to_owned()), ..Where::default() };
    let term = |operator: &str| {
        let values = vec!["a".to_owned()];
        let pool = Expression { key: "pool".to_owned(), operator: operator.to_owned(), values };
        let term = Term { labels: vec![pool], ..Term::default() };
        Where { terms: vec![term], ..Where::default() }
    };
    for (name, place, class, is_refused) in [
        ("anywhere", Where::default(), None, true),
        ("its pool", by_label("pool", "a"), None, true),
        ("gpushare's nodes", by_label("gpushare", "true"), None, false),
        ("the node", on("n1"), None, true),
        ("another node", on("n2"), None, false),
        ("its pool, by affinity", term("In"), None, true),
        ("any other pool, by affinity", term("NotIn"), None, false),
        ("another pool, by its class", Where::default(), Some("b"), false),
        ("a class that nobody knows", Where::default(), Some("c"), true),
    ] {
        let class = class.map(ToOwned::to_owned);
        let (refused, warned) =
            beyond(&Pod { place, class, ..pod(vec![container("a", 8138, None)]) });
        let expected = if is_refused { (1, 0) } else { (0, 1) };
        assert_eq!((refused.len(), warned.len()), expected, "{name}");
    }
}

#[test]
fn another_plugins_card_beside_gpu_memory_is_warned_of() {
    let other_card = Some("nvidia.com/gpu".to_owned());
    for (gib, expected) in [(7, 1), (0, 0)] {
        let one = Container { other_card: other_card.clone(), ..container("a", gib, None) };
        let evaluated = evaluate(&pod(vec![one]), &Known::default(), Ipc::Any);
        assert!(evaluated.refused.is_empty());
        let hints = evaluated.warned.iter().map(|(_, refusal)| refusal.hint.as_str());
        assert_eq!(
            hints.filter(|hint| hint.starts_with("remove nvidia.com/gpu:")).count(),
            expected
        );
    }
}
