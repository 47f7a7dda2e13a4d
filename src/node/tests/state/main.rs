//! What the state makes of calls, and which effects follow.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

mod asked;
mod card;
mod fixture;
mod names;

use mpsgate_api::{Activate, ControlState, Engine, Reserve, ServerStatus};
use mpsgate_config::{Processes, Switch};
use mpsgate_model::ledger::Entry;
use mpsgate_model::{Code, GrantKey, Instance, Mib, Refusal};
use mpsgate_node::card::{CardEvent, Control, Seen, View, Watched};
use mpsgate_node::{AtDoor, Effect, Node, Reserved};

use self::fixture::{ALL, HOLDER, INIT, Living, call, control, happens, node, seen, uuid};

fn reserve(node: &mut Node, call: &Reserve) -> Result<Reserved, Refusal> {
    node.reserve(call, None, HOLDER, &ALL, 0, &mut Vec::new())
}

fn release(node: &mut Node, key: &GrantKey) -> Entry {
    node.release(key, "released", &mut Vec::new()).unwrap()
}

#[test]
fn a_server_is_needed_until_one_serves_the_uid() {
    let mut node = node();
    for (server, multiuser, serverless, needed) in [
        (None, false, false, true),
        (Some(1000), false, false, true),
        (Some(0), false, false, false),
        (Some(1000), true, false, false),
        (None, true, false, true),
        (None, false, true, false),
    ] {
        let servers = server.map(|uid| ServerStatus { pid: 301, uid: Some(uid), status: None });
        let view = View::new(ControlState::Running, servers.into_iter().collect());
        let control = Control { view, ..control(multiuser) };
        happens(&mut node, 0, CardEvent::Answers(Box::new(control)));
        if serverless {
            happens(&mut node, 0, CardEvent::Serverless);
        }
        let reserved = reserve(&mut node, &call("web", 1)).unwrap();
        assert_eq!(reserved.needs_server, needed, "{server:?} {multiuser} {serverless}");
        release(&mut node, &reserved.grant.key);
    }
}

#[test]
fn local_requests_are_trusted_as_the_settings_and_a_kubelet_say() {
    let mut node = node();
    // Through CRI: only where root says so, and there is no kubelet.
    for (trust, kubelet, believed, through_cri) in [
        (Switch::Auto, false, true, false),
        (Switch::Auto, true, false, false),
        (Switch::On, true, true, false),
        (Switch::On, false, true, true),
        (Switch::Off, false, false, false),
    ] {
        (node.trust_local, node.kubelet) = (trust, kubelet);
        let result = reserve(&mut node, &call("web", 1));
        assert_eq!(result.is_ok(), believed, "{trust} {kubelet}");
        match result {
            Ok(reserved) => drop(release(&mut node, &reserved.grant.key)),
            Err(refusal) => assert_eq!(refusal.code, Code::Unconfirmed),
        }
        let pod = Reserve { engine: Engine::Kubernetes, ..call("web", 1) };
        match reserve(&mut node, &pod) {
            Ok(reserved) => {
                assert!(through_cri, "{trust} {kubelet}");
                release(&mut node, &reserved.grant.key);
            }
            Err(refusal) => assert_eq!((refusal.code, through_cri), (Code::Unconfirmed, false)),
        }
    }
}

/// The grant of a container.
fn granted(node: &mut Node, name: &str, gib: u64) -> GrantKey {
    let mut call = call(name, gib);
    call.key.instance = Instance::from_bytes([u8::try_from(gib).unwrap(); 16]);
    reserve(node, &call).unwrap().grant.key
}

#[test]
fn each_has_its_own_limit_at_its_door_and_whoever_comes_past_it_the_smallest() {
    let mut node = node();
    let gib = |gib: u64| Mib(gib * 1024);
    let default = |node: &Node| node.default_limit(&uuid(0));
    assert_eq!(default(&node), gib(15), "nobody has a grant");
    let one = granted(&mut node, "one", 1);
    let six = granted(&mut node, "six", 6);
    let each = |node: &Node, card, key: &GrantKey| {
        node.at_door(&uuid(card), &key.instance, Processes::Each, 0)
    };
    let open = |limit| AtDoor::Open { limit: gib(limit), uid: 0 };
    assert_eq!(default(&node), gib(1));
    assert_eq!((each(&node, 0, &one), each(&node, 0, &six)), (open(1), open(6)));
    assert_eq!(each(&node, 1, &one), AtDoor::NoGrant, "of another card");
    release(&mut node, &one);
    assert_eq!(default(&node), gib(6));
    assert_eq!(each(&node, 0, &one), AtDoor::NoGrant, "it has ended");
}

#[test]
fn a_later_process_gets_what_is_left_where_it_is_split() {
    let mut node = node();
    let key = granted(&mut node, "c", 4);
    let other = granted(&mut node, "other", 1);
    let gib = |gib: u64| Mib(gib * 1024);
    let open = |limit| AtDoor::Open { limit: gib(limit), uid: 0 };
    for (used, looks, since, blind, expected) in [
        (0, 1, 0, false, AtDoor::Unseen),
        (0, 2, 0, false, open(4)),
        (3, 9, 7, false, open(1)),
        (3, 9, 8, false, AtDoor::Unseen),
        (1, 9, 7, false, open(3)),
        (4, 9, 7, false, AtDoor::Full),
        (9, 9, 7, false, AtDoor::Full),
        // Nobody can say what is left.
        (0, 9, 9, true, open(4)),
    ] {
        let used = [(key.clone(), gib(used)), (other.clone(), gib(1))].into();
        let blind = blind.then(|| "no memory by process".to_owned());
        while node.cards()[0].watched().looks < looks {
            happens(&mut node, 0, CardEvent::Watched(Box::default(), false));
        }
        let watched = Watched { blind, used, ..Watched::default() };
        happens(&mut node, 0, CardEvent::Watched(Box::new(watched), true));
        let at_door = node.at_door(&uuid(0), &key.instance, Processes::Split, since);
        assert_eq!(at_door, expected, "{used:?} {looks} {since}", used = node.cards()[0].watched());
        let each = node.at_door(&uuid(0), &key.instance, Processes::Each, since);
        assert_eq!(each, open(4));
    }
}

#[test]
fn after_a_start_what_ended_is_released_and_the_rest_stays() {
    let mut node = node();
    let ended = reserve(&mut node, &call("ended", 1)).unwrap().grant.key;
    let active = reserve(&mut node, &call("active", 1)).unwrap().grant.key;
    let activate = Activate { key: active.clone(), pid: 8, cgroup: None, grant: None };
    node.activate(&activate, INIT, &ALL, 0, &mut Vec::new()).unwrap();
    let entry = Box::new(node.ledger().get(&ended).unwrap().clone());
    let mut effects = Vec::new();
    node.settle(&Living(&[INIT]), &mut effects);
    let expected = [
        Effect::RemoveRecord(ended),
        Effect::TellEnd(entry.clone(), "ended while mpsgated was away"),
        Effect::WriteLedger,
        Effect::Publish,
        Effect::AdvanceSchedule,
        Effect::CloseDoor(Box::new(entry.grant.clone())),
        Effect::Cap(uuid(0)),
    ];
    assert_eq!(effects, expected);
    assert!(node.ledger().get(&active).is_some());
}

#[test]
fn the_grant_names_the_cards_own_node_by_its_minor() {
    let mut node = node();
    let grant = reserve(&mut node, &call("web", 1)).unwrap().grant;
    let paths: Vec<&str> = grant.devices.iter().map(|device| device.path.as_str()).collect();
    assert_eq!(paths[..2], ["/dev/nvidia3", "/dev/nvidiactl"]);
}

#[test]
fn a_status_of_four_hundred_grants_fits_a_frame() {
    let mut node = node();
    let seen = Seen { memory: Mib(1 << 20), ..seen(0, 3) };
    happens(&mut node, 0, CardEvent::Seen(Box::new(seen)));
    let control = Control { max_clients: 1000, ..control(false) };
    happens(&mut node, 0, CardEvent::Answers(Box::new(control)));
    for n in 0..400 {
        let name = format!("{n:064x}");
        reserve(&mut node, &call(&name, 1)).unwrap();
    }
    let bytes = mpsgate_api::encode(&mpsgate_api::Reply::Status(Box::new(node.status()))).unwrap();
    assert!(bytes.len() < mpsgate_api::MAX_FRAME / 2, "{}", bytes.len());
}
