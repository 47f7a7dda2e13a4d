//! Pods: what the device plugin's token says counts, for the container that first brings it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use mpsgate_api::{Engine, Reserve, WireRefusal};
use mpsgate_model::{Mib, PodContainer};
use mpsgate_token::Store;

use crate::harness::{Node, Running, on_card, request};

/// The device plugin's answer, as it is to be: signed with the newest key of the node.
fn token(node: &Node, gib: u64) -> String {
    Store::open(&node.paths.tokens(), 0).unwrap().sign(gib * 1024, None, None).unwrap()
}

fn pod(uid: &str, container: &str) -> Option<PodContainer> {
    Some(PodContainer {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        pod: "web".to_owned(),
        container: container.to_owned(),
    })
}

/// A call of the shim's below a kubelet: memory is left to the token.
fn call(id: &str, token: &str, pod: Option<PodContainer>) -> Reserve {
    let mut call = request(id, 1);
    call.engine = Engine::Kubernetes;
    call.request.memory = None;
    call.request.token = Some(token.to_owned());
    call.pod = pod;
    call
}

fn unconfirmed(daemon: &Running, call: Reserve) -> WireRefusal {
    let refusal = daemon.reserve(call).unwrap_err();
    assert_eq!(refusal.code, "E_UNCONFIRMED", "{refusal:?}");
    assert!(!refusal.hint.is_empty());
    refusal
}

#[test]
fn a_pods_container_gets_what_its_token_says_and_no_more() {
    let node = Node::new(1);
    let daemon = node.start();
    let token = token(&node, 7);
    let mut call = call("main-0", &token, pod("p1", "main"));
    call.request.memory = Some(Mib(14 * 1024));
    let grant = daemon.reserve(call).unwrap();
    assert_eq!((grant.memory, daemon.granted_mib()), (Mib(7168), 7168));
    // The card's capacity is checked as for everybody.
    let more = call_of(&node, "big", 9, "p2");
    let refusal = daemon.reserve(more).unwrap_err();
    assert_eq!(refusal.code, "E_NO_CAPACITY");
    let elsewhere = on_card(call_of(&node, "far", 1, "p3"), 9);
    assert_eq!(daemon.reserve(elsewhere).unwrap_err().code, "E_UNKNOWN_GPU");
}

pub(crate) fn call_of(node: &Node, id: &str, gib: u64, uid: &str) -> Reserve {
    call(id, &token(node, gib), pod(uid, "main"))
}

#[test]
fn a_token_is_one_containers_over_its_restarts_and_mpsgateds() {
    let node = Node::new(1);
    let mut daemon = node.start();
    let token = token(&node, 2);
    for instance in ["main-0", "main-1", "main-2"] {
        let grant = daemon.reserve(call(instance, &token, pod("p1", "main"))).unwrap();
        daemon.release(&grant.key);
        for (uid, container) in [("p1", "side"), ("p2", "main")] {
            let refusal = unconfirmed(&daemon, call("thief", &token, pod(uid, container)));
            assert_eq!(
                refusal.sentence,
                "its token (mpsgate.io/grant) does not count: it was first brought by container main of pod p1, \
                 and is nobody else's"
            );
        }
        drop(daemon);
        // A reboot forgets the ledger; kubelet's checkpoint it does not.
        fs::remove_dir_all(node.paths.ledger()).unwrap();
        daemon = node.start();
    }
    assert_eq!(daemon.status().refusals.get("E_UNCONFIRMED"), None, "counted by this daemon alone");
}

#[test]
fn what_is_not_signed_here_or_belongs_to_nobody_does_not_count() {
    let (node, other) = (Node::new(1), Node::new(1));
    let daemon = node.start();
    drop(other.start());
    let token = token(&node, 1);
    for (bad, why) in [
        ("t", "it is no token of mpsgate's device plugin"),
        (&token.replace("mpsgate1.", "mpsgate2."), "it is no token of mpsgate's device plugin"),
        (&forged(&token), "its signature is wrong"),
        (&self::token(&other, 1), "which this node does not have"),
    ] {
        let refusal = unconfirmed(&daemon, call("x", bad, pod("p", "c")));
        assert!(refusal.sentence.contains(why), "{refusal:?}");
        assert!(
            bad == "t" || !refusal.sentence.contains(bad),
            "a token is not repeated: {refusal:?}"
        );
    }
    let refusal = unconfirmed(&daemon, call("x", &token, None));
    assert!(refusal.sentence.contains("does not say to which container"), "{refusal:?}");
    // Nobody has become its bearer meanwhile.
    daemon.reserve(call("x", &token, pod("p", "c"))).unwrap();
}

/// The same signature under another claim.
fn forged(token: &str) -> String {
    let mut parts: Vec<String> = token.split('.').map(ToOwned::to_owned).collect();
    // In base64url: {"id":"
    assert!(parts[2].starts_with("eyJpZCI6I"));
    let other = if parts[2].as_bytes()[9] == b'm' { "n" } else { "m" };
    parts[2].replace_range(9..10, other);
    parts.join(".")
}

#[test]
fn a_local_engines_token_gives_it_nothing() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut local = call("x", &token(&node, 7), pod("p", "c"));
    local.engine = Engine::Local;
    assert_eq!(daemon.reserve(local.clone()).unwrap_err().code, "E_UNCONFIRMED");
    local.request.memory = Some(Mib(1024));
    assert_eq!(daemon.reserve(local).unwrap().memory, Mib(1024));
}

#[test]
fn keys_that_others_could_have_read_confirm_nobody_until_that_is_repaired() {
    let node = Node::new(1);
    drop(node.start());
    let token = token(&node, 1);
    let keys = node.paths.tokens().join("keys.json");
    let mode = |mode| fs::set_permissions(&keys, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o644);
    let daemon = node.start();
    let refusal = unconfirmed(&daemon, call("x", &token, pod("p", "c")));
    assert!(refusal.sentence.contains("keys.json is of mode 0644"), "{refusal:?}");
    assert!(refusal.hint.contains("chmod go="), "{refusal:?}");
    assert_eq!(keys.metadata().unwrap().permissions().mode() & 0o777, 0o644, "left as found");
    // Others are granted as always.
    daemon.reserve(request("local", 1)).unwrap();
    mode(0o600);
    daemon.reserve(call("x", &token, pod("p", "c"))).unwrap();
}
