//! Cards and their control daemons: what fails alone, what comes back, enable and disable.

use std::fs;
use std::path::Path;
use std::process::Command;

use mpsgate_api::{Call, CardState, ControlState, Reply};
use mpsgate_testing::{Spawned, can_be_leased, leased};
use serde_json::json;

use crate::harness::{Container, Node, need, on_card, request, root, servers, uuid, wait_for};

fn enable(gpu: &str) -> Call {
    Call::Enable { gpu: gpu.to_owned() }
}

fn disable(gpu: &str) -> Call {
    Call::Disable { gpu: gpu.to_owned() }
}

pub(crate) fn kill(pid: i32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_missing_nvml_leaves_the_daemon_up_and_refuses_with_the_reason() {
    let mut node = Node::new(1);
    node.config.nvml.library = "/nonexistent/libnvidia-ml.so.1".into();
    let daemon = node.start();
    let status = daemon.status();
    assert!(status.nvml_error.unwrap().contains("/nonexistent/libnvidia-ml.so.1"));
    assert!(status.cards.is_empty());
    let refusal = daemon.reserve(request("web", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
    assert!(refusal.sentence.contains("this node has no NVML library"), "{refusal:?}");
    let refusal = daemon.done(enable("0")).unwrap_err();
    assert!(refusal.sentence.contains("this node has no NVML library"), "{refusal:?}");
}

#[test]
fn nvml_that_fails_and_comes_back_is_noticed() {
    let node = Node::new(1);
    let daemon = node.start();
    node.nvml(|state| state["init_error"] = json!("DRIVER_NOT_LOADED"));
    node.nvml(|state| state["cards"][0]["error"] = json!("GPU_IS_LOST"));
    wait_for("the loss is seen", || daemon.state(0).contains("does not answer"));
    let card = daemon.card(0);
    assert!(card.hint.unwrap().contains("Xid"));
    let refusal = daemon.reserve(request("web", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
    node.nvml(|state| {
        state.as_object_mut().unwrap().remove("init_error");
        state["cards"][0].as_object_mut().unwrap().remove("error");
    });
    wait_for("the card is back", || daemon.card(0).state == CardState::Ready);
    daemon.reserve(request("web", 1)).unwrap();
}

#[test]
fn one_card_that_cannot_be_made_ready_leaves_the_others_working() {
    let node = Node::new(3);
    node.nvml(|state| {
        state["cards"][0]["compute_capability"] = json!("6.1");
        state["cards"][1]["mig"] = json!("enabled");
    });
    let daemon = node.start();
    let states: Vec<String> =
        daemon.status().cards.into_iter().map(|card| card.state.to_string()).collect();
    assert!(states[0].contains("compute capability 6.1"), "{states:?}");
    assert_eq!(states[1..], ["is in MIG mode", "ready"]);
    assert_eq!(daemon.reserve(on_card(request("web", 1), 0)).unwrap_err().code, "E_GPU_UNFIT");
    assert_eq!(daemon.reserve(request("web", 1)).unwrap().cards[0].index, 2);
    assert_eq!(node.compute_mode(0), "DEFAULT", "an unfit card is left alone");
}

#[test]
fn a_missing_control_program_is_named_in_status_and_refusal() {
    let mut node = Node::new(1);
    node.config.mps.control = "/nonexistent/nvidia-cuda-mps-control".into();
    let daemon = node.start();
    let card = daemon.card(0);
    assert!(
        card.state.as_str().contains("cannot run /nonexistent/nvidia-cuda-mps-control"),
        "{card:?}"
    );
    assert!(card.hint.is_some());
    let refusal = daemon.reserve(request("web", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
    assert!(refusal.sentence.contains("nvidia-cuda-mps-control"), "{refusal:?}");
}

#[test]
fn a_control_program_that_appears_later_is_tried_again() {
    need!(servers());
    let mut node = Node::new(1);
    let real = std::mem::replace(&mut node.config.mps.control, node.dir.path().join("control"));
    let daemon = node.start();
    assert!(daemon.state(0).contains("cannot run"));
    let server = "nvidia-cuda-mps-server";
    // By another process: a descriptor that is open for writing must not leak into a fork.
    for (from, to) in [
        (real.with_file_name(server), node.dir.path().join(server)),
        (real, node.dir.path().join("control")),
    ] {
        assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
    }
    wait_for("the card becomes ready", || daemon.card(0).state == CardState::Ready);
}

/// Whether a process has its lease still, and somebody waits for the end of it.
fn is_waited_for(holder: &Spawned) -> bool {
    let (locks, pid) = (fs::read_to_string("/proc/locks").unwrap(), format!(" {} ", holder.pid()));
    locks.lines().any(|lock| lock.contains("LEASE  BREAKING") && lock.contains(&pid))
}

/// By a lease each start of MPS would wait, also by that of a container that has the files by a
/// read-only bind.
#[test]
fn nobody_leases_nvidias_programs_once_a_card_was_ready() {
    need!(servers());
    let mut node = Node::unmanaged(1);
    let bin = node.dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let control = bin.join("nvidia-cuda-mps-control");
    let server = control.with_file_name("nvidia-cuda-mps-server");
    let real = std::mem::replace(&mut node.config.mps.control, control.clone());
    let copy = |from: &Path, to: &Path| {
        // By another process: a descriptor that is open for writing must not leak into a fork.
        assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
    };
    copy(&real, &control);
    copy(&real.with_file_name("nvidia-cuda-mps-server"), &server);
    // Somebody was quicker. The card comes up meanwhile.
    let quicker = leased(&server, 1000);
    let daemon = node.start();
    daemon.done(enable("0")).unwrap();
    wait_for("the card is ready", || daemon.card(0).state == CardState::Ready);
    assert!(is_waited_for(&quicker));
    drop(quicker);
    wait_for("it is kept", || !can_be_leased(&server));
    let first = daemon.reserve(request("web", 1)).unwrap();

    // As an upgrade replaces it, and again somebody is quicker. The old server runs on.
    let new = bin.join("new");
    copy(&server, &new);
    let quicker = leased(&new, 1000);
    fs::rename(&new, &server).unwrap();
    wait_for("a look has found the new one", || is_waited_for(&quicker));
    let second = daemon.reserve(request("db", 1)).unwrap();
    assert!(is_waited_for(&quicker), "the card has answered meanwhile");
    drop(quicker);
    wait_for("the new one is kept", || !can_be_leased(&server));

    for grant in [first, second] {
        daemon.release(&grant.key);
    }
    daemon.done(disable("0")).unwrap();
    assert_eq!(node.control_pid(0), None);
    for program in [&control, &server] {
        assert!(!can_be_leased(program), "{}", program.display());
    }
}

#[test]
fn an_idle_card_gets_a_new_control_daemon_after_the_old_one_died() {
    let node = Node::new(1);
    let daemon = node.start();
    let old = node.control_pid(0).unwrap();
    kill(old);
    wait_for("another one runs", || {
        node.control_pid(0).is_some_and(|pid| pid != old)
            && daemon.card(0).state == CardState::Ready
    });
    daemon.reserve(request("web", 1)).unwrap();
}

#[test]
fn a_server_that_dies_refuses_and_gives_the_memory_back_where_the_card_is_real() {
    let node = Node::new(1);
    let daemon = node.start();
    // A simulated card has no server to lose: the fake's server that dies is taken for that.
    fs::write(node.paths.mps().join("0/log/fake-server-dies"), "").unwrap();
    let grant = daemon.reserve(request("web", 1)).unwrap();
    assert!(node.mps(0).servers().unwrap().is_empty());
    assert_eq!(daemon.granted_mib(), grant.memory.0);
}

#[test]
fn a_server_that_is_slow_is_waited_for_with_progress_and_then_refused() {
    need!(servers());
    let mut node = Node::new(1);
    node.config.mps.start_timeout_s = 3;
    let daemon = node.start();
    fs::write(node.paths.mps().join("0/log/fake-server-slow"), "").unwrap();
    // The client waits 2 s for a first frame: only progress carries it beyond.
    let refusal = daemon.reserve(request("web", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_MPS_SERVER");
    assert!(refusal.sentence.contains("is not ready"), "{refusal:?}");
    assert_eq!(daemon.granted_mib(), 0, "the reservation is given up");
}

#[test]
fn a_slow_server_of_one_card_holds_up_no_other_card() {
    need!(servers());
    let node = Node::new(2);
    let daemon = node.start();
    fs::write(node.paths.mps().join("0/log/fake-server-slow"), "").unwrap();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| daemon.reserve(on_card(request("slow", 1), 0)));
        wait_for("the slow one is reserved", || daemon.granted_mib() >= 1024);
        daemon.reserve(on_card(request("quick", 1), 1)).unwrap();
        assert!(!slow.is_finished());
        assert_eq!(slow.join().unwrap().unwrap_err().code, "E_MPS_SERVER");
    });
}

#[test]
fn enable_hands_a_card_over_for_good_and_disable_takes_it_back_without_a_trace() {
    let node = Node::unmanaged(2);
    let daemon = node.start();
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNMANAGED");
    assert_eq!(node.control_pid(0), None);

    let text = daemon.done(enable("0")).unwrap();
    assert_eq!(text, format!("GPU 0 ({}) is managed now: 15 GiB to give", uuid(0)));
    assert!(daemon.done(enable(&uuid(0))).unwrap().contains("is managed already"));
    assert_eq!(
        (node.compute_mode(0).as_str(), node.compute_mode(1).as_str()),
        ("EXCLUSIVE_PROCESS", "DEFAULT")
    );
    daemon.stop().unwrap();
    let daemon = node.start();
    assert_eq!((daemon.card(0).managed, daemon.card(1).managed), (true, false), "over a restart");

    let grant = daemon.reserve(request("web", 1)).unwrap();
    assert_eq!(grant.cards[0].index, 0);
    let refusal = daemon.done(disable("0")).unwrap_err();
    assert!(refusal.sentence.contains("has grants: web (1 GiB)"), "{refusal:?}");
    daemon.release(&grant.key);
    daemon.done(disable("0")).unwrap();
    assert_eq!(node.control_pid(0), None);
    assert_eq!(node.compute_mode(0), "DEFAULT");
    assert!(!node.paths.mps().join("0").exists());
    assert_eq!(node.paths.leases().read_dir().unwrap().count(), 0);
    assert!(daemon.done(disable("0")).unwrap().contains("is not managed"));
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNMANAGED");
    daemon.stop().unwrap();
    assert!(!node.start().card(0).managed, "over a restart");
}

#[test]
fn enable_refuses_a_card_in_use_and_names_who_uses_it() {
    let node = Node::unmanaged(1);
    let user = Container::new();
    node.nvml(|state| {
        state["cards"][0]["processes"] =
            json!([{ "pid": user.pid(), "used_mib": 418, "kind": "compute" }]);
    });
    let daemon = node.start();
    let refusal = daemon.done(enable("0")).unwrap_err();
    assert_eq!(
        refusal.sentence,
        format!("GPU 0 ({}) is in use by pid {} (sleep)", uuid(0), user.pid())
    );
    assert_eq!(node.compute_mode(0), "DEFAULT");
    assert!(!daemon.card(0).managed);
    node.nvml(|state| {
        state["cards"][0]["processes"] =
            json!([{ "pid": user.pid(), "used_mib": 10, "kind": "graphics" }]);
    });
    daemon.done(enable("0")).unwrap();
}

#[test]
fn enable_refuses_unfit_and_unknown_cards() {
    let node = Node::unmanaged(1);
    node.nvml(|state| state["cards"][0]["mig"] = json!("enabled"));
    let daemon = node.start();
    assert_eq!(daemon.done(enable("0")).unwrap_err().code, "E_GPU_UNFIT");
    let refusal = daemon.done(enable("7")).unwrap_err();
    assert_eq!(refusal.code, "E_UNKNOWN_GPU");
    assert!(refusal.sentence.contains(&uuid(0)), "{refusal:?}");
}

#[test]
fn an_enable_that_fails_leaves_all_as_it_was() {
    let mut node = Node::unmanaged(1);
    node.config.mps.control = "/nonexistent/nvidia-cuda-mps-control".into();
    let daemon = node.start();
    let refusal = daemon.done(enable("0")).unwrap_err();
    assert!(refusal.sentence.contains("cannot run /nonexistent"), "{refusal:?}");
    let card = daemon.card(0);
    assert_eq!((card.managed, card.state.as_str()), (false, "unmanaged"));
    assert_eq!(node.compute_mode(0), "DEFAULT");
    assert!(!node.paths.mps().join("0").exists());
}

#[test]
fn disable_refuses_a_card_that_the_settings_name() {
    let node = Node::new(1);
    let daemon = node.start();
    let refusal = daemon.done(disable("0")).unwrap_err();
    assert!(refusal.hint.contains("gpus.manage"), "{refusal:?}");
    assert_eq!(daemon.card(0).state, CardState::Ready);
}

#[test]
fn a_card_that_left_the_settings_is_given_back_at_the_next_start() {
    let mut node = Node::new(1);
    drop(node.start());
    assert!(node.control_pid(0).is_some());
    node.config.gpus.manage = mpsgate_config::Manage::Uuids(Vec::new());
    let _daemon = node.start();
    wait_for("it is given back", || {
        node.compute_mode(0) == "DEFAULT" && node.control_pid(0).is_none()
    });
}

#[test]
fn a_card_that_left_the_settings_stays_while_it_has_grants() {
    let mut node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 1)).unwrap();
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    let pid = node.control_pid(0);
    daemon.stop().unwrap();
    node.config.gpus.manage = mpsgate_config::Manage::Uuids(Vec::new());
    let daemon = node.start();
    assert_eq!(daemon.card(0).state, CardState::Ready);
    assert_eq!(node.control_pid(0), pid);
    daemon.release(&grant.key);
    daemon.done(disable("0")).unwrap();
}

#[test]
fn an_idle_server_of_another_uid_makes_room() {
    need!(servers());
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    let first = daemon.reserve(request("root", 1)).unwrap();
    assert_eq!(daemon.card(0).mps.unwrap().servers[0].uid, Some(0));
    daemon.release(&first.key);
    let mut call = request("other", 1);
    call.uid = 65_534;
    let reply = daemon.call(Call::Reserve(call));
    assert!(matches!(reply, Reply::Reserved { .. }), "{reply:?}");
    assert_eq!(daemon.card(0).mps.unwrap().servers[0].uid, Some(65_534));
}

#[test]
fn a_compute_mode_that_somebody_changes_is_changed_back() {
    let node = Node::new(1);
    let daemon = node.start();
    node.nvml(|state| state["cards"][0]["compute_mode"] = json!("DEFAULT"));
    // Each status looks at the cards.
    wait_for("it is back", || {
        daemon.status();
        node.compute_mode(0) == "EXCLUSIVE_PROCESS"
    });
    wait_for("the card is ready", || daemon.card(0).state == CardState::Ready);
    node.nvml(|state| {
        state["refuse_compute_mode"] = json!(true);
        state["cards"][0]["compute_mode"] = json!("DEFAULT");
    });
    wait_for("the card is fenced", || daemon.state(0).contains("can be used without MPS"));
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    node.nvml(|state| {
        state.as_object_mut().unwrap().remove("refuse_compute_mode");
    });
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);
}

#[test]
fn a_wedged_control_daemon_fences_the_card_until_it_answers() {
    let node = Node::new(1);
    let daemon = node.start();
    let pid = node.control_pid(0).unwrap().to_string();
    let signal = |name: &str| {
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-STOP");
    wait_for("the card is fenced", || daemon.state(0).contains("does not answer"));
    assert_eq!(daemon.card(0).mps.unwrap().state, ControlState::Wedged);
    assert_eq!(daemon.reserve(request("web", 1)).unwrap_err().code, "E_GPU_UNHEALTHY");
    signal("-CONT");
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);
    assert_eq!(node.control_pid(0).unwrap().to_string(), pid);
}

#[test]
fn a_server_in_fault_fences_the_card_until_it_is_active_again() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let mut call = request("web", 1);
    call.uid = crate::harness::server_uid();
    daemon.reserve(call.clone()).unwrap();
    let fault = node.paths.mps().join("0/log/fake-fault");
    fs::write(&fault, "").unwrap();
    wait_for("the card is fenced", || daemon.state(0).contains("FAULT"));
    call.key.container_id = mpsgate_model::ContainerId::parse("db").unwrap();
    assert_eq!(daemon.reserve(call).unwrap_err().code, "E_GPU_UNHEALTHY");
    fs::remove_file(fault).unwrap();
    wait_for("the card is ready again", || daemon.card(0).state == CardState::Ready);
}

#[test]
fn nvml_that_hangs_is_told_refused_and_holds_up_no_answer() {
    let node = Node::new(1);
    let daemon = node.start();
    // The fake reads its file in every call: a FIFO in its place makes each of them wait.
    let (state, away) = (node.dir.path().join("nvml.json"), node.dir.path().join("away"));
    fs::rename(&state, &away).unwrap();
    assert!(Command::new("mkfifo").arg(&state).status().unwrap().success());
    wait_for("the hang is told", || {
        daemon.status().nvml_error.is_some_and(|why| why.contains("has not answered for"))
    });
    let refusal = daemon.reserve(request("web", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
    let held = node.dir.path().join("held");
    fs::rename(&state, &held).unwrap();
    fs::rename(&away, &state).unwrap();
    // Whoever waits reads nothing, which is an error of NVML.
    drop(fs::OpenOptions::new().write(true).open(held).unwrap());
    wait_for("it answers again", || daemon.status().nvml_error.is_none());
    daemon.reserve(request("web", 1)).unwrap();
}
