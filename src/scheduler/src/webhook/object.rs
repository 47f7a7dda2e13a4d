//! The object of a review: which pod is to be evaluated, and what of it matters.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use mpsgate_cluster::admission::{
    self, Container, DeviceMount, Nodes, Pod, Processes, Said, ShmVolume,
};
use mpsgate_cluster::bypass::{Expression, Term, Where};
use mpsgate_kubernetes::{LimitError, parse_limits};
use mpsgate_model::printable::chain;
use mpsgate_model::{Code, GPU_COUNT, MEMORY_ANNOTATIONS, Mib, Refusal, parse_count};
use mpsgate_policy::schedule::{LABEL, Word};
use mpsgate_policy::{
    PROC, clean, inside, is_exempt, names_processes, pod_mount, pod_variables, touches,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::bounds::{self, Look, Unseen};
use super::forged_placement;
use super::kept_fields::{MIRROR, Quantities};
use super::patch::{Mutation, Scheduling};
use super::review_wire::{self, Metadata, Owning, Request, Spec, User, VISIBLE, Volume};
use super::shape::{List, Object, Text};

/// What makes pods.
const TEMPLATES: [&str; 6] =
    ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"];
/// Whoever asks for a node, as the node authorizer knows them.
const NODES: &str = "system:nodes";
const NODE: &str = "system:node:";
/// The name of a volume or of a container is a label of DNS (RFC 1123). More of it nobody is told,
/// as each thing that is said of a container has its name.
const LONGEST_NAME: usize = 63;
/// Where a node has the device files of its GPUs.
const DEVICES: &str = "/dev/nvidia";
/// Of a device's path, what is told of it: characters.
const LONGEST_DEVICE: usize = 128;
/// `PATH_MAX` of Linux.
const LONGEST_PATH: usize = 4096;

/// What a review is about.
pub(super) enum Subject {
    /// Nothing of ours.
    Nothing,
    /// A pod that is to be made, what its author may not say or ask for in it, and where it is to
    /// be scheduled.
    Pod { pod: Pod, more: Vec<Said>, scheduling: Scheduling },
    /// A pod that nobody but a scheduler may make or change so.
    Forged(Said),
    /// A pod that waits for a node, and tolerates other taints than before.
    Opened(Pod),
    /// A pod that runs, and its containers that are to be added.
    Ephemeral { pod: Pod, new: Vec<String> },
    /// Pods that will be made.
    Template { pod: Pod, more: Vec<Said> },
}

impl Subject {
    /// # Errors
    /// Why it is not looked at.
    pub(super) fn of(
        request: &Request<'_>,
        told: &Mutation,
        until: Instant,
    ) -> Result<Self, Unseen> {
        let look = &mut Look::new(until);
        look.in_time()?;
        let kind = request.kind.0.as_ref().map_or("", |kind| kind.kind.as_str());
        match (kind, request.operation.as_str(), request.sub_resource.as_str()) {
            ("Pod", "CREATE", "") => Self::made(request, told, look),
            ("Pod", "UPDATE", "") => Self::changed(request, told, look),
            ("Pod", "UPDATE", "ephemeralcontainers") => {
                let (wire, old): (review_wire::Pod, review_wire::Pod) =
                    (read(request.object)?, read(request.old_object)?);
                let pod = pod_of(&wire, request, told, look)?;
                let before: BTreeSet<String> = ephemeral(&old).into_iter().collect();
                let new = ephemeral(&wire).into_iter().filter(|name| !before.contains(name));
                Ok(Self::Ephemeral { new: new.collect(), pod })
            }
            (_, "CREATE" | "UPDATE", "") if TEMPLATES.contains(&kind) => {
                Self::of_owner(kind, request, told, look)
            }
            _ => Ok(Self::Nothing),
        }
    }

    fn made(request: &Request<'_>, told: &Mutation, look: &mut Look) -> Result<Self, Unseen> {
        let user = request.user_info.0.as_ref();
        let metadata = metadata_of(request.object)?;
        if is_mirror(&metadata, user) {
            return Ok(Self::Nothing);
        }
        let read =
            read(request.object).and_then(|wire| Ok((pod_of(&wire, request, told, look)?, wire)));
        let asks = read.as_ref().map_or(true, |(pod, _)| pod.asks());
        let forged = forged_placement::brought(&metadata, asks);
        let forged =
            forged.filter(|_| !forged_placement::is_by(user, told.scheduler_account.as_deref()));
        match (read, forged) {
            (Ok((pod, wire)), forged) => {
                let spec = wire.spec.0.unwrap_or_default();
                let forged = forged.map(|why| (first(&pod), why));
                let more = forged.into_iter().chain(whole_card(&spec, told)).collect();
                Ok(Self::Pod { more, pod, scheduling: scheduling(&spec) })
            }
            (Err(_), Some(why)) => Ok(Self::Forged((String::new(), why))),
            (Err(why), None) => Err(why),
        }
    }

    fn changed(request: &Request<'_>, told: &Mutation, look: &mut Look) -> Result<Self, Unseen> {
        let (now, then) = (metadata_of(request.object)?, metadata_of(request.old_object)?);
        let wire = read::<review_wire::Pod>(request.object);
        let pod = wire.as_ref().map_err(Unseen::clone);
        let pod = pod.and_then(|wire| pod_of(wire, request, told, look));
        let wire = wire.unwrap_or_default().spec.0.unwrap_or_default();
        let old: review_wire::Pod = read(request.old_object).unwrap_or_default();
        let old = old.spec.0.unwrap_or_default();
        let is_bound = is_bound(request.old_object);
        // What is too long to be looked at may ask for anything.
        let counted = is_bound && pod.as_ref().map_or(true, Pod::asks);
        let (user, scheduler) = (request.user_info.0.as_ref(), told.scheduler_account.as_deref());
        let changed = forged_placement::changed(&now, &then, counted);
        let changed = changed.filter(|_| !forged_placement::is_by(user, scheduler));
        let name = pod.as_ref().map(first).unwrap_or_default();
        Ok(match (changed, pod) {
            (Some(why), _) => Self::Forged((name, why)),
            (None, Ok(pod)) if !is_bound && wire.tolerations != old.tolerations => {
                Self::Opened(pod)
            }
            (None, Err(why)) if !is_bound => return Err(why),
            (None, _) => Self::Nothing,
        })
    }

    /// Of what makes pods.
    fn of_owner(
        kind: &str,
        request: &Request<'_>,
        told: &Mutation,
        look: &mut Look,
    ) -> Result<Self, Unseen> {
        let (owning, old): (Owning<'_>, Owning<'_>) =
            (read(request.object)?, read(request.old_object)?);
        let (now, then) = (template(kind, owning.spec), template(kind, old.spec));
        // Whose owner's author was told already, or which says what it said.
        let owned = owning.metadata.0.is_some_and(|one| !one.owner_references.0.is_empty());
        if owned || now.map(RawValue::get) == then.map(RawValue::get) {
            return Ok(Self::Nothing);
        }
        let wire: review_wire::Pod = read(now)?;
        let mut pod = pod_of(&wire, request, told, look)?;
        let scheduling = wire.spec.0.as_ref().map(scheduling).unwrap_or_default();
        pod.scheduler = told.placer_of(&pod, &scheduling);
        let metadata = wire.metadata.0.unwrap_or_default();
        let forged = forged_placement::brought(&metadata, pod.asks()).map(|why| (first(&pod), why));
        let whole = wire.spec.0.as_ref().and_then(|spec| whole_card(spec, told));
        Ok(Self::Template { more: forged.into_iter().chain(whole).collect(), pod })
    }
}

/// Its first container with a limit of which kube-scheduler makes a claim of a whole card, which
/// nodes refuse unless `kubernetes.dra_extended_resources` allows it.
fn whole_card(spec: &Spec, told: &Mutation) -> Option<Said> {
    if told.extended_resources {
        return None;
    }
    let mut all = objects(&spec.init_containers).chain(objects(&spec.containers));
    all.find_map(|one| {
        let resources = one.resources.0.as_ref()?;
        let class = resources.limits.class.as_ref().or(resources.requests.class.as_ref())?;
        let found = format!("its limit {class} is a claim of a whole card, and nodes refuse these");
        let hint =
            "ask for memory: a claim of the pod's own, or aliyun.com/gpu-mem in resources.limits";
        Some((short(one.name.as_str()), Refusal::new(Code::Claim, found, hint)))
    })
}

/// What is no object is an empty one. What is too long is not read.
fn read<'a, T: Default + Deserialize<'a>>(text: Option<&'a RawValue>) -> Result<T, Unseen> {
    text.map_or(Ok(()), |text| bounds::json(text.get()))?;
    read_any(text)
}

/// The same of whatever length: for what is small in it.
fn read_any<'a, T: Default + Deserialize<'a>>(text: Option<&'a RawValue>) -> Result<T, Unseen> {
    let Some(text) = text else { return Ok(T::default()) };
    let read: Object<T> = serde_json::from_str(text.get()).map_err(|error| Unseen::of(&error))?;
    Ok(read.0.unwrap_or_default())
}

/// Whether a pod has its node, however long the rest of it is.
pub(super) fn is_bound(object: Option<&RawValue>) -> bool {
    let bound: review_wire::Bound = read_any(object).unwrap_or_default();
    bound.spec.0.is_some_and(|spec| !spec.node_name.as_str().is_empty())
}

/// Whether a pod is no longer than what is looked at.
pub(super) fn could_be_read(object: Option<&RawValue>) -> bool {
    read::<review_wire::Pod>(object).is_ok()
}

/// Alone, because it is small whatever the rest is: who makes the rest too long to be looked at
/// gains nothing.
fn metadata_of(object: Option<&RawValue>) -> Result<Metadata, Unseen> {
    let head: review_wire::Head = read_any(object)?;
    Ok(head.metadata.0.unwrap_or_default())
}

/// What is the whole pod's is told of its first container.
fn first(pod: &Pod) -> String {
    pod.containers.first().map(|first| first.name.clone()).unwrap_or_default()
}

/// A static pod's copy, accepted from nobody but a kubelet: the API server lets anybody else say so
/// too.
fn is_mirror(metadata: &Metadata, user: Option<&User>) -> bool {
    let is_node = user.is_some_and(|user| {
        user.username.as_str().starts_with(NODE)
            && user.groups.0.iter().any(|group| group.as_str() == NODES)
    });
    is_node && metadata.annotations.has(MIRROR)
}

fn template<'a>(kind: &str, spec: Object<review_wire::Making<'a>>) -> Option<&'a RawValue> {
    let spec = spec.0?;
    match kind {
        "CronJob" => spec.job_template.0?.spec.0?.template,
        _ => spec.template,
    }
}

fn ephemeral(pod: &review_wire::Pod) -> Vec<String> {
    let all = pod.spec.0.iter().flat_map(|spec| objects(&spec.ephemeral_containers));
    all.map(|one| short(one.name.as_str())).collect()
}

fn short(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

fn objects<T>(list: &List<Object<T>>) -> impl Iterator<Item = &T> {
    list.0.iter().filter_map(|one| one.0.as_ref())
}

/// What matters of a pod, or of a template of pods.
fn pod_of(
    pod: &review_wire::Pod,
    request: &Request<'_>,
    told: &Mutation,
    look: &mut Look,
) -> Result<Pod, Unseen> {
    let spec = pod.spec.0.as_ref().ok_or(Unseen::NoPod)?;
    let containers = [&spec.init_containers, &spec.containers, &spec.ephemeral_containers];
    let all = || containers.into_iter().flat_map(objects);
    look.containers(all().count())?;
    let mounts = |one: &review_wire::Container| {
        one.volume_mounts.0.len().saturating_add(one.volume_devices.0.len())
    };
    look.mounts(all().map(mounts).fold(0, usize::saturating_add))?;
    let added = |one: &review_wire::Container| {
        let security = one.security_context.0.as_ref();
        let capabilities = security.and_then(|context| context.capabilities.0.as_ref());
        capabilities.map_or(0, |capabilities| capabilities.add.0.len())
    };
    look.capabilities(all().map(added).fold(0, usize::saturating_add))?;
    let volumes: Volumes<'_> =
        spec.volumes.0.iter().map(|one| (one.name.as_str(), Place::of(one))).collect();
    let mut containers = Vec::new();
    for one in all() {
        look.in_time()?;
        containers.push(Container {
            exempt: is_exempt(&told.exempt, request.namespace.as_str(), one.image.as_str()),
            ..container(one, &volumes, look)?
        });
    }
    let metadata = pod.metadata.0.as_ref();
    let asks = |name: &&str| metadata.is_some_and(|m| m.annotations.text(name).is_some());
    Ok(Pod {
        nodes: nodes(spec),
        place: place(spec),
        scheduler: told.placer(spec.scheduler_name.as_str()),
        class: spec.runtime_class_name.0.clone().filter(|name| !name.is_empty()),
        host_ipc: spec.host_ipc.is(true),
        host_pids: spec.host_pid.is(true),
        own_users: spec.host_users.is(false),
        gpu_count: metadata.and_then(|m| m.labels.text(GPU_COUNT)).map(ToOwned::to_owned),
        asks_by_annotation: MEMORY_ANNOTATIONS.iter().any(asks),
        annotates_cards: metadata.is_some_and(|m| m.annotations.names_cards),
        containers,
    })
}

/// What it says of its scheduler.
fn scheduling(spec: &Spec) -> Scheduling {
    Scheduling {
        scheduler: spec.scheduler_name.as_str().to_owned(),
        node: spec.node_name.as_str().to_owned(),
    }
}

/// Where it may go, in all its words.
fn place(spec: &Spec) -> Where {
    let text = |text: &Text| text.as_str().to_owned();
    let expressions = |list: &List<Object<review_wire::Expression>>| {
        let all = objects(list).map(|one| Expression {
            key: text(&one.key),
            operator: text(&one.operator),
            values: one.values.0.iter().map(text).collect(),
        });
        all.collect()
    };
    Where {
        node: spec.node_name.0.clone().filter(|name| !name.is_empty()),
        selector: spec
            .node_selector
            .0
            .iter()
            .map(|(key, value)| (key.clone(), text(value)))
            .collect(),
        terms: terms(spec)
            .map(|term| Term {
                labels: expressions(&term.match_expressions),
                fields: expressions(&term.match_fields),
            })
            .collect(),
    }
}

/// Those of its required node affinity.
fn terms(spec: &Spec) -> impl Iterator<Item = &review_wire::Term> {
    let affinity = spec.affinity.0.as_ref().and_then(|affinity| affinity.node_affinity.0.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.0.as_ref());
    required.into_iter().flat_map(|required| objects(&required.node_selector_terms))
}

/// A volume, and where on the node it is, if a mount of it can show anything that is looked for.
#[derive(Clone, Copy)]
struct Place<'a> {
    volume: &'a Volume,
    /// Cleaned.
    host: Option<&'a str>,
}

type Volumes<'a> = BTreeMap<&'a str, Place<'a>>;

impl<'a> Place<'a> {
    /// Asked once for each volume, however many mounts there are of it.
    fn of(volume: &'a Volume) -> Self {
        let host = volume.host_path().filter(|path| path.len() <= LONGEST_PATH && matters(path));
        Self { volume, host }
    }
}

/// Whether something that is looked for is that directory of the node, lies in it, or has it below:
/// device files of GPUs, processes, mpsgate's own, the host's `/dev/shm`. What lies below a volume
/// has no `..` in it.
fn matters(path: &str) -> bool {
    path.starts_with(DEVICES)
        || matches!(path, "/dev" | "/dev/shm")
        || path.starts_with(PROC)
        || names_processes(path, true)
        || touches(path).is_some()
}

fn container(
    container: &review_wire::Container,
    volumes: &Volumes<'_>,
    look: &mut Look,
) -> Result<Container, Unseen> {
    let (limits, core_percentage) = match amounts(container) {
        Ok((given, core)) => (Ok(given), core),
        Err(why) => (Err(why), 0),
    };
    let security = container.security_context.0.as_ref();
    let added = security.and_then(|context| context.capabilities.0.as_ref());
    let mut sources = Vec::new();
    for mount in objects(&container.volume_mounts) {
        if let Some(source) = Source::of(volumes, mount, look)? {
            sources.push((source, Some(mount.mount_path.as_str())));
        }
    }
    for device in objects(&container.volume_devices) {
        sources.extend(Source::of(volumes, device, look)?.map(|source| (source, None)));
    }
    let variables: Vec<_> =
        objects(&container.env).map(|one| (one.name.as_str(), one.text())).collect();
    let visible = variables.iter().rfind(|(name, _)| *name == VISIBLE);
    let at_card = |mount: &review_wire::Mount| pod_mount(mount.mount_path.as_str());
    Ok(Container {
        name: short(container.name.as_str()),
        privileged: security.is_some_and(|context| context.privileged.is(true)),
        capabilities: added
            .into_iter()
            .flat_map(|capabilities| &capabilities.add.0)
            .filter_map(|one| one.0.clone())
            .collect(),
        // Of two of a name the last counts, as in the container.
        visible_devices: visible.and_then(|(_, text)| text.map(ToOwned::to_owned)),
        names_cards: pod_variables(&variables) || objects(&container.volume_mounts).any(at_card),
        other_card: other_card(container),
        limits,
        core_percentage,
        exempt: false,
        device_mounts: sources.iter().filter_map(|(source, _)| device(source)).collect(),
        // One that no node replaces counts first.
        processes: sources
            .iter()
            .filter_map(|(source, mount_path)| processes(source, (*mount_path)?))
            .min_by_key(|shown| shown.at_proc),
        ours: sources.iter().find_map(|(source, mount_path)| mount_path.and_then(|_| ours(source))),
        shm: shm(container, volumes, look)?,
    })
}

/// Where on the node a mount begins.
struct Source {
    /// Cleaned.
    path: String,
    /// What is mounted is somewhere below: a variable of the container says where.
    is_below: bool,
}

impl Source {
    /// `None` where it can show nothing that is looked for. Kubernetes takes no `..` in what is
    /// below a volume, nor in what a variable brings there.
    fn of(
        volumes: &Volumes<'_>,
        mount: &review_wire::Mount,
        look: &mut Look,
    ) -> Result<Option<Self>, Unseen> {
        let place = volumes.get(mount.name.as_str());
        let Some(host) = place.and_then(|place| place.host) else { return Ok(None) };
        let expression = mount.sub_path_expr.as_str();
        let known = expression.split_once("$(").map(|(known, _)| known);
        let below = match known {
            Some(known) => known.rsplit_once('/').map_or("", |(directory, _)| directory),
            None if expression.is_empty() => mount.sub_path.as_str(),
            None => expression,
        };
        look.path(host.len().saturating_add(below.len()))?;
        let path = clean(&format!("{host}/{below}")).into_owned();
        Ok(Some(Self { path, is_below: known.is_some() }))
    }

    /// No longer than it takes to tell it: one path may stand in thousands of mounts.
    fn short(&self) -> String {
        self.path.chars().take(LONGEST_DEVICE).collect()
    }
}

/// A GPU's device file of the node that is mounted, or may be.
fn device(source: &Source) -> Option<DeviceMount> {
    let is_known = source.path.starts_with(DEVICES);
    let may_be = source.is_below && matches!(source.path.as_str(), "/" | "/dev");
    (is_known || may_be).then(|| DeviceMount { path: source.short(), is_known })
}

/// A path of the node that is mounted and shows its processes. The engine mounts what is below,
/// too.
fn processes(source: &Source, mount_path: &str) -> Option<Processes> {
    let shown = || Processes { source: source.short(), at_proc: inside(mount_path) == PROC };
    names_processes(&source.path, true).then(shown)
}

/// A path of the node that is mounted and is mpsgate's own, or holds it.
fn ours(source: &Source) -> Option<String> {
    touches(&source.path).map(|_| source.short())
}

/// Its volume at `/dev/shm`. Of several the last counts, as in the container.
fn shm(
    container: &review_wire::Container,
    volumes: &Volumes<'_>,
    look: &mut Look,
) -> Result<Option<ShmVolume>, Unseen> {
    let at_shm = |mount: &&review_wire::Mount| admission::is_shm(mount.mount_path.as_str());
    let mount = objects(&container.volume_mounts).filter(at_shm).last();
    let Some((mount, place)) =
        mount.and_then(|mount| Some((mount, volumes.get(mount.name.as_str())?)))
    else {
        return Ok(None);
    };
    let source = Source::of(volumes, mount, look)?;
    if source.is_some_and(|source| !source.is_below && admission::is_shm(&source.path)) {
        return Ok(None);
    }
    let volume = place.volume;
    // One volume may be mounted by thousands of containers, and what each is told shall cost
    // little.
    Ok(Some(ShmVolume { name: short(volume.name.as_str()), kind: short(volume.kind()) }))
}

/// GPU memory by resource, and percent of a card's compute. The node's own reading of limits also
/// reads requests, which Kubernetes wants to be the same.
fn amounts(container: &review_wire::Container) -> Result<(Vec<(String, Mib)>, u64), String> {
    let mut found = (Vec::new(), 0);
    let Some(resources) = &container.resources.0 else { return Ok(found) };
    for (kind, Quantities { ours: limits, .. }) in
        [("requests", &resources.requests), ("limits", &resources.limits)]
    {
        if limits.is_empty() {
            continue;
        }
        let text = serde_json::to_string(limits).map_err(|_| LimitError::List);
        let (limits, core) =
            text.and_then(|text| parse_limits(&text)).map_err(|error| match error {
                LimitError::List => format!("resources.{kind} is no list of quantities"),
                error => chain(&error),
            })?;
        if kind == "limits" {
            found = (limits.memory().map(|(name, mib)| (name, Mib(mib))).collect(), core);
        }
    }
    Ok(found)
}

/// A resource by which NVIDIA's device plugin gives it a card, or a MIG device. What only begins
/// like these is an amount or a share: `nvidia.com/gpumem`, `nvidia.com/gpu.shared`.
fn other_card(container: &review_wire::Container) -> Option<String> {
    let limits = &container.resources.0.as_ref()?.limits.ours;
    let gives_one = |name: &str, count: &RawValue| {
        let is_card = name == "nvidia.com/gpu" || name.starts_with("nvidia.com/mig-");
        is_card && parse_count(count.get().trim_matches('"')) != Ok(0)
    };
    let mut all = limits.iter().filter(|(name, count)| gives_one(name, count));
    all.next().map(|(name, _)| name.chars().take(LONGEST_DEVICE).collect())
}

/// What a pod's selectors leave: its nodeSelector, else what every term of its required affinity
/// says.
fn nodes(spec: &Spec) -> Nodes {
    if let Some(word) = spec.node_selector.0.get(LABEL) {
        let word = word.0.as_deref();
        return word.map_or(Nodes::Any, |word| Nodes::Only(Word::of_label(word)));
    }
    let mut words: Vec<Option<Word>> = Vec::new();
    for term in terms(spec) {
        let is_ours = |one: &&review_wire::Expression| {
            one.key.as_str() == LABEL && one.operator.as_str() == "In"
        };
        let ours = objects(&term.match_expressions).find(is_ours);
        let values = ours.into_iter().flat_map(|expression| &expression.values.0);
        let before = words.len();
        words.extend(values.map(|value| value.0.as_deref().map(Word::of_label)));
        if words.len() == before {
            return Nodes::Any;
        }
    }
    match words.first() {
        Some(Some(first)) if words.iter().all(|word| *word == Some(*first)) => Nodes::Only(*first),
        _ => Nodes::Any,
    }
}
