//! A node of one card, for tests of the state and of the daemon.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use mpsgate_api::{ControlState, Engine, Reserve};
use mpsgate_model::ledger::{CgroupId, Ledger, ProcessId};
use mpsgate_model::{
    ComputeMode, ContainerId, DeviceNode, GpuUuid, GrantKey, Instance, Mib, Priority, Request,
};
use mpsgate_node::card::{CardEvent, Control, Ends, Seen, View};
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

/// A card of 15 GiB that the settings hand over, as NVML shows it.
pub(crate) fn seen(index: u32, minor: u32) -> Seen {
    Seen {
        index,
        minor,
        name: "Tesla T4".to_owned(),
        total: Mib(16 * 1024),
        memory: Mib(15 * 1024),
        used: Mib(0),
        compute_mode: ComputeMode::ExclusiveProcess,
        is_named: true,
    }
}

/// A control daemon that answers and has no server.
pub(crate) fn control(multiuser: bool) -> Control {
    Control {
        pid: 300,
        adopted: false,
        multiuser,
        max_clients: 48,
        ends: Ends::Doors("/run/mpsgate/mps/3/clients".to_owned()),
        limit: Mib(0),
        view: View::new(ControlState::Running, Vec::new()),
    }
}

/// What happens to a card, where nobody looks at what follows.
pub(crate) fn happens(node: &mut Node, n: u8, event: CardEvent) {
    node.apply(&uuid(n), event, now(), &mut Vec::new());
}

/// One more ready card, whose control daemon serves one uid at a time.
pub(crate) fn add_card(node: &mut Node, n: u8) {
    happens(node, n, CardEvent::Seen(Box::new(seen(n.into(), u32::from(n) + 3))));
    happens(node, n, CardEvent::Answers(Box::new(control(false))));
}

/// One ready card of 15 GiB.
pub(crate) fn node() -> Node {
    let mut node = Node::new(Ledger::default());
    add_card(&mut node, 0);
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

/// Some time: an `Instant` is had from the clock alone.
#[allow(clippy::disallowed_methods, reason = "what is decided by it is counted from it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
