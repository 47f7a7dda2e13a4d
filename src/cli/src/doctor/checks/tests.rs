//! Every check sees a healthy node, and a node with one thing broken.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_api::{FILES_FORMAT, NodeSnapshot, Status};
use mpsgate_config::{Config, Manage, Origin};
use mpsgate_gpu::{Card, MigState};
use mpsgate_model::{ComputeMode, GpuUuid, NodeCard, QUESTIONS, Qualification, Subject};

use super::*;
use crate::doctor::doctor_node::{Cgroup, NvmlFacts};
use crate::doctor::trouble::Known;
use crate::status::tests as of_status;

pub(super) const UUID: &str = "GPU-00000000-0000-0000-0000-000000000000";
pub(super) const OTHER: &str = "GPU-11111111-1111-1111-1111-111111111111";
pub(super) const IPC: u64 = 4_026_531_839;
pub(super) const FAIL: Outcome = Outcome::Fail;
pub(super) const WARN: Outcome = Outcome::Warn;

pub(super) fn trouble<T>(what: &str) -> Known<T> {
    Err(Trouble::new(what))
}

pub(super) fn card() -> Card {
    Card {
        uuid: UUID.to_owned(),
        index: 0,
        minor: 0,
        name: "Tesla T4".to_owned(),
        memory_total_mib: 16384,
        memory_used_mib: 0,
        compute_capability: (7, 5),
        mig: MigState::Unsupported,
        compute_mode: ComputeMode::ExclusiveProcess,
        pci_bus_id: "00000000:3B:00.0".to_owned(),
    }
}

fn status() -> Status {
    let mut card = of_status::card(0);
    card.qualification = Some(Qualification::new(
        Subject {
            card: GpuUuid::parse(UUID).unwrap(),
            driver: "550.163.01".to_owned(),
            control: String::new(),
            questions: QUESTIONS,
            simulated: false,
        },
        Vec::new(),
    ));
    Status { version: env!("CARGO_PKG_VERSION").to_owned(), ..of_status::status(vec![card]) }
}

fn snapshot() -> NodeSnapshot {
    NodeSnapshot {
        format: FILES_FORMAT,
        ipc_inode: IPC,
        shm: Some((1, 2)),
        shared_memory: String::new(),
        kubelet: false,
        cards: vec![NodeCard {
            uuid: GpuUuid::parse(UUID).unwrap(),
            index: 0,
            minor: 0,
            managed: true,
        }],
        majors: BTreeMap::new(),
        swarm_resources: Vec::new(),
        annotation_prefixes: Vec::new(),
        other_nodes: Vec::new(),
        device_plugin: false,
        share: false,
    }
}

/// A healthy one.
pub(super) fn node() -> Node {
    Node {
        root: "/nonexistent".into(),
        euid: 0,
        config: Ok((Config::default(), Origin::Defaults)),
        nvml: Ok(NvmlFacts {
            driver: Ok("550.163.01".to_owned()),
            simulated: false,
            cards: Ok(vec![Ok(card())]),
            limits: true,
        }),
        daemon: Ok(status()),
        snapshot: Ok(Some(snapshot())),
        enabled: Ok([UUID.to_owned()].into()),
        cgroup: Cgroup::V2 { dmem: true },
    }
}

/// After the installation.
pub(super) fn nothing_managed() -> Node {
    let mut node = node();
    node.said().cards.get_mut(0).unwrap().managed = false;
    node.snapshot.as_mut().unwrap().as_mut().unwrap().cards.get_mut(0).unwrap().managed = false;
    node.with_card(|card| card.compute_mode = ComputeMode::Default);
    node
}

impl Node {
    /// What mpsgated says.
    pub(super) fn said(&mut self) -> &mut Status {
        self.daemon.as_mut().unwrap()
    }

    pub(super) fn nvml(&mut self) -> &mut NvmlFacts {
        self.nvml.as_mut().unwrap()
    }

    pub(super) fn with_card(&mut self, change: impl FnOnce(&mut Card)) {
        let mut card = card();
        change(&mut card);
        self.nvml().cards = Ok(vec![Ok(card)]);
    }
}

/// What is broken, and what the finding then says: result, evidence, hint.
pub(super) type Case<F> = (fn(&mut F, &mut Node), Outcome, &'static str, &'static str);

fn is_red(finding: &Finding) -> bool {
    matches!(finding.result, Outcome::Warn | Outcome::Fail)
}

fn all_of(found: Found) -> Vec<Finding> {
    found.unwrap_or_else(|finding| vec![finding])
}

/// It has something to say, and nothing that is to be done.
#[track_caller]
pub(super) fn assert_calm(found: Found) -> Vec<Finding> {
    let found = all_of(found);
    assert!(!found.is_empty() && !found.iter().any(is_red), "{found:#?}");
    found
}

/// The check is well on a healthy node, and red once for whatever is broken. Who finds something
/// says what to do.
#[track_caller]
pub(super) fn turns_red<F>(
    name: &str,
    judge: impl Fn(F, &Node) -> Found,
    healthy: impl Fn() -> F,
    cases: &[Case<F>],
) {
    let well = assert_calm(judge(healthy(), &node()));
    assert!(well.iter().all(|f| (f.result, &f.hint) == (Outcome::Ok, &None)), "{name}: {well:#?}");
    for (break_it, result, evidence, hint) in cases {
        let (mut facts, mut node) = (healthy(), node());
        break_it(&mut facts, &mut node);
        let findings = all_of(judge(facts, &node));
        let red: Vec<_> = findings.iter().filter(|finding| is_red(finding)).collect();
        let [finding] = red.as_slice() else { panic!("{name}, {evidence}: {findings:#?}") };
        assert_eq!(finding.result, *result, "{finding:?}");
        assert!(finding.evidence.contains(evidence), "{evidence}: {finding:?}");
        assert!(finding.hint.as_deref().unwrap_or_default().contains(hint), "{finding:?}");
        assert!(findings.iter().all(|f| is_red(f) == f.hint.is_some()), "{findings:#?}");
    }
}

#[test]
fn no_check_is_without_a_broken_node() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doctor/checks"));
    let texts = files.unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let texts: String = texts.collect();
    for (name, _) in CHECKS {
        assert!(texts.contains(&format!("turns_red(\"{name}\"")), "{name}");
    }
}

#[test]
fn the_hint_of_an_error_is_better_than_that_of_its_check() {
    let known = Trouble { hint: Some("known here: gpus".to_owned()), ..Trouble::new("x") };
    assert_eq!(failed(&known, "otherwise").hint.as_deref(), Some("known here: gpus"));
    assert_eq!(failed(&Trouble::new("x"), "otherwise").hint.as_deref(), Some("otherwise"));
}

#[test]
fn who_manages_is_asked_of_the_daemon_then_the_snapshot_then_the_settings() {
    let mut node = node();
    node.said().cards.clear();
    assert!(node.managed().is_empty());
    node.daemon = trouble("down");
    assert_eq!(node.managed(), [UUID.to_owned()].into());
    node.snapshot = Ok(None);
    assert_eq!(node.managed(), [UUID.to_owned()].into());
    node.enabled = Ok(BTreeSet::new());
    assert!(node.managed().is_empty());
    node.config.as_mut().unwrap().0.gpus.manage = Manage::Uuids(vec![OTHER.to_owned()]);
    assert_eq!(node.managed(), [OTHER.to_owned()].into());
    node.config.as_mut().unwrap().0.gpus.manage = Manage::All;
    assert_eq!(node.managed(), [UUID.to_owned()].into());
}
