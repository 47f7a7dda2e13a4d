//! What a caller asks of the daemon.

use mpsgate_model::ledger::CgroupId;
use mpsgate_model::{Answer, ContainerId, Grant, GrantKey, Mib, OneOf, PodContainer, Request};
use mpsgate_policy::NoteAction;
use serde::{Deserialize, Serialize};

use crate::Json;

/// Whose words a request is: told by root-owned facts, never by annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// An engine whose user is root anyway: docker, podman, ctr, runc by hand.
    Local,
    /// A kubelet's engine: pod authors write annotations.
    Kubernetes,
    /// None: a user of `run.group` asks for a process of the user's. Told by the socket.
    User,
    /// Slurm: the memory is what its controller has told mpsgated.
    Slurm,
}

/// What a caller wants.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// Hold memory for a container that is being created (the shim).
    Reserve(Reserve),
    /// Turn the reservation into a grant (the hook).
    Activate(Activate),
    /// End a grant or reservation (the hook at poststop).
    Release(Release),
    /// End the GPU work of a container that is about to be killed (the shim).
    Terminate(Terminate),
    /// Log and count what the shim refused or stripped on its own.
    Report(Report),
    /// Everything that the daemon knows.
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
    /// End a card's MPS, or end it and start it again: everything that runs on the card dies.
    Mps(Mps),
    /// Read the settings file again.
    Reload,
    /// Ask a card what holds on it.
    Qualify(Qualify),
    /// Give a container that runs more or less of its cards.
    Resize(Resize),
    /// Give the calling process a grant, and a cgroup of its own (`mpsgate run`). The answer is
    /// that of [`Call::Reserve`]; what it becomes by `execve` has the grant.
    Run(Box<Run>),
    /// The grant of the Slurm job that the calling process belongs to (TaskProlog); its first task
    /// brings it about. The answer is that of [`Call::Reserve`], or `done` for a job without GPU
    /// memory.
    Job,
    /// End what is left of a Slurm job (Epilog).
    EndJob {
        /// Slurm's number of it.
        job: u32,
    },
}

/// Hold memory for a container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reserve {
    /// Which instance of which container.
    pub key: GrantKey,
    /// What it asks for.
    pub request: Request,
    /// Host uid of its CUDA processes.
    pub uid: u32,
    /// Whose words the request is.
    pub engine: Engine,
    /// Whose container it is, where a kubelet's engine says so.
    pub pod: Option<PodContainer>,
    /// Hold it for the caller's parent: the caller ends before the container is made (Podman's
    /// `precreate` hook).
    pub for_parent: bool,
    /// Who has started a plain process, as mpsgated has found: nobody sends it.
    #[serde(skip)]
    pub user: Option<String>,
}

impl Reserve {
    /// How its grant is shown and taken.
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
    /// What was reserved: to take it anew where the reservation has expired.
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
    /// Whether its runtime removes its cgroup next. A limit that the driver has for that is to be
    /// cleared first: no later moment can name it.
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
    /// Where its init has ended; a runtime refuses it else (`delete`).
    Ended,
    /// Whatever runs in it (`delete --force`).
    Forced,
}

/// End a card's MPS, for good or for a moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Mps {
    /// UUID or index.
    pub gpu: String,
    /// What to do.
    pub action: MpsAction,
    /// Whether the operator has said so with the list of who dies in view. Without it nothing is
    /// done, and the answer is that list.
    pub confirmed: bool,
}

/// What to do with a card's MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MpsAction {
    /// End it and keep the card closed, over restarts too, until a `Restart`.
    Stop,
    /// End it and start it anew.
    Restart,
}

mpsgate_model::words!(MpsAction: Stop = "stop", Restart = "restart");

/// Ask a card what holds on it. The containers are the caller's; the daemon keeps the card free
/// for them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Qualify {
    /// Keep the card for containers whose ids begin with what the answer says.
    Begin {
        /// UUID or index.
        gpu: String,
    },
    /// It has answered a question. The daemon says whether that counts: whatever it has seen since
    /// the answer before may be the cause.
    Answer {
        /// As the answer to `Begin` said.
        id: String,
        /// As text. The shim writes calls, too, and would carry the code for what it never sends.
        answer: Json<Answer>,
    },
    /// It was asked.
    End {
        /// As the answer to `Begin` said.
        id: String,
        /// Whether its answers are to be kept: not where it was broken off.
        #[serde(default)]
        keep: bool,
    },
}

/// Give a container that runs more or less of its cards.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Resize {
    /// Its id, or the beginning of that; with a `/` a whole name: `alice/train` of a plain process,
    /// `/run/runc/web` of a container.
    pub container: String,
    /// What it is to have, on all of its cards together.
    pub memory: Mib,
}

/// Give the calling process a grant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// Its name, which no other process of the same user with a grant has.
    pub name: ContainerId,
    /// What it asks for.
    pub request: Request,
    /// Whom its CUDA processes run as.
    pub uid: u32,
}

/// What the shim did on its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The container.
    pub container_id: String,
    /// The refusal's code.
    pub code: String,
    /// What was done about it; one that is not known is a refusal.
    pub action: OneOf<NoteAction>,
    /// The sentence.
    pub sentence: String,
    /// What to do about it, where something is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Whose container it is, where a kubelet's engine says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodContainer>,
}
