//! The command with an API server: its requests, its output, and its exit code.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

mod server;

use std::path::Path;
use std::process::Output;

use fake_api_server::{Fault, World};
use mpsgate_testing::{ODD, assert_printable, odd};
use serde_json::{Value, json};
use server::{Server, inspect};

fn cluster() -> Value {
    let cards = json!({"version": 1, "cards": [
        {"uuid": "GPU-a", "index": 0, "memory_mib": 15360, "local_mib": 0, "healthy": true, "uid": 1000},
        {"uuid": "GPU-b", "index": 1, "memory_mib": 39936, "local_mib": 0, "healthy": true},
    ]});
    let node = |name: &str, annotations: Value| {
        json!({
            "metadata": {"name": name, "labels": {"ack.node.gpu.schedule": "mps"}, "annotations": annotations},
            "status": {"allocatable": {"aliyun.com/gpu-mem": "54", "aliyun.com/gpu-count": "2"},
                       "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}]},
        })
    };
    let pod = |name: &str, node: &str, phase: &str, card: u32| {
        let placement = json!({"version": 1, "node": node, "time": "2026-01-31T12:00:00Z",
                               "containers": {"c": {(card.to_string()): 14336}}, "core": {}});
        json!({
            "metadata": {"name": name, "namespace": "default", "uid": name,
                         "annotations": {"mpsgate.io/placement": placement.to_string()}},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "14"}}}]},
            "status": {"phase": phase},
        })
    };
    json!({
        "nodes": [
            node("gpu-2", json!({})),
            node("gpu-1", json!({"mpsgate.io/cards": cards.to_string()})),
            {"metadata": {"name": "plain"}, "status": {}},
        ],
        "pods": [
            pod("a", "gpu-1", "Running", 0), pod("b", "gpu-1", "Succeeded", 0), pod("c", "gpu-1", "Pending", 1),
            pod("d", "gpu-2", "Running", 1), {"metadata": {"name": "e", "uid": "e"}, "spec": {"containers": []}, "status": {}},
        ],
    })
}

fn server() -> Server {
    Server::start(World::of(&cluster()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Checks the exit status, all of these texts on stderr, and an empty stdout.
#[track_caller]
fn refused(output: &Output, code: i32, says: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(text(&output.stdout), "");
    for part in says {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
}

#[test]
fn cards_of_different_size_stand_in_the_published_form() {
    let output = server().inspect(&[]);
    assert_eq!(text(&output.stderr), "");
    assert_eq!(
        text(&output.stdout),
        "NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n\
         gpu-1  10.0.0.7   14/15                  14/39                  28/54\n\
         gpu-2  10.0.0.7   0/27                   14/27                  14/54\n\
         -----------------------------------------------------\n\
         Allocated/Total GPU Memory In Cluster:\n\
         42/108 (38%)  \n"
    );
}

#[test]
fn one_node_is_asked_for_alone_with_its_pods() {
    let server = server();
    let output = server.inspect(&["gpu-1", "-d"]);
    assert_eq!(
        text(&output.stdout),
        "\nNAME:       gpu-1\nIPADDRESS:  10.0.0.7\n\n\
         NAME         NAMESPACE  GPU0(Allocated)  GPU1(Allocated)  \n\
         a            default    14               0                \n\
         c            default    0                14               \n\
         Allocated :  28 (51%)   \n\
         Total :      54         \n\
         ------------------------------------------\n\
         \n\nAllocated/Total GPU Memory In Cluster:  28/54 (51%)  \n"
    );
    let asked = server.asked();
    assert!(asked[0].starts_with("GET /api/v1/nodes/gpu-1 "), "{asked:?}");
    assert!(
        asked[1].contains("spec.nodeName%3Dgpu-1") && asked[1].contains("limit=500"),
        "{asked:?}"
    );
    assert_eq!(asked.len(), 2, "{asked:?}");
}

#[test]
fn lists_come_in_pages() {
    let mut cluster = cluster();
    let pods: Vec<Value> = (0..10)
        .map(|n| {
            let mut pod = cluster["pods"][0].clone();
            pod["metadata"]["name"] = json!(format!("p{n}"));
            pod["metadata"]["uid"] = json!(format!("u{n}"));
            pod
        })
        .collect();
    cluster["pods"] = json!(pods);
    let server = Server::start(World::of(&cluster));
    let output = server.inspect(&["-o", "json"]);
    // It never asks for a whole list at once.
    assert!(server.asked().iter().all(|asked| asked.contains("limit=500")));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["nodes"][0]["cards"][0]["pods"].as_array().unwrap().len(), 10);
}

#[test]
fn what_others_wrote_is_escaped_in_json_and_read_as_it_was_written() {
    let mut cluster = cluster();
    let long = odd(1 << 20);
    cluster["nodes"][1]["status"]["addresses"][0]["address"] = json!(long);
    cluster["nodes"][1]["metadata"]["labels"]["ack.node.gpu.schedule"] = json!(ODD);
    cluster["pods"][0]["metadata"]["namespace"] = json!(ODD);
    let output = Server::start(World::of(&cluster)).inspect(&["-o", "json"]);
    let shown = text(&output.stdout);
    assert_printable(&shown);
    let document: Value = serde_json::from_str(&shown).unwrap();
    let node = &document["nodes"][0];
    assert_eq!(node["name"], "gpu-1");
    assert_eq!(node["address"], long);
    assert_eq!(node["schedule"], ODD);
    assert_eq!(node["cards"][0]["pods"][0]["namespace"], ODD);
}

#[test]
fn wide_says_how_the_node_shares_and_who_says_where_a_pod_is() {
    let wide = text(&server().inspect(&["-o", "wide"]).stdout);
    let header = wide.lines().next().unwrap();
    assert!(header.ends_with("GPU Memory(GiB)  SCHEDULE  LOCAL(GiB)  UNHEALTHY  EXACT"), "{wide}");
    assert!(
        wide.lines().nth(1).unwrap().split_whitespace().skip(5).eq(["mps", "0", "-", "yes"]),
        "{wide}"
    );
    let details = text(&server().inspect(&["-d", "-o", "wide"]).stdout);
    assert!(
        details.lines().any(|line| line.split_whitespace().eq([
            "a",
            "default",
            "14",
            "0",
            "placement"
        ])),
        "{details}"
    );
}

/// A pod that gpushare's old extender placed by MiB, beside one that asks by GiB.
#[test]
fn an_amount_that_no_card_of_the_node_has_is_marked_with_what_was_meant() {
    let mut cluster = cluster();
    let pod = |name: &str, phase: &str, gib: &str, annotations: Value| {
        json!({
            "metadata": {"name": name, "namespace": "team", "uid": name, "annotations": annotations},
            "spec": {"nodeName": "gpu-1", "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": gib}}}]},
            "status": {"phase": phase},
        })
    };
    let old = json!({"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "2048"});
    let failed = json!({"ALIYUN_COM_GPU_MEM_IDX": "-1"});
    cluster["pods"] = json!([
        pod("old", "Running", "2048", old),
        pod("new", "Running", "7", json!({"ALIYUN_COM_GPU_MEM_IDX": "0"})),
        pod("failed", "Failed", "2048", failed),
    ]);
    let server = Server::start(World::of(&cluster));
    let output = server.inspect(&[]);
    assert_eq!(
        text(&output.stderr),
        "warning: pod team/old, container c: it asks for 2048 GiB by aliyun.com/gpu-mem, and the largest card of node \
         gpu-1 has 39 GiB; 2048 looks like MiB, and aliyun.com/gpu-mem counts GiB: write 2\n"
    );
    assert!(text(&output.stdout).contains("7/15                   2048/39"), "{output:?}");
    let document: Value = serde_json::from_slice(&server.inspect(&["-o", "json"]).stdout).unwrap();
    assert_eq!(
        document["beyond_cards"],
        json!([{
            "namespace": "team", "name": "old", "uid": "old", "node": "gpu-1", "container": "c",
            "resource": "aliyun.com/gpu-mem", "asked_mib": 2_097_152, "largest_card_mib": 39_936,
            "hint": "2048 looks like MiB, and aliyun.com/gpu-mem counts GiB: write 2",
        }])
    );
    assert_eq!(document["schema"], 1);
}

#[test]
fn without_a_kubeconfig_it_says_what_to_set() {
    let output = inspect(Path::new("/nowhere/config"), &[]);
    refused(
        &output,
        78,
        &[
            "there is no kubeconfig: /nowhere/config",
            "hint: name one: --kubeconfig FILE, or export KUBECONFIG=FILE",
        ],
    );
}

#[test]
fn the_flags_for_the_cluster_come_before_the_environment() {
    let server = server();
    let file = server.kubeconfig().to_str().unwrap();
    let output = inspect(Path::new("/nowhere/config"), &["--kubeconfig", file]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Of several files those that exist.
    let list = format!("/nowhere/config:{file}");
    assert_eq!(inspect(Path::new(&list), &[]).status.code(), Some(0));
    refused(
        &server.inspect(&["--context", "away"]),
        69,
        &["http://127.0.0.1:1", "kubectl cluster-info"],
    );
    refused(
        &server.inspect(&["--context", "none"]),
        78,
        &["cannot use the kubeconfig", "config get-contexts"],
    );
}

#[test]
fn a_kubeconfig_that_is_none_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    std::fs::write(&file, "clusters: 7\n").unwrap();
    refused(
        &inspect(&file, &[]),
        78,
        &["cannot use the kubeconfig", file.to_str().unwrap(), "config view"],
    );
}

#[test]
fn no_credential_of_a_broken_kubeconfig_is_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config");
    let text = "apiVersion: v1\nkind: Config\nusers:\n- name: n\n  user:\n    \
                token: S3CR3T\n    tokenFile: [a]\n";
    std::fs::write(&file, text).unwrap();
    let output = inspect(&file, &[]);
    refused(&output, 78, &["cannot use the kubeconfig", file.to_str().unwrap(), "line 7"]);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("S3CR3T"));
}

#[test]
fn a_refusal_of_the_api_server_is_reported_with_its_remedy() {
    let with = |path: &'static str, code: u16| {
        let mut world = World::of(&cluster());
        world.faults.push_back((path, Fault::Status(code)));
        Server::start(world)
    };
    refused(
        &with("GET /api/v1/pods", 403).inspect(&[]),
        2,
        &["cannot list the pods", "kubectl auth can-i list pods -A"],
    );
    refused(
        &with("GET /api/v1/nodes", 403).inspect(&[]),
        2,
        &["cannot list the nodes", "kubectl auth can-i list nodes"],
    );
    refused(&with("GET /api/v1/nodes", 401).inspect(&[]), 2, &["credentials"]);
    refused(&with("GET /api/v1/nodes", 500).inspect(&[]), 2, &["kubectl get --raw /readyz"]);
}

#[test]
fn an_unknown_node_is_the_answer_no() {
    refused(
        &server().inspect(&["gpu-9"]),
        1,
        &["the cluster has no node gpu-9", "kubectl get nodes"],
    );
    refused(&server().inspect(&["../pods"]), 1, &["the cluster has no node ../pods"]);
}

#[test]
fn a_node_without_gpu_memory_is_reported_beside_the_published_empty_table() {
    let output = server().inspect(&["plain"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("note: node plain does not share GPU memory"));
    assert_eq!(
        text(&output.stdout),
        "NAME  IPADDRESS  GPU Memory()\n\nAllocated/Total GPU Memory In Cluster:\n0/0 (0%)  \n"
    );
}

#[test]
fn wrong_arguments_version_and_help_have_their_statuses() {
    let here = Path::new("/nowhere");
    assert_eq!(inspect(here, &["-o", "yaml"]).status.code(), Some(64));
    let version = inspect(here, &["--version"]);
    assert_eq!(
        text(&version.stdout),
        format!("kubectl-inspect-cgpu {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = text(&inspect(here, &["--help"]).stdout);
    assert!(
        help.contains("kubectl inspect cgpu [OPTIONS] [NODE]") && help.contains("KUBECONFIG"),
        "{help}"
    );
}

#[test]
fn colours_are_for_a_terminal_alone() {
    let server = server();
    assert!(!text(&server.inspect(&[]).stdout).contains('\x1b'));
    let on_terminal = |environment: &str| {
        let command = format!("{environment} exec {} ", env!("CARGO_BIN_EXE_kubectl-inspect-cgpu"));
        #[expect(clippy::disallowed_types, reason = "script makes the terminal")]
        let output = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("KUBECONFIG", server.kubeconfig())
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .output();
        match output {
            Ok(output) => Some(text(&output.stdout)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("script: {error}"),
        }
    };
    let Some(coloured) = on_terminal("") else {
        mpsgate_testing::skip!("needs the program script");
    };
    assert!(coloured.contains("\x1b[33m14/15\x1b[0m"), "{coloured:?}");
    let plain = on_terminal("NO_COLOR=1").unwrap();
    assert!(plain.contains("14/15") && !plain.contains('\x1b'), "{plain:?}");
}
