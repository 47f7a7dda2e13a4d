//! The calls of the daemon's clients.

use mpsgate_model::ledger::CgroupId;
use mpsgate_model::{Answer, ContainerId, Grant, GrantKey, Mib, OneOf, PodContainer, Request};
use mpsgate_policy::NoteAction;
use serde::{Deserialize, Serialize};

use crate::Json;

/// Where a request comes from. Facts that root owns decide this, never annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// An engine for which only root starts containers: docker, podman, ctr, runc by hand.
    Local,
    /// A kubelet's engine: pod authors write annotations.
    Kubernetes,
    /// No engine: a user of `run.group` asks for a process of the user's. The socket shows this.
    User,
    /// Slurm: mpsgated has asked Slurm's controller for the amount of memory.
    Slurm,
}

/// A call.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Set memory aside for a container that is being created (the shim).
    Reserve(Reserve),
    /// Turn the reservation into a grant (the hook).
    Activate(Activate),
    /// End a grant or reservation (the hook at poststop).
    Release(Release),
    /// End the GPU work of a container that is about to be killed (the shim).
    Terminate(Terminate),
    /// Log and count a refusal or an edit that the shim decided on its own.
    Report(Report),
    /// Return everything that the daemon knows.
    Status,
    /// Hand a GPU to mpsgate: UUID or index.
    Enable {
        /// UUID or index.
        gpu: String,
    },
    /// Take a GPU back: UUID or index.
    Disable {
        /// UUID or index.
        gpu: String,
    },
    /// End a card's MPS, or end and restart it: everything that runs on the card ends.
    Mps(Mps),
    /// Read the settings file again.
    Reload,
    /// Ask a card what it guarantees.
    Qualify(Qualify),
    /// Change the memory of a container that runs.
    Resize(Resize),
    /// Give the calling process a grant, and a cgroup of its own (`mpsgate run`). The answer is
    /// that of [`Call::Reserve`]; the program that the caller executes has the grant.
    Run(Box<Run>),
    /// Return the grant of the Slurm job that the calling process belongs to (TaskProlog); the
    /// first task's call makes it. The answer is that of [`Call::Reserve`], or `done` for a job
    /// without GPU memory.
    Job,
    /// End what is left of a Slurm job (Epilog).
    EndJob {
        /// Slurm's number of the job.
        job: u32,
    },
}

/// Set memory aside for a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reserve {
    /// Which instance of which container.
    pub key: GrantKey,
    /// Its request.
    pub request: Request,
    /// Host uid of its CUDA processes.
    pub uid: u32,
    /// Where the request comes from.
    pub engine: Engine,
    /// The pod and container, where a kubelet's engine names them.
    pub pod: Option<PodContainer>,
    /// Set the memory aside for the caller's parent: the caller ends before the container is made
    /// (Podman's `precreate` hook).
    pub for_parent: bool,
    /// The user who started a plain process, as mpsgated found. No client sends it.
    #[serde(skip)]
    pub user: Option<String>,
}

impl Reserve {
    /// The name by which people see and type its grant.
    #[must_use]
    pub fn name(&self) -> String {
        self.key.name(self.user.as_deref())
    }
}

/// Turn a reservation into a grant. The container's pidfd goes with it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Activate {
    /// Which instance of which container.
    pub key: GrantKey,
    /// The container's init in the caller's pid namespace.
    pub pid: u32,
    /// Its cgroup.
    pub cgroup: Option<CgroupId>,
    /// The grant of the reservation, to reserve it anew if it has expired.
    pub grant: Option<Box<Grant>>,
}

/// End a grant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Release {
    /// Which instance of which container.
    pub key: GrantKey,
}

/// End the GPU work of a container that is about to be killed, removed, or both.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Terminate {
    /// Which instance of which container.
    pub key: GrantKey,
    /// Whether its runtime removes its cgroup next. The driver's limit of that cgroup is then
    /// cleared first, because afterwards nothing can name it.
    #[serde(default)]
    pub removal: Removal,
}

/// Whether a container's cgroup is about to be removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Removal {
    /// It stays for now (`kill`).
    #[default]
    No,
    /// Its cgroup is removed if its init has ended; otherwise the runtime refuses (`delete`).
    Ended,
    /// Its cgroup is removed whatever runs in it (`delete --force`).
    Forced,
}

/// End a card's MPS, or restart it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mps {
    /// UUID or index.
    pub gpu: String,
    /// The action.
    pub action: MpsAction,
    /// Whether the operator has confirmed, after seeing which processes would end. Without that
    /// nothing is done, and the answer is that list.
    pub confirmed: bool,
}

/// An action on a card's MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MpsAction {
    /// End it and keep the card closed, also over restarts, until a `Restart`.
    Stop,
    /// End it and start it anew.
    Restart,
}

mpsgate_model::words!(MpsAction: Stop = "stop", Restart = "restart");

/// Ask a card what it guarantees. The caller makes the containers; the daemon keeps the card free
/// for them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Qualify {
    /// Keep the card for containers with the id prefix of the answer.
    Begin {
        /// UUID or index.
        gpu: String,
    },
    /// The card has answered a question. The daemon decides whether that counts: anything it has
    /// seen since the answer before may be the cause.
    Answer {
        /// The id from the answer to `Begin`.
        id: String,
        /// As text. The shim encodes calls, too, and would carry the code for a call that it never
        /// sends.
        answer: Json<Answer>,
    },
    /// All questions were asked.
    End {
        /// The id from the answer to `Begin`.
        id: String,
        /// Whether the answers are kept; not after an interruption.
        #[serde(default)]
        keep: bool,
    },
}

/// Change the memory of a container that runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Resize {
    /// Its id, or the beginning of its id; with a `/` a whole name: `alice/train` of a plain
    /// process, `/run/runc/web` of a container.
    pub container: String,
    /// The new memory, on all of its cards together.
    pub memory: Mib,
}

/// Give the calling process a grant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Its name. No other process of the same user with a grant has it.
    pub name: ContainerId,
    /// Its request.
    pub request: Request,
    /// The uid of its CUDA processes.
    pub uid: u32,
}

/// A refusal or an edit that the shim decided on its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The container.
    pub container_id: String,
    /// The refusal's code.
    pub code: String,
    /// The action; an unknown word is a refusal.
    pub action: OneOf<NoteAction>,
    /// The sentence.
    pub sentence: String,
    /// The remedy, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The pod and container, where a kubelet's engine names them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodContainer>,
}
