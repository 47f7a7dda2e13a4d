//! `create`, `run` and `restore`: the life of a container up to the real runtime.

use std::io::Read;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Duration;

use mpsgate_allocation::{Cdi, ContainerId, DeviceNode, Grant, GrantKey, Instance};
use mpsgate_api::{Call, Client, ExecRecord, FILES_FORMAT, Reply, Reserve};
use mpsgate_config::{Config, ConfigError, Switch, paths};
use mpsgate_crashpoint::crash_point;
use mpsgate_oci::argv::{Invocation, Verb};
use mpsgate_oci::spec::{self, Document, Edit, Mount, Seen};
use mpsgate_policy::{
    Action, Cards, Code, Injector, Input, NVIDIA_MAJOR, Node, Refusal, Verdict, Wanted, decide,
    grant_edits, grant_env, may_matter,
};

use crate::bundle::Bundle;
use crate::report::{Refused, Report, chain};
use crate::{exec, facts, process, record};

/// How long a card may take to become ready, where the daemon reports progress. Above the daemon's own
/// `mps.start_timeout_s`, whose text says more.
const RESERVE_LIMIT: Duration = Duration::from_secs(130);

/// Decides about the container and leaves its bundle as the real runtime shall find it.
pub(crate) fn prepare(invocation: &Invocation) -> Result<(), Refused> {
    process::ensure_standard_descriptors();
    let bundle = Bundle::load(&Bundle::path_of(invocation))?;
    if bundle.bytes.as_deref().is_some_and(is_none_of_ours) {
        return Ok(());
    }
    let Some(document) = readable(&bundle)? else { return Ok(()) };
    // Its memory goes with this image; to give it back piece by piece takes as long as to write it.
    let mut document = ManuallyDrop::new(document);
    let view = document.view();
    let mounts = facts::mounts(view.mounts());

    let config = Config::load(Path::new(paths::CONFIG_FILE));
    let defaults = Config::default();
    let settings = config.as_ref().unwrap_or(&defaults);
    let (node, kubelet) = facts::node(settings);
    let runtime = exec::runtime_path();
    let runtime_is_nvidia = runtime
        .as_deref()
        .and_then(Path::file_name)
        .is_some_and(|name| name.to_string_lossy().starts_with("nvidia-container-runtime"));
    let decision = decide(&Input {
        view,
        node: &node,
        policy: &settings.policy,
        requests_from_env: match settings.requests.from_env {
            Switch::On => true,
            Switch::Off => false,
            Switch::Auto => !kubelet,
        },
        mounts: &mounts,
        ipc: facts::ipc(view),
        action: if invocation.verb == Verb::Restore { Action::Restore } else { Action::Create },
        runtime_is_nvidia,
    });
    let report = Report::of(invocation);
    for note in &decision.notes {
        let code = decision.signals.iter().find(|s| note.starts_with(&s.found)).map(|s| s.code);
        report.noted("noted", code.unwrap_or(Code::MpsMount), note);
    }
    match decision.verdict {
        Verdict::Pass => Ok(()),
        Verdict::Refuse(refusal) => Err(refusal.into()),
        Verdict::Edit(edits) => Ok(edit(&bundle, &mut document, &edits)?),
        Verdict::Reserve(wanted) => {
            let settings = config.as_ref().map_err(config_refusal)?;
            let root = facts::runtime_root(invocation, runtime.as_deref());
            let (grant, cdi) = reserve(invocation, root, &wanted)?;
            crash_point!("shim.reserved");
            let injector = Injector::choose(settings.inject.mode, runtime_is_nvidia, view, cdi)?;
            let edits = grant_edits(view, &wanted, &grant, &injector, paths::HOOK)?;
            let (drop, set) = grant_env(&wanted, &grant, &injector);
            let closed = closed(&node, &grant);
            record::write(&ExecRecord { format: FILES_FORMAT, grant, drop, set, closed })?;
            crash_point!("shim.recorded");
            edit(&bundle, &mut document, &edits)?;
            crash_point!("shim.edited");
            Ok(())
        }
    }
}

/// Whether a document asks for nothing of ours and shows no signal, which is the case of nearly every
/// container. Builds no tree: that alone would take as long as all the rest of a pass-through.
fn is_none_of_ours(bytes: &[u8]) -> bool {
    let mut matters = false;
    let mut binds = Vec::new();
    let read = spec::glance(bytes, |seen| {
        matters |= may_matter(&seen);
        if let Seen::Mount(mount) = seen
            && mount.is_bind
        {
            binds.push((mount.source.to_owned(), mount.destination.to_owned()));
        }
    });
    let mounts =
        binds.iter().map(|(source, destination)| Mount { source, destination, is_bind: true });
    read.is_ok() && !matters && facts::mounts(mounts).is_empty()
}

/// The document; `None` where it cannot be parsed but names nothing of ours: the runtime shall judge it.
fn readable(bundle: &Bundle) -> Result<Option<Document>, Refusal> {
    let why = match &bundle.bytes {
        None => bundle.too_large(),
        Some(bytes) => match spec::parse(bytes) {
            Ok(document) => return Ok(Some(document)),
            Err(error) if error.is_hopeless() => return Err(bundle.unreadable(&chain(&error))),
            Err(error) => chain(&error),
        },
    };
    match bundle.mentions_gpus() {
        Ok(false) => Ok(None),
        Ok(true) => Err(bundle.unreadable(&why)),
        Err(error) => Err(bundle.unreadable(&format!("{why}, and {error}"))),
    }
}

fn edit(bundle: &Bundle, document: &mut Document, edits: &[Edit]) -> Result<(), Refusal> {
    document.apply(edits).map_err(|error| bundle.unreadable(&chain(&error)))?;
    bundle.store(document)
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
    invocation: &Invocation,
    runtime_root: String,
    wanted: &Wanted,
) -> Result<(Grant, Cdi), Refused> {
    let bad_id = |why: String| {
        Refusal::new(
            Code::Spec,
            format!("it asks for GPU memory, but {why}"),
            "use letters, digits, _ + - and . only",
        )
    };
    let id = invocation.container_id.as_deref().unwrap_or_default().to_string_lossy();
    let container_id = ContainerId::parse(&id).map_err(|e| bad_id(e.to_string()))?;
    let key = GrantKey { runtime_root, container_id, instance: instance()? };
    let call = Call::Reserve(Reserve {
        key,
        request: wanted.request.clone(),
        uid: wanted.uid,
        engine: facts::engine(invocation),
    });
    crash_point!("shim.before_reserve");
    match Client::ask(Path::new(paths::SOCKET), &call, None, RESERVE_LIMIT) {
        Ok(Reply::Reserved { grant, cdi }) => Ok((*grant, *cdi)),
        Ok(Reply::Refused(refusal)) => Err(Refused { refusal: refusal.into(), by_daemon: true }),
        Ok(_) => Err(mpsgate_api::ApiError::Unexpected.refusal().into()),
        Err(error) => Err(error.refusal().into()),
    }
}

fn instance() -> Result<Instance, Refusal> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    match read {
        Ok(()) => Ok(Instance::from_bytes(bytes)),
        Err(error) => Err(Refusal::new(
            Code::Spec,
            format!("/dev/urandom cannot be read: {error}"),
            "check that /dev of the engine's mount namespace is complete",
        )),
    }
}

/// Nodes of the managed cards that were not granted: the hook proves them closed.
fn closed(node: &Node, grant: &Grant) -> Vec<DeviceNode> {
    let Cards::Known(cards) = &node.cards else { return Vec::new() };
    let others = cards
        .iter()
        .filter(|card| card.managed && grant.cards.iter().all(|granted| granted.uuid != card.uuid));
    others
        .map(|card| DeviceNode {
            path: format!("/dev/nvidia{}", card.minor),
            major: NVIDIA_MAJOR,
            minor: card.minor,
        })
        .collect()
}
