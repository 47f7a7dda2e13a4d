//! The page, the dashboard and the alerts name the metrics of the list, and no others.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mpsgate_testing::golden::compare;
use serde_json::Value;

use super::*;

const DASHBOARD: &str = "packaging/grafana/dashboard.json";
const RULES: &str = "packaging/prometheus/mpsgate.rules.yml";
const RULES_TEST: &str = "packaging/prometheus/mpsgate.rules.test.yml";
const PAGE: &str = "docs/metrics.md";
/// The metrics of mpsgate-scheduler, which its own tests compare with what it says.
const SCHEDULERS: &str = "docs/scheduler.md";
const BEGIN: &str =
    "<!-- list: made from src/daemon/src/metrics/metric_list.rs by MPSGATE_BLESS=1 -->\n";
const END: &str = "<!-- end of list -->\n";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn table() -> String {
    let mut table = "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        let unit = match metric.unit {
            Unit::None => "–",
            Unit::Bytes => "bytes",
            Unit::Seconds => "seconds",
        };
        let (name, meaning) = (metric.name, metric.meaning);
        let kind = metric.kind.open_metrics();
        let kind = kind.as_str();
        table.push_str(&format!("| `{name}` | {kind} | {unit} | {labels} | {meaning} |\n"));
    }
    table
}

#[test]
fn the_page_shows_the_list() {
    let page = read(PAGE);
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    compare(repository(PAGE), &format!("{before}{BEGIN}{}{END}{after}", table()));
}

#[test]
fn names_say_type_and_unit_and_are_there_once() {
    let names: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(names.len(), METRICS.len());
    for metric in METRICS {
        let name = metric.name;
        assert!(name.starts_with("mpsgate_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert_eq!(name.ends_with("_info"), metric.kind == Kind::Info, "{name}");
        let unit = metric.unit.open_metrics();
        let built = format!(
            "{}{}",
            metric.stem(),
            unit.map(|unit| format!("_{}", unit.as_str())).unwrap_or_default()
        );
        assert_eq!(built, metric.family(), "{name}");
        // The older format would take a HELP of several lines, or a quote, for something else.
        assert!(!metric.meaning.contains(['\n', '\\', '|']), "{name}");
    }
}

/// Every `mpsgate_…` word of a text that is used as a metric.
fn used(text: &str) -> BTreeSet<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c)).filter(|word| word.starts_with("mpsgate_")).collect()
}

/// A sample's name without what a histogram appends.
fn listed(sample: &str) -> bool {
    METRICS.iter().any(|metric| match metric.kind {
        Kind::Histogram => ["_bucket", "_sum", "_count"]
            .iter()
            .any(|end| sample.strip_suffix(end) == Some(metric.name)),
        _ => metric.name == sample,
    })
}

#[test]
fn dashboard_and_alerts_use_metrics_of_the_lists_only() {
    let schedulers = read(SCHEDULERS);
    let of_scheduler = |name: &str| {
        [format!("| `{name}`"), format!("| `{name}{{")].iter().any(|row| schedulers.contains(row))
    };
    for path in [DASHBOARD, RULES, RULES_TEST] {
        let text = read(path);
        let used = used(&text);
        assert!(used.len() > 5, "{path}: {used:?}");
        for name in used {
            assert!(listed(name) || of_scheduler(name), "{path}: {name}");
        }
    }
}

/// The panels, those in rows too.
fn panels(of: &Value) -> Vec<&Value> {
    let list = of["panels"].as_array().into_iter().flatten();
    list.flat_map(|panel| [vec![panel], panels(panel)].concat()).collect()
}

#[test]
fn every_panel_of_the_dashboard_has_a_title_a_unit_and_a_query() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let panels = panels(&dashboard);
    let shown: Vec<_> = panels.iter().filter(|panel| panel["type"] != "row").collect();
    assert!(shown.len() > 8, "{}", shown.len());
    let mut ids = BTreeSet::new();
    for panel in &panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
    }
    for panel in shown {
        let title = panel["title"].as_str().unwrap();
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
        assert!(unit.is_some_and(|unit| !unit.is_empty()), "{title} has no unit");
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title} asks nothing");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            assert!(!used(query).is_empty() || query.contains("up{"), "{title}: {query}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
        }
    }
}

#[test]
fn every_alert_says_what_is_wrong_and_what_to_do() {
    // YAML is for promtool to check (tests/e2e/node_metrics.bats); here only that nothing was
    // forgotten.
    let rules = read(RULES);
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 8);
    let tested = read(RULES_TEST);
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        for part in ["expr:", "severity:", "summary:", "description:", "action:"] {
            assert!(alert.contains(part), "{name} has no {part}");
        }
        assert!(tested.contains(&format!("alertname: {name}\n")), "{name} is not tested");
    }
}
