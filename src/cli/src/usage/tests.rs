#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

use mpsgate_api::GrantUsage;
use mpsgate_model::PodContainer;
use mpsgate_testing::golden;

use super::*;

const GIB_DAY: u64 = (1 << 20) * 86_400_000;
const CARD: &str = "GPU-00000000-0000-0000-0000-000000000000";

fn pod(namespace: &str, pod: &str) -> Option<PodContainer> {
    Some(PodContainer {
        uid: "1".to_owned(),
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        container: "main".to_owned(),
    })
}

fn grant(id: &str, pod: Option<PodContainer>, uid: u32, gib: u64) -> GrantUsage {
    GrantUsage {
        container_id: id.to_owned(),
        pod,
        card: CARD.to_owned(),
        uid,
        looked_ms: 86_400_000,
        told_ms: 86_400_000,
        granted: gib * GIB_DAY,
        used: gib * GIB_DAY / 2,
    }
}

fn day(name: &str) -> UsageDay {
    let mut day = UsageDay::new(name.to_owned());
    let card = CardUsage {
        index: 0,
        looked_ms: 86_400_000,
        told_ms: 82_800_000,
        memory: CardMemory {
            used: 12 * GIB_DAY,
            containers: 7 * GIB_DAY,
            servers: GIB_DAY / 2,
            others: GIB_DAY,
            nobody: 4 * GIB_DAY,
            counted_twice: GIB_DAY / 2,
        },
    };
    day.cards.insert(CARD.to_owned(), card);
    let untold = GrantUsage { told_ms: 82_800_000, ..grant("local", None, 1000, 2) };
    for (at, grant) in [
        grant("web-1", pod("shop", "web-0"), 0, 7),
        grant("web-2", pod("shop", "web-0"), 0, 4),
        grant("train", pod("lab", "train-0"), 0, 1),
        untold,
        grant("=cmd()", pod("evil\u{1b}", "a,\"b\""), 1000, 0),
    ]
    .into_iter()
    .enumerate()
    {
        day.grants.insert(UsageDay::key(CARD, &at.to_string()), grant);
    }
    day
}

#[test]
fn every_form_of_the_answer() {
    let days = [day("2026-11-25"), day("2026-11-26")];
    let mut text = String::new();
    for by in [UsageBy::Container, UsageBy::Pod, UsageBy::Namespace, UsageBy::User, UsageBy::Gpu] {
        for output in [UsageOutput::Table, UsageOutput::Csv, UsageOutput::Json] {
            let days = if by == UsageBy::Gpu { &days } else { &days[..1] };
            // One document shows their form.
            if output != UsageOutput::Json || matches!(by, UsageBy::Namespace | UsageBy::Gpu) {
                let _ =
                    write!(text, "# {by:?} {output:?}\n{}\n", answer(days, by, output).unwrap());
            }
        }
    }
    golden::compare(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/usage.txt"), &text);
}

fn args(directory: &Path, from: Option<&str>, to: Option<&str>) -> UsageArgs {
    UsageArgs {
        from: from.map(str::to_owned),
        to: to.map(str::to_owned),
        by: UsageBy::Container,
        output: UsageOutput::Table,
        directory: directory.to_owned(),
    }
}

#[test]
fn the_last_day_is_shown_where_none_is_named_and_others_as_named() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["2026-10-31", "2026-11-01", "2026-11-26"] {
        let text = serde_json::to_vec(&day(name)).unwrap();
        std::fs::write(dir.path().join(format!("{name}.json")), text).unwrap();
    }
    std::fs::write(dir.path().join("2026-11-02.unreadable"), "{").unwrap();
    let found = |from, to| -> Vec<String> {
        let days = days(&args(dir.path(), from, to)).unwrap();
        days.into_iter().map(|day| day.day).collect()
    };
    assert_eq!(found(None, None), ["2026-11-26"]);
    assert_eq!(found(Some("2026-11-01"), None), ["2026-11-01", "2026-11-26"]);
    assert_eq!(found(None, Some("2026-11-01")), ["2026-11-01"]);
    assert_eq!(found(Some("2026-10-01"), Some("2026-10-31")), ["2026-10-31"]);
    for (from, to) in [(Some("2027-01-01"), None), (Some("2026-11-27"), Some("2026-11-01"))] {
        let error = days(&args(dir.path(), from, to)).unwrap_err();
        assert!(matches!(error, UsageError::None { .. }), "{error}");
    }
    std::fs::write(dir.path().join("2026-11-26.json"), "{\"format\":2}").unwrap();
    let error = days(&args(dir.path(), None, None)).unwrap_err();
    assert!(error.hint().contains("2026-11-26.json"), "{}", error.hint());
    let error = days(&args(&dir.path().join("none"), None, None)).unwrap_err();
    assert!(error.hint().contains("after 30 s"), "{}", error.hint());
}
