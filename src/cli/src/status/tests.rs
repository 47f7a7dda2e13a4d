//! Golden tests: a review of `tests/golden` shows what operators will see.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

use std::collections::BTreeMap;

use mpsgate_api::{
    Action, CardMemory, CardState, ControlState, Done, GateStatus, GrantState, MpsStatus,
    ResourceStatus, ServerState, ServerStatus,
};
use mpsgate_model::ComputeMode;
use mpsgate_testing::{ODD, assert_printable, golden, odd};

use super::*;
const NOW: u64 = 1_700_000_000_000;

pub(crate) fn card(index: u32) -> CardStatus {
    CardStatus {
        uuid: format!("GPU-00000000-0000-0000-0000-00000000000{index}"),
        index,
        minor: index,
        name: "Tesla T4".to_owned(),
        managed: true,
        total_mib: 16384,
        memory_mib: 15360,
        granted_mib: 0,
        promised_mib: 0,
        free_mib: 15360,
        used_mib: Some(0),
        compute_mode: ComputeMode::ExclusiveProcess.into(),
        clients: 0,
        max_clients: 48,
        state: CardState::Ready.into(),
        hint: None,
        mps: Some(MpsStatus {
            state: ControlState::Running.into(),
            pid: Some(4000 + index),
            default_limit_mib: Some(15360),
            servers: Vec::new(),
        }),
        memory: None,
        unwatched: None,
        unlimited: None,
        gate: None,
        qualification: None,
        failures: Vec::new(),
        qualify: None,
    }
}

fn unmanaged(index: u32) -> CardStatus {
    CardStatus {
        managed: false,
        compute_mode: ComputeMode::Default.into(),
        state: CardState::Unmanaged.into(),
        mps: None,
        ..card(index)
    }
}

fn grant(id: &str, memory_mib: u64, age_ms: u64) -> GrantStatus {
    GrantStatus {
        container_id: id.to_owned(),
        runtime_root: "/run/runc".to_owned(),
        instance: "0123456789abcdef0123456789abcdef".to_owned(),
        state: GrantState::Active.into(),
        card: card(0).uuid,
        card_index: 0,
        memory_mib,
        compute_percent: None,
        uid: 0,
        pid: 5100,
        cgroup: Some("/sys/fs/cgroup/web".to_owned()),
        used_mib: None,
        cap_mib: Some(7168),
        guarantee: Guarantee::Mps.into(),
        proof: "not tried on this card".to_owned(),
        since_ms: NOW - age_ms,
        hint: None,
        broken_ms: None,
    }
}

pub(crate) fn status(cards: Vec<CardStatus>) -> Status {
    Status {
        version: "0.1.0".to_owned(),
        simulated: false,
        driver: Some("550.163.01".to_owned()),
        nvml_error: None,
        kubelet: false,
        cards,
        grants: Vec::new(),
        refusals: BTreeMap::new(),
        notes: BTreeMap::new(),
        clients_terminated: 0,
        kills_unprepared: 0,
        actions: Vec::new(),
        metrics_listen: Some("127.0.0.1:19400".to_owned()),
        metrics_error: None,
        device_plugin: Vec::new(),
        claims: None,
        slurm: None,
        api_server: None,
        schedule: Word::Mps.into(),
        overrides: vec![
            "policy.tolerance_mib = 512: \"auto\" would be 566 MiB on GPU 0".to_owned(),
        ],
        schedule_wanted: None,
        schedule_waits_for: Vec::new(),
    }
}

/// Simulated, with one card in use, one that is broken and one that is not managed.
fn busy() -> Status {
    let mut first = card(0);
    first.granted_mib = 7168 + 1500;
    first.promised_mib = 2048;
    first.free_mib = 15360 - 7168 - 1500 - 2048;
    first.used_mib = Some(1307);
    first.clients = 2;
    if let Some(mps) = &mut first.mps {
        mps.servers = vec![
            ServerStatus { pid: 4100, uid: Some(0), status: Some(ServerState::Active.into()) },
            ServerStatus { pid: 4101, uid: None, status: None },
        ];
    }
    first.gate = Some(GateStatus {
        handed_over: 12,
        waiting: 1,
        ended: [("uid".to_owned(), 2), ("word".to_owned(), 400)].into(),
    });
    let mut second = card(1);
    second.gate = Some(GateStatus::default());
    second.name = "NVIDIA H200".to_owned();
    second.total_mib = 143_771;
    second.memory_mib = 142_336;
    second.free_mib = 142_336;
    second.used_mib = None;
    second.memory = Some(CardMemory {
        used: 3 << 30,
        containers: 1 << 30,
        nobody: 2 << 30,
        ..Default::default()
    });
    second.unwatched = Some("cannot read the compute processes of the card".to_owned());
    second.unlimited = Some(
        "driver 550.163.01 offers no memory limits for cgroups (a driver of r615 or newer does)"
            .to_owned(),
    );
    second.state = OneOf::Other("its MPS control daemon is dead".to_owned());
    second.hint = Some("journalctl -u mpsgate-mps@1 -n 50".to_owned());
    second.mps = Some(MpsStatus {
        state: ControlState::Dead.into(),
        pid: None,
        default_limit_mib: None,
        servers: Vec::new(),
    });
    let mut reserved = grant(&"0123456789abcdef".repeat(4), 1500, 3_000);
    reserved.state = GrantState::Reserved.into();
    reserved.compute_percent = Some(30);
    reserved.uid = 1000;
    reserved.runtime_root = "/run/containerd/runc/k8s.io".to_owned();
    let mut broken = grant("db", 1024, 90_000);
    broken.state = GrantState::Broken.into();
    broken.hint = Some("its CUDA processes have lost the card: restart the container".to_owned());
    broken.broken_ms = Some(NOW - 60_000);
    broken.guarantee = Guarantee::Cgroup.into();
    let killed = Action {
        at_ms: NOW - 61_000,
        container_id: Some("cafe".repeat(16)),
        card: card(0).uuid,
        card_index: 0,
        what: Done::Killed.into(),
        why: "it used 8200 MiB of the card, 7168 MiB were granted".to_owned(),
    };
    let reported = Action {
        container_id: None,
        what: Done::Reported.into(),
        why: "pid 78 (perl) uses 300 MiB of the card and is in no container with a grant"
            .to_owned(),
        ..killed.clone()
    };
    let mut web = grant("web", 7168, 2 * 86_400_000);
    web.used_mib = Some(6000);
    web.guarantee = Guarantee::MpsWatchdog.into();
    Status {
        simulated: true,
        kubelet: true,
        grants: vec![web, reserved, broken],
        actions: vec![killed, reported],
        refusals: BTreeMap::from([
            ("E_NO_CAPACITY".to_owned(), 12),
            ("E_NO_HOST_IPC".to_owned(), 3),
        ]),
        notes: BTreeMap::from([("E_PRIVILEGED".to_owned(), 5)]),
        ..status(vec![first, second, unmanaged(2)])
    }
}

#[test]
fn the_table_of_a_busy_node() {
    golden!("status-busy.txt", &render_table(&busy(), NOW, false));
    golden!("status-wide.txt", &render_table(&busy(), NOW, true));
}

#[test]
fn the_document_of_a_busy_node() {
    let json = render_json(&busy()).unwrap();
    golden!("status-busy.json", &json);
    // The document is the daemon's own words and a schema number: nothing is lost on the way.
    let back: Status = serde_json::from_str(&json).unwrap();
    assert_eq!(render_json(&back).unwrap(), json);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(value.get("schema"), Some(&serde_json::json!(1)));
}

/// Where a document has texts.
fn texts(value: &serde_json::Value, at: String, found: &mut Vec<String>) {
    use serde_json::Value;
    match value {
        Value::String(_) => found.push(at),
        Value::Array(all) => {
            all.iter().enumerate().for_each(|(n, one)| texts(one, format!("{at}/{n}"), found));
        }
        Value::Object(all) => {
            all.iter().for_each(|(key, one)| texts(one, format!("{at}/{key}"), found));
        }
        _ => {}
    }
}

#[test]
fn whatever_its_texts_are_a_terminal_obeys_nothing_of_the_document() {
    let mut document = serde_json::to_value(busy()).unwrap();
    let (mut places, mut replaced) = (Vec::new(), Vec::new());
    texts(&document, String::new(), &mut places);
    for place in places {
        let mut other = document.clone();
        *other.pointer_mut(&place).unwrap() = ODD.into();
        // A few are words of ours, and nobody else's.
        if serde_json::from_value::<Status>(other.clone()).is_ok() {
            document = other;
            replaced.push(place);
        }
    }
    for place in ["/grants/0/container_id", "/grants/0/cgroup", "/actions/0/why", "/cards/0/name"] {
        assert!(replaced.iter().any(|one| one == place), "{place}: {replaced:?}");
    }
    let mut status: Status = serde_json::from_value(document).unwrap();
    status.notes.insert(ODD.to_owned(), 1);
    status.grants.last_mut().unwrap().container_id = odd(1 << 20);
    let json = render_json(&status).unwrap();
    assert_printable(&json);
    // Whoever parses it has what was there.
    let back: Status = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::to_value(&back).unwrap(), serde_json::to_value(&status).unwrap());
}

#[test]
fn the_table_after_installation() {
    golden!("status-none-managed.txt", &render_table(&status(vec![unmanaged(0)]), NOW, false));
}

#[test]
fn the_table_without_a_driver() {
    let mut bare = status(Vec::new());
    bare.driver = None;
    bare.nvml_error = Some("cannot load the NVML library libnvidia-ml.so.1".to_owned());
    golden!("status-no-driver.txt", &render_table(&bare, NOW, false));
}

#[test]
fn simulated_is_the_first_word() {
    assert!(render_table(&busy(), NOW, false).starts_with("SIMULATED: no GPU"));
    assert!(!render_table(&status(vec![card(0)]), NOW, false).contains("SIMULATED"));
}

#[test]
fn memory_is_gib_where_whole() {
    for (mib, text) in
        [(0, "0"), (1, "1 MiB"), (1024, "1 GiB"), (7168, "7 GiB"), (7500, "7500 MiB")]
    {
        assert_eq!(memory(mib), text);
    }
}

#[test]
fn an_age_has_one_unit() {
    for (ms, text) in
        [(0, "0s"), (59_999, "59s"), (60_000, "1m"), (3_600_000, "1h"), (90_000_000, "1d")]
    {
        assert_eq!(age(ms), text);
    }
}

#[test]
fn only_random_ids_are_cut() {
    assert_eq!(short_id(&"ab".repeat(32)), "abababababab");
    let name = "a-name-that-is-sixty-four-characters-long-and-no-random-id-at-a";
    assert_eq!(short_id(name), name);
}

#[test]
fn cards_without_mps_and_a_switch_that_waits_are_said() {
    let mut shared = card(0);
    (shared.mps, shared.max_clients, shared.clients) = (None, 0, 2);
    let mut status = status(vec![shared]);
    status.schedule = Word::Share.into();
    let mut one = grant("web", 7168, 1000);
    one.guarantee = Guarantee::None.into();
    status.grants = vec![one];
    let text = render_table(&status, NOW, true);
    assert!(
        text.starts_with(
            "mpsgated 0.1.0, driver 550.163.01, cards shared without MPS (schedule share)\n"
        ),
        "{text}"
    );
    assert!(text.contains("guarantee none: memory is shared by agreement"), "{text}");
    assert!(!text.contains("2/0"), "{text}");
    status.schedule_wanted = Some(Word::Mps.into());
    status.schedule_waits_for = vec!["web".to_owned(), "db".to_owned()];
    let text = render_table(&status, NOW, false);
    assert!(
        text.contains(
            "schedule mps is wanted, and no GPU memory is given until these have ended: web, db\n"
        ),
        "{text}"
    );
    status.schedule_wanted = Some(Word::Off.into());
    assert!(render_table(&status, NOW, false).contains("another system's"));
}

#[test]
fn a_node_is_ready_when_a_card_can_be_granted_and_kubelet_has_it() {
    let broken = || CardStatus { state: OneOf::Other("broken".to_owned()), ..card(1) };
    let resource = |registered_ms, problem: Option<&str>| ResourceStatus {
        resource: "aliyun.com/gpu-mem".to_owned(),
        registered_ms,
        devices: 15,
        healthy: 15,
        allocations: 0,
        problem: problem.map(str::to_owned),
        hint: None,
    };
    let with = |cards: Vec<CardStatus>| status(cards);
    assert_eq!(ready::problem(&with(vec![card(0), broken()])), None);
    // Its cards are another system's: nothing is wanted of it.
    assert_eq!(ready::problem(&with(vec![unmanaged(0)])), None);
    for (status, expected) in [
        (with(Vec::new()), "no card was found"),
        (with(vec![broken(), unmanaged(0)]), "no card can be granted; GPU 1: broken"),
        (
            Status { nvml_error: Some("no library".to_owned()), ..with(vec![card(0)]) },
            "NVML does not answer: no library",
        ),
        (
            Status {
                device_plugin: vec![resource(None, Some("no kubelet"))],
                ..with(vec![card(0)])
            },
            "pods have no aliyun.com/gpu-mem: no kubelet",
        ),
        (
            Status { device_plugin: vec![resource(None, None)], ..with(vec![card(0)]) },
            "kubelet does not have aliyun.com/gpu-mem yet",
        ),
    ] {
        assert_eq!(ready::problem(&status).as_deref(), Some(expected));
    }
    let served = Status { device_plugin: vec![resource(Some(NOW), None)], ..with(vec![card(0)]) };
    assert_eq!(ready::problem(&served), None);
}
