//! Cards that are shared without MPS, and the way from one schedule to the other.

use std::fs;
use std::num::NonZeroU32;
use std::path::Path;

use mpsgate_api::{
    Activate, Call, CardState, GrantState, Mps, MpsAction, NodeSnapshot, Reply, Reserve,
};
use mpsgate_config::Schedule;
use mpsgate_model::{Grant, Guarantee, Instance, Mib};
use serde_json::json;

use crate::harness::{Container, Node, Running, key, on_card, request, uuid, wait_for};
use crate::operator::settings;

const SHARE: &str = "gpus.schedule = \"share\"";
const MPS: &str = "gpus.schedule = \"mps\"";

fn sharing(cards: u32) -> Node {
    let mut node = Node::new(cards);
    node.config.gpus.schedule = Schedule::Share;
    node
}

fn spread(container: &str, gib: u64, cards: u32) -> Reserve {
    let mut call = request(container, gib);
    call.request.cards = NonZeroU32::new(cards).unwrap();
    call
}

fn reload(node: &Node, daemon: &Running, schedule: &str) -> Vec<String> {
    settings(node, schedule);
    match daemon.call(Call::Reload) {
        Reply::Reloaded { lines } => lines,
        other => panic!("{other:?}"),
    }
}

/// `mps`, or `mps share web,db`: what holds, what is wanted, and whom that waits for.
fn schedule(daemon: &Running) -> String {
    let status = daemon.status();
    let wanted = status.schedule_wanted.map(|wanted| format!(" {wanted}")).unwrap_or_default();
    let waits = status.schedule_waits_for.join(",");
    format!("{}{wanted} {waits}", status.schedule).trim_end().to_owned()
}

fn snapshot(node: &Node) -> NodeSnapshot {
    NodeSnapshot::parse(&fs::read(node.paths.snapshot()).unwrap()).unwrap()
}

/// As the daemon before this one remembered what the label said.
fn remember(node: &Node, word: &str) {
    let path = node.paths.managed();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(
        path,
        json!({ "format": 1, "cards": [], "stopped": [], "schedule": word }).to_string(),
    )
    .unwrap();
}

fn leases(path: &Path) -> usize {
    fs::read_dir(path).map(Iterator::count).unwrap_or_default()
}

#[test]
fn without_mps_a_container_gets_several_cards_and_no_control_daemon_runs() {
    let node = sharing(3);
    let daemon = node.start();
    assert_eq!(schedule(&daemon), "share");
    for n in 0..3 {
        let card = daemon.card(n);
        assert_eq!((card.state.as_str(), card.mps.is_none()), ("ready", true));
        assert_eq!(
            (card.compute_mode.as_str(), node.compute_mode(n).as_str()),
            ("DEFAULT", "DEFAULT")
        );
        assert_eq!(node.control_pid(u32::try_from(n).unwrap()), None);
    }
    assert_eq!(leases(&node.paths.leases()), 0);
    wait_for("the shim knows", || node.paths.snapshot().exists() && snapshot(&node).share);

    daemon.reserve(on_card(request("one", 9), 1)).unwrap();
    let two = daemon.reserve(spread("two", 8, 2)).unwrap();
    let indexes: Vec<u32> = two.cards.iter().map(|card| card.index).collect();
    assert_eq!(indexes, [1, 0], "the fullest that fits first");
    assert_eq!(two.memory.0, 4096, "on each");
    assert_eq!((two.guarantee, two.client_dir.as_str()), (Guarantee::None, ""));
    let init = Container::new();
    daemon.activate(&two, &init, None).unwrap();

    let status = daemon.status();
    let on: Vec<(u64, u32)> = status.cards.iter().map(|c| (c.granted_mib, c.clients)).collect();
    assert_eq!(on, [(4096, 1), (13 * 1024, 2), (0, 0)]);
    let rows = status.grants.iter().filter(|grant| grant.container_id == "two");
    let rows: Vec<_> = rows.map(|g| (g.card_index, g.memory_mib, g.guarantee.as_str())).collect();
    assert_eq!(rows, [(0, 4096, "none"), (1, 4096, "none")]);

    // All or nothing: two cards have 6 GiB left, and three do not.
    let refusal = daemon.reserve(spread("three", 18, 3)).unwrap_err();
    assert_eq!(refusal.code, "E_NO_CAPACITY", "{}", refusal.sentence);
    assert_eq!(daemon.reserve(spread("four", 4, 4)).unwrap_err().code, "E_TOO_LARGE");
    assert_eq!(daemon.granted_mib(), 17 * 1024);
    daemon.release(&two.key);
    assert_eq!(daemon.granted_mib(), 9 * 1024);
    assert_eq!(node.control_pid(0), None);
}

#[test]
fn an_expired_reservation_is_taken_anew_where_it_fits_and_refused_where_not() {
    let node = sharing(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("slow", 7)).unwrap();
    daemon.release(&grant.key);
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    assert_eq!(daemon.granted_mib(), 7168);
    daemon.release(&grant.key);

    daemon.reserve(request("quick", 9)).unwrap();
    let refusal = daemon.activate(&grant, &init, None).unwrap_err();
    assert_eq!(refusal.code, "E_NO_RESERVATION");
    assert!(refusal.sentence.contains("quick holds 9 GiB"), "{refusal:?}");
}

#[test]
fn a_grant_that_the_hook_made_up_is_refused() {
    let node = sharing(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    daemon.release(&grant.key);
    let init = Container::new();
    for forge in [
        |grant: &mut Grant| grant.client_dir = "/tmp".to_owned(),
        |grant: &mut Grant| grant.guarantee = Guarantee::Cgroup,
        |grant: &mut Grant| grant.cards[0].minor = 5,
        |grant: &mut Grant| grant.cards.clear(),
        |grant: &mut Grant| grant.memory = Mib(u64::MAX),
        |grant: &mut Grant| grant.key.instance = Instance::from_bytes([9; 16]),
    ] {
        let mut forged = grant.clone();
        forge(&mut forged);
        let call = Activate {
            key: grant.key.clone(),
            pid: init.pid(),
            cgroup: None,
            grant: Some(Box::new(forged)),
        };
        let refusal = daemon.activate_with(call, init.pid()).unwrap_err();
        assert_eq!(refusal.code, "E_NO_RESERVATION", "{refusal:?}");
    }
    assert_eq!(daemon.granted_mib(), 0);
}

#[test]
fn under_mps_several_cards_are_refused_by_the_daemon_too() {
    let node = Node::new(2);
    let daemon = node.start();
    let refusal = daemon.reserve(spread("two", 8, 2)).unwrap_err();
    assert_eq!(refusal.code, "E_MULTI_CARD");
    assert!(refusal.hint.contains("ack.node.gpu.schedule=share"), "{}", refusal.hint);
    assert_eq!(daemon.granted_mib(), 0);
}

#[test]
fn a_compute_mode_of_somebody_elses_is_a_trouble_and_is_not_changed() {
    let node = sharing(1);
    node.nvml(|state| state["cards"][0]["compute_mode"] = json!("EXCLUSIVE_PROCESS"));
    let daemon = node.start();
    let card = daemon.card(0);
    assert!(card.state.as_str().contains("is in compute mode EXCLUSIVE_PROCESS"), "{}", card.state);
    assert!(card.hint.unwrap().ends_with(&format!("nvidia-smi -i {} -c DEFAULT", uuid(0))));
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    assert_eq!(node.compute_mode(0), "EXCLUSIVE_PROCESS");
    node.nvml(|state| state["cards"][0]["compute_mode"] = json!("DEFAULT"));
    wait_for("it is ready", || daemon.card(0).state == CardState::Ready);
    daemon.reserve(request("web", 1)).unwrap();
    node.nvml(|state| state["cards"][0]["compute_mode"] = json!("PROHIBITED"));
    wait_for("it is not", || daemon.state(0).contains("PROHIBITED"));
}

#[test]
fn an_operator_finds_no_mps_to_end_and_takes_the_card_back() {
    let mut node = Node::unmanaged(1);
    node.config.gpus.schedule = Schedule::Share;
    let daemon = node.start();
    daemon.done(Call::Enable { gpu: "0".to_owned() }).unwrap();
    assert_eq!((daemon.state(0).as_str(), node.compute_mode(0).as_str()), ("ready", "DEFAULT"));
    for action in [MpsAction::Stop, MpsAction::Restart] {
        let call = Mps { gpu: "0".to_owned(), action, confirmed: true };
        assert_eq!(daemon.done(Call::Mps(call)).unwrap_err().code, "E_GPU_UNFIT");
    }
    daemon.done(Call::Disable { gpu: "0".to_owned() }).unwrap();
    assert_eq!(daemon.card(0).state, CardState::Unmanaged);
}

#[test]
fn a_switch_waits_for_the_containers_of_the_old_kind_and_is_then_done_by_itself() {
    let node = Node::new(2);
    let file = settings(&node, MPS);
    let daemon = node.start_with(&file);
    let web = daemon.reserve(request("web", 4)).unwrap();
    let mut init = Container::new();
    daemon.activate(&web, &init, None).unwrap();
    assert_eq!(node.compute_mode(0), "EXCLUSIVE_PROCESS");

    assert_eq!(reload(&node, &daemon, SHARE), ["gpus.schedule: taken"]);
    assert_eq!(schedule(&daemon), "mps share web");
    let refusal = daemon.reserve(request("db", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_SCHEDULE");
    assert!(refusal.sentence.ends_with("under mps: web"), "{}", refusal.sentence);
    assert!(daemon.state(1).starts_with("gives nothing until"), "{}", daemon.state(1));
    assert!(init.lives() && node.control_pid(0).is_some(), "what runs goes on");

    // Wanted no more, and again.
    reload(&node, &daemon, MPS);
    assert_eq!(schedule(&daemon), "mps");
    let db = daemon.reserve(request("db", 1)).unwrap();
    daemon.release(&db.key);
    reload(&node, &daemon, SHARE);

    init.kill();
    drop(init);
    wait_for("it is switched", || schedule(&daemon) == "share");
    wait_for("both cards are ready", || {
        daemon.status().cards.iter().all(|c| c.state == CardState::Ready)
    });
    for n in 0..2 {
        assert_eq!(node.compute_mode(n), "DEFAULT");
        assert_eq!(node.control_pid(u32::try_from(n).unwrap()), None);
    }
    assert_eq!(leases(&node.paths.leases()), 0);
    let two = daemon.reserve(spread("two", 4, 2)).unwrap();

    // And back, with nothing but a reservation in the way.
    reload(&node, &daemon, MPS);
    assert_eq!(schedule(&daemon), "share mps two");
    daemon.release(&two.key);
    wait_for("it is switched back", || schedule(&daemon) == "mps");
    wait_for("both cards are ready", || {
        daemon.status().cards.iter().all(|c| c.state == CardState::Ready)
    });
    assert_eq!(
        (node.compute_mode(0), node.control_pid(0).is_some()),
        ("EXCLUSIVE_PROCESS".to_owned(), true)
    );
    assert!(daemon.reserve(request("web", 4)).unwrap().uses_mps());
}

#[test]
fn a_container_that_was_the_last_one_in_the_way_starts_again_under_the_new_schedule() {
    let node = Node::new(1);
    let file = settings(&node, MPS);
    let daemon = node.start_with(&file);
    let web = daemon.reserve(request("web", 4)).unwrap();
    let mut init = Container::new();
    daemon.activate(&web, &init, None).unwrap();
    reload(&node, &daemon, SHARE);
    init.kill();
    drop(init);
    // Its next instance does not wait until its end has been seen.
    let mut again = request("web", 4);
    again.key = key("web", 2);
    let again = daemon.reserve(again).unwrap();
    assert!(!again.uses_mps());
    assert_eq!((schedule(&daemon).as_str(), daemon.granted_mib()), ("share", 4096));
}

#[test]
fn a_restart_in_between_waits_on_and_leaves_the_old_kind_as_it_is() {
    let mut node = Node::new(1);
    let daemon = node.start();
    let web = daemon.reserve(request("web", 4)).unwrap();
    let mut init = Container::new();
    daemon.activate(&web, &init, None).unwrap();
    let control = node.control_pid(0);
    daemon.stop().unwrap();
    node.config.gpus.schedule = Schedule::Share;
    let daemon = node.start();
    assert_eq!(schedule(&daemon), "mps share web");
    assert_eq!(
        (node.control_pid(0), node.compute_mode(0).as_str()),
        (control, "EXCLUSIVE_PROCESS")
    );
    assert!(daemon.status().grants.iter().all(|grant| grant.state == GrantState::Active));
    init.kill();
    drop(init);
    wait_for("it is switched", || schedule(&daemon) == "share");
    wait_for("the mode is back", || node.compute_mode(0) == "DEFAULT");

    // Grants without MPS survive a restart, and nothing of MPS comes up beside them.
    wait_for("it is ready", || daemon.card(0).state == CardState::Ready);
    let two = daemon.reserve(spread("two", 4, 1)).unwrap();
    let init = Container::new();
    daemon.activate(&two, &init, None).unwrap();
    daemon.stop().unwrap();
    let daemon = node.start();
    let grants = daemon.status().grants;
    assert_eq!(
        (grants.len(), grants[0].state.as_str(), grants[0].guarantee.as_str()),
        (1, "active", "none")
    );
    assert_eq!(node.control_pid(0), None);
}

#[test]
fn what_the_label_said_last_holds_after_a_restart_whatever_the_settings_say() {
    let mut node = Node::new(1);
    node.config.kubernetes.kubeconfig = away();
    remember(&node, "share");
    let file = settings(&node, MPS);
    let daemon = node.start_with(&file);
    assert_eq!((schedule(&daemon).as_str(), node.compute_mode(0).as_str()), ("share", "DEFAULT"));
    assert!(!daemon.reserve(request("web", 1)).unwrap().uses_mps());
}

#[test]
fn what_the_label_said_is_forgotten_where_no_api_server_is_asked_any_more() {
    let node = Node::new(1);
    remember(&node, "share");
    let daemon = node.start();
    wait_for("the settings hold", || {
        schedule(&daemon) == "mps" && daemon.card(0).state == CardState::Ready
    });
    assert!(daemon.reserve(request("web", 1)).unwrap().uses_mps());
}

/// An API server that does not answer: what it said last holds.
fn away() -> mpsgate_config::Kubeconfig {
    mpsgate_config::Kubeconfig::File("/nowhere/kubelet.conf".into())
}

#[test]
fn cards_of_the_settings_are_left_to_another_system_and_an_operators_stay() {
    let mut node = Node::new(2);
    let daemon = node.start();
    let web = daemon.reserve(on_card(request("web", 1), 0)).unwrap();
    let mut init = Container::new();
    daemon.activate(&web, &init, None).unwrap();
    daemon.stop().unwrap();
    remember(&node, "off");
    node.config.kubernetes.kubeconfig = away();
    let daemon = node.start_unready();
    wait_for("the free card is left alone", || {
        let status = daemon.status();
        status.cards.len() == 2 && !status.cards[1].managed && status.cards[0].managed
    });
    wait_for("its mode is back", || node.compute_mode(1) == "DEFAULT");
    assert_eq!(schedule(&daemon), "mps off");
    assert!(daemon.state(0).contains("is another system's"), "{}", daemon.state(0));
    assert_eq!(daemon.reserve(request("db", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    // By hand it is taken all the same.
    daemon.done(Call::Enable { gpu: "1".to_owned() }).unwrap();
    daemon.reserve(request("db", 1)).unwrap();
    init.kill();
    drop(init);
    wait_for("the other one goes with its last grant", || !daemon.card(0).managed);
    assert_eq!((node.compute_mode(0).as_str(), node.control_pid(0)), ("DEFAULT", None));
    assert!(daemon.card(1).managed);
}

#[test]
fn who_takes_more_than_was_agreed_is_reported_and_lives() {
    let node = sharing(2);
    let daemon = node.start();
    let grant = daemon.reserve(spread("web", 2, 2)).unwrap();
    let mut init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    let process = json!({ "pid": init.pid(), "used_mib": 9000, "kind": "compute" });
    node.nvml(|state| state["cards"][1]["processes"] = json!([process]));
    wait_for("it is reported", || !daemon.status().actions.is_empty());
    let status = daemon.status();
    let told: Vec<_> = status.actions.iter().map(|a| (a.what.as_str(), a.card_index)).collect();
    assert_eq!(told, [("reported", 1)], "{:?}", status.actions);
    assert!(status.grants.iter().all(|grant| grant.guarantee == Guarantee::None));
    assert!(init.lives());
}
