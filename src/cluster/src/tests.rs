//! Where pods go on one node, what counts for how long, and each sentence.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "test code fails by panicking"
)]

use std::collections::BTreeMap;

use super::*;

const GIB: u64 = 1024;

fn gib(n: u64) -> Mib {
    Mib(n * GIB)
}

fn card(index: u32, memory: u64) -> CardReport {
    CardReport::example(format!("GPU-{index}"), index, gib(memory))
}

/// A node `n` under MPS with cards of so many GiB.
fn node(cards: &[u64]) -> Node {
    let cards = (0..).zip(cards).map(|(index, memory)| card(index, *memory)).collect();
    Node { name: "n".to_owned(), schedule: Word::Mps, placement: None, max_pods: None, cards }
}

fn share(cards: &[u64]) -> Node {
    Node { schedule: Word::Share, ..node(cards) }
}

fn container(name: &str, kind: Kind, memory: u64) -> Container {
    let (name, memory) = (name.to_owned(), gib(memory));
    Container { name, kind, memory, unit: gib(1), core_percent: 0, uid: None }
}

fn pod_of(uid: &str, containers: Vec<Container>) -> Pod {
    Pod {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        name: format!("pod-{uid}"),
        request: PodRequest { containers, cards: 1 },
        node: None,
        layout: None,
        finished: false,
    }
}

fn pod(uid: &str, memory: u64) -> Pod {
    pod_of(uid, vec![container("c", Kind::Main, memory)])
}

/// Main containers a, b, …
fn mains(uid: &str, memory: &[u64]) -> Pod {
    let names = ["a", "b", "c", "d", "e"];
    let all = names.iter().zip(memory).map(|(name, memory)| container(name, Kind::Main, *memory));
    pod_of(uid, all.collect())
}

fn over(cards: u32, mut pod: Pod) -> Pod {
    pod.request.cards = cards;
    pod
}

fn as_uid(uid: u32, mut pod: Pod) -> Pod {
    for container in &mut pod.request.containers {
        container.uid = Some(uid);
    }
    pod
}

fn with_core(percent: u32, mut pod: Pod) -> Pod {
    for container in &mut pod.request.containers {
        container.core_percent = percent;
    }
    pod
}

/// The same, bound to `n` with each container on one card.
fn on(cards: &[u32], mut pod: Pod) -> Pod {
    let all = pod.request.containers.iter().zip(cards);
    let all = all.map(|(one, card)| (one.name.clone(), BTreeMap::from([(*card, one.memory)])));
    pod.layout = Some(Layout(all.collect()));
    pod.node = Some("n".to_owned());
    pod
}

fn bound(mut pod: Pod) -> Pod {
    pod.node = Some("n".to_owned());
    pod
}

fn ledger(node: Node, pods: impl IntoIterator<Item = Pod>) -> Ledger {
    let mut ledger = Ledger::new(Placement::Binpack);
    ledger.set_node(node);
    for pod in pods {
        ledger.set_pod(pod);
    }
    ledger
}

/// `a:0=7 b:1=3`, in GiB.
fn place(ledger: &Ledger, pod: &Pod) -> String {
    match ledger.fits("n", pod) {
        Err(reason) => {
            format!("{}{}", if reason.unresolvable { "never: " } else { "" }, reason.text)
        }
        Ok(layout) => {
            let each = layout.0.iter().map(|(name, on)| {
                let on = on.iter().map(|(card, memory)| format!("{card}={}", memory.0 / GIB));
                format!("{name}:{}", on.collect::<Vec<_>>().join(","))
            });
            each.collect::<Vec<_>>().join(" ")
        }
    }
}

/// GiB taken of each card.
fn used(ledger: &Ledger) -> Vec<u64> {
    ledger.cards("n").unwrap().iter().map(|card| card.used.0 / GIB).collect()
}

#[test]
fn a_pod_goes_where_the_node_would_put_it() {
    let all = |pods: Vec<Pod>| ledger(node(&[16, 24, 16]), pods);
    assert_eq!(place(&all(vec![]), &pod("p", 7)), "c:0=7", "the smallest that has room");
    assert_eq!(place(&all(vec![]), &pod("p", 20)), "c:1=20");
    assert_eq!(place(&all(vec![on(&[2], pod("x", 8))]), &pod("p", 7)), "c:2=7", "the fullest");
    let equal = all(vec![on(&[2], pod("x", 10)), on(&[1], pod("y", 5))]);
    assert_eq!(place(&equal, &pod("p", 5)), "c:1=5", "beside its own size");
    let spread = Node { placement: Some(Placement::Spread), ..node(&[16, 16]) };
    let spread = ledger(spread, [on(&[0], pod("x", 3))]);
    assert_eq!(place(&spread, &pod("p", 3)), "c:1=3", "spread: the emptiest");
}

#[test]
fn containers_of_a_pod_may_have_different_cards() {
    let two = ledger(node(&[16, 16]), []);
    assert_eq!(place(&two, &mains("p", &[10, 10])), "a:0=10 b:1=10");
    assert_eq!(place(&two, &mains("p", &[10, 6])), "a:0=10 b:0=6");
    // Largest first into the fullest leaves no room for the last: the choice is taken back.
    let odd = ledger(node(&[7, 6]), []);
    assert_eq!(place(&odd, &mains("p", &[4, 3, 3, 3])), "a:0=4 b:0=3 c:1=3 d:1=3");
    let mut other = mains("p", &[4, 4]);
    other.request.containers[1].uid = Some(7);
    assert_eq!(place(&two, &other), "a:0=4 b:1=4", "one card serves one uid");
}

#[test]
fn init_containers_use_what_the_others_will() {
    use Kind::{Init, Main, Sidecar};
    let one = ledger(node(&[16]), []);
    let all = |kinds: &[(Kind, u64)]| {
        let names = ["a", "b", "c", "d"];
        let each =
            names.iter().zip(kinds).map(|(name, (kind, size))| container(name, *kind, *size));
        pod_of("p", each.collect())
    };
    let fits = |pod: Pod| one.fits("n", &pod).is_ok();
    assert!(fits(all(&[(Init, 16), (Main, 16)])));
    assert!(fits(all(&[(Init, 16), (Init, 16), (Main, 8), (Main, 8)])));
    assert!(!fits(all(&[(Sidecar, 1), (Init, 16), (Main, 1)])));
    assert!(
        fits(all(&[(Init, 16), (Sidecar, 1), (Main, 15)])),
        "only what stands before it goes on"
    );
    assert!(!fits(all(&[(Sidecar, 1), (Main, 16)])));
    let two = ledger(node(&[16, 8]), []);
    assert_eq!(place(&two, &all(&[(Init, 6), (Main, 12)])), "a:0=6 b:0=12", "not a second card");
    let counted = ledger(node(&[16, 8]), [on(&[0, 0], all(&[(Init, 10), (Main, 4)]))]);
    assert_eq!(used(&counted), [10, 0]);
}

#[test]
fn several_cards_are_had_in_equal_parts() {
    let four = share(&[16, 16, 16, 8]);
    let busy = ledger(four.clone(), [on(&[1], pod("x", 6))]);
    assert_eq!(place(&busy, &over(2, pod("p", 16))), "c:1=8,3=8", "the fullest two");
    assert_eq!(place(&busy, &over(3, pod("p", 30))), "c:0=10,1=10,2=10");
    let empty = ledger(four, []);
    assert_eq!(place(&empty, &over(2, mains("p", &[16, 8]))), "a:0=8,3=8 b:0=4,1=4");
}

#[test]
fn the_sentences() {
    let mut sick = node(&[16, 16]);
    sick.cards[1].healthy = false;
    let mut clients = node(&[16]);
    clients.cards[0].max_clients = Some(2);
    let mut local = node(&[16]);
    local.cards[0].local = gib(10);
    let mut served = node(&[16, 16]);
    served.cards[0].uid = Some(1000);
    served.cards[0].held = BTreeMap::from([("x".to_owned(), gib(1))]);
    let full = |card| on(&[card], pod("full", 12));
    let off = Node { schedule: Word::Off, ..node(&[16]) };
    let capped = Node { max_pods: Some(1), ..node(&[16]) };
    let table: Vec<(Ledger, Pod, &str)> = vec![
        (
            ledger(node(&[16, 16]), []),
            pod("p", 20),
            "never: no card takes 20 GiB for container c: 2 of at most 16 GiB",
        ),
        (
            ledger(node(&[16]), [full(0)]),
            pod("p", 7),
            "no card takes 7 GiB for container c: with at most 4 GiB left",
        ),
        (
            ledger(sick, [full(0)]),
            pod("p", 7),
            "no card takes 7 GiB for container c: 1 with at most 4 GiB left, 1 unhealthy",
        ),
        (
            ledger(local, [on(&[0], pod("x", 2))]),
            pod("p", 7),
            "never: no card takes 7 GiB for container c: with at most 4 GiB left",
        ),
        (
            ledger(clients, [on(&[0, 0], mains("x", &[1, 1]))]),
            pod("p", 1),
            "no card takes 1 GiB for container c: with all of 2 MPS clients taken",
        ),
        (
            ledger(capped, [on(&[0], pod("x", 1))]),
            pod("p", 1),
            "no card takes 1 GiB for container c: with as many pods as ack.node.gpu.max-pod allows",
        ),
        (
            ledger(node(&[16]), [on(&[0], with_core(70, pod("x", 1)))]),
            with_core(35, pod("p", 1)),
            "no card takes 1 GiB with 35 percent of the compute for container c: with at least 70 percent of the compute taken",
        ),
        (
            ledger(served, [on(&[1], pod("y", 1))]),
            as_uid(7, pod("p", 2)),
            "no card takes 2 GiB for container c: 2 whose MPS server serves another uid than 7",
        ),
        (
            ledger(node(&[16, 16]), [full(0)]),
            mains("p", &[9, 9]),
            "the containers of 9 GiB, 9 GiB do not fit beside each other: 4 GiB, 16 GiB are left",
        ),
        (
            ledger(share(&[16, 16]), [full(0)]),
            over(2, pod("p", 16)),
            "the parts of 8 GiB, 8 GiB do not fit beside each other: 4 GiB, 16 GiB are left",
        ),
        (
            ledger(node(&[16, 16]), []),
            over(2, pod("p", 16)),
            "never: the pod asks for 2 cards, and under ack.node.gpu.schedule=mps a container has one: use a node \
             with ack.node.gpu.schedule=share",
        ),
        (
            ledger(share(&[16]), []),
            over(2, pod("p", 16)),
            "never: the pod asks for 2 cards, and the node has 1",
        ),
        (
            ledger(share(&[16, 16]), []),
            over(2, pod("p", 7)),
            "never: 7 GiB cannot be had on 2 cards in equal parts of whole 1 GiB",
        ),
        (
            ledger(node(&[16]), []),
            with_core(20, pod("p", 0)),
            "never: container c asks for 20 percent of a card's compute and for no memory of it",
        ),
        (
            ledger(off, []),
            pod("p", 1),
            "never: its cards are not mpsgate's: node label ack.node.gpu.schedule is neither mps nor share, or \
             mpsgate is being removed",
        ),
        (ledger(node(&[]), []), pod("p", 1), "never: it reports no card: look at mpsgated there"),
        (
            Ledger::new(Placement::Binpack),
            pod("p", 1),
            "never: it is not known to mpsgate-scheduler: mpsgated has not reported its cards",
        ),
    ];
    for (ledger, pod, sentence) in &table {
        assert_eq!(&place(ledger, pod), sentence);
        assert_eq!(ledger.score("n", pod), None, "{sentence}");
    }
    let mut bound = ledger(node(&[16]), [on(&[0], pod("p", 1))]);
    let refused = bound.reserve(pod("p", 1), "n", 60).unwrap_err();
    assert_eq!(refused.text, "the pod is already bound to node n");
}

#[test]
fn memory_is_free_only_when_the_pod_is_gone_and_the_node_says_so() {
    let mut held = node(&[16]);
    held.cards[0].held = BTreeMap::from([("x".to_owned(), gib(9))]);
    let mut one = ledger(held, [on(&[0], pod("x", 8))]);
    assert_eq!(used(&one), [9], "the larger of both, once");
    one.set_pod(Pod { finished: true, ..on(&[0], pod("x", 8)) });
    assert_eq!(used(&one), [9]);
    one.remove_pod("x");
    assert_eq!(used(&one), [9]);
    assert_eq!(one.cards("n").unwrap()[0].pods[0].name, None);
    one.set_node(node(&[16]));
    assert_eq!(used(&one), [0]);
    one.set_pod(on(&[0], pod("x", 8)));
    one.set_pod(Pod { finished: true, ..on(&[0], pod("x", 8)) });
    assert_eq!(used(&one), [0], "finished, and held by nobody");
}

#[test]
fn a_card_that_shrank_has_nothing_left() {
    let mut one = ledger(node(&[16]), [on(&[0], pod("x", 12))]);
    one.set_node(node(&[8]));
    assert_eq!(used(&one), [12]);
    assert_eq!(
        place(&one, &pod("p", 1)),
        "no card takes 1 GiB for container c: with at most 0 MiB left"
    );
    one.set_node(node(&[16, 16]));
    assert_eq!(used(&one), [12, 0]);
    one.remove_node("n");
    assert_eq!(one.nodes().count(), 0);
    one.set_node(node(&[16]));
    assert_eq!(used(&one), [12], "its pods stay with their node");
}

#[test]
fn a_pod_without_a_placement_counts_where_the_node_would_put_it() {
    let mut one = ledger(node(&[16, 8]), [bound(pod("x", 6))]);
    assert_eq!(used(&one), [0, 6]);
    one.set_pod(bound(pod("y", 7)));
    assert_eq!(used(&one), [6, 7], "the large one first");
    one.set_pod(bound(pod("z", 12)));
    assert_eq!(used(&one), [12, 7], "and what has room nowhere holds nothing back");
    let mut holding = node(&[16, 16]);
    holding.cards[1].held = BTreeMap::from([("m".to_owned(), gib(5))]);
    let one = ledger(holding, [bound(mains("m", &[5, 12]))]);
    assert_eq!(used(&one), [12, 5], "one container runs, the other is yet to come");
}

#[test]
fn whoever_holds_memory_runs_as_the_uid_that_the_card_serves() {
    let mut served = node(&[16]);
    served.cards[0].uid = Some(1000);
    served.cards[0].held = BTreeMap::from([("x".to_owned(), gib(1))]);
    // The pod says nothing of its uid, which the image has.
    let one = ledger(served.clone(), [on(&[0], pod("x", 1))]);
    assert_eq!(place(&one, &as_uid(1000, pod("p", 1))), "c:0=1");
    served.cards[0].held.clear();
    let idle = ledger(served.clone(), []);
    assert_eq!(
        place(&idle, &as_uid(7, pod("p", 1))),
        "c:0=1",
        "a server without clients makes room"
    );
    served.cards[0].one_uid = false;
    let all = ledger(served, [on(&[0], pod("x", 1))]);
    assert_eq!(place(&all, &as_uid(7, pod("p", 1))), "c:0=1");
}

#[test]
fn a_reservation_stays_until_its_pod_is_bound_or_its_time_is_over() {
    let mut one = ledger(node(&[16]), []);
    one.reserve(pod("p", 8), "n", 1000).unwrap();
    assert_eq!(used(&one), [8]);
    one.set_pod(pod("p", 8));
    assert_eq!(used(&one), [8], "a watch that is behind does not take it back");
    one.release("p");
    assert_eq!(used(&one), [0]);

    one.reserve(pod("p", 8), "n", 1000).unwrap();
    one.expire(999);
    assert_eq!(used(&one), [8]);
    one.expire(1000);
    assert_eq!(used(&one), [0]);

    one.reserve(pod("p", 8), "n", 2000).unwrap();
    one.set_pod(Pod { finished: true, ..pod("p", 8) });
    assert_eq!(used(&one), [0], "it has ended before it was bound");

    one.reserve(pod("p", 8), "n", 2000).unwrap();
    assert_eq!(place(&one, &pod("p", 16)), "c:0=16", "what it has already is free for it");
    one.set_pod(on(&[0], pod("p", 8)));
    one.release("p");
    one.expire(3000);
    assert_eq!(used(&one), [8], "bound");
    one.remove_pod("p");
    assert_eq!(used(&one), [0]);
}

#[test]
fn a_pod_that_is_not_bound_counts_nothing_whatever_cards_it_names() {
    let mut one = ledger(node(&[16]), []);
    one.set_pod(Pod { node: None, ..on(&[0], pod("forged", 1 << 40)) });
    assert_eq!(used(&one), [0]);
    assert_eq!(place(&one, &pod("p", 16)), "c:0=16");
    one.set_pod(on(&[0], pod("bound", 10)));
    assert_eq!(used(&one), [10], "one that is bound does");
}

#[test]
fn a_snapshot_stays_as_it_was_while_the_ledger_goes_on() {
    let mut one = ledger(node(&[16]), []);
    let before = one.snapshot();
    one.set_pod(on(&[0], pod("p", 8)));
    one.set_node(Node { name: "later".to_owned(), ..node(&[16]) });
    assert_eq!(before.cards("n").unwrap()[0].used, gib(0));
    assert_eq!(before.nodes().collect::<Vec<_>>(), ["n"]);
    assert_eq!(one.snapshot().cards("n"), one.cards("n"));
    one.remove_node("n");
    assert_eq!(before.fits("n", &pod("q", 16)).map(|_| ()), Ok(()));
}

#[test]
fn fuller_nodes_score_higher_and_emptier_ones_where_they_spread() {
    let score = |node: Node, taken: u64| {
        let pods = (taken > 0).then(|| on(&[0], pod("x", taken)));
        ledger(node, pods).score("n", &pod("p", 4)).unwrap()
    };
    let scores = [0, 4, 8, 12].map(|taken| score(node(&[16]), taken));
    assert_eq!(scores, [3, 5, 8, 10]);
    assert!(score(node(&[8]), 0) > score(node(&[80]), 0), "large cards are for large pods");
    let spread = Node { placement: Some(Placement::Spread), ..node(&[16]) };
    let scores = [0, 4, 8, 12].map(|taken| score(spread.clone(), taken));
    assert_eq!(scores, [8, 5, 3, 0]);
    assert_eq!(ledger(node(&[16]), []).score("n", &pod_of("p", vec![])), None);
}

#[test]
fn a_card_remembers_any_number_of_sizes() {
    let sizes = || (1..=9).chain([1 << 32]).map(Mib);
    let mut one = node(&[16, 16]);
    one.cards.iter_mut().for_each(|card| card.memory = Mib(1 << 40));
    // The second card is the fuller one, so that the first is chosen for a size that it has alone.
    one.cards[1].local = Mib(1 << 36);
    let sized = |uid: &str, size: Mib| {
        let mut sized = pod(uid, 1);
        sized.request.containers[0].memory = size;
        sized
    };
    let layout =
        |size: Mib| Layout(BTreeMap::from([("c".to_owned(), BTreeMap::from([(0, size)]))]));
    let known = sizes().enumerate().map(|(n, size)| Pod {
        node: Some("n".to_owned()),
        layout: Some(layout(size)),
        ..sized(&n.to_string(), size)
    });
    let one = ledger(one, known);
    for size in sizes() {
        assert_eq!(one.fits("n", &sized("p", size)), Ok(layout(size)), "{size}");
    }
    let other = one.fits("n", &sized("p", Mib(10))).unwrap();
    assert_eq!(other.0["c"].keys().copied().collect::<Vec<_>>(), [1]);
}

#[test]
fn victims_are_those_whose_end_makes_room() {
    let mut held = node(&[16]);
    held.cards[0].held = BTreeMap::from([("x".to_owned(), gib(8))]);
    let one = ledger(held, [on(&[0], pod("x", 8)), on(&[0], pod("y", 6))]);
    let ask = |proposed: &[&str]| {
        let proposed: Vec<String> = proposed.iter().map(|uid| (*uid).to_owned()).collect();
        one.victims("n", &pod("p", 10), &proposed)
    };
    assert_eq!(ask(&["x"]), Some(vec!["x".to_owned()]), "with what the node says that it holds");
    assert_eq!(ask(&["y"]), None);
    assert_eq!(ask(&[]), None);
    assert_eq!(one.victims("elsewhere", &pod("p", 1), &[]), None);
}

#[test]
fn nodes_in_one_state_are_searched_once_and_whatever_a_search_reads_makes_another_state() {
    let base = node(&[16, 24]);
    let named = |name: &str, node: &Node| Node { name: name.to_owned(), ..node.clone() };
    let card = |change: fn(&mut CardReport)| {
        let mut other = base.clone();
        change(&mut other.cards[0]);
        other
    };
    let others = [
        ("shared", share(&[16, 24])),
        ("spread", Node { placement: Some(Placement::Spread), ..base.clone() }),
        ("few pods", Node { max_pods: Some(1), ..base.clone() }),
        ("a card less", node(&[16])),
        ("a smaller card", card(|card| card.memory = gib(15))),
        ("others' memory", card(|card| card.local = gib(1))),
        ("a sick card", card(|card| card.healthy = false)),
        ("few clients", card(|card| card.max_clients = Some(1))),
        ("any uid", card(|card| card.one_uid = false)),
        ("held memory", card(|card| card.held = [("gone".to_owned(), gib(2))].into())),
    ];
    let asked = mains("p", &[4, 3, 2]);
    for (what, other) in others {
        let mut ledger = Ledger::new(Placement::Binpack);
        let names = ["a", "b", "c", "unknown", "d"];
        ledger.set_node(named("a", &base));
        ledger.set_node(named("b", &other));
        ledger.set_node(named("c", &base));
        ledger.set_node(named("d", &other));
        let ledger = ledger.snapshot();
        assert_eq!(ledger.alike(names.into_iter(), &asked), [0, 1, 0, 3, 1], "{what}");
        // One answer for both, and it is theirs.
        for (first, second) in [("a", "c"), ("b", "d")] {
            assert_eq!(ledger.takes(first, &asked), ledger.takes(second, &asked), "{what}");
            assert_eq!(ledger.score(first, &asked), ledger.score(second, &asked), "{what}");
        }
    }
    // What a pod has already is free for it, on that node alone.
    let mut ledger = Ledger::new(Placement::Binpack);
    for name in ["n", "m"] {
        ledger.set_node(named(name, &base));
    }
    ledger.set_pod(on(&[0, 0, 0], asked.clone()));
    ledger.set_node(named("k", &base));
    let ledger = ledger.snapshot();
    assert_eq!(ledger.alike(["n", "m", "k"].into_iter(), &asked), [0, 1, 1]);
}

/// Without a search: in the words of what a search would end with.
#[test]
fn more_than_all_cards_have_left_is_refused_at_once() {
    let many = |count: usize, memory: u64| {
        let one = |n: usize| container(&format!("c{n}"), Kind::Main, memory);
        pod_of("p", (0..count).map(one).collect())
    };
    let two = ledger(node(&[16, 16]), []);
    assert!(two.fits("n", &many(32, 1)).is_ok());
    let said = place(&two, &many(33, 1));
    assert!(said.contains("do not fit beside each other: 16 GiB, 16 GiB are left"), "{said}");
    let said = place(&two, &mains("p", &[17, 16]));
    assert!(said.contains("no card takes 17 GiB for container a"), "{said}");
    let mut few = node(&[16, 16]);
    few.cards.iter_mut().for_each(|card| card.max_clients = Some(2));
    let few = ledger(few, []);
    assert!(few.fits("n", &many(4, 1)).is_ok());
    assert!(place(&few, &many(5, 1)).contains("do not fit beside each other"));
    // Init containers take turns: no more than one counts.
    let turns = (0..40).map(|n| container(&format!("i{n}"), Kind::Init, 16)).collect();
    assert!(two.fits("n", &pod_of("p", turns)).is_ok());
}
