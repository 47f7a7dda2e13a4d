//! What a decision reads: the facts of one container, which the shim and `explain` gather.

use mpsgate_config::Policy;
use mpsgate_oci::spec::View;

use crate::container_uid::Users;
use crate::node_facts::Node;
use crate::pids::Pids;
use crate::shm::Shm;
use crate::{Caller, Unruled};

/// A bind mount, or a layer of an overlay, that touches mpsgate's directories, as the caller found
/// by device and inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountFact {
    /// Host path, as the spec has it.
    pub source: String,
    /// Path inside the container.
    pub destination: String,
    /// What it is to us.
    pub kind: MountKind,
}

/// What a mount's source is to mpsgate's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountKind {
    /// One of them, or something below.
    Ours,
    /// A directory above them, such as `/` or `/run`. Never edited: a mask over it would propagate
    /// to the host with rshared, or fail on read-only binds (measured, runc 1.1.5).
    Ancestor,
    /// A path with a component that another than root may write or exchange, so that something else
    /// may be mounted than was looked at.
    Exchangeable,
    /// A way to write cgroups that are not the container's own.
    Cgroups(Reach),
    /// A procfs of the node or a part of one, or a directory above that brings one along: a way to
    /// the processes of the node.
    Processes,
    /// Files of a managed card in sysfs, by which it is removed, unbound or mapped, or a directory
    /// that holds them. `read_only`: the mount itself is; what is mounted below it may not be.
    CardFiles {
        /// Whether it is.
        read_only: bool,
    },
    /// A node of a managed card, or a directory that holds one. Looked for only where no device
    /// cgroup keeps it shut.
    Card,
}

/// How a mount comes to cgroups that are not the container's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It is a hierarchy, a part of one, or the directory that holds them all.
    Itself,
    /// It is writable, and the hierarchies are somewhere below.
    Below,
    /// It is read-only, and the hierarchies below, which come with it, are not.
    BelowReadOnly,
}

/// The IPC namespace that the container will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ipc {
    /// This inode.
    Inode(u64),
    /// A new one of its own.
    New,
    /// One that cannot be looked at.
    Unreadable(String),
    /// Not looked at: `explain` of a spec from elsewhere.
    Unknown,
}

/// What is being done with the bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// `create` or `run`.
    Create,
    /// `restore` from a checkpoint.
    Restore,
}

/// Everything that a decision reads.
#[derive(Debug, Clone)]
pub struct Input<'a> {
    /// The spec.
    pub view: View<'a>,
    /// The node.
    pub node: &'a Node,
    /// The settings.
    pub policy: &'a Policy,
    /// Whether `MPSGATE_…` variables are requests.
    pub requests_from_env: bool,
    /// Mounts that touch our directories.
    pub mounts: &'a [MountFact],
    /// The container's IPC namespace.
    pub ipc: Ipc,
    /// What it has at `/dev/shm`.
    pub shm: Shm,
    /// The user namespace that it joins.
    pub users: Users,
    /// Whose processes it sees.
    pub pids: Pids,
    /// What is open to it before its rules are read.
    pub unruled: Unruled,
    /// The engine that creates it.
    pub caller: Caller,
    /// Create or restore.
    pub action: Action,
    /// The runtime below is nvidia-container-runtime, which acts on the env.
    pub runtime_is_nvidia: bool,
}
