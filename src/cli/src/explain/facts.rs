//! What the decision needs besides the spec, as far as it can be had without asking anybody.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use mpsgate_api::NodeSnapshot;
use mpsgate_config::{Switch, Trust, paths};
use mpsgate_oci::spec::{Mount, Namespace, View};
use mpsgate_policy::{Caller, Ipc, MountFact, MountKind, Node};

/// The node of a snapshot; without one, a node whose every card is managed.
pub(super) fn node(snapshot: Option<&NodeSnapshot>, assumed: &mut Vec<String>) -> Node {
    let Some(snapshot) = snapshot else {
        assumed.push("every card is managed (--node /run/mpsgate/node.json tells)".to_owned());
        return Node::unknown();
    };
    snapshot.clone().into()
}

/// The IPC namespace that the container would have.
pub(super) fn ipc(view: View<'_>, node: &Node, assumed: &mut Vec<String>) -> Ipc {
    match view.ipc_namespace() {
        Namespace::New => Ipc::New,
        // The engine's own, which is the host's wherever mpsgate can work.
        Namespace::Callers => node.ipc_inode.map_or(Ipc::Unknown, Ipc::Inode),
        Namespace::At(path) => {
            let looked = node.ipc_inode.and_then(|_| std::fs::metadata(path).ok());
            looked.map_or_else(
                || {
                    assumed.push(format!("the IPC namespace {path} is the MPS server's"));
                    Ipc::Unknown
                },
                |namespace| Ipc::Inode(namespace.ino()),
            )
        }
    }
}

/// Whether it would see the host's processes.
pub(super) fn host_pids(view: View<'_>, assumed: &mut Vec<String>) -> bool {
    view.pid_namespace().is_callers(|path| {
        let inode = |path: &str| std::fs::metadata(path).ok().map(|found| found.ino());
        let both = inode(path).zip(inode("/proc/1/ns/pid"));
        both.map_or_else(
            || {
                assumed.push(format!("the PID namespace {path} is not the host's"));
                false
            },
            |(its, hosts)| its == hosts,
        )
    })
}

/// The bind mounts that touch mpsgate's directories, by path. The shim compares device and inode,
/// which a file from elsewhere does not have here.
pub(super) fn mounts(view: View<'_>, snapshot: Option<&NodeSnapshot>) -> Vec<MountFact> {
    let mut own: Vec<PathBuf> = vec![paths::RUN_DIR.into(), paths::STATE_DIR.into()];
    own.extend(Path::new(paths::CONFIG_FILE).parent().map(Path::to_owned));
    own.extend(snapshot.into_iter().flat_map(|s| &s.protected).map(|p| PathBuf::from(&p.path)));
    let fact = |mount: Mount<'_>| {
        let path = plain(Path::new(mount.source));
        let kind = if own.iter().any(|own| path.starts_with(own)) {
            MountKind::Ours
        } else if own.iter().any(|own| own.starts_with(&path)) {
            MountKind::Ancestor
        } else {
            return None;
        };
        Some(MountFact {
            source: mount.source.to_owned(),
            destination: mount.destination.to_owned(),
            kind,
        })
    };
    view.mounts().filter(|m| m.is_bind && m.source.starts_with('/')).filter_map(fact).collect()
}

/// Without `.`, `..` and the link that every distribution has at `/var/run`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    match plain.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => plain,
    }
}

/// Whose words the request would be, as far as root and bundle tell.
pub(super) fn trust(
    runtime_root: Option<&Path>,
    file: &Path,
    trust: &Trust,
    kubelet: bool,
) -> &'static str {
    let bundle = file.parent().unwrap_or(file);
    let caller = Caller::of(runtime_root, bundle, &trust.kubernetes_roots, kubelet);
    match (caller.is_kubernetes(), trust.local.is_on(!kubelet), runtime_root) {
        (true, ..) if trust.local == Switch::On && !kubelet => {
            "it comes through a kubelet's engine, and no kubelet runs here: it is believed (trust.local)"
        }
        (true, ..) => {
            "a pod asks: it counts with a token of the node's device plugin (mpsgate.io/grant)"
        }
        (false, true, Some(_)) => "a local engine asks, whose user is root anyway: it is believed",
        (false, true, None) => {
            "a local engine asks, whose user is root anyway: it is believed (--runtime-root tells)"
        }
        (false, false, _) => {
            "a local engine asks, which is not believed on this node (trust.local): mpsgated refuses"
        }
    }
}
