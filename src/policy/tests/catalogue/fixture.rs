//! A fixture, and the node that it is decided on: card 0 is managed, card 1 is not.

use std::path::Path;

use mpsgate_config::Policy;
use mpsgate_model::{DeviceNode, GpuUuid, NodeCard};
use mpsgate_oci::spec::{MountEntry, Namespace, View};
use mpsgate_policy::{
    Action, Caller, Cards, Decision, Input, Ipc, Majors, MountFact, MountKind, Node, Pids, Shm,
    Unruled, Users, decide,
};
use serde_json::Value;

const HOST_IPC: u64 = 4_026_531_839;
/// Decided as a restore from a checkpoint, which no engine here makes.
const RESTORED: usize = 18;
/// Decided with nvidia-container-runtime below, which is not installed here.
const ABOVE_NVIDIA: usize = 4;

/// One captured or written `config.json`.
pub(crate) struct Fixture {
    pub(crate) row: usize,
    pub(crate) neighbour: bool,
    pub(crate) engine: String,
    pub(crate) command: String,
    pub(crate) config: Value,
    pub(crate) mounts: Vec<MountFact>,
    caller: Caller,
}

/// All of them, by file name.
pub(crate) fn fixtures() -> Vec<Fixture> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/catalogue");
    let mut paths: Vec<_> = ["captured", "written"]
        .iter()
        .flat_map(|below| std::fs::read_dir(directory.join(below)).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    // A way before its neighbour.
    paths.sort_by_key(|path| (path.to_string_lossy().contains("neighbour"), path.clone()));
    paths.iter().map(|path| load(path)).collect()
}

fn load(path: &Path) -> Fixture {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let document: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (row, cell) = name.split_once('-').unwrap();
    let text =
        |key: &str| document[key].as_str().unwrap_or_else(|| panic!("{name}: {key}")).to_owned();
    Fixture {
        row: row.parse().unwrap(),
        neighbour: name.ends_with("neighbour"),
        engine: text("engine"),
        command: text("command"),
        config: document["config"].clone(),
        mounts: mounts(View::new(&document["config"])),
        caller: match cell.split('-').next() {
            Some("cri") => Caller::Containerd,
            Some("podman") => Caller::Podman,
            _ => Caller::Local,
        },
    }
}

/// By path; on a node by device and inode.
fn mounts(view: View<'_>) -> Vec<MountFact> {
    let kind = |source: &str| match source {
        "/" | "/run" => Some(MountKind::Ancestor),
        _ => source.starts_with("/run/mpsgate").then_some(MountKind::Ours),
    };
    let fact = |m: MountEntry<'_>| {
        let mut shown = m.layers();
        shown.extend(m.is_bind().then(|| m.source.to_owned()));
        let (source, kind) =
            shown.into_iter().find_map(|source| kind(&source).map(|kind| (source, kind)))?;
        Some(MountFact { source, destination: m.destination.to_owned(), kind })
    };
    view.mount_entries().filter_map(fact).collect()
}

fn node() -> Node {
    let card = |index: u32, managed| NodeCard {
        uuid: GpuUuid::parse(&format!("GPU-00000000-0000-4000-8000-{index:012}")).unwrap(),
        index,
        minor: index,
        managed,
    };
    let other = |path: &str, major, minor| DeviceNode { path: path.to_owned(), major, minor };
    let mut majors = Majors::default();
    for (name, major) in [
        ("nvidia-caps", 236),
        ("nvidia-caps-imex-channels", 235),
        ("nvidia-nvswitch", 242),
        ("nvidia-uvm", 510),
    ] {
        majors.insert(name, major);
    }
    Node {
        cards: Cards::Known(vec![card(0, true), card(1, false)]),
        majors,
        ipc_inode: Some(HOST_IPC),
        shm: Some((1, 2)),
        swarm_resources: vec!["DOCKER_RESOURCE_TESLA".to_owned()],
        other_nodes: vec![
            other("/dev/dri/card0", 226, 0),
            other("/dev/dri/renderD128", 226, 128),
            other("/dev/vfio/12", 243, 0),
        ],
        ..Node::unknown()
    }
}

impl Fixture {
    /// The same with another document.
    pub(crate) fn with(&self, config: Value) -> Self {
        let (engine, command) = (self.engine.clone(), self.command.clone());
        Self { config, engine, command, mounts: self.mounts.clone(), ..*self }
    }

    pub(crate) fn decide(&self, policy: &Policy) -> Decision {
        let view = View::new(&self.config);
        decide(&Input {
            view,
            node: &node(),
            policy,
            requests_from_env: true,
            mounts: &self.mounts,
            shm: Shm::Servers,
            ipc: match view.ipc_namespace() {
                Namespace::New => Ipc::New,
                // The pause container's, which was asked to have the host's.
                Namespace::Callers | Namespace::At(_) => Ipc::Inode(HOST_IPC),
            },
            users: Users::OfSpec,
            pids: match view.pid_namespace() {
                Namespace::New => Pids::Own,
                Namespace::Callers => Pids::Host,
                Namespace::At(_) => Pids::Pod,
            },
            unruled: Unruled::Closed,
            caller: self.caller,
            action: if self.row == RESTORED { Action::Restore } else { Action::Create },
            runtime_is_nvidia: self.row == ABOVE_NVIDIA,
        })
    }
}
