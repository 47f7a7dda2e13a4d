//! What a pod's own text shows before any node has seen it, evaluated in the node's words: for the
//! admission webhook.
//!
//! A node decides in any case, by what really came out ([`mpsgate_policy::decide()`]). So this may
//! miss something, and refuses nothing that a node would start as it was meant, with one exception:
//! `NVIDIA_VISIBLE_DEVICES` in a container that asks. A node puts the granted card in its place,
//! and whoever wrote `all` meant something else.

use std::num::NonZeroU32;

use mpsgate_config::Ipc;
use mpsgate_model::{Code, Mib, Refusal, Resource, printable};

use crate::bypass::{Known, Placer, Way, Where};
use crate::cards::{Beyond, Largest, beyond};
use mpsgate_policy::schedule::{self, Word};
use mpsgate_policy::{
    ASK_LIMITS, MountKind, PROC, Signal, VISIBLE, by_mount, core_refusal, holds_ours, inside, list,
    mounts_ours, named, of_mount, refusal_of, refusal_texts, touches, uncountable, visible,
};

/// Nodes that a pod's own selectors leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// They say nothing of how cards are shared.
    Any,
    /// Those of one word alone.
    Only(Word),
}

/// A pod, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Where it may come to, by the label that switches a node.
    pub nodes: Nodes,
    /// The same, by all that it says.
    pub place: Where,
    /// Who chooses its node, by the scheduler that it names.
    pub scheduler: Placer,
    /// `runtimeClassName`.
    pub class: Option<String>,
    /// `hostIPC`.
    pub host_ipc: bool,
    /// `hostPID`.
    pub host_pids: bool,
    /// `hostUsers: false`: no capability in it reaches the host.
    pub own_users: bool,
    /// Its label `aliyun.com/gpu-count`, as written.
    pub gpu_count: Option<String>,
    /// It names GPU memory in an annotation, which counts for nothing in a pod.
    pub asks_by_annotation: bool,
    /// An annotation by which NVIDIA's toolkit, or the engine, would give its containers a card.
    pub annotates_cards: bool,
    /// All of them: init, main and ephemeral ones.
    pub containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// `securityContext.privileged`.
    pub privileged: bool,
    /// Capabilities that are added, as written.
    pub capabilities: Vec<String>,
    /// `NVIDIA_VISIBLE_DEVICES`, where its text stands in the pod.
    pub visible_devices: Option<String>,
    /// GPU memory by resource; what is wrong where a limit or request of ours cannot be counted.
    pub limits: Result<Vec<(String, Mib)>, String>,
    /// `aliyun.com/gpu-core.percentage`; nothing is 0.
    pub core_percentage: u64,
    /// A resource of another device plugin's that gives it a card besides.
    pub other_card: Option<String>,
    /// A variable or mount by which NVIDIA's toolkit would give it a card.
    pub names_cards: bool,
    /// Device nodes of GPUs that it mounts from the host.
    pub device_mounts: Vec<DeviceMount>,
    /// What it mounts of the host that shows the node's processes.
    pub processes: Option<Processes>,
    /// A path of the host that it mounts and that is mpsgate's own, or holds it.
    pub ours: Option<String>,
    /// What it mounts at `/dev/shm` that is not the host's.
    pub shm: Option<ShmVolume>,
    /// `policy.exempt` of the nodes lets it through: without a request it may have any card.
    pub exempt: bool,
}

/// A path of the host at which GPUs' device nodes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceMount {
    /// It.
    pub path: String,
    /// What is mounted is a GPU's. Else it is whatever a variable names below the path.
    pub is_known: bool,
}

/// A path of the host that shows the node's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processes {
    /// It.
    pub source: String,
    /// It is mounted at `/proc`, where a node puts a procfs of the container's own in its place.
    pub at_proc: bool,
}

/// A volume of a pod that a container mounts at `/dev/shm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShmVolume {
    /// Its name.
    pub name: String,
    /// What it is, by the key that says so: `emptyDir`.
    pub kind: String,
}

/// Whether a path means `/dev/shm` by its text alone, however it is written.
#[must_use]
pub fn is_shm(path: &str) -> bool {
    inside(path) == "/dev/shm"
}

/// A refusal, and whose it is.
pub type Said = (String, Refusal);

/// What is to be said of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evaluated {
    /// Why a node would not start it.
    pub refused: Vec<Said>,
    /// What its author should know besides.
    pub warned: Vec<Said>,
}

impl Container {
    /// Whether it asks for GPU memory, however badly.
    #[must_use]
    pub fn asks(&self) -> bool {
        !matches!(&self.limits, Ok(given) if given.is_empty()) || self.core_percentage > 0
    }

    /// Whether it shows a way to a card that nobody granted.
    fn has_signal(&self) -> bool {
        !self.exempt && (visible_devices(self).is_some() || !self.device_mounts.is_empty())
    }

    fn may_gain(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|added| is_all(added) || is_it(added, capability))
    }

    /// A capability that no kernel of today has.
    fn unknown_capability(&self) -> Option<&str> {
        let is_known = |added: &str| {
            is_all(added)
                || refusal_texts::CAPABILITIES.iter().any(|(known, ..)| is_it(added, known))
        };
        self.capabilities.iter().map(String::as_str).find(|added| !is_known(added))
    }
}

fn is_all(added: &str) -> bool {
    added.eq_ignore_ascii_case("ALL")
}

/// Kubernetes has the names with or without their beginning.
fn is_it(added: &str, capability: &str) -> bool {
    let short = capability.strip_prefix("CAP_").unwrap_or(capability);
    added.eq_ignore_ascii_case(capability) || added.eq_ignore_ascii_case(short)
}

impl Pod {
    /// Whether it asks for GPU memory of ours. A pod for another system's nodes may name the same
    /// resources.
    #[must_use]
    pub fn asks(&self) -> bool {
        self.nodes != Nodes::Only(Word::Off) && self.containers.iter().any(Container::asks)
    }

    /// Who chooses its node. kube-scheduler asks an extender about pods that ask for GPU memory,
    /// and about no pod that names its node.
    fn placer(&self) -> Placer {
        if self.asks() && self.place.node.is_none() { self.scheduler } else { Placer::Other }
    }

    /// Whether the node's IPC namespace may be given to it: it needs it, has it not, and Kubernetes
    /// takes it beside the rest.
    #[must_use]
    pub fn takes_host_ipc(&self, ipc: Ipc) -> bool {
        self.needs_host_ipc(ipc) && !self.host_ipc && !self.own_users
    }

    /// Whether it needs the node's IPC namespace. Where the nodes' `policy.ipc` leaves that to each
    /// node, nobody says so before.
    #[must_use]
    pub fn needs_host_ipc(&self, ipc: Ipc) -> bool {
        ipc == Ipc::RequireHost && self.may_come_under_mps()
    }

    /// Several cards never do.
    fn may_come_under_mps(&self) -> bool {
        let one_card = self.cards().is_ok_and(|cards| cards.get() == 1);
        self.asks()
            && match self.nodes {
                Nodes::Any => one_card,
                Nodes::Only(word) => word == Word::Mps,
            }
    }

    fn cards(&self) -> Result<NonZeroU32, Refusal> {
        self.gpu_count.as_deref().map_or(Ok(NonZeroU32::MIN), schedule::gpu_count)
    }
}

/// Evaluates a pod that waits for a node and may by now go to others than before: by its handler
/// alone, as nothing else of it has changed.
#[must_use]
pub fn evaluate_way(pod: &Pod, known: &Known) -> Evaluated {
    let mut evaluated = Evaluated::default();
    if pod.nodes != Nodes::Only(Word::Off) {
        way(pod, known, &mut evaluated);
    }
    evaluated
}

/// Evaluates a pod. `known` is what is known of the cluster's nodes and RuntimeClasses, `ipc` the
/// nodes' `policy.ipc`.
#[must_use]
pub fn evaluate(pod: &Pod, known: &Known, ipc: Ipc) -> Evaluated {
    let mut evaluated = Evaluated::default();
    if pod.nodes == Nodes::Only(Word::Off) {
        return evaluated;
    }
    way(pod, known, &mut evaluated);
    let pod_asks = pod.asks();
    let reaches = || pod_asks && known.reaches(pod.class.as_deref(), &pod.place);
    let largest = known.cards.together().of_pod(reaches);
    // Of what is the whole pod's, its first container that asks is told.
    let mut first = true;
    for container in &pod.containers {
        let mut refuse = |refusal| evaluated.refused.push((container.name.clone(), refusal));
        let mut warn = |refusal| evaluated.warned.push((container.name.clone(), refusal));
        if container.asks() {
            let of_pod = std::mem::take(&mut first).then_some(ipc);
            of_asking(pod, container, of_pod, &mut refuse, &mut warn);
            beyond_cards(pod, container, largest, &mut refuse, &mut warn);
            container.other_card.as_deref().map(of_other_card).map(&mut warn);
            continue;
        }
        if container.exempt {
            continue;
        }
        if let Some(found) = visible_devices(container) {
            let signal = Signal::fixed(Code::VisibleDevices, found);
            let refusal = refusal_of(&signal, false, ASK_LIMITS);
            if pod_asks { refuse(refusal) } else { warn(refusal) }
        }
        for DeviceMount { path, is_known } in &container.device_mounts {
            let found = if *is_known {
                format!("it mounts {path}, which is a GPU's")
            } else {
                format!("it mounts by subPathExpr something below {path}, which may be a GPU's")
            };
            let signal = Signal::fixed(Code::DeviceNode, found);
            warn(refusal_of(&signal, false, ASK_LIMITS));
        }
    }
    if pod.asks_by_annotation && !pod_asks {
        let container = pod.containers.first().map(|first| first.name.clone()).unwrap_or_default();
        let found = "it asks for GPU memory by annotation, which counts for nothing in a pod";
        evaluated.warned.push((container, Refusal::new(Code::Unconfirmed, found, ASK_LIMITS)));
    }
    evaluated
}

/// Of a container that asks, and with `of_pod` of what is its whole pod's.
fn of_asking(
    pod: &Pod,
    container: &Container,
    of_pod: Option<Ipc>,
    refuse: &mut impl FnMut(Refusal),
    warn: &mut impl FnMut(Refusal),
) {
    amounts(pod, container, refuse);
    if container.privileged {
        refuse(refusal_texts::privileged());
    } else if !pod.own_users {
        let unknown = container.unknown_capability();
        // A node says whether it sees others' processes, by its `policy.host_pid`.
        let others_pids = false;
        refusal_texts::capability(|name| container.may_gain(name), unknown, others_pids)
            .map(&mut *refuse);
    }
    if let Some(ipc) = of_pod {
        of_the_pod(pod, ipc, refuse, warn);
    }
    container.processes.as_ref().map(of_processes).map(&mut *warn);
    container.ours.as_deref().map(of_ours).map(&mut *warn);
    if let Some(volume) = &container.shm
        && pod.may_come_under_mps()
    {
        warn(of_shm(volume, pod.own_users));
    }
    if let Some(found) = visible_devices(container) {
        let hint =
            format!("remove {VISIBLE}: a container with GPU memory is given its card's by itself");
        refuse(Refusal::new(Code::VisibleDevices, found, hint));
    }
}

/// Says of each container to whom it matters whether the pod comes to mpsgate at all.
fn way(pod: &Pod, known: &Known, evaluated: &mut Evaluated) {
    let plain = |container: &Container| container.asks() || container.has_signal();
    // On a way through mpsgate the node evaluates these, by what comes out of them.
    let any = |container: &Container| {
        plain(container) || (!container.exempt && (container.names_cards || pod.annotates_cards))
    };
    // Most pods are told nothing.
    if !pod.containers.iter().any(any) {
        return;
    }
    let said = |matters: &dyn Fn(&Container) -> bool, refusal: &Refusal| {
        let containers = pod.containers.iter().filter(|one| matters(one));
        containers.map(|one| (one.name.clone(), refusal.clone())).collect::<Vec<_>>()
    };
    match known.way(pod.class.as_deref(), &pod.place, pod.placer()) {
        Way::Fine => {}
        Way::Bypass(refusal) => evaluated.refused.extend(said(&any, &refusal)),
        Way::Default(refusal) | Way::Unknown(refusal) => {
            evaluated.warned.extend(said(&plain, &refusal))
        }
    }
}

fn of_the_pod(
    pod: &Pod,
    ipc: Ipc,
    refuse: &mut impl FnMut(Refusal),
    warn: &mut impl FnMut(Refusal),
) {
    match pod.cards() {
        Err(refusal) => refuse(refusal),
        Ok(cards) if cards.get() > 1 => match pod.nodes {
            Nodes::Only(Word::Mps) => refuse(schedule::several_cards(cards)),
            // mpsgate-scheduler keeps it off nodes under MPS; without, it may come there and is
            // refused.
            Nodes::Any => warn(schedule::several_cards(cards)),
            Nodes::Only(_) => {}
        },
        Ok(_) => {}
    }
    if pod.needs_host_ipc(ipc) && !pod.host_ipc {
        refuse(refusal_texts::pod_without_host_ipc(pod.own_users));
    }
    if pod.host_pids {
        warn(own_pids());
    }
}

/// Never refused here: what a node does, its `policy.host_pid` says.
fn own_pids() -> Refusal {
    Refusal::new(
        Code::HostPid,
        "it asks for GPU memory and for the host's PID namespace (hostPID: true): a node gives it one of its own, or \
         refuses it (policy.host_pid)",
        "leave hostPID out; a program that is pid 1 and has no handler for SIGTERM is stopped after \
         terminationGracePeriodSeconds alone",
    )
}

/// Never refused here: of a node with `policy.host_pid = "warn"` the cluster knows nothing.
fn of_processes(shown: &Processes) -> Refusal {
    if !shown.at_proc {
        return of_mount(&by_mount(&shown.source));
    }
    let found = format!(
        "it asks for GPU memory and mounts {} at {PROC}: a node puts a procfs of its own in its place, or refuses it \
         (policy.host_pid)",
        printable::value(&shown.source)
    );
    Refusal::new(Code::HostPid, found, "leave the mount out: every container has a /proc")
}

/// Never refused here: a node knows these directories by what they are, and not by their names.
fn of_ours(source: &str) -> Refusal {
    match touches(source) {
        Some(MountKind::Ours) => {
            let signal = Signal::fixed(Code::MpsMount, mounts_ours(source));
            refusal_of(&signal, true, ASK_LIMITS)
        }
        _ => holds_ours(source),
    }
}

/// Never refused here: what the node's driver needs, the node alone knows.
fn of_shm(volume: &ShmVolume, own_users: bool) -> Refusal {
    let found = format!(
        "it mounts the volume {:?} ({}) at /dev/shm, where with drivers up to 555 CUDA processes need what the MPS server \
         has there (else cuInit fails with CUDA_ERROR_MAP_FAILED, 205)",
        volume.name,
        printable::value(&volume.kind),
    );
    // Kubernetes takes no hostIPC beside hostUsers: false.
    let hint = if own_users {
        "with drivers from 580 on it may stay; with older ones remove the volume mount at /dev/shm and hostUsers: false, and set \
         hostIPC: true, which brings the host's"
    } else {
        "remove the volume mount at /dev/shm, hostIPC: true brings the host's; with drivers from 580 on it may stay"
    };
    Refusal::new(Code::Shm, found, hint)
}

/// What a container asks for.
fn amounts(pod: &Pod, container: &Container, refuse: &mut impl FnMut(Refusal)) {
    let given = match &container.limits {
        Err(why) => return refuse(uncountable(why)),
        Ok(given) => given,
    };
    if given.len() > 1 {
        refuse(Refusal::new(
            Code::Request,
            format!(
                "its resources.limits give {}, and a container has its GPU memory from one resource",
                list(given)
            ),
            "ask for one of them",
        ));
    }
    for (resource, memory) in given {
        if slice_of(resource).is_some_and(|slice| *memory > slice) {
            refuse(Refusal::new(
                Code::Request,
                format!("it asks for more than one of {resource}, and a container can have 1"),
                format!("set {resource}: 1 in resources.limits, and take a larger size for more"),
            ));
        }
    }
    if let Some(refusal) = core_refusal(container.core_percentage, !given.is_empty()) {
        refuse(refusal);
    }
    let Ok(cards) = pod.cards() else { return };
    if cards.get() > 1 && pod.nodes != Nodes::Only(Word::Mps) {
        for (resource, memory) in given {
            if let Err(refusal) = schedule::each(*memory, cards, schedule::unit_of(resource)) {
                refuse(refusal);
            }
        }
    }
}

/// What it asks for and no card has. Of several slices more is wrong already, and several resources
/// are refused already: a container may have thousands.
fn beyond_cards(
    pod: &Pod,
    container: &Container,
    largest: Largest,
    refuse: &mut impl FnMut(Refusal),
    warn: &mut impl FnMut(Refusal),
) {
    let (Ok(given), Ok(cards)) = (&container.limits, pod.cards()) else { return };
    let [(resource, memory)] = given.as_slice() else { return };
    let memory = slice_of(resource).unwrap_or(*memory);
    match beyond(largest, resource, memory, cards) {
        Some(Beyond::Refused(refusal)) => refuse(refusal),
        Some(Beyond::Warned(refusal)) => warn(refusal),
        None => {}
    }
}

/// Never refused here: a node decides by what comes out of both.
fn of_other_card(resource: &str) -> Refusal {
    let resource = printable::value(resource);
    let found = format!(
        "it asks for a card twice: {resource} in its resources is another device plugin's, and takes a whole card beside \
         its GPU memory"
    );
    Refusal::new(
        Code::Request,
        found,
        format!("remove {resource}: a container with GPU memory is given its card by itself"),
    )
}

/// What one of nos' slices is.
fn slice_of(resource: &str) -> Option<Mib> {
    let resource = Resource::parse(resource)?;
    resource.unit().filter(|_| matches!(resource, Resource::Slice(_)))
}

fn visible_devices(container: &Container) -> Option<String> {
    let value = container.visible_devices.as_deref()?;
    Some(visible(value, named(value, |_| true)?))
}
