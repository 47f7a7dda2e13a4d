//! What it shows to others than kube-scheduler: the metrics as the page names them, and what others
//! wrote as a terminal may have it.

use std::collections::BTreeSet;
use std::path::Path;

use fake_api_server::managed_fields;
use mpsgate_testing::{ODD, assert_printable};
use serde_json::{Value, json};

use super::{PATIENCE, Scheduler, world};

/// The page's metrics, with their labels.
fn documented() -> BTreeSet<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scheduler.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `mpsgate_scheduler_"));
    rows.map(|row| format!("mpsgate_scheduler_{}", row.split('`').next().unwrap())).collect()
}

/// Those of a scrape: as whoever asks Prometheus names them, a histogram without its endings.
fn scraped(text: &str) -> BTreeSet<String> {
    let (mut found, mut family) = (BTreeSet::new(), ("", ""));
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            family = declared.split_once(' ').unwrap();
        }
        let Some((sample, _)) = line.rsplit_once(' ').filter(|_| !line.starts_with('#')) else {
            continue;
        };
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let (of, kind) = family;
        let ends: &[&str] = match kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            "gauge" => &[""],
            kind => panic!("{line}: {kind}"),
        };
        assert!(ends.iter().any(|end| format!("{of}{end}") == name), "{line}: of {of}");
        let name = if kind == "histogram" { of } else { name };
        let keys = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0));
        let keys: Vec<_> = keys.filter(|key| *key != "le").collect();
        let keys = if keys.is_empty() { String::new() } else { format!("{{{}}}", keys.join(",")) };
        found.insert(format!("{name}{keys}"));
    }
    found
}

#[tokio::test]
async fn the_metrics_are_those_of_the_page_by_name_and_label() {
    let scheduler = Scheduler::active(world(&["a"])).await;
    let pod = scheduler.world(|world| world.get("pods/a"));
    scheduler.post("filter", &json!({"Pod": pod, "NodeNames": ["n1"]})).await;
    let (code, text) = scheduler.ask("GET", "/metrics", "").await;
    assert_eq!(code, 200);
    assert_eq!(scraped(&text), documented(), "{text}");
    for sample in [
        "mpsgate_scheduler_requests_total{verb=\"filter\",outcome=\"ok\"} 1",
        "mpsgate_scheduler_active 1",
        "mpsgate_scheduler_ready 1",
        "mpsgate_scheduler_nodes 1",
        "mpsgate_scheduler_cards 1",
        "mpsgate_scheduler_cards_unhealthy 0",
        "mpsgate_scheduler_memory_total_bytes 16106127360",
        "mpsgate_scheduler_memory_used_bytes 0",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample}: {text}");
    }
}

#[tokio::test]
async fn what_others_wrote_is_escaped_in_the_ledger_that_is_shown() {
    let mut world = world(&[]);
    world.add_bound(ODD, "n1", 7);
    let scheduler = Scheduler::active(world).await;
    for path in ["/mpsgate/inspect", "/gpushare-scheduler/inspect", "/mpsgate/inspect/n1"] {
        let (code, body) = scheduler.ask("GET", path, "").await;
        assert_eq!(code, 200, "{path}");
        assert_printable(&body);
        let shown: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(shown["nodes"][0]["devs"][0]["pods"][0]["name"], ODD, "{path}");
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_read_is_named_and_keeps_nobody_from_the_others() {
    let mut world = world(&["a"]);
    world.add_node("n2", &[15]);
    world.add_node("n3", &[15]);
    world.add_bound("deep", "n1", 1);
    world.add_bound("odd", "n1", 7);
    world.add_class("c");
    world.edit("pods", "deep", |pod| pod["metadata"]["managedFields"] = managed_fields(1000));
    world.edit("nodes", "n1", |node| node["metadata"]["managedFields"] = managed_fields(1000));
    world.edit("nodes", "n2", |node| node["metadata"]["labels"]["a"] = 1.into());
    let scheduler = Scheduler::active(world).await;
    scheduler.world(|world| {
        world.edit("pods", "odd", |pod| pod["metadata"]["labels"] = json!({"a": 1}));
        world.edit("runtimeclasses", "c", |class| class["handler"] = json!(["c"]));
    });
    let left = |kind: &str, count: u32| {
        format!("mpsgate_scheduler_objects_left_out{{kind=\"{kind}\"}} {count}\n")
    };
    let wanted = [left("Node", 1), left("Pod", 1), left("RuntimeClass", 1)].concat();
    let shown = async {
        while !scheduler.ask("GET", "/metrics", "").await.1.contains(&wanted) {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, shown).await.expect("in time");
    let (_, body) = scheduler.ask("GET", "/mpsgate/inspect", "").await;
    let shown: Value = serde_json::from_str(&body).unwrap();
    let named = shown["leftOut"].as_array().unwrap().iter().map(|one| one.as_str().unwrap());
    let named: Vec<_> = named.map(|one| one.split(": ").next().unwrap()).collect();
    assert_eq!(named, ["RuntimeClass c", "Node n2", "Pod default/odd"]);
    let nodes: Vec<_> = shown["nodes"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(nodes, ["n1", "n3"]);
    // Both count on their node, the one as a whole, of the other what can be read.
    assert_eq!(scheduler.used().await, 8 * 1024);
    assert_eq!(scheduler.bind("a", "n1").await, "");
    assert_eq!(scheduler.ask("GET", "/readyz", "").await.0, 200);
}
