//! `mpsgate mps stop|restart` and `mpsgate reload`.

use std::fs;
use std::path::PathBuf;

use mpsgate_api::{Call, CardState, Mps, MpsAction, Reply, WireRefusal, WouldEnd};
use mpsgate_config::{Listen, Manage};

use crate::harness::{Container, Node, Running, need, on_card, request, servers, uuid, wait_for};
use crate::kill::{Client, activate};

fn mps(action: MpsAction, confirmed: bool) -> Call {
    Call::Mps(Mps { gpu: "0".to_owned(), action, confirmed })
}

fn listed(daemon: &Running, action: MpsAction) -> WouldEnd {
    match daemon.call(mps(action, false)) {
        Reply::WouldEnd { list } => list.read().unwrap(),
        other => panic!("{other:?}"),
    }
}

fn reload(daemon: &Running) -> Result<Vec<String>, WireRefusal> {
    match daemon.call(Call::Reload) {
        Reply::Reloaded { lines } => Ok(lines),
        Reply::Refused(refusal) => Err(refusal),
        other => panic!("{other:?}"),
    }
}

/// The settings as a file that says what the node's configuration does, and `more`.
pub(crate) fn settings(node: &Node, more: &str) -> PathBuf {
    let manage = match &node.config.gpus.manage {
        Manage::All => "\"all\"".to_owned(),
        Manage::Uuids(uuids) => format!("{uuids:?}"),
    };
    let listen = match node.config.metrics.listen {
        Listen::Off => "off".to_owned(),
        Listen::At(at) => at.to_string(),
    };
    let text = format!(
        "gpus.manage = {manage}\nnvml.library = {:?}\nmps.control = {:?}\n\
         mps.start_timeout_s = 10\nmetrics.listen = \"{listen}\"\n{more}\n",
        node.config.nvml.library, node.config.mps.control
    );
    let path = node.dir.path().join("config.toml");
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn without_yes_who_would_die_is_listed_and_nothing_is_done() {
    let node = Node::new(2);
    let daemon = node.start();
    let grant = daemon.reserve(on_card(request("web", 7), 0)).unwrap();
    daemon.reserve(on_card(request("other", 1), 1)).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    let control = node.control_pid(0).unwrap();
    for action in [MpsAction::Stop, MpsAction::Restart] {
        let list = listed(&daemon, action);
        assert_eq!(
            (list.action, list.card.as_str(), list.card_index),
            (action, uuid(0).as_str(), 0)
        );
        let grants: Vec<_> =
            list.grants.iter().map(|g| (g.container_id.as_str(), g.memory_mib, g.pid)).collect();
        assert_eq!(grants, [("web", 7168, init.pid())]);
        assert_eq!(list.unknown, None);
    }
    assert_eq!(node.control_pid(0), Some(control));
    assert_eq!(daemon.card(0).state, CardState::Ready);
    assert_eq!(node.compute_mode(0), "EXCLUSIVE_PROCESS");
}

#[test]
fn the_list_names_servers_and_clients_with_their_containers() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let clients = [(); 2].map(|()| Client::attach(&node, &grant));
    let pids: Vec<u32> = clients.iter().map(Client::pid).collect();
    activate(&daemon, &grant, pids[0]);
    let list = listed(&daemon, MpsAction::Stop);
    let server = node.mps(0).servers().unwrap()[0].pid;
    assert_eq!(list.servers.len(), 1);
    assert_eq!(list.servers[0].pid.cast_signed(), server);
    let mut seen: Vec<_> = list.servers[0]
        .clients
        .iter()
        .map(|client| (client.pid, client.container_id.as_deref()))
        .collect();
    seen.sort_by_key(|(pid, _)| *pid != pids[0]);
    assert_eq!(seen, [(pids[0], Some("web")), (pids[1], None)]);
    // The kernel's short name of the program: arguments may hold secrets.
    let mut name = node.config.mps.control.file_name().unwrap().to_str().unwrap().to_owned();
    name.truncate(15);
    assert!(list.servers[0].clients.iter().all(|c| c.command == name), "{list:?}");

    daemon.done(mps(MpsAction::Stop, true)).unwrap();
    for mut client in clients {
        client.ended();
    }
}

#[test]
fn stop_ends_the_control_daemon_and_keeps_the_card_closed_over_restarts_until_it_is_restarted() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    let text = daemon.done(mps(MpsAction::Stop, true)).unwrap();
    assert!(text.contains("is stopped, and 1 grant is broken"), "{text}");
    assert!(text.ends_with(&format!("mpsgate mps restart {}", uuid(0))), "{text}");
    assert!(daemon.status().grants[0].broken_ms.is_some());
    let mut daemon = daemon;
    for round in 0..2 {
        if round == 1 {
            daemon.stop().unwrap();
            daemon = node.start();
        }
        assert_eq!(node.control_pid(0), None, "{round}");
        assert_eq!(node.compute_mode(0), "DEFAULT", "{round}");
        assert!(!node.paths.mps().join("0").exists(), "{round}");
        let card = daemon.card(0);
        assert!(card.managed, "{round}");
        assert_eq!(card.state.as_str(), "was stopped by the operator", "{round}");
        assert_eq!(card.hint, Some(format!("mpsgate mps restart {}", uuid(0))), "{round}");
        let refusal = daemon.reserve(request("db", 1)).unwrap_err();
        assert_eq!(refusal.code, "E_GPU_UNHEALTHY", "{round}");
        assert!(refusal.sentence.contains("was stopped by the operator"), "{refusal:?}");
        let again = daemon.done(mps(MpsAction::Stop, true)).unwrap();
        assert!(again.contains("is stopped already"), "{again}");
        // The shim still keeps everybody else away from it.
        let snapshot = fs::read_to_string(node.paths.snapshot()).unwrap();
        assert!(snapshot.contains("\"managed\":true"), "{snapshot}");
        if round == 0 {
            continue;
        }
        drop(listed(&daemon, MpsAction::Restart));
        let text = daemon.done(mps(MpsAction::Restart, true)).unwrap();
        assert!(text.contains("is started"), "{text}");
        assert_eq!(daemon.card(0).state, CardState::Ready);
        assert_eq!(node.compute_mode(0), "EXCLUSIVE_PROCESS");
        daemon.reserve(request("db", 1)).unwrap();
    }
}

#[test]
fn a_stop_that_a_crash_cut_short_is_finished_at_the_next_start() {
    let node = Node::new(1);
    drop(node.start());
    assert!(node.control_pid(0).is_some());
    let text = format!(r#"{{"format":1,"cards":[],"stopped":["{}"]}}"#, uuid(0));
    fs::write(node.paths.managed(), text).unwrap();
    let daemon = node.start();
    wait_for("it is ended", || node.control_pid(0).is_none());
    wait_for("its mode is back", || node.compute_mode(0) == "DEFAULT");
    assert_eq!(daemon.state(0), "was stopped by the operator");
}

#[test]
fn restart_starts_another_control_daemon_with_limits_and_breaks_the_grants() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    let old = node.control_pid(0).unwrap();
    let text = daemon.done(mps(MpsAction::Restart, true)).unwrap();
    assert!(text.contains("is restarted, and 1 grant is broken"), "{text}");
    let new = node.control_pid(0).unwrap();
    assert_ne!(new, old);
    assert_eq!(node.compute_mode(0), "EXCLUSIVE_PROCESS");
    assert_eq!(node.mps(0).channel().default_limit().unwrap().as_deref(), Some("7G"));
    assert!(daemon.status().grants[0].broken_ms.is_some());
    // Others get memory; what the broken grant holds is not given twice.
    let other = daemon.reserve(request("db", 8)).unwrap();
    assert_eq!(daemon.reserve(request("more", 1)).unwrap_err().code, "E_NO_CAPACITY");
    daemon.release(&other.key);
    daemon.stop().unwrap();
    assert_eq!(node.control_pid(0), Some(new));
}

#[test]
fn what_has_no_mps_of_ours_is_refused_by_name() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    let refusal = daemon.done(mps(MpsAction::Restart, true)).unwrap_err();
    assert_eq!(refusal.code, "E_GPU_UNMANAGED");
    assert_eq!(refusal.hint, "mpsgate enable 0");
    let call = Mps { gpu: "7".to_owned(), action: MpsAction::Stop, confirmed: false };
    assert_eq!(daemon.done(Call::Mps(call)).unwrap_err().code, "E_UNKNOWN_GPU");
}

#[test]
fn a_card_that_is_given_back_is_not_stopped_any_more() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    daemon.done(Call::Enable { gpu: "0".to_owned() }).unwrap();
    daemon.done(mps(MpsAction::Stop, true)).unwrap();
    let text = daemon.done(Call::Enable { gpu: "0".to_owned() }).unwrap();
    assert!(text.contains("is managed already: was stopped by the operator"), "{text}");
    daemon.done(Call::Disable { gpu: "0".to_owned() }).unwrap();
    assert!(!fs::read_to_string(node.paths.managed()).unwrap().contains("GPU-"));
    daemon.done(Call::Enable { gpu: "0".to_owned() }).unwrap();
    assert_eq!(daemon.card(0).state, CardState::Ready);
}

#[test]
fn a_wedged_control_daemon_is_listed_as_far_as_it_can_be_and_can_be_restarted() {
    let node = Node::new(1);
    let daemon = node.start();
    let old = node.control_pid(0).unwrap();
    let stop = std::process::Command::new("kill").args(["-STOP", &old.to_string()]).status();
    assert!(stop.unwrap().success());
    let list = listed(&daemon, MpsAction::Restart);
    assert!(list.unknown.is_some(), "{list:?}");
    daemon.done(mps(MpsAction::Restart, true)).unwrap();
    assert!(node.control_pid(0).is_some_and(|pid| pid != old));
    assert_eq!(daemon.card(0).state, CardState::Ready);
}

const WAITS: &str = "mps.supervisor: takes effect after: systemctl restart mpsgated; then, for each \
                     managed card: mpsgate mps restart GPU";

#[test]
fn a_reload_takes_what_can_be_taken_and_names_what_waits_and_for_what() {
    let node = Node::new(1);
    let file = settings(&node, "");
    let daemon = node.start_with(&file);
    assert_eq!(reload(&daemon).unwrap(), Vec::<String>::new());
    settings(
        &node,
        "gpus.reserve_mib = 4096\nmps.max_clients = 5\nmps.supervisor = \"holder\"\npolicy.ipc = \"any\"\n\
         trust.local = \"off\"",
    );
    let lines = reload(&daemon).unwrap();
    assert_eq!(
        lines,
        [
            "gpus.reserve_mib: taken",
            "trust.local: taken",
            "policy.ipc: taken, from the next container on",
            "mps.max_clients: taken",
            WAITS,
        ]
    );
    wait_for("the card is smaller", || daemon.card(0).memory_mib == 12 * 1024);
    assert_eq!(daemon.card(0).max_clients, 5);
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_UNCONFIRMED");
    assert_eq!(reload(&daemon).unwrap(), [WAITS], "it is not forgotten");
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_line_and_changes_nothing() {
    let node = Node::new(1);
    let file = settings(&node, "trust.local = \"on\"");
    let daemon = node.start_with(&file);
    settings(&node, "trust.local = \"off\"\nlog.levle = \"debug\"");
    let refusal = reload(&daemon).unwrap_err();
    assert_eq!(refusal.code, "E_CONFIG");
    for part in ["config.toml:7: ", "log.levle", "goes on with the settings that it has"] {
        assert!(refusal.sentence.contains(part), "no {part}: {refusal:?}");
    }
    assert!(!refusal.hint.is_empty());
    daemon.reserve(request("web", 1)).unwrap();
}

#[test]
fn cards_that_the_settings_name_are_handed_over_and_given_back_by_a_reload() {
    let mut node = Node::unmanaged(2);
    let file = settings(&node, "");
    let daemon = node.start_with(&file);
    assert!(!daemon.card(0).managed);
    node.config.gpus.manage = Manage::Uuids(vec![uuid(0), uuid(9)]);
    settings(&node, "");
    let lines = reload(&daemon).unwrap();
    assert_eq!(
        lines,
        [
            "gpus.manage: taken".to_owned(),
            format!("gpus.manage: {} is not there now", uuid(9)),
            format!("gpus.manage: GPU 0 ({}) is managed now: 15 GiB to give", uuid(0)),
        ]
    );
    assert_eq!(node.compute_mode(0), "EXCLUSIVE_PROCESS");
    let grant = daemon.reserve(request("web", 1)).unwrap();

    node.config.gpus.manage = Manage::Uuids(vec![uuid(1)]);
    node.nvml(|state| {
        state["cards"][1]["processes"] =
            serde_json::json!([{ "pid": std::process::id(), "used_mib": 418, "kind": "compute" }]);
    });
    settings(&node, "");
    let lines = reload(&daemon).unwrap();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].contains(&format!("GPU 1 ({}) is in use by pid", uuid(1))), "{lines:?}");
    assert!(lines[2].contains("has grants: web (1 GiB)"), "{lines:?}");
    assert!(lines[2].ends_with(&format!("mpsgate disable {}", uuid(0))), "{lines:?}");
    assert!(daemon.card(0).managed && !daemon.card(1).managed);
    daemon.release(&grant.key);
    daemon.done(Call::Disable { gpu: "0".to_owned() }).unwrap();

    node.config.gpus.manage = Manage::Uuids(vec![uuid(0)]);
    settings(&node, "");
    reload(&daemon).unwrap();
    assert!(daemon.card(0).managed);
    node.config.gpus.manage = Manage::Uuids(Vec::new());
    settings(&node, "");
    let lines = reload(&daemon).unwrap();
    assert_eq!(lines[1], format!("gpus.manage: GPU 0 ({}) is not managed any more", uuid(0)));
    assert_eq!((node.compute_mode(0).as_str(), node.control_pid(0)), ("DEFAULT", None));
}
