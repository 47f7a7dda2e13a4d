#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use std::collections::BTreeMap;

use crate::fixture::{ALL, HOLDER, add_card, call, happens, node, uuid};
use mpsgate_config::Schedule;
use mpsgate_deviceplugin::Event;
use mpsgate_kubernetes::{Container, Lifecycle, Limits, Pod, Pods};
use mpsgate_model::{CardReport, GpuSelector, GrantKey, Handed, Kind, Mib, PodContainer};
use mpsgate_node::Confirmed;
use mpsgate_node::Node;
use mpsgate_node::card::{CardEvent, Trouble};
use mpsgate_node::sharing::Scheduling;
use mpsgate_policy::schedule::Wants;
use mpsgate_policy::schedule::Word;

use super::*;
use crate::around::Around;
use crate::around::handler_status::Handlers;
use crate::around::served::Served;

/// Two cards of 15 GiB.
fn two_cards() -> Node {
    let mut node = node();
    add_card(&mut node, 1);
    node
}

fn take_both_back(node: &mut Node) {
    (0..2).for_each(|n| happens(node, n, CardEvent::TakenBack));
}

pub(crate) fn pod(uid: &str, containers: &[(&str, Kind, u64)]) -> Pod {
    let container = |(name, kind, gpu_mem): &(&str, Kind, u64)| Container {
        name: (*name).to_owned(),
        kind: *kind,
        limits: Ok(Limits { gpu_mem: *gpu_mem, ..Limits::default() }),
        core_percent: Ok(0),
        uid: None,
        lifecycle: Lifecycle::Waiting,
    };
    Pod {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        name: format!("name-of-{uid}"),
        node: None,
        class: None,
        static_hash: None,
        acknowledged: false,
        finished: false,
        not_admitted: false,
        deleting: false,
        gpu_count: None,
        annotations: BTreeMap::new(),
        containers: containers.iter().map(container).collect(),
        claims: Vec::new(),
    }
}

fn confirmed(uid: &str, container: &str, gib: u64) -> Confirmed {
    let pod = PodContainer {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        pod: format!("name-of-{uid}"),
        container: container.to_owned(),
    };
    let handed = Handed { pod, resource: "aliyun.com/gpu-mem".to_owned(), share: None };
    Confirmed {
        memory: Mib(gib * 1024),
        cards: std::num::NonZeroU32::MIN,
        compute: None,
        hints: Vec::new(),
        placed: false,
        handed,
    }
}

fn reserve(
    node: &mut Node,
    id: &str,
    confirmed: Option<&Confirmed>,
    gib: u64,
) -> Result<GrantKey, String> {
    let mut call = call(id, gib);
    if confirmed.is_some() {
        call.engine = mpsgate_api::Engine::Kubernetes;
    }
    let reserved = node.reserve(&call, confirmed, HOLDER, &ALL, 0, &mut Vec::new());
    reserved.map(|reserved| reserved.grant.key).map_err(|refusal| refusal.to_string())
}

/// `(pod, container, card, GiB)` of each promise.
fn promised(node: &mut Node, pods: &[Pod]) -> Vec<(String, String, u8, u64)> {
    let pods: Pods = pods.iter().cloned().collect();
    let promises = pod_promises::of(node, &pods);
    node.promise(promises.clone(), &mut Vec::new());
    let one = |promise: mpsgate_model::ledger::Promise| {
        let card = u8::from(promise.card != uuid(0));
        (promise.pod_uid, promise.container, card, promise.memory.0 / 1024)
    };
    promises.into_iter().map(one).collect()
}

fn of(uid: &str, container: &str, card: u8, gib: u64) -> (String, String, u8, u64) {
    (uid.to_owned(), container.to_owned(), card, gib)
}

#[test]
fn a_bound_pod_holds_memory_before_its_container_exists_and_between_restarts() {
    let mut node = two_cards();
    let pods = [pod("a", &[("main", Kind::Main, 12)]), pod("b", &[("main", Kind::Main, 12)])];
    assert_eq!(promised(&mut node, &pods), [of("a", "main", 0, 12), of("b", "main", 1, 12)]);
    let local = reserve(&mut node, "local", None, 4).unwrap_err();
    assert!(local.contains("12 GiB promised to pods"), "{local}");
    reserve(&mut node, "local", None, 3).unwrap();

    // Its own container takes the place of the promise, at once.
    let key = reserve(&mut node, "a-1", Some(&confirmed("a", "main", 12)), 12).unwrap();
    assert_eq!(node.ledger().get(&key).unwrap().grant.cards.first().unwrap().uuid, uuid(0));
    assert_eq!(node.ledger().promised(&uuid(0)), Mib(0));
    assert_eq!(promised(&mut node, &pods), [of("b", "main", 1, 12)]);
    node.release(&key, "ended", &mut Vec::new()).unwrap();
    assert_eq!(promised(&mut node, &pods), [of("a", "main", 0, 12), of("b", "main", 1, 12)]);
    assert_eq!(promised(&mut node, &pods[1..]), [of("b", "main", 0, 12)], "a has ended");
    let mut deleted = pods.clone();
    deleted.first_mut().unwrap().deleting = true;
    assert_eq!(promised(&mut node, &deleted), [of("b", "main", 0, 12)], "it starts nothing");
}

#[test]
fn promises_of_other_pods_choose_the_card_and_refuse_no_pod() {
    let mut node = two_cards();
    // What the API server said last, before it went away: `gone` has ended since.
    let pods =
        [pod("gone", &[("main", Kind::Main, 12)]), pod("other", &[("main", Kind::Main, 12)])];
    promised(&mut node, &pods);
    let small = reserve(&mut node, "small", Some(&confirmed("small", "main", 3)), 3).unwrap();
    let large = reserve(&mut node, "large", Some(&confirmed("large", "main", 15)), 15).unwrap();
    let card = |key| node.ledger().get(key).unwrap().grant.cards.first().unwrap().uuid.clone();
    assert_ne!(card(&small), card(&large));
}

#[test]
fn init_containers_need_what_the_main_ones_do_not_have_already() {
    let mut node = two_cards();
    let pods =
        [pod("a", &[("init", Kind::Init, 10), ("one", Kind::Main, 3), ("two", Kind::Main, 4)])];
    let whole = [of("a", "one", 0, 3), of("a", "two", 0, 4), of("a", "init", 0, 3)];
    let mut found = promised(&mut node, &pods);
    found.sort_by_key(|(_, container, ..)| {
        ["one", "two", "init"].iter().position(|one| one == container)
    });
    assert_eq!(found, whole);
    let key = reserve(&mut node, "init", Some(&confirmed("a", "init", 10)), 10).unwrap();
    assert_eq!(promised(&mut node, &pods), [], "they run one after the other");
    node.release(&key, "ended", &mut Vec::new()).unwrap();
    reserve(&mut node, "one", Some(&confirmed("a", "one", 3)), 3).unwrap();
    let left: u64 = promised(&mut node, &pods).iter().map(|(.., gib)| gib).sum();
    assert_eq!(left, 7);
}

#[test]
fn a_scheduler_chooses_the_card_of_a_promise() {
    let mut node = two_cards();
    let mut one = pod("a", &[("main", Kind::Main, 3)]);
    assert_eq!(promised(&mut node, std::slice::from_ref(&one)), [of("a", "main", 0, 3)]);
    one.annotations.insert("ALIYUN_COM_GPU_MEM_IDX".to_owned(), "1".to_owned());
    assert_eq!(promised(&mut node, &[one]), [of("a", "main", 1, 3)]);
}

#[test]
fn memory_over_several_cards_is_promised_on_each_of_them_where_the_node_shares() {
    let mut node = two_cards();
    let mut wide = pod("a", &[("main", Kind::Main, 8)]);
    wide.gpu_count = Some("2".to_owned());
    let pods = [wide];
    assert_eq!(promised(&mut node, &pods), [of("a", "main", 0, 8)], "it will be refused under MPS");
    let settings = Schedule::Share;
    node.schedule = Scheduling::start(Wants { settings, label: None }, &[]);
    assert_eq!(promised(&mut node, &pods), [of("a", "main", 0, 4), of("a", "main", 1, 4)]);
    let local = reserve(&mut node, "local", None, 12).unwrap_err();
    assert!(local.contains("4 GiB promised to pods"), "{local}");
    let mut two = confirmed("a", "main", 8);
    two.cards = std::num::NonZeroU32::new(2).unwrap();
    let key = reserve(&mut node, "a-1", Some(&two), 8).unwrap();
    assert_eq!(node.ledger().get(&key).unwrap().grant.cards.len(), 2);
    assert_eq!(promised(&mut node, &pods), []);
}

#[test]
fn the_compute_share_of_the_limits_is_the_most_that_a_container_has() {
    use mpsgate_model::ComputeShare;
    let mut node = two_cards();
    for (id, wants, limit, has) in [
        ("neither", None, None, None),
        ("limit", None, Some(40), Some(40)),
        ("less", Some(30), Some(40), Some(30)),
        ("more", Some(50), Some(40), Some(40)),
        ("own", Some(50), None, Some(50)),
    ] {
        let mut call = call(id, 1);
        call.engine = mpsgate_api::Engine::Kubernetes;
        call.request.compute = wants.map(ComputeShare);
        let confirmed = Confirmed { compute: limit.map(ComputeShare), ..confirmed(id, "main", 1) };
        let reserved =
            node.reserve(&call, Some(&confirmed), HOLDER, &ALL, 0, &mut Vec::new()).unwrap();
        assert_eq!(reserved.grant.compute, has.map(ComputeShare), "{id}");
    }
}

#[test]
fn a_uid_of_an_annotation_keeps_the_card_that_a_scheduler_wrote_and_no_other() {
    // Who holds card 0 as uid 7, whether a scheduler wrote card 0, whether the annotation names uid
    // 9; where it comes.
    for (held, placed, named, expected) in [
        (false, true, true, Some(0)),
        (true, true, true, None),
        (true, false, true, Some(1)),
        // The uid that the scheduler knew, too: another container was faster.
        (true, true, false, Some(1)),
        (false, true, false, Some(0)),
    ] {
        let mut node = two_cards();
        if held {
            let mut first = call("first", 1);
            (first.uid, first.request.gpu) = (7, Some(GpuSelector::Uuid(uuid(0))));
            node.reserve(&first, None, HOLDER, &ALL, 0, &mut Vec::new()).unwrap();
        }
        let mut call = call("second", 1);
        call.engine = mpsgate_api::Engine::Kubernetes;
        (call.uid, call.request.uid) = (9, named.then_some(9));
        let confirmed = Confirmed { hints: vec![uuid(0)], placed, ..confirmed("p", "main", 1) };
        let reserved = node.reserve(&call, Some(&confirmed), HOLDER, &ALL, 0, &mut Vec::new());
        let card = reserved.as_ref().ok().map(|reserved| reserved.grant.cards[0].uuid.clone());
        assert_eq!(card, expected.map(uuid), "{held} {placed} {named}: {reserved:?}");
        if let Err(refusal) = reserved {
            assert_eq!(refusal.code, mpsgate_model::Code::Uid);
        }
    }
}

#[test]
fn a_size_is_served_for_a_card_of_ours_that_has_room() {
    let mut node = two_cards();
    assert_eq!(node.largest_gib(), Some(15));
    take_both_back(&mut node);
    assert_eq!(node.largest_gib(), None);
}

#[test]
fn a_static_pod_is_known_by_the_uid_that_its_containers_carry() {
    let mut node = two_cards();
    let mut mirror = pod("mirror", &[("main", Kind::Main, 3)]);
    mirror.static_hash = Some("hash".to_owned());
    let pods = [mirror];
    assert_eq!(promised(&mut node, &pods), [of("hash", "main", 0, 3)]);
    reserve(&mut node, "m", Some(&confirmed("hash", "main", 3)), 3).unwrap();
    assert_eq!(promised(&mut node, &pods), []);
}

#[test]
fn the_node_shows_where_its_handlers_lead_while_it_has_cards_or_may_have() {
    let mut node = two_cards();
    let mut around = Around::default();
    let shown = |node: &Node, around: &Around| {
        let report = node_report::of(node, around, &Pods::default(), false);
        (report.handlers.is_some(), report.bypass.map(|bypass| bypass.reason))
    };
    // Before the first look nothing is said, and what was written stays.
    assert_eq!(shown(&node, &around), (false, None));
    around.handlers = Some(Handlers::of(&[]));
    assert_eq!(shown(&node, &around), (true, Some("HandlersUnknown".to_owned())));
    take_both_back(&mut node);
    assert!(shown(&node, &around).0, "NVML has not said that there is none");
    node.driver.version = Some("550.163.01".to_owned());
    assert_eq!(shown(&node, &around), (false, None));
}

#[test]
fn the_node_shows_its_cards_and_whether_they_take_requests() {
    let mut node = two_cards();
    let shown =
        |node: &Node, pods: &Pods, serves| node_report::of(node, &Around::default(), pods, serves);
    let ready = |node: &Node| {
        let ready = shown(node, &Pods::default(), false).ready.unwrap();
        (ready.holds == Some(true), ready.reason, ready.message)
    };
    let said = |ready, reason: &str, message: &str| (ready, reason.to_owned(), message.to_owned());
    assert_eq!(
        ready(&node),
        said(
            true,
            "CardsReady",
            "2 of 2 cards take GPU memory requests; guarantee level mps, not proven on each of them"
        )
    );
    reserve(&mut node, "local", None, 3).unwrap();
    let mut of_pod = call("pod", 5);
    of_pod.uid = 1000;
    of_pod.engine = mpsgate_api::Engine::Kubernetes;
    let handed_out = confirmed("p", "main", 5);
    node.reserve(&of_pod, Some(&handed_out), HOLDER, &ALL, 0, &mut Vec::new()).unwrap();
    let cards = shown(&node, &Pods::default(), false).cards.unwrap();
    let seen: Vec<_> =
        cards.iter().map(|card| (card.index, card.memory.0, card.local.0, card.uid)).collect();
    assert_eq!(seen, [(0, 15 * 1024, 3 * 1024, Some(0)), (1, 15 * 1024, 0, Some(1000))]);
    assert!(cards.iter().all(|card| card.one_uid && card.max_clients.is_some()));
    let level = |card: &CardReport| format!("{}, {}", card.guarantee, card.proof);
    assert!(cards.iter().all(|card| level(card) == "mps, not tried on this card"), "{cards:?}");
    // Also of a pod that the API server has no more; and a static one's under its uid there.
    let held =
        |cards: &[CardReport]| cards.iter().map(|card| card.held.clone()).collect::<Vec<_>>();
    let five = |uid: &str| vec![BTreeMap::new(), BTreeMap::from([(uid.to_owned(), Mib(5 * 1024))])];
    assert_eq!(held(&cards), five("p"));
    let mut mirror = pod("mirror", &[]);
    mirror.static_hash = Some("p".to_owned());
    assert_eq!(
        held(&shown(&node, &[mirror].into_iter().collect(), false).cards.unwrap()),
        five("mirror")
    );

    let trouble = || Trouble::new("is hot", "cool it");
    happens(&mut node, 0, CardEvent::Failed(Schedule::Mps, trouble()));
    assert_eq!(
        ready(&node),
        said(
            true,
            "CardsReady",
            "1 of 2 cards take GPU memory requests; guarantee level mps, not proven on each of them"
        )
    );
    happens(&mut node, 1, CardEvent::Failed(Schedule::Mps, trouble()));
    let (is, reason, message) = ready(&node);
    assert_eq!((is, reason.as_str()), (false, "NoCardReady"));
    assert!(message.contains("is hot; cool it"), "{message}");
    node.driver.trouble = Some(trouble());
    assert_eq!(ready(&node).1, "NVMLNotReady");
    node.driver.trouble = None;
    take_both_back(&mut node);
    assert_eq!(ready(&node).1, "NoManagedCard");
    assert_eq!(
        shown(&node, &Pods::default(), false).cards,
        None,
        "NVML has not said that there is none"
    );
    node.driver.version = Some("550.163.01".to_owned());
    assert_eq!(shown(&node, &Pods::default(), false).cards, Some(Vec::new()));
    // The label is gone, or another system's: nothing is left on the node.
    let wants = Wants { settings: node.schedule.now(), label: Some(Word::Off) };
    node.schedule = Scheduling::start(wants, &[]);
    assert_eq!(shown(&node, &Pods::default(), true).ready, None);
}

#[test]
fn no_pod_is_sent_while_kubelet_would_fail_it_for_good() {
    let mut node = two_cards();
    let mut around = Around::default();
    let shown = |node: &Node, around: &Around| {
        let report = node_report::of(node, around, &Pods::default(), true);
        let ready = report.ready.unwrap();
        let healthy = report.cards.unwrap().iter().filter(|card| card.healthy).count();
        (healthy, ready.holds == Some(true), ready.reason, ready.message)
    };
    let (healthy, ready, reason, message) = shown(&node, &around);
    assert_eq!((healthy, ready, reason.as_str()), (0, false, "NotRegistered"), "{message}");
    around.served.insert("aliyun.com/gpu-mem".to_owned(), Served::default());
    let (healthy, ready, _, message) = shown(&node, &around);
    assert_eq!((healthy, ready), (0, false));
    assert!(message.contains("kubelet does not know aliyun.com/gpu-mem"), "{message}");
    let served = around.served.get_mut("aliyun.com/gpu-mem").unwrap();
    assert!(served.take(&Event::Watched { healthy: 15, all: 15 }, 1), "the report is made anew");
    assert_eq!(shown(&node, &around).0, 2);
    around.ending = true;
    let (healthy, ready, reason, message) = shown(&node, &around);
    assert_eq!((healthy, ready, reason.as_str()), (0, false, "Ending"));
    assert!(message.contains("kubectl get pods"), "{message}");
    // Nobody is told to wait for cards that are not there.
    take_both_back(&mut node);
    let report = node_report::of(&node, &around, &Pods::default(), true);
    assert_eq!(report.ready.unwrap().reason, "NoManagedCard");
}

#[test]
fn a_pod_is_on_its_way_until_its_kubelet_has_said_a_word() {
    let asking = || pod("p", &[("main", Kind::Main, 7)]);
    assert!(asking().is_on_its_way());
    assert!(!pod("p", &[("main", Kind::Main, 0)]).is_on_its_way());
    assert!(!Pod { acknowledged: true, ..asking() }.is_on_its_way());
    assert!(!Pod { finished: true, ..asking() }.is_on_its_way());
    assert!(!Pod { deleting: true, ..asking() }.is_on_its_way());
    let failed = || Pod { finished: true, not_admitted: true, ..asking() };
    assert!(failed().is_lost() && !failed().is_on_its_way());
    assert!(!Pod { not_admitted: false, ..failed() }.is_lost());
    assert!(!Pod { containers: Vec::new(), ..failed() }.is_lost(), "it asked for none of ours");
}
