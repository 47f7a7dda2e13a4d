//! Turns a request that the spec allows into a grant: asks the daemon, makes the edits, and writes
//! the record for the hook and for `exec`.

use std::path::Path;
use std::time::Duration;

use mpsgate_api::{Call, Client, Engine, ExecRecord, FILES_FORMAT, NoStatus, Reply, Reserve};
use mpsgate_config::{ConfigError, paths};
use mpsgate_host::crash_point;
use mpsgate_model::{Cdi, Code, ContainerId, DeviceNode, Grant, GrantKey, Instance, Refusal};
use mpsgate_oci::spec::{Edit, View};
use mpsgate_policy::{Caller, Cards, Injector, NVIDIA_MAJOR, Node, Wanted, grant_edits, grant_env};

use crate::engine_log::{Refused, chain};
use crate::evaluate::Evaluation;
use crate::marks::mark_precreate;
use crate::{facts, grant_record};

/// How long a card may take to become ready while the daemon reports progress. It is above the
/// daemon's own `mps.start_timeout_s`, because that one's text says more.
const RESERVE_LIMIT: Duration = Duration::from_secs(130);

/// The instance that is about to start.
pub(crate) struct Starting<'a> {
    pub(crate) container: &'a str,
    pub(crate) runtime_root: String,
    pub(crate) caller: Caller,
    /// The parent process holds the reservation, because this one ends before the container is
    /// made.
    pub(crate) for_parent: bool,
}

/// Reserves memory for a container and returns the edits that bring the grant into it.
pub(crate) fn obtain(
    starting: Starting<'_>,
    evaluation: &Evaluation,
    view: View<'_>,
    wanted: &Wanted,
) -> Result<Vec<Edit>, Refused> {
    if let Some(error) = &evaluation.broken {
        return Err(config_refusal(error).into());
    }
    let by_hook = starting.for_parent;
    let (grant, cdi) = reserve(starting, view, wanted)?;
    crash_point!("shim.reserved");
    let injector =
        Injector::choose(evaluation.settings.inject.mode, evaluation.runtime_is_nvidia, view, cdi)?;
    let mut edits = grant_edits(view, wanted, &grant, &injector, paths::HOOK)?;
    facts::nodes_to_bind(view, &mut edits)?;
    if by_hook {
        mark_precreate(&mut edits);
    }
    let (drop, set) = grant_env(wanted, &grant, &injector);
    let closed = closed(&evaluation.node, &grant);
    grant_record::write(&ExecRecord { format: FILES_FORMAT, grant, drop, set, closed })?;
    crash_point!("shim.recorded");
    Ok(edits)
}

fn config_refusal(error: &ConfigError) -> Refusal {
    Refusal::new(
        Code::Config,
        format!(
            "it asks for GPU memory, but mpsgate's configuration cannot be used: {}",
            chain(error)
        ),
        error.hint(),
    )
}

fn reserve(
    starting: Starting<'_>,
    view: View<'_>,
    wanted: &Wanted,
) -> Result<(Grant, Cdi), Refused> {
    let bad_id = |why: String| {
        Refusal::new(
            Code::Spec,
            format!("it asks for GPU memory, but {why}"),
            "use letters, digits, _ + - and . only",
        )
    };
    let container_id = ContainerId::parse(starting.container).map_err(|e| bad_id(e.to_string()))?;
    let key = GrantKey { runtime_root: starting.runtime_root, container_id, instance: instance()? };
    let call = Call::Reserve(Reserve {
        key,
        request: wanted.request.clone(),
        uid: wanted.uid,
        engine: if starting.caller.is_kubernetes() { Engine::Kubernetes } else { Engine::Local },
        pod: starting.caller.pod(view),
        for_parent: starting.for_parent,
        user: None,
    });
    crash_point!("shim.before_reserve");
    match Client::ask::<NoStatus>(Path::new(paths::SOCKET), &call, None, RESERVE_LIMIT) {
        Ok(Reply::Reserved { grant, cdi }) => Ok((*grant, *cdi)),
        Ok(Reply::Refused(refusal)) => {
            Err(Refused { refusal: refusal.into(), by_daemon: true, pod: None })
        }
        Ok(_) => Err(mpsgate_api::ApiError::Unexpected.refusal().into()),
        Err(error) => Err(error.refusal().into()),
    }
}

fn instance() -> Result<Instance, Refusal> {
    match mpsgate_host::random::bytes() {
        Ok(bytes) => Ok(Instance::from_bytes(bytes)),
        Err(error) => Err(Refusal::new(
            Code::Spec,
            format!("the kernel gives no random bytes: {error}"),
            "start the container again when the node has booted",
        )),
    }
}

/// Nodes of the managed cards that were not granted: the hook proves that they are closed.
fn closed(node: &Node, grant: &Grant) -> Vec<DeviceNode> {
    managed_nodes(node)
        .into_iter()
        .filter(|node| grant.cards.iter().all(|granted| granted.minor != node.minor))
        .collect()
}

/// Nodes of the managed cards; none if the daemon has not named these.
pub(crate) fn managed_nodes(node: &Node) -> Vec<DeviceNode> {
    let Cards::Known(cards) = &node.cards else { return Vec::new() };
    let managed = cards.iter().filter(|card| card.managed);
    managed
        .map(|card| DeviceNode {
            path: format!("/dev/nvidia{}", card.minor),
            major: NVIDIA_MAJOR,
            minor: card.minor,
        })
        .collect()
}
