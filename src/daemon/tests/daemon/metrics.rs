//! What Prometheus reads: every metric of `docs/metrics.md` from a daemon at work, and the HTTP
//! around it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use mpsgate_api::{Activate, Call, Removal, Reply, Report, Terminate};
use mpsgate_config::{Listen, Switch};
use mpsgate_policy::NoteAction;
use serde_json::json;

use crate::grants::Cgroup;
use crate::harness::{
    Container, LIMIT, Node, Running, need, on_card, request, root, servers, wait_for,
};
use crate::kill::Client;
use crate::kubelet::{MEM, OnNode};
use crate::operator::settings;
use crate::qualify::qualified;

const PAGE: &str = include_str!("../../../../docs/metrics.md");
const OPEN: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";

pub(crate) fn serving(cards: u32) -> Node {
    let mut node = Node::new(cards);
    node.config.metrics.listen = Listen::At(([127, 0, 0, 1], 0).into());
    node
}

fn address(daemon: &Running) -> SocketAddr {
    let mut at = None;
    wait_for("the metrics are served", || {
        let status = daemon.status();
        at = status.metrics_listen.filter(|_| status.metrics_error.is_none());
        at.is_some()
    });
    at.unwrap().parse().unwrap()
}

/// The whole answer, head and body; what there is of it where the daemon breaks off.
fn ask(at: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    // One that is not read to its end is refused before it has been sent.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_owned(), body.to_owned())
}

pub(crate) fn scrape(daemon: &Running) -> String {
    let (head, body) = ask(address(daemon), OPEN);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("\n# EOF\n"), "{body}");
    body
}

/// `name{labels} value`.
#[derive(Debug)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn samples(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, rest) = series.split_once('{').unwrap_or((series, "}"));
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}').unwrap();
    while let Some((label, after)) = rest.split_once("=\"") {
        // Until the first quote without a backslash before it.
        let is_end = |(at, _): &(usize, &str)| !after[..*at].ends_with('\\');
        let end = after.match_indices('"').find(is_end).unwrap().0;
        let text = after[..end].replace("\\\"", "\"").replace("\\\\", "\\");
        assert!(labels.insert(label.to_owned(), text).is_none(), "{line}");
        rest = after[end + 1..].trim_start_matches(',');
    }
    assert_eq!(rest, "", "{line}");
    Sample { name: name.to_owned(), labels, value: value.parse().unwrap() }
}

/// The rows of the page: name, type, labels.
fn listed() -> Vec<(&'static str, &'static str, BTreeSet<&'static str>)> {
    let rows = PAGE.lines().filter(|line| line.starts_with("| `mpsgate_"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, name, kind, _, labels, ..] = cells.as_slice() else { panic!("{row}") };
        let labels = labels.split(", ").filter(|l| *l != "–").map(|l| l.trim_matches('`'));
        (name.trim_matches('`'), *kind, labels.collect())
    })
    .collect()
}

/// Whether a sample is of the metric.
fn is_of(sample: &str, name: &str, kind: &str) -> bool {
    match kind {
        "histogram" => {
            ["_bucket", "_sum", "_count"].iter().any(|end| sample.strip_suffix(end) == Some(name))
        }
        _ => sample == name,
    }
}

/// Sum of a metric's samples; of a histogram, what it has counted.
fn sum(found: &[Sample], name: &str, kind: &str) -> f64 {
    let name = if kind == "histogram" { format!("{name}_count") } else { name.to_owned() };
    found.iter().filter(|sample| sample.name == name).map(|sample| sample.value).sum()
}

/// Makes `pid` the container's init.
fn activate(daemon: &Running, grant: &mpsgate_model::Grant, pid: u32) {
    let cgroup = Some(daemon.own_cgroup(pid));
    let call = Activate { key: grant.key.clone(), pid, cgroup, grant: None };
    daemon.activate_with(call, pid).unwrap();
}

/// Served where an API server is followed; tests/k8s has one.
const OF_A_CLUSTER: [&str; 4] = [
    "mpsgate_handler_led",
    "mpsgate_api_server_followed",
    "mpsgate_pods_left_out",
    "mpsgate_events_dropped_total",
];

/// Served where a gate is; `gate.rs` has one.
pub(crate) const OF_A_GATE: [&str; 2] =
    ["mpsgate_gate_clients_total", "mpsgate_gate_clients_waiting"];

#[test]
fn every_listed_metric_is_set_by_a_node_at_work_and_no_other_is_served() {
    need!(root());
    need!(servers());
    let mut node = serving(3);
    node.config.trust.local = Switch::On;
    let kubelet = OnNode::start(&node);
    let daemon = node.start();
    kubelet.until(MEM, 45, 45);
    qualified(&daemon);
    kubelet.allocate(MEM, 0, 1);
    // Granted, refused, refused by the hook, started with a note.
    let cgroup = need!(Cgroup::new("metrics"));
    let mut odd = on_card(request("bad", 1), 0);
    odd.key.runtime_root = "/run/a \"b\" \\c".to_owned();
    let bad = daemon.reserve(odd).unwrap();
    let mut init = Container::new();
    cgroup.add(&init);
    daemon.activate(&bad, &init, Some(cgroup.id())).unwrap();
    daemon.reserve(request("big", 100)).unwrap_err();
    let stranger =
        Activate { key: request("stranger", 1).key, pid: init.pid(), cgroup: None, grant: None };
    daemon.activate_with(stranger, init.pid()).unwrap_err();
    daemon
        .done(Call::Report(Report {
            container_id: "cpu".to_owned(),
            code: "E_VISIBLE_DEVICES".to_owned(),
            action: NoteAction::Stripped.into(),
            sentence: "it says all; taken away".to_owned(),
            hint: None,
            pod: None,
        }))
        .unwrap();
    // GPU work ended before a kill, and one that could not be.
    let web = daemon.reserve(on_card(request("web", 1), 1)).unwrap();
    let client = Client::attach(&node, &web);
    activate(&daemon, &web, client.pid());
    daemon.done(Call::Terminate(Terminate { key: web.key.clone(), removal: Removal::No })).unwrap();
    let dead = daemon.reserve(on_card(request("dead", 1), 2)).unwrap();
    let last = Container::new();
    daemon.activate(&dead, &last, None).unwrap();
    let control = node.control_pid(2).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(control).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait_for("its end is seen", || daemon.state(2).contains("lost its MPS control daemon"));
    let unprepared =
        daemon.call(Call::Terminate(Terminate { key: dead.key.clone(), removal: Removal::No }));
    assert!(matches!(unprepared, Reply::Refused(_)), "{unprepared:?}");

    let uses = json!([{ "pid": init.pid(), "used_mib": 900, "kind": "mps" }]);
    node.nvml(|state| state["cards"][0]["processes"] = uses);
    let limits_and_uses = |text: &str| {
        let found = samples(text);
        let of_bad = |name: &str| {
            let mut found = found.iter().filter(|s| s.name == name);
            found.find(|s| s.labels["container"] == "bad").map(|sample| {
                assert_eq!(sample.labels["runtime_root"], "/run/a \"b\" \\c");
                sample.value
            })
        };
        (of_bad("mpsgate_grant_memory_limit_bytes"), of_bad("mpsgate_grant_memory_used_bytes"))
    };
    let mib = 1024.0 * 1024.0;
    wait_for("it is shown", || {
        limits_and_uses(&scrape(&daemon)) == (Some(1024.0 * mib), Some(900.0 * mib))
    });
    let added_up = "mpsgate_grant_memory_used_byte_seconds_total";
    wait_for("it is added up", || sum(&samples(&scrape(&daemon)), added_up, "counter") > 0.0);
    let with_use = scrape(&daemon);
    // An action of the watchdog.
    let uses = json!([{ "pid": init.pid(), "used_mib": 9000, "kind": "mps" }]);
    node.nvml(|state| state["cards"][0]["processes"] = uses);
    wait_for("it is ended", || !init.lives());
    wait_for("its series are gone", || limits_and_uses(&scrape(&daemon)) == (None, None));
    let text = scrape(&daemon);
    let found = samples(&text);
    let has = |sample: &str, value: f64| {
        assert!(text.contains(&format!("\n{sample} {value}\n")), "no {sample} {value} in {text}");
    };
    has("mpsgate_refusals_total{code=\"E_TOO_LARGE\"}", 1.0);
    has("mpsgate_refusals_total{code=\"E_NO_RESERVATION\"}", 1.0);
    has("mpsgate_notes_total{action=\"stripped\",code=\"E_VISIBLE_DEVICES\"}", 1.0);
    has("mpsgate_actions_total{what=\"killed\"}", 1.0);
    has("mpsgate_reserve_duration_seconds_count{outcome=\"granted\"}", 3.0);
    has("mpsgate_activate_duration_seconds_count{outcome=\"refused\"}", 1.0);
    let card = |n: u32| format!("gpu=\"{n}\",uuid=\"{}\"", crate::harness::uuid(n));
    has(&format!("mpsgate_card_mps_state{{{},state=\"running\"}}", card(0)), 1.0);
    assert!(text.contains(",state=\"broken\",guarantee=\"mps"), "{text}");

    let mut all = samples(&with_use);
    all.extend(found);
    for (name, kind, labels) in listed() {
        if OF_A_CLUSTER.contains(&name) || OF_A_GATE.contains(&name) {
            continue;
        }
        let of: Vec<&Sample> =
            all.iter().filter(|sample| is_of(&sample.name, name, kind)).collect();
        assert!(!of.is_empty(), "{name} is never set");
        if kind == "counter" || kind == "histogram" {
            assert!(sum(&all, name, kind) > 0.0, "{name} is never counted");
        }
        for sample in of {
            let mut seen: BTreeSet<&str> = sample.labels.keys().map(String::as_str).collect();
            seen.remove("le");
            assert_eq!(seen, labels, "{name}");
        }
        let family = match kind {
            "counter" => name.strip_suffix("_total").unwrap(),
            "info" => name.strip_suffix("_info").unwrap(),
            _ => name,
        };
        assert!(text.contains(&format!("# TYPE {family} {kind}\n")), "{name}");
    }
    for sample in &all {
        let rows = listed();
        assert!(rows.iter().any(|row| is_of(&sample.name, row.0, row.1)), "{sample:?}");
    }
}

#[test]
fn readers_of_the_older_format_get_it() {
    let node = serving(1);
    let daemon = node.start();
    let (head, body) = ask(address(&daemon), "GET /metrics HTTP/1.0\r\n\r\n");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    for line in [
        "# TYPE mpsgate_build_info gauge",
        "# TYPE mpsgate_refusals_total counter",
        "mpsgate_refusals_total{code=\"E_UID\"} 0",
        "# TYPE mpsgate_reserve_duration_seconds histogram",
    ] {
        assert!(body.lines().any(|l| l == line), "no {line}: {body}");
    }
    assert!(!body.contains("# EOF") && !body.contains("# UNIT") && !body.contains(" info\n"));
}

#[test]
fn whatever_else_is_asked_is_refused() {
    let node = serving(0);
    let daemon = node.start();
    let at = address(&daemon);
    let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nA: {}\r\n\r\n", "a".repeat(100_000));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(100));
    for (request, code) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("GET /metrics/x HTTP/1.1\r\nHost: x\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx", "405"),
        ("DELETE /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "405"),
        ("hello\r\n\r\n", "400"),
        (&long, "431"),
        (&many, "431"),
    ] {
        let (head, body) = ask(at, request);
        let shown: String = request.chars().take(40).collect();
        assert!(!body.contains("mpsgate_"), "{shown}");
        // Where the daemon closes before all was sent, the kernel may throw its answer away.
        assert!(
            head.starts_with(&format!("HTTP/1.1 {code} ")) || head.is_empty(),
            "{shown}: {head}"
        );
        assert!(!head.is_empty() || code == "431", "{shown}");
    }
    scrape(&daemon);
}

/// Whether a connection gives way, and a scrape is answered, where more hold on than there are
/// seats: sooner than after the 5 s in which one ends by itself. A whole request is answered, and
/// its connection ends without giving way: there the scrape alone tells.
fn gives_way(daemon: &Running, at: SocketAddr, said: &str, held: &mut Vec<TcpStream>) -> bool {
    const SOON: Duration = Duration::from_secs(3);
    let (began, first) = (Instant::now(), held.len());
    for _ in 0..100 {
        let mut stream = TcpStream::connect(at).unwrap();
        // One that has given way already may say no more.
        let _ = stream.write_all(said.as_bytes());
        held.push(stream);
    }
    scrape(daemon);
    if said != OPEN {
        let mut longest = &held[first];
        longest.set_read_timeout(Some(LIMIT)).unwrap();
        // What it said and nobody has read makes its end an error.
        let _ = longest.read_to_end(&mut Vec::new());
    }
    began.elapsed() < SOON
}

#[test]
fn whoever_says_nothing_or_half_a_request_or_reads_nothing_holds_up_neither_grants_nor_a_scrape() {
    let node = serving(1);
    let daemon = node.start();
    let at = address(&daemon);
    let mut held = Vec::new();
    for said in ["", "GET /metrics HTTP/1.1\r\nHo", OPEN] {
        // A machine may be busy for as long once.
        assert!((0..3).any(|_| gives_way(&daemon, at, said, &mut held)), "{said:?}");
    }
    daemon.reserve(request("web", 1)).unwrap();
    drop(held);
}

#[test]
fn a_port_that_is_taken_does_not_stop_the_daemon_and_is_got_when_it_is_free() {
    let mut node = Node::new(1);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    node.config.metrics.listen = Listen::At(at);
    let daemon = node.start();
    wait_for("it is said", || daemon.status().metrics_error.is_some());
    let status = daemon.status();
    assert_eq!(status.metrics_listen, Some(at.to_string()));
    assert!(status.metrics_error.unwrap().contains("in use"));
    daemon.reserve(request("web", 1)).unwrap();
    drop(other);
    assert_eq!(address(&daemon), at);
    scrape(&daemon);
}

#[test]
fn a_reload_moves_the_metrics_and_switches_them_off() {
    // A port that was free a moment ago; another test may have taken it since, and that is no
    // failure of the daemon, which then tries again.
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut node = Node::new(0);
    let daemon = node.start_with(&settings(&node, ""));
    assert_eq!(daemon.status().metrics_listen, None);
    let first = free();
    for to in [Listen::At(first), Listen::At(free()), Listen::Off] {
        node.config.metrics.listen = to;
        settings(&node, "");
        match daemon.call(Call::Reload) {
            Reply::Reloaded { lines } => assert_eq!(lines, ["metrics.listen: taken"]),
            other => panic!("{other:?}"),
        }
        let wanted = match to {
            Listen::At(at) => Some(at.to_string()),
            Listen::Off => None,
        };
        wait_for("it is taken", || daemon.status().metrics_listen == wanted);
        if let Listen::At(at) = to {
            assert_eq!(address(&daemon), at);
            scrape(&daemon);
        }
    }
    assert!(TcpStream::connect(first).is_err());
}
