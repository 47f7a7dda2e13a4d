//! Facts for a decision that the spec alone does not have: the container's IPC namespace, and what
//! the daemon has written about the node. `mounts.rs` has those about mounts.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mpsgate_api::NodeSnapshot;
use mpsgate_config::{Config, Manage, Trust, paths};
use mpsgate_model::{Code, Refusal, UVM_TOOLS};
use mpsgate_oci::argv::Invocation;
use mpsgate_oci::spec::{Edit, IdRange, Namespace, View};
use mpsgate_policy::{
    Caller, Cards, Ipc, Majors, Node, Pids, Shm, ShmMount, ToolkitNames, Users, shares_pod,
};
use nix::fcntl::OFlag;
use nix::sys::stat::{major, minor};

/// Largest snapshot, in bytes.
const SNAPSHOT_MAX: u64 = 1 << 20;

pub(crate) type Inode = (u64, u64);

pub(crate) fn inode(path: &Path) -> Option<Inode> {
    std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// The IPC namespace that a container of this spec will have.
pub(crate) fn ipc(view: View<'_>) -> Ipc {
    let path = match view.ipc_namespace() {
        Namespace::New => return Ipc::New,
        Namespace::Callers => "/proc/self/ns/ipc",
        Namespace::At(path) => path,
    };
    match std::fs::metadata(path) {
        Ok(meta) => Ipc::Inode(meta.ino()),
        Err(error) => Ipc::Unreadable(format!("{path}: {error}")),
    }
}

/// The container's `/dev/shm` by this spec; `servers`: the MPS servers' own.
pub(crate) fn shm(view: View<'_>, bundle: &Path, servers: Option<Inode>) -> Shm {
    match servers {
        None => Shm::Unknown,
        Some(servers) => {
            ShmMount::of(view).seen(|source| inode(&bundle.join(source)) == Some(servers))
        }
    }
}

/// The processes that the container will see. The engine's own namespace is the host's, whatever
/// its name.
pub(crate) fn pids(view: View<'_>, caller: Caller) -> Pids {
    let path = match view.pid_namespace() {
        Namespace::New => return Pids::Own,
        Namespace::Callers => return Pids::Host,
        Namespace::At(path) => path,
    };
    let (found, own) = (inode(Path::new(path)), inode(Path::new("/proc/self/ns/pid")));
    if found.is_some() && found == own {
        return Pids::Host;
    }
    // Kubelet's engines name the namespace of a process of the pod; the kernel shows the pod of
    // that process.
    let cgroups = path
        .strip_prefix("/proc/")
        .and_then(|rest| rest.strip_suffix("/ns/pid"))
        .and_then(|pid| pid.parse::<u32>().ok())
        .and_then(mpsgate_host::cgroup::text_of);
    match cgroups {
        Some(cgroups) if found.is_some() && shares_pod(view, caller, &cgroups) => Pids::Pod,
        _ => Pids::Other(path.to_owned()),
    }
}

/// What the daemon wrote about the node, and whether a kubelet runs there.
pub(crate) fn node(config: &Config) -> (Node, bool) {
    match snapshot() {
        Some(snapshot) => {
            let kubelet = snapshot.kubelet;
            (snapshot.into(), kubelet)
        }
        None => (without_daemon(config), false),
    }
}

/// The node if its daemon has not written since boot. After installation no card is managed, and
/// then nothing may change for any container; otherwise every card counts as managed.
fn without_daemon(config: &Config) -> Node {
    let mut majors = Majors::default();
    for line in mpsgate_host::procfs::text("/proc/devices").unwrap_or_default().lines() {
        if line.starts_with("Block") {
            break;
        }
        if let Some((major, name)) = line.trim().split_once(' ')
            && let Ok(major) = major.parse()
        {
            majors.insert(name, major);
        }
    }
    let enabled = std::fs::read(Path::new(paths::STATE_DIR).join("managed.json"));
    let never_enabled = match enabled {
        Ok(text) => !text.windows(4).any(|w| w == b"GPU-"),
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    let none_configured = matches!(&config.gpus.manage, Manage::Uuids(uuids) if uuids.is_empty());
    let cards = if never_enabled && none_configured {
        Cards::Known(Vec::new())
    } else {
        Cards::AssumeManaged
    };
    Node { cards, majors, ..Node::unknown() }
}

/// The names in the toolkit's settings besides the known ones. Nearly every node has none, which
/// costs one system call.
pub(crate) fn toolkit_names() -> ToolkitNames {
    if std::fs::symlink_metadata(paths::TOOLKIT_NAMES).is_err() {
        return ToolkitNames::default();
    }
    snapshot().map(|snapshot| ToolkitNames::of(&snapshot.into())).unwrap_or_default()
}

fn snapshot() -> Option<NodeSnapshot> {
    let bytes = read_own(Path::new(paths::NODE_SNAPSHOT), SNAPSHOT_MAX)?;
    NodeSnapshot::parse(&bytes).ok()
}

/// Reads a file that only root could have written; `None` for any other. If a container has a lease
/// on it (fcntl(2)), by a bind, this waits, as it does for the settings: otherwise the decision
/// would lack the file.
pub(crate) fn read_own(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let open = |flags: OFlag| {
        let flags = OFlag::O_NOFOLLOW | flags;
        OpenOptions::new().read(true).custom_flags(flags.bits()).open(path)
    };
    let file: File = match open(OFlag::O_NONBLOCK) {
        // A pipe opens at once.
        Err(error) if error.kind() == ErrorKind::WouldBlock => open(OFlag::empty()),
        other => other,
    }
    .ok()?;
    let meta = file.metadata().ok()?;
    let own = nix::unistd::geteuid().as_raw();
    if !meta.is_file() || meta.mode() & 0o022 != 0 || (meta.uid() != 0 && meta.uid() != own) {
        return None;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len().min(limit)).ok()? + 1);
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The engine that calls, by facts that it sets itself.
pub(crate) fn caller(invocation: &Invocation, trust: &Trust, kubelet: bool) -> Caller {
    let bundle = invocation.bundle.as_deref().unwrap_or_else(|| Path::new("."));
    // Relative to the directory in which the engine started this program, and without links.
    let bundle = std::fs::canonicalize(bundle).unwrap_or_else(|_| bundle.to_owned());
    Caller::of(invocation.root.as_deref(), &bundle, &trust.kubernetes_roots, kubelet)
}

/// The user namespace that a spec joins. Only a process in it shows its map, and only a path below
/// `/proc` names a process.
pub(crate) fn users(view: View<'_>) -> Users {
    let Namespace::At(path) = view.user_namespace() else { return Users::OfSpec };
    let pid = path.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/user"));
    let Some(pid) = pid.filter(|pid| pid.bytes().all(|b| b.is_ascii_digit())) else {
        return Users::Unreadable("only /proc/PID/ns/user shows its map".to_owned());
    };
    match mpsgate_host::procfs::text(format!("/proc/{pid}/uid_map")) {
        Ok(text) => Users::Joined(text.lines().filter_map(id_range).collect()),
        Err(error) => Users::Unreadable(format!("/proc/{pid}/uid_map cannot be read: {error}")),
    }
}

/// Whether a process can have a uid of the host in its user namespace. True if that cannot be read.
pub(crate) fn can_have_uid(pid: u32, uid: u32) -> bool {
    let Ok(text) = mpsgate_host::procfs::text(format!("/proc/{pid}/uid_map")) else {
        return true;
    };
    text.lines().filter_map(id_range).any(|range| range.inside_of(uid).is_some())
}

/// A line of user_namespaces(7)'s `uid_map`.
fn id_range(line: &str) -> Option<IdRange> {
    let mut numbers = line.split_ascii_whitespace().map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some(IdRange { inside: next()?, outside: next()?, size: next()? })
}

/// In a user namespace runtimes cannot make device nodes: they bind the host's node of the same
/// path (runc 1.1.5 `createDevices`, crun 1.21). A node that is missing, or is another device, is
/// refused; an optional one is left out.
pub(crate) fn nodes_to_bind(view: View<'_>, edits: &mut Vec<Edit>) -> Result<(), Refusal> {
    if view.user_namespace() == Namespace::Callers {
        return Ok(());
    }
    let is_there = |path: &str, numbers: (u32, u32)| {
        std::fs::metadata(path).is_ok_and(|meta| {
            meta.file_type().is_char_device()
                && (major(meta.rdev()), minor(meta.rdev())) == (numbers.0.into(), numbers.1.into())
        })
    };
    let is_missing = |edit: &Edit| matches!(edit, Edit::AddDevice { path, major, minor, .. } if !is_there(path, (*major, *minor)));
    edits.retain(|edit| {
        !matches!(edit, Edit::AddDevice { path, .. } if path == UVM_TOOLS) || !is_missing(edit)
    });
    let missing = edits.iter().find_map(|edit| match edit {
        Edit::AddDevice { path, major, minor, .. } if is_missing(edit) => {
            Some(format!("{path} ({major}:{minor})"))
        }
        _ => None,
    });
    missing.map_or(Ok(()), |node| {
        Err(Refusal::new(
            Code::Spec,
            format!("in its user namespace it can only be given device nodes of the host, and the host has no {node}"),
            "make it: nvidia-modprobe -c 0 -u, or nvidia-ctk system create-device-nodes --control-devices; \
             or do without the user namespace (docker run --userns=host)",
        ))
    })
}

/// The runtime's state directory: `--root`, or the runtime's default.
pub(crate) fn runtime_root(invocation: &Invocation, runtime: Option<&Path>) -> String {
    if let Some(root) = &invocation.root {
        // One directory has one key, however many slashes the caller wrote.
        let tidy: PathBuf = root.components().collect();
        return tidy.to_string_lossy().into_owned();
    }
    default_root(runtime)
}

/// A runtime's state directory without `--root`.
pub(crate) fn default_root(runtime: Option<&Path>) -> String {
    let name = runtime.and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    format!("/run/{}", if name.contains("crun") { "crun" } else { "runc" })
}

/// The node as the daemon described it, if it did.
pub(crate) fn node_of_daemon() -> Option<Node> {
    snapshot().map(Node::from)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::ffi::OsString;

    use mpsgate_oci::argv;
    use mpsgate_testing::{can_be_leased, leased, wait_for};

    use super::*;

    fn invocation(line: &str) -> Invocation {
        argv::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_bundle_is_evaluated_by_where_it_really_is() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("k8s.io/c");
        std::fs::create_dir_all(&real).unwrap();
        let alias = dir.path().join("b");
        std::os::unix::fs::symlink(&real, &alias).unwrap();
        let of = |bundle: &Path| {
            let line = format!("create --bundle {} c", bundle.display());
            caller(&invocation(&line), &Trust::default(), false)
        };
        assert_eq!(of(&alias), Caller::Containerd);
        assert_eq!(of(dir.path()), Caller::Local);
        assert_eq!(of(Path::new("/no/such/k8s.io/c")), Caller::Containerd);
    }

    #[test]
    fn a_joined_user_namespace_shows_its_map_through_proc_alone() {
        let of = |path: &str| {
            let spec =
                serde_json::json!({"linux": {"namespaces": [{"type": "user", "path": path}]}});
            users(View::new(&spec))
        };
        let own = format!("/proc/{}/ns/user", std::process::id());
        assert!(matches!(of(&own), Users::Joined(ranges) if !ranges.is_empty()));
        for path in
            ["/run/userns/x", "/proc/self/ns/user", "/proc/1/../2/ns/user", "/proc/4194305/ns/user"]
        {
            assert!(matches!(of(path), Users::Unreadable(_)), "{path}");
        }
        assert_eq!(users(View::new(&serde_json::json!({}))), Users::OfSpec);
        assert!(can_have_uid(std::process::id(), nix::unistd::geteuid().as_raw()));
        let range = IdRange { inside: 0, outside: 100_000, size: 65_536 };
        assert_eq!(id_range("         0     100000      65536"), Some(range));
        assert_eq!((id_range("0 1"), id_range("0 -1 1"), id_range("")), (None, None, None));
    }

    #[test]
    fn a_node_is_bound_only_where_the_host_has_it() {
        let add =
            |path: &str, minor| Edit::AddDevice { path: path.to_owned(), major: 1, minor, uid: 0 };
        let spec = serde_json::json!({"linux": {"namespaces": [{"type": "user"}]}});
        let check = |edits: &[Edit]| {
            nodes_to_bind(View::new(&spec), &mut edits.to_vec()).map_err(|r| r.code)
        };
        assert_eq!(check(&[add("/dev/null", 3)]), Ok(()));
        assert_eq!(check(&[add("/dev/null", 5)]), Err(Code::Spec), "another device");
        assert_eq!(check(&[add("/dev/null", 3), add("/no/such", 3)]), Err(Code::Spec));
        let plain = serde_json::json!({});
        assert!(nodes_to_bind(View::new(&plain), &mut vec![add("/no/such", 3)]).is_ok());
    }

    #[test]
    fn an_optional_node_that_the_host_lacks_is_left_out() {
        let add =
            |path: &str| Edit::AddDevice { path: path.to_owned(), major: 1, minor: 3, uid: 0 };
        let spec = serde_json::json!({"linux": {"namespaces": [{"type": "user"}]}});
        let mut edits = vec![add("/dev/null"), add(UVM_TOOLS)];
        assert!(nodes_to_bind(View::new(&spec), &mut edits).is_ok());
        assert_eq!(edits, [add("/dev/null")]);
    }

    #[test]
    fn one_state_directory_is_one_key_however_it_is_written() {
        let root =
            |line: &str, runtime: &str| runtime_root(&invocation(line), Some(Path::new(runtime)));
        assert_eq!(root("--root /run/x/ create c", "/usr/bin/runc"), "/run/x");
        assert_eq!(root("--root=/run//x create c", "/usr/bin/runc"), "/run/x");
        assert_eq!(root("create c", "/usr/sbin/runc"), "/run/runc");
        assert_eq!(root("create c", "/usr/bin/crun"), "/run/crun");
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let mode = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap()
        };
        mode(0o644);
        assert_eq!(read_own(&path, 9), Some(b"x".to_vec()));
        mode(0o666);
        assert_eq!(read_own(&path, 9), None);
        mode(0o644);
        let link = dir.path().join("l");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_own(&link, 9), None, "nor a link");
    }

    #[test]
    fn a_file_on_which_somebody_has_a_lease_is_waited_for_and_a_pipe_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&path, mode).unwrap();
        wait_for("it can be leased", || can_be_leased(&path));
        let _lease = leased(&path, 3);
        let flags = OFlag::O_NONBLOCK.bits();
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(&path);
        assert_eq!(opened.unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(read_own(&path, 9), Some(b"x".to_vec()));
        let pipe = dir.path().join("p");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert_eq!(read_own(&pipe, 9), None);
    }
}
