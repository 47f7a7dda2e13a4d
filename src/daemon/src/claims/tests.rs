//! What is offered, and which claims have ended.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use mpsgate_config::Schedule;
use mpsgate_kubernetes::State;
use mpsgate_model::{
    CLAIM, ClaimName, ClaimShare, Code, Handed, Kind, Mib, PodContainer, PreparedClaim, Priority,
    Refusal,
};
use mpsgate_node::card::{CardEvent, Trouble};
use mpsgate_node::{Confirmed, Reserved};

use super::*;
use crate::fixture::{ALL, HOLDER, call, control, happens, node, uuid};
use crate::pods::tests::pod;

fn share(request: &str, gib: u64) -> ClaimShare {
    ClaimShare {
        request: request.to_owned(),
        pool: "n".to_owned(),
        device: mpsgate_dra::device_name(&uuid(0)),
        share_id: None,
        card: uuid(0),
        memory: Mib(gib * 1024),
        compute: None,
        priority: Priority::Low,
    }
}

fn claim(id: u8, pod: &str, shares: Vec<ClaimShare>) -> PreparedClaim {
    let [namespace, name, uid] = ["default".to_owned(), format!("claim-{id}"), format!("uid-{id}")];
    PreparedClaim { claim: ClaimName { namespace, name, uid }, pod_uid: pod.to_owned(), shares }
}

fn confirmed(claim: &PreparedClaim, request: &str) -> Confirmed {
    let share = claim.shares.iter().find(|share| share.request == request).unwrap();
    let pod = PodContainer {
        uid: claim.pod_uid.clone(),
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        container: "main".to_owned(),
    };
    Confirmed {
        memory: share.memory,
        cards: std::num::NonZeroU32::MIN,
        compute: None,
        hints: vec![share.card.clone()],
        placed: true,
        handed: Handed { pod, resource: CLAIM.to_owned(), share: Some(claim.key(share)) },
    }
}

fn prepare(node: &mut Node, claim: &PreparedClaim) -> Result<bool, Refusal> {
    node.prepare(claim.clone(), &mut Vec::new())
}

fn take(node: &mut Node, container: &str, confirmed: &Confirmed) -> Result<Reserved, Refusal> {
    let mut call = call(container, 1);
    call.engine = mpsgate_api::Engine::Kubernetes;
    node.reserve(&call, Some(confirmed), HOLDER, &ALL, 0, &mut Vec::new())
}

/// It could not be prepared.
fn failed() -> CardEvent {
    CardEvent::Failed(Schedule::Mps, Trouble::new("is hot", "cool it"))
}

/// GiB that claims may have of the one card.
fn offered(node: &Node) -> u64 {
    offers::of(node).first().unwrap().memory.0 / 1024
}

#[test]
fn a_claim_takes_what_local_containers_and_devices_leave_and_keeps_it() {
    let mut node = node();
    assert_eq!(offered(&node), 15);
    node.reserve(&call("local", 3), None, HOLDER, &ALL, 0, &mut Vec::new()).unwrap();
    assert_eq!(offered(&node), 12, "a local container is taken off");
    let one = claim(1, "p", vec![share("a", 7)]);
    assert!(prepare(&mut node, &one).unwrap());
    happens(&mut node, 0, failed());
    assert!(!prepare(&mut node, &one).unwrap(), "asked again, for a pod that may run");
    happens(&mut node, 0, CardEvent::Answers(Box::new(control(false))));
    assert_eq!(offered(&node), 12, "kube-scheduler has counted it");
    assert_eq!(node.ledger().withheld(&uuid(0), "aliyun.com/gpu-mem"), Mib(10 * 1024));
    let refused = prepare(&mut node, &claim(2, "q", vec![share("a", 6)])).unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    let local = node.reserve(&call("more", 6), None, HOLDER, &ALL, 0, &mut Vec::new());
    assert_eq!(local.unwrap_err().code, Code::NoCapacity, "it is kept for the pod");

    let grant = take(&mut node, "c-1", &confirmed(&one, "a")).unwrap().grant;
    assert_eq!((grant.memory, grant.priority), (Mib(7 * 1024), Priority::Low));
    let second = take(&mut node, "c-2", &confirmed(&one, "a")).unwrap_err();
    assert_eq!(second.code, Code::Claim);
    assert!(second.sentence.contains("request a of claim default/claim-1 is held"), "{second}");
    assert_eq!(offered(&node), 12);
    node.unprepare("uid-1", &mut Vec::new()).unwrap();
    assert_eq!(node.ledger().granted(&uuid(0)), Mib(10 * 1024), "its processes have it");
    node.release(&grant.key, "ended", &mut Vec::new()).unwrap();
    let late = take(&mut node, "c-3", &confirmed(&one, "a")).unwrap_err();
    assert!(late.sentence.contains("is not prepared on this node"), "{late}");
    let again = prepare(&mut node, &one).unwrap_err();
    assert!(again.sentence.contains("was unprepared for this pod already"), "{again}");
}

#[test]
fn a_card_that_takes_no_grant_takes_no_claim_and_says_why() {
    let mut node = node();
    happens(&mut node, 0, failed());
    let refused = prepare(&mut node, &claim(1, "p", vec![share("a", 1)])).unwrap_err();
    assert_eq!((refused.code, refused.hint.as_str()), (Code::GpuUnhealthy, "cool it"));
    let offers = offers::of(&node);
    let trouble = offers.first().unwrap().trouble.clone().unwrap();
    assert!(trouble.contains("is hot"), "{trouble}");
    let mut since = BTreeMap::new();
    let told = offers::health("n", &offers, &mut since, 5_000);
    let later = offers::health("n", &offers, &mut since, 9_000);
    assert_eq!(told, later, "since then");
    let first = told.first().unwrap();
    assert_eq!((first.healthy, first.since_s), (Some(false), 5));
}

#[test]
fn two_requests_of_a_claim_are_two_containers() {
    let mut node = node();
    let one = claim(1, "p", vec![share("a", 7), share("b", 8)]);
    prepare(&mut node, &one).unwrap();
    take(&mut node, "c-1", &confirmed(&one, "a")).unwrap();
    take(&mut node, "c-2", &confirmed(&one, "b")).unwrap();
    assert_eq!(node.ledger().granted(&uuid(0)), Mib(15 * 1024));
    let too_much = claim(2, "q", vec![share("a", 8), share("b", 8)]);
    let mut empty = crate::fixture::node();
    assert!(prepare(&mut empty, &too_much).is_err(), "all of its shares, or none");
    assert!(empty.ledger().claims().is_empty());
}

#[test]
fn a_claim_whose_pod_has_ended_is_taken_back_after_a_while() {
    let mut node = node();
    prepare(&mut node, &claim(1, "a", vec![share("x", 1)])).unwrap();
    prepare(&mut node, &claim(2, "b", vec![share("x", 1)])).unwrap();
    let mut finished = pod("b", &[("main", Kind::Main, 0)]);
    finished.finished = true;
    let mut pods: Pods = [pod("a", &[("main", Kind::Main, 0)]), finished].into_iter().collect();
    let (mut over, start) = (BTreeMap::new(), Instant::now());
    assert!(ended(&node, &pods, &mut over, start).is_empty());
    assert!(ended(&node, &pods, &mut over, start + GRACE).is_empty(), "nobody is heard");
    pods.state = State::Current;
    assert!(ended(&node, &pods, &mut over, start).is_empty());
    assert_eq!(ended(&node, &pods, &mut over, start + GRACE), ["uid-2"]);
    // A pod that is there after all.
    let mut again: Pods = ["a", "b"].map(|uid| pod(uid, &[])).into_iter().collect();
    again.state = State::Current;
    assert!(ended(&node, &again, &mut over, start + GRACE * 2).is_empty());
    assert!(ended(&node, &pods, &mut over, start + GRACE * 2).is_empty(), "counted anew");
}

#[test]
fn a_claim_whose_pod_cannot_be_read_is_kept_until_the_pod_is_gone() {
    let mut node = node();
    prepare(&mut node, &claim(1, "a", vec![share("x", 1)])).unwrap();
    let (mut over, start) = (BTreeMap::new(), Instant::now());
    let mut pods: Pods = [pod("b", &[])].into_iter().collect();
    pods.state = State::Current;
    pods.put_unread(Some("a".to_owned()));
    assert!(ended(&node, &pods, &mut over, start).is_empty());
    assert!(ended(&node, &pods, &mut over, start + GRACE).is_empty(), "it may run");
    pods.remove("a");
    let gone = start + GRACE;
    assert!(ended(&node, &pods, &mut over, gone).is_empty());
    assert_eq!(ended(&node, &pods, &mut over, gone + GRACE), ["uid-1"]);
    // Nobody knows which one that is.
    pods.put_unread(None);
    assert!(ended(&node, &pods, &mut over, gone + GRACE).is_empty());
}

#[test]
fn sockets_are_named_by_a_pods_uid_that_is_a_word() {
    assert_eq!(instance(Some("0f2c-AB".to_owned())), "0f2c-AB");
    for odd in [None, Some(""), Some("../x"), Some("a b")] {
        assert_eq!(instance(odd.map(str::to_owned)), "node");
    }
    assert_eq!(kubelet_root(&["/nowhere/device-plugins".into()]), None);
}
