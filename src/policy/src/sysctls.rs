//! A procfs of its own in which a container writes `/proc/sys`: what `core_pattern` names there the
//! kernel executes as root of the node. Engines make it read-only by `linux.readonlyPaths`, unless
//! they are asked not to.

use std::collections::HashMap;

use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::spec::ReadOnly;

use crate::found::Note;
use crate::input::Input;
use crate::path::{clean, inside};
use crate::users;

const PROCFS: &str = "proc";

/// A request with one.
pub(crate) fn refuses_request(input: &Input<'_>) -> Option<Refusal> {
    let place = open(input)?;
    Some(Refusal::new(
        Code::Capability,
        format!(
            "it asks for GPU memory and may write {}, by which it has the host run programs (core_pattern), so that no \
             limit would hold",
            printable::value(&place)
        ),
        "remove what opens it (docker run --security-opt systempaths=unconfined, podman run --security-opt unmask=ALL, \
         procMount: Unmasked in a pod's securityContext), or give it a user namespace (hostUsers: false)",
    ))
}

/// One without a request. Who may mount makes it writable by itself.
pub(crate) fn note(input: &Input<'_>) -> Option<Note> {
    if input.view.may_gain("CAP_SYS_ADMIN") || input.caller.is_sandbox(input.view) {
        return None;
    }
    let place = open(input)?;
    let text = format!(
        "it may write {}, by which it has the host run programs (SECURITY.md, row 33b)",
        printable::value(&place)
    );
    Some(Note::noted(Code::Capability, text))
}

/// The place of a `/proc/sys` that root of the host, as whom the container's runs, can write.
fn open(input: &Input<'_>) -> Option<String> {
    let view = input.view;
    if users::host_uid(view, &input.users, 0) != Ok(0) {
        return None;
    }
    // By its place, how many mounts come before the last one that closes it.
    let mut closed: HashMap<String, usize> = HashMap::new();
    for (at, mount) in view.mount_entries().enumerate() {
        if mount.read_only() != ReadOnly::No {
            closed.insert(inside(mount.destination).into_owned(), at);
        }
    }
    for path in view.closed_paths() {
        closed.insert(clean(path).into_owned(), usize::MAX);
    }
    view.mount_entries().enumerate().find_map(|(at, mount)| {
        if mount.kind != PROCFS || mount.is_bind() || mount.read_only() != ReadOnly::No {
            return None;
        }
        let place = inside(mount.destination);
        let sys = format!("{}/sys", place.trim_end_matches('/'));
        let is_closed = |path: &str| closed.get(path).is_some_and(|closed| *closed > at);
        (!is_closed(&place) && !is_closed(&sys)).then_some(sys)
    })
}

#[cfg(test)]
mod tests {
    use mpsgate_config::Policy;
    use mpsgate_oci::spec::View;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Action, Caller, Ipc, Node, Pids, Shm, Unruled, Users};

    fn opened(spec: &Value) -> Option<String> {
        open(&Input {
            view: View::new(spec),
            node: &Node::unknown(),
            policy: &Policy::default(),
            requests_from_env: false,
            mounts: &[],
            ipc: Ipc::Unknown,
            shm: Shm::Unknown,
            users: Users::OfSpec,
            pids: Pids::Own,
            unruled: Unruled::Closed,
            caller: Caller::Local,
            action: Action::Create,
            runtime_is_nvidia: false,
        })
    }

    #[test]
    fn a_procfs_is_open_where_nothing_that_comes_later_closes_it() {
        let proc = |at: &str| json!({ "destination": at, "type": "proc", "source": "proc" });
        let closing = |at: &str| json!({ "destination": at, "type": "bind", "source": "/x", "options": ["rbind", "ro"] });
        let none: &[&str] = &[];
        for (mounts, paths, found) in [
            (json!([proc("/proc")]), none, Some("/proc/sys")),
            (json!([proc("proc/")]), &["/proc/kcore", "/proc/sys/fs"], Some("/proc/sys")),
            (json!([proc("/proc")]), &["/proc/bus", "/proc/sys/"], None),
            (json!([proc("/proc")]), &["/proc"], None),
            (json!([proc("/proc")]), &["/"], Some("/proc/sys")),
            (json!([proc("/proc"), proc("/x")]), &["/proc/sys"], Some("/x/sys")),
            (json!([proc("/proc"), closing("/proc/sys")]), none, None),
            (json!([closing("/proc/sys"), proc("/proc")]), none, Some("/proc/sys")),
            (json!([{"destination": "/proc", "type": "proc", "options": ["ro"]}]), none, None),
            // Nothing of the kernel's, and what is evaluated as a mount of the node's.
            (json!([{"destination": "/proc", "type": "tmpfs"}]), none, None),
            (
                json!([{"destination": "/proc", "type": "proc", "source": "/proc", "options": ["bind"]}]),
                none,
                None,
            ),
            (json!([]), none, None),
        ] {
            for list in ["maskedPaths", "readonlyPaths"] {
                let spec = json!({ "mounts": mounts, "linux": { list: paths } });
                assert_eq!(opened(&spec).as_deref(), found, "{spec}");
            }
        }
    }

    #[test]
    fn in_a_user_namespace_the_hosts_root_is_nobody_unless_it_is_mapped() {
        for (host, found) in [(100_000, None), (0, Some("/proc/sys"))] {
            let spec = json!({
                "mounts": [{ "destination": "/proc", "type": "proc" }],
                "linux": {
                    "namespaces": [{ "type": "user" }],
                    "uidMappings": [{ "containerID": 0, "hostID": host, "size": 65536 }]
                }
            });
            assert_eq!(opened(&spec).as_deref(), found, "{spec}");
        }
    }
}
