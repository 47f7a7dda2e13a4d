//! What the decision needs besides the spec, as far as it can be had without asking anybody.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use mpsgate_api::NodeSnapshot;
use mpsgate_config::{Switch, Trust, find_runtime};
use mpsgate_oci::spec::{Mount, MountEntry, Namespace, ReadOnly, View};
use mpsgate_policy::{
    Caller, Ipc, MountFact, MountKind, Node, Pids, Reach, Shm, ShmMount, Unruled, names_processes,
    shows_card_files, touches,
};

/// Where the hierarchies of cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Where a sysfs is mounted.
const SYSFS: &str = "/sys";

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

/// What it would have at `/dev/shm`.
pub(super) fn shm(view: View<'_>, node: &Node, bundle: Option<&Path>) -> Shm {
    let Some(servers) = node.shm else { return Shm::Unknown };
    ShmMount::of(view).seen(|path| {
        let found = source(path, bundle).and_then(|path| std::fs::metadata(path).ok());
        found.is_some_and(|meta| (meta.dev(), meta.ino()) == servers)
    })
}

/// Whose processes it would see. Which pod a process is of is known only while it lives, on its
/// node.
pub(super) fn pids(view: View<'_>, assumed: &mut Vec<String>) -> Pids {
    let path = match view.pid_namespace() {
        Namespace::New => return Pids::Own,
        Namespace::Callers => return Pids::Host,
        Namespace::At(path) => path,
    };
    let inode = |path: &str| std::fs::metadata(path).ok().map(|found| found.ino());
    if inode(path).zip(inode("/proc/1/ns/pid")).is_some_and(|(its, hosts)| its == hosts) {
        return Pids::Host;
    }
    assumed.push(format!("the PID namespace {path} is its own pod's"));
    Pids::Pod
}

/// What the runtime would leave open, by the name in the settings.
pub(super) fn unruled(runtime: &Path) -> Unruled {
    let found = find_runtime(runtime, None);
    let program = found.and_then(|path| std::fs::canonicalize(path).ok());
    let unified = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    Unruled::under(program.as_deref().unwrap_or(runtime), unified)
}

/// The bind mounts and overlays that touch mpsgate's directories, by path. The shim compares device
/// and inode, which a file from elsewhere does not have here. A relative source begins at the
/// bundle.
pub(super) fn mounts(view: View<'_>, bundle: Option<&Path>) -> Vec<MountFact> {
    let mut facts = Vec::new();
    for mount in view.mount_entries() {
        let layers = mount.layers();
        let found = layers.iter().filter_map(|layer| {
            let kind = touches(&source(layer, bundle)?.to_string_lossy())?;
            let (source, destination) = (layer.clone(), mount.destination.to_owned());
            Some(MountFact { source, destination, kind })
        });
        // Of several layers what is mpsgate's own counts.
        facts.extend(found.max_by_key(|fact| fact.kind == MountKind::Ours));
    }
    for mount in view.mount_entries().filter(MountEntry::is_bind).chain(view.root()) {
        let Some(path) = source(mount.source, bundle) else { continue };
        let reach = cgroups(&path, &mount).map(MountKind::Cgroups);
        let name = path.to_string_lossy();
        let shows = names_processes(&name, mount.is_recursive());
        let processes = shows.then_some(MountKind::Processes);
        let shows = card_files(&path, mount.is_recursive());
        let read_only = mount.read_only() != ReadOnly::No;
        let files = shows.then_some(MountKind::CardFiles { read_only });
        let kinds = touches(&name).into_iter().chain(reach).chain(processes).chain(files);
        facts.extend(kinds.map(|kind| MountFact {
            source: mount.source.to_owned(),
            destination: mount.destination.to_owned(),
            kind,
        }));
    }
    facts
}

/// The same of what one look at a document shows, which has no options of mounts.
pub(super) fn seen<'a>(
    binds: impl Iterator<Item = Mount<'a>>,
    bundle: Option<&Path>,
) -> Vec<MountFact> {
    let fact = |mount: Mount<'_>| {
        let path = source(mount.source, bundle)?;
        let all = Path::new(CGROUPS);
        let holds = path.starts_with(all) || all.starts_with(&path);
        let kind = touches(&path.to_string_lossy())
            .or_else(|| holds.then_some(MountKind::Cgroups(Reach::Itself)))?;
        let (source, destination) = (mount.source.to_owned(), mount.destination.to_owned());
        Some(MountFact { source, destination, kind })
    };
    binds.filter_map(fact).collect()
}

/// Where a source leads; `None` where that is not known.
fn source(source: &str, bundle: Option<&Path>) -> Option<PathBuf> {
    let source = Path::new(source).to_owned();
    match bundle.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned())) {
        _ if source.as_os_str().is_empty() => None,
        Some(bundle) => Some(plain(&bundle.join(source))),
        None => source.is_absolute().then(|| plain(&source)),
    }
}

/// How a bind comes to the node's cgroups, by path, where they are mounted as usual.
fn cgroups(path: &Path, mount: &MountEntry<'_>) -> Option<Reach> {
    let all = Path::new(CGROUPS);
    let part = path.strip_prefix(all).ok();
    let is_named = part.is_some_and(|part| part.starts_with("systemd"));
    match mount.read_only() {
        _ if is_named => None,
        ReadOnly::All => None,
        ReadOnly::Top if part.is_some_and(|part| part != Path::new("")) => None,
        _ if part.is_some() => Some(Reach::Itself),
        _ if !mount.is_recursive() || !all.starts_with(path) => None,
        ReadOnly::Top => Some(Reach::BelowReadOnly),
        ReadOnly::No => Some(Reach::Below),
    }
}

/// Whether a bind shows files of cards in sysfs, by path. Where on the bus the cards are is not
/// known here: all of `/sys/devices` has them.
fn card_files(path: &Path, with_below: bool) -> bool {
    let devices = [PathBuf::from("/devices/card")];
    let shows = |place: &Path| shows_card_files(&Path::new("/").join(place), &devices);
    path.strip_prefix(SYSFS).map_or_else(|_| with_below && path == Path::new("/"), shows)
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
            "it comes through a kubelet's engine, and no kubelet runs here: it is trusted (trust.local)"
        }
        (true, ..) => {
            "a pod asks: it counts with a token of the node's device plugin (mpsgate.io/grant)"
        }
        (false, true, Some(_)) => "a local engine asks, whose user is root anyway: it is trusted",
        (false, true, None) => {
            "a local engine asks, whose user is root anyway: it is trusted (--runtime-root tells)"
        }
        (false, false, _) => {
            "a local engine asks, which is not trusted on this node (trust.local): mpsgated refuses"
        }
    }
}
