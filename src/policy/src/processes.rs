//! What a container with a request sees of others' processes: by its PID namespace, and by a mount
//! of a procfs that is not its own. Through a procfs a process reads, and by `root` and `fd`
//! enters, what others of its uid have open: the MPS server and, through it, the control daemon.
//!
//! ```text
//!                            "own"                      "refuse"     "warn"
//!  the host's PID namespace  a PID namespace of its own  E_HOST_PID   started, said
//!  another container's       E_HOST_PID                  E_HOST_PID   started, said
//!  a procfs at /proc         a fresh one in its place    E_HOST_PID   started, said
//!  a procfs elsewhere        E_HOST_PID                  E_HOST_PID   started, said
//! ```
//! What is changed is decided about anew ([`Decision::confirmed`]), and is E_HOST_PID where the
//! kernel would not mount that procfs ([`Decision::with_procfs`]).

use mpsgate_config::HostPid;
use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::spec::{Document, Edit, View};

use crate::decision::{Decision, Verdict};
use crate::found::{Note, NoteAction};
use crate::input::{Input, MountFact, MountKind};
use crate::path::{clean, inside};
use crate::pids::Pids;
use crate::refusal_texts;

/// Where a container has its own procfs.
pub const PROC: &str = "/proc";
/// The part of a procfs that shows no process and is bound by NVIDIA's injection
/// (libnvidia-container, `mount_procfs_gpu`).
pub const DRIVER: &str = "/driver/nvidia";

/// Whether a path of the node shows its processes, by its name alone. `with_below`: the mounts
/// below it count. A process's root is taken for the node's.
#[must_use]
pub fn names_processes(path: &str, with_below: bool) -> bool {
    let clean = clean(path);
    let mut path = &*clean;
    while let Some(rest) = below_a_root(path) {
        path = if rest.is_empty() { "/" } else { rest };
    }
    let below = |path: &str, above: &str| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match path.strip_prefix(PROC) {
        Some(part) if below(path, PROC) => !below(part, DRIVER),
        _ => with_below && path == "/",
    }
}

/// What follows `/proc/PID/root`, which leads out of the procfs (proc(5)).
fn below_a_root(path: &str) -> Option<&str> {
    let (process, rest) = path.strip_prefix(PROC)?.strip_prefix('/')?.split_once('/')?;
    let is_process = matches!(process, "self" | "thread-self")
        || process.bytes().all(|letter| letter.is_ascii_digit());
    let rest = rest.strip_prefix("root").filter(|_| is_process)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// What is to be changed so that it sees its own processes alone, as far as that can be done.
pub(crate) fn edits(input: &Input<'_>) -> Vec<Edit> {
    if input.policy.host_pid != HostPid::Own {
        return Vec::new();
    }
    let mut edits = Vec::new();
    if input.pids == Pids::Host {
        edits.push(Edit::OwnPids);
    }
    if mounts(input).any(is_at_proc) {
        let mut places =
            input.view.mount_entries().map(|m| m.destination).filter(|d| inside(d) == PROC);
        let first = places.next().unwrap_or(PROC);
        let others = places.filter(|place| *place != first);
        edits.extend(others.map(|place| Edit::RemoveMount { destination: place.to_owned() }));
        edits.push(Edit::Proc { destination: first.to_owned() });
    }
    edits
}

/// A PID namespace with others' processes: why it is not granted, or what is to be said of it.
pub(crate) fn namespace(pids: &Pids, policy: HostPid) -> Option<Result<Note, Refusal>> {
    let found = match pids {
        Pids::Own | Pids::Pod => return None,
        Pids::Host if policy == HostPid::Own => {
            let text = "it asks for the host's PID namespace and gets one of its own (policy.host_pid = \"own\"): it sees \
                        no process of the node, and its first process is pid 1, so that docker stop and kubectl delete \
                        take their full time where it has no handler for the stop signal";
            return Some(Ok(Note::new(NoteAction::Warned, Code::HostPid, text)));
        }
        Pids::Host => "has the host's PID namespace".to_owned(),
        Pids::Other(path) => {
            format!(
                "joins the PID namespace {}, which is not its own pod's",
                printable::value(path)
            )
        }
    };
    Some(through(&found, policy, refusal_texts::host_pid))
}

/// The same of mounts.
pub(crate) fn mounted(input: &Input<'_>) -> Option<Result<Note, Refusal>> {
    let policy = input.policy.host_pid;
    let (at_proc, elsewhere): (Vec<_>, Vec<_>) = mounts(input).partition(|mount| is_at_proc(mount));
    let own = policy == HostPid::Own;
    match elsewhere.first().or_else(|| at_proc.first().filter(|_| !own)) {
        Some(mount) => Some(through(&by_mount(&mount.source), policy, of_mount)),
        None => at_proc.first().map(|mount| {
            let source = printable::value(&mount.source);
            let text =
                format!("its mount of {source} at {PROC} is replaced by a procfs of its own");
            Ok(Note::new(NoteAction::Warned, Code::HostPid, text))
        }),
    }
}

/// Whether it sees others' processes when all is changed that can be.
pub(crate) fn sees_others(input: &Input<'_>) -> bool {
    let own = input.policy.host_pid == HostPid::Own;
    let namespace = match &input.pids {
        Pids::Own | Pids::Pod => false,
        Pids::Host => !own,
        Pids::Other(_) => true,
    };
    namespace || mounts(input).any(|mount| !(own && is_at_proc(mount)))
}

/// What came out has others' processes in its PID namespace, which is the node's, or at `mounted`:
/// for the hook. Where the settings let it through, what is to be said of it.
///
/// # Errors
/// Everywhere else.
pub fn seen_by_hook(mounted: Option<&str>, policy: HostPid) -> Result<Note, Refusal> {
    match mounted {
        None => through("has the host's PID namespace", policy, refusal_texts::host_pid),
        Some(place) => {
            let found = format!("has a procfs of the node at {}", printable::value(place));
            through(&found, policy, of_mount)
        }
    }
}

fn through(found: &str, policy: HostPid, refusal: fn(&str) -> Refusal) -> Result<Note, Refusal> {
    match policy {
        HostPid::Own | HostPid::Refuse => Err(refusal(found)),
        HostPid::Warn => {
            let text = format!("it {found}; let through by policy.host_pid = \"warn\"");
            Ok(Note::new(NoteAction::Warned, Code::HostPid, text))
        }
    }
}

fn mounts<'a>(input: &Input<'a>) -> impl Iterator<Item = &'a MountFact> + use<'a> {
    input.mounts.iter().filter(|mount| mount.kind == MountKind::Processes)
}

fn is_at_proc(mount: &MountFact) -> bool {
    inside(&mount.destination) == PROC
}

/// A mount's source that shows them, as the middle of a sentence.
#[must_use]
pub fn by_mount(source: &str) -> String {
    format!("has the node's processes by its mount of {}", printable::value(source))
}

/// A request with a mount that shows the node's processes.
#[must_use]
pub fn of_mount(found: &str) -> Refusal {
    Refusal::new(
        Code::HostPid,
        format!(
            "it asks for GPU memory and {found}, by which it reaches the MPS server and other containers"
        ),
        "leave the mount out (hostPath: /proc, docker run -v /proc:…); of a directory above it mount what is needed \
         (hostPath: /var/log); or set policy.host_pid = \"warn\" in /etc/mpsgate/config.toml",
    )
}

/// A request in a user namespace, for which the kernel mounts no procfs.
fn without_procfs() -> Refusal {
    Refusal::new(
        Code::HostPid,
        "it asks for GPU memory and has the node's processes by its mount of /proc, and no procfs of its own can take \
         that place: in a user namespace the kernel mounts none while the node's is covered in part, or read-only",
        "run it without a user namespace (docker or podman run --userns=host, hostUsers: true); or unmount what covers \
         a part of the node's /proc (findmnt -R /proc); or set policy.host_pid = \"warn\" in /etc/mpsgate/config.toml",
    )
}

fn changes(edit: &Edit) -> bool {
    matches!(edit, Edit::OwnPids | Edit::Proc { .. })
}

impl Decision {
    /// Where it gives a container processes of its own: what the changed document says is decided
    /// `anew`, and must need no such change.
    #[must_use]
    pub fn confirmed(mut self, document: &Document, anew: impl FnOnce(View<'_>) -> Self) -> Self {
        let Verdict::Reserve(wanted) = &self.verdict else { return self };
        if !wanted.edits.iter().any(changes) {
            return self;
        }
        let mut edited = document.clone();
        if edited.apply(&wanted.edits).is_err() {
            let found = "has a document that cannot be changed to give it its own processes";
            self.verdict = Verdict::Refuse(refusal_texts::host_pid(found));
            return self;
        }
        match anew(edited.view()).verdict {
            Verdict::Reserve(again) if !again.edits.iter().any(changes) => {}
            Verdict::Refuse(refusal) => self.verdict = Verdict::Refuse(refusal),
            _ => {
                let found = "still sees the node's processes when it has been given its own";
                self.verdict = Verdict::Refuse(refusal_texts::host_pid(found));
            }
        }
        self
    }

    /// Where it gives a container a fresh procfs, the kernel has to mount it: `may_mount` says
    /// whether it would. Runtimes say EPERM, and not of what.
    #[must_use]
    pub fn with_procfs(mut self, may_mount: impl FnOnce() -> bool) -> Self {
        if let Verdict::Reserve(wanted) = &self.verdict
            && wanted.edits.iter().any(|edit| matches!(edit, Edit::Proc { .. }))
            && !may_mount()
        {
            self.verdict = Verdict::Refuse(without_procfs());
        }
        self
    }
}
