//! A node of one card, for tests of the state and of the daemon.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::collections::{BTreeMap, BTreeSet};

use mpsgate_api::{Engine, Reserve};
use mpsgate_model::ledger::{CgroupId, Ledger, ProcessId};
use mpsgate_model::{
    ComputeMode, ContainerId, DeviceNode, GpuUuid, GrantKey, Instance, Mib, Priority, Request,
};
use mpsgate_node::card::{Card, Ends, Health, ManagedBy, Watched};
use mpsgate_node::{Machine, Node};

pub(crate) const HOLDER: ProcessId = ProcessId { pid: 7, start_time: 1 };
pub(crate) const INIT: ProcessId = ProcessId { pid: 8, start_time: 2 };

pub(crate) fn uuid(n: u8) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-000000{n:02x}-0000-0000-0000-000000000000")).unwrap()
}

/// A machine on which these processes live, and no cgroup holds any.
pub(crate) struct Living(pub(crate) &'static [ProcessId]);

impl Machine for Living {
    fn is_alive(&self, process: &ProcessId) -> bool {
        self.0.contains(process)
    }

    fn describe(&self, pid: u32) -> String {
        format!("pid {pid}")
    }

    fn is_empty_but_for(&self, _: &CgroupId, _: &BTreeSet<u64>) -> bool {
        true
    }

    fn processes(&self, _: &CgroupId) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    fn may_be_same(&self, _: &CgroupId) -> bool {
        true
    }

    fn majors(&self) -> BTreeMap<String, u32> {
        BTreeMap::new()
    }

    fn has(&self, _: &DeviceNode) -> bool {
        true
    }
}

pub(crate) const ALL: Living = Living(&[HOLDER, INIT]);

/// One ready card of 15 GiB.
pub(crate) fn node() -> Node {
    let mut node = Node::new(Ledger::default());
    node.cards.push(Card {
        uuid: uuid(0),
        index: 0,
        minor: 3,
        name: "Tesla T4".to_owned(),
        total: Mib(16 * 1024),
        memory: Mib(15 * 1024),
        used: Mib(0),
        compute_mode: Some(ComputeMode::ExclusiveProcess),
        managed: Some(ManagedBy::Settings),
        health: Health::Ready,
        lost: None,
        closed: None,
        ends: Ends::Doors("/run/mpsgate/mps/3/clients".to_owned()),
        max_clients: 48,
        multiuser: false,
        server_uid: None,
        serverless: false,
        shared_memory: None,
        watched: Watched::default(),
        unlimited: None,
        qualified: Default::default(),
        gate: None,
        gate_process: None,
        cap: Mib(0),
        mps: None,
    });
    node
}

pub(crate) fn call(container: &str, gib: u64) -> Reserve {
    Reserve {
        key: GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse(container).unwrap(),
            instance: Instance::from_bytes([1; 16]),
        },
        request: Request {
            memory: Some(Mib(gib * 1024)),
            cards: std::num::NonZeroU32::MIN,
            gpu: None,
            compute: None,
            priority: Priority::Normal,
            uid: None,
            token: None,
        },
        uid: 0,
        engine: Engine::Local,
        pod: None,
        for_parent: false,
        user: None,
    }
}
