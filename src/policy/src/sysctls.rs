//! A procfs of its own in which a container writes what is the whole host's: `/proc/sys`, and
//! `/proc/bus`. The kernel asks for no capability there, only for the host's root. Engines make
//! them read-only by `linux.readonlyPaths`, unless they are asked not to.

use std::collections::HashMap;

use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::spec::ReadOnly;

use crate::container_uid;
use crate::found::Note;
use crate::input::Input;
use crate::path::{clean, inside};

const PROCFS: &str = "proc";
/// What is closed in a procfs, and what who writes it can do. `glance` has the same names.
const OPEN: [(&str, &str); 2] = [
    ("sys", "have the host run programs by core_pattern"),
    // The kernel's `proc_bus_pci_write`.
    ("bus", "change the PCI registers of every GPU"),
];

/// A request with one.
pub(crate) fn refuses_request(input: &Input<'_>) -> Option<Refusal> {
    Some(Refusal::new(
        Code::Capability,
        format!("it asks for GPU memory and {}", found(input)?),
        "remove what opens it (docker run --security-opt systempaths=unconfined, podman run --security-opt unmask=…, \
         procMount: Unmasked in a pod's securityContext, linux.readonlyPaths without it), or give it a user namespace \
         (hostUsers: false)",
    ))
}

/// One without a request. Who may mount makes it writable by itself.
pub(crate) fn note(input: &Input<'_>) -> Option<Note> {
    if input.view.may_gain("CAP_SYS_ADMIN") || input.caller.is_sandbox(input.view) {
        return None;
    }
    let text = format!("it {} (SECURITY.md, row 33b)", found(input)?);
    Some(Note::noted(Code::Capability, text))
}

fn found(input: &Input<'_>) -> Option<String> {
    let (place, what) = open(input)?;
    Some(format!("may write {}, and so {what}", printable::value(&place)))
}

/// A place in a procfs that the host's root, as whom one of the container's processes may run, can
/// write; with what that does.
fn open(input: &Input<'_>) -> Option<(String, &'static str)> {
    let view = input.view;
    if !container_uid::may_be_root(view, &input.users) {
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
        // With `subset=pid` it has none of them.
        if mount.kind != PROCFS
            || mount.is_bind()
            || mount.read_only() != ReadOnly::No
            || mount.has("subset=pid")
        {
            return None;
        }
        let place = inside(mount.destination);
        let is_open = |path: &str| closed.get(path).is_none_or(|closed| *closed <= at);
        OPEN.into_iter().filter(|_| is_open(&place)).find_map(|(name, what)| {
            let path = format!("{}/{name}", place.trim_end_matches('/'));
            is_open(&path).then_some((path, what))
        })
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
        let input = Input {
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
        };
        open(&input).map(|(place, _)| place)
    }

    #[test]
    fn a_procfs_is_open_where_nothing_that_comes_later_closes_it() {
        let proc = |at: &str| json!({ "destination": at, "type": "proc", "source": "proc" });
        let closing = |at: &str| json!({ "destination": at, "type": "bind", "source": "/x", "options": ["rbind", "ro"] });
        let none: &[&str] = &[];
        let all: &[&str] = &["/proc/bus", "/proc/sys"];
        for (mounts, paths, found) in [
            (json!([proc("/proc")]), none, Some("/proc/sys")),
            (json!([proc("proc/")]), &["/proc/kcore", "/proc/sys/fs"], Some("/proc/sys")),
            (json!([proc("/proc")]), all, None),
            (json!([proc("/proc")]), &["/proc/./sys/", "/proc//bus"], None),
            (json!([proc("/proc")]), &["/proc/sys", "/proc/bus/pci"], Some("/proc/bus")),
            (json!([proc("/proc")]), &["/proc"], None),
            (json!([proc("/proc")]), &["/"], Some("/proc/sys")),
            (json!([proc("/proc"), proc("/x")]), all, Some("/x/sys")),
            (json!([proc("/proc"), closing("/proc/sys")]), &["/proc/bus"], None),
            (json!([closing("/proc/bus"), proc("/proc")]), &["/proc/sys"], Some("/proc/bus")),
            (json!([proc("/proc"), closing("/proc")]), none, None),
            (json!([closing("/proc"), proc("/proc")]), none, Some("/proc/sys")),
            (json!([{"destination": "/proc", "type": "proc", "options": ["ro"]}]), none, None),
            (
                json!([{"destination": "/proc", "type": "proc", "options": ["subset=pid"]}]),
                none,
                None,
            ),
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
        let range = |inside: u32, host: u32, size: u32| json!({ "containerID": inside, "hostID": host, "size": size });
        for (map, found) in [
            (json!([range(0, 100_000, 65536)]), None),
            (json!([range(0, 0, 65536)]), Some("/proc/sys")),
            // podman run --uidmap 0:100000:1000 --uidmap 1000:0:1
            (json!([range(0, 100_000, 1000), range(1000, 0, 1)]), Some("/proc/sys")),
            // crun makes one up.
            (json!([]), Some("/proc/sys")),
        ] {
            let spec = json!({
                "mounts": [{ "destination": "/proc", "type": "proc" }],
                "linux": { "namespaces": [{ "type": "user" }], "uidMappings": map }
            });
            assert_eq!(opened(&spec).as_deref(), found, "{spec}");
        }
    }
}
