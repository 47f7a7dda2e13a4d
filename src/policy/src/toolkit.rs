//! What NVIDIA's container toolkit reads in a spec (1.20: `internal/config/image`,
//! `internal/modifier`, `nvidia-container-runtime-hook`), by its own rules: whatever it would give
//! a container by them is a signal. Which of several requests wins depends on its settings and
//! mode, so each counts by itself.

use std::collections::HashSet;
use std::path::Path;

use mpsgate_model::{Code, printable};
use mpsgate_oci::spec::{Edit, Seen, View};

use crate::found::Signals;
use crate::node_facts::Node;
use crate::path::{clean, inside};

/// The variable by which NVIDIA's container toolkit is asked for cards.
pub const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
const CUDA_VERSION: &str = "CUDA_VERSION";
const REQUIRE_CUDA: &str = "NVIDIA_REQUIRE_CUDA";
/// Variables that give MIG capabilities to a privileged container.
const MIG_VARIABLES: [&str; 2] = ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"];
const IMEX_VARIABLE: &str = "NVIDIA_IMEX_CHANNELS";
/// Docker's swarm mode names a generic resource's variable so.
const SWARM_PREFIX: &str = "DOCKER_RESOURCE_";
/// Directories whose entries are names of devices. All of them end with the same name.
const VOLUME_LIST: [&str; 2] =
    ["/var/run/nvidia-container-devices", "/run/nvidia-container-devices"];
const VOLUME_LIST_NAME: &str = "nvidia-container-devices";
/// Prefixes of CDI annotations, of CRI engines and of NVIDIA's NRI plugin. The toolkit's
/// `annotation-prefixes` may name others.
const CDI_PREFIXES: [&str; 2] = ["cdi.k8s.io/", "nvidia.cdi.k8s.io/"];
/// NRI's plugins take a domain alone for the whole pod's.
const NRI_DOMAIN: &str = "nvidia.cdi.k8s.io";
const NVIDIA_RUNTIME: &[u8] = b"nvidia-container-runtime";
const HOOK_NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Names to which the toolkit's settings give a meaning, besides those that
/// [`may_matter`](crate::may_matter) knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolkitNames {
    variables: Vec<String>,
    annotation_prefixes: Vec<String>,
}

impl ToolkitNames {
    /// Those of a node: of its `swarm-resource` and `annotation-prefixes`.
    #[must_use]
    pub fn of(node: &Node) -> Self {
        let unknown = |names: &[String], is_known: fn(&str) -> bool| {
            names.iter().filter(|name| !is_known(name)).cloned().collect()
        };
        Self {
            variables: unknown(&node.swarm_resources, may_read_variable),
            annotation_prefixes: unknown(&node.annotation_prefixes, may_read_annotation),
        }
    }

    /// Whether what is known without them is all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.annotation_prefixes.is_empty()
    }

    pub(crate) fn have(&self, seen: &Seen<'_>) -> bool {
        match seen {
            Seen::Annotation(name) => {
                self.annotation_prefixes.iter().any(|prefix| name.starts_with(prefix))
            }
            Seen::Variable(name) => self.variables.iter().any(|variable| variable == name),
            _ => false,
        }
    }
}

/// Whether NVIDIA's prestart hook is in the spec. It reads the env, hence is no signal of its own:
/// the toolkit's legacy mode puts it into every container.
#[must_use]
pub fn has_nvidia_hook(view: View<'_>) -> bool {
    view.hooks()
        .any(|hook| hook.path.rsplit('/').next().is_some_and(|name| HOOK_NAMES.contains(&name)))
}

/// Whether a runtime is NVIDIA's wrapper, also under its names with a fixed mode (`….cdi`,
/// `….legacy`).
#[must_use]
pub fn is_nvidia_runtime(runtime: &Path) -> bool {
    let name = runtime.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(NVIDIA_RUNTIME)
}

/// Whether the driver's CUDA library is mounted into the container: by a CDI specification that the
/// engine or nvidia-container-runtime above us has applied (`docker --gpus` from 29.2, `podman
/// --device nvidia.com/gpu=…`), or by its user.
#[must_use]
pub fn has_driver(view: View<'_>) -> bool {
    view.mounts().any(|mount| {
        let place = clean(mount.destination);
        mount.is_bind()
            && place.rsplit('/').next().is_some_and(|name| name.starts_with("libcuda.so"))
    })
}

/// Whether a variable of this name can be one of the toolkit's.
#[must_use]
pub fn may_read_variable(name: &str) -> bool {
    name.starts_with("NVIDIA_") || name == CUDA_VERSION || name.starts_with(SWARM_PREFIX)
}

/// Whether an annotation of this name can be one of the toolkit's, as far as its name alone can
/// tell.
#[must_use]
pub fn may_read_annotation(name: &str) -> bool {
    name == NRI_DOMAIN || CDI_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Whether a mount at this place can be one of the toolkit's list, whatever its path looks like.
pub(crate) fn may_read_mount(destination: &str) -> bool {
    destination.contains(VOLUME_LIST_NAME)
}

/// Whether the toolkit would give a card for what a pod says of a container's variables: name, and
/// text where it stands in the pod. Text from elsewhere counts as naming a card. Of several of a
/// name the last counts.
#[must_use]
pub fn pod_variables(variables: &[(&str, Option<&str>)]) -> bool {
    let last = |name| variables.iter().rfind(|(other, _)| *other == name).map(|(_, text)| *text);
    let visible = last(VISIBLE);
    // Kubernetes puts another variable's text in place of `$(NAME)`.
    let is_required =
        last(REQUIRE_CUDA).flatten().is_some_and(|text| !text.is_empty() && !text.contains("$("));
    let is_legacy = || visible.is_none() && last(CUDA_VERSION).is_some_and(|v| v != Some(""));
    let node = Node::unknown();
    visible.is_some_and(|text| text.is_none_or(|text| named(text, |_| true).is_some()))
        || (!is_required && is_legacy())
        || variables
            .iter()
            .any(|(name, text)| variable(name, text.unwrap_or("all"), &node).is_some())
}

/// The same of a pod's annotation.
#[must_use]
pub fn pod_annotation(name: &str, value: &str) -> bool {
    let mut signals = Signals::default();
    cdi_annotation(name, value, &Node::unknown(), &mut signals);
    !signals.into_vec().is_empty()
}

/// The same of the place of a container's mount.
#[must_use]
pub fn pod_mount(destination: &str) -> bool {
    may_read_mount(destination) && listed(&inside(destination), &Node::unknown()).is_some()
}

/// An image from before `NVIDIA_REQUIRE_CUDA`, to which the toolkit gives every card where
/// `NVIDIA_VISIBLE_DEVICES` is unset. A requirement that is empty is none, and so is a version.
#[must_use]
pub(crate) fn is_legacy_image(view: View<'_>) -> bool {
    let is_set = |name| view.env_value(name).is_some_and(|value| !value.is_empty());
    view.env_value(VISIBLE).is_none() && is_set(CUDA_VERSION) && !is_set(REQUIRE_CUDA)
}

/// The first name that counts of those that a value of `NVIDIA_VISIBLE_DEVICES` asks for: `void`
/// anywhere is nothing, else the first of `all` and `none` counts, else the names.
#[must_use]
pub fn named(value: &str, counts: impl Fn(&str) -> bool) -> Option<&str> {
    if tokens(value).any(|token| token == "void") {
        return None;
    }
    match tokens(value).find(|token| matches!(*token, "all" | "none")) {
        Some("none") => None,
        Some(all) => Some(all).filter(|all| counts(all)),
        None => tokens(value).find(|token| counts(token)),
    }
}

fn tokens(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|token| !token.is_empty())
}

/// Every signal of these, but for nodes and rules, which are anybody's.
pub(crate) fn find(view: View<'_>, node: &Node, runtime_is_nvidia: bool, signals: &mut Signals) {
    visible_devices(view, node, runtime_is_nvidia, signals);
    variables(view, node, signals);
    volume_list(view, node, signals);
}

fn visible_devices(view: View<'_>, node: &Node, runtime_is_nvidia: bool, signals: &mut Signals) {
    let hook = has_nvidia_hook(view);
    let value = match view.env_value(VISIBLE) {
        Some(value) => value,
        None if is_legacy_image(view) && hook && !runtime_is_nvidia => "all",
        None => return,
    };
    let Some(name) = named(value, |name| node.manages_name(name)) else { return };
    let (code, found) = if hook && !runtime_is_nvidia {
        (Code::NvidiaHook, format!("NVIDIA's prestart hook would give it {}", card(name)))
    } else {
        (Code::VisibleDevices, visible(value, name))
    };
    signals.add(code, || found, Some(vec![set(VISIBLE, "void")]));
}

/// What was found where the variable names a card.
#[must_use]
pub fn visible(value: &str, name: &str) -> String {
    format!("{VISIBLE}={} names {}", printable::value(value), card(name))
}

/// A name as it reads in a sentence.
fn card(name: &str) -> String {
    match name {
        "all" => "every GPU".to_owned(),
        _ if name.contains(['-', '/']) => printable::value(name).into_owned(),
        _ => format!("GPU {}", printable::value(name)),
    }
}

fn variables(view: View<'_>, node: &Node, signals: &mut Signals) {
    let mut dropped = HashSet::new();
    for (name, value) in view.env() {
        let Some(code) = variable(name, value, node) else { continue };
        let tell = || format!("{}={} names GPUs", printable::value(name), printable::value(value));
        // Every entry of a name goes at once.
        let remove = if dropped.insert(name) { vec![drop(name)] } else { Vec::new() };
        signals.add(code, tell, Some(remove));
    }
}

fn variable(name: &str, value: &str, node: &Node) -> Option<Code> {
    let swarm = name
        .strip_prefix(SWARM_PREFIX)
        .is_some_and(|kind| kind.to_ascii_uppercase().contains("GPU"))
        || node.swarm_resources.iter().any(|n| n == name);
    if swarm && named(value, |name| node.manages_name(name)).is_some() {
        return Some(Code::SwarmResource);
    }
    if MIG_VARIABLES.contains(&name) {
        // Handed on as it is, and read token by token: `void` takes nothing back.
        let asks = |token| !matches!(token, "void" | "none");
        return tokens(value).any(asks).then_some(Code::MigCaps);
    }
    (name == IMEX_VARIABLE && named(value, |_| true).is_some()).then_some(Code::ImexChannel)
}

/// What a mount asks for that is an entry of the list. Both paths were cleaned.
fn listed(destination: &str, node: &Node) -> Option<Code> {
    let rest = VOLUME_LIST.iter().find_map(|list| destination.strip_prefix(list))?;
    let name = rest.trim_matches('/');
    if name.is_empty() {
        return None;
    }
    if name.starts_with("imex/") {
        return Some(Code::ImexChannel);
    }
    // cdi/<vendor>/<class>/<device>, or cdi/<vendor>/<class>=<device>.
    let device = name.strip_prefix("cdi/").map_or(name, |qualified| {
        let device = qualified.splitn(3, '/').last().unwrap_or(qualified);
        device.split_once('=').map_or(device, |(_, device)| device)
    });
    reaches(device, node).then_some(Code::VolumeDevices)
}

fn volume_list(view: View<'_>, node: &Node, signals: &mut Signals) {
    let mut removed = HashSet::new();
    for mount in view.mounts().filter(|mount| may_read_mount(mount.destination)) {
        let destination = clean(mount.destination);
        let Some(code) = listed(&destination, node) else { continue };
        let tell = || format!("the mount at {} names a GPU", printable::value(mount.destination));
        let remove = Edit::RemoveMount { destination: mount.destination.to_owned() };
        let remove = if removed.insert(mount.destination) { vec![remove] } else { Vec::new() };
        signals.add(code, tell, Some(remove));
    }
}

/// Whether a name of the list reaches a managed card. It is one name even with commas in it, and
/// the legacy hook takes those apart.
fn reaches(name: &str, node: &Node) -> bool {
    match name {
        "all" => true,
        "void" | "none" => false,
        name => node.manages_name(name),
    }
}

/// An annotation by which the toolkit, or the engine, injects CDI devices.
pub(crate) fn cdi_annotation(name: &str, value: &str, node: &Node, signals: &mut Signals) {
    let of_toolkit = node.annotation_prefixes.iter().any(|prefix| name.starts_with(prefix));
    if !of_toolkit && !may_read_annotation(name) {
        return;
    }
    let nri = name.starts_with("nvidia.");
    let is_card = |device: &str| match device.split_once('/') {
        None => is_plain_name(device) && node.manages_name(device),
        Some((vendor, _)) => (nri || vendor.ends_with("nvidia.com")) && node.manages_name(device),
    };
    if !tokens(value).any(is_card) {
        return;
    }
    let tell = || {
        let (name, value) = (printable::value(name), printable::value(value));
        format!("the annotation {name}={value} names a GPU")
    };
    let name = name.to_owned();
    // Devices of other vendors in the same annotation stay.
    let mut others = String::new();
    for device in tokens(value).filter(|device| !is_card(device)) {
        let comma = if others.is_empty() { "" } else { "," };
        others.extend([comma, device]);
    }
    let remove = if others.is_empty() {
        Edit::RemoveAnnotation { name }
    } else {
        Edit::SetAnnotation { name, value: others }
    };
    signals.add(Code::CdiAnnotation, tell, Some(vec![remove]));
}

/// A name that is not qualified is one of the toolkit's default kind. Its cards have three sorts of
/// names: by index, by UUID, by type and index.
fn is_plain_name(device: &str) -> bool {
    let begins =
        |word: &str| device.get(..word.len()).is_some_and(|d| d.eq_ignore_ascii_case(word));
    device == "all"
        || device.starts_with(|c: char| c.is_ascii_digit())
        || begins("gpu")
        || begins("mig")
}

pub(crate) fn set(name: &str, value: &str) -> Edit {
    Edit::Env { drop: Vec::new(), set: vec![(name.to_owned(), value.to_owned())] }
}

pub(crate) fn drop(name: &str) -> Edit {
    Edit::Env { drop: vec![name.to_owned()], set: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidias_runtime_is_known_by_its_name() {
        for (runtime, is) in [
            ("nvidia-container-runtime", true),
            ("/usr/bin/nvidia-container-runtime.cdi", true),
            ("/usr/bin/nvidia-container-runtime-experimental", true),
            ("runc", false),
            ("/opt/nvidia-container-runtime/runc", false),
            ("/", false),
        ] {
            assert_eq!(is_nvidia_runtime(Path::new(runtime)), is, "{runtime}");
        }
    }
}
