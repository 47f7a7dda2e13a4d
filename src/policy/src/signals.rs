//! Signals: everything in a spec that could reach a GPU without a grant.
//!
//! [`may_matter`] is the cheap question of the pass-through path: it needs neither node nor
//! configuration and errs on the side of yes. [`find`] names each signal that reaches a managed
//! card, with the edits that would take it away.

use std::path::Path;

use mpsgate_allocation::{is_request_annotation, is_request_env};
use mpsgate_oci::spec::{Device, Edit, Seen, View};

use crate::node::{NVIDIA_MAJOR, Node};
use crate::{Code, MountFact, MountKind, notes};

pub(crate) const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES";
/// Variables that give MIG capabilities to a privileged container.
const MIG_VARIABLES: [&str; 2] = ["NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"];
const IMEX_VARIABLE: &str = "NVIDIA_IMEX_CHANNELS";
/// Docker's swarm mode names a generic resource's variable so.
const SWARM_PREFIX: &str = "DOCKER_RESOURCE_";
const VOLUME_LIST: [&str; 2] =
    ["/var/run/nvidia-container-devices", "/run/nvidia-container-devices"];
/// The kernel hands out dynamic character majors from 234 up.
const FIRST_DYNAMIC_MAJOR: u32 = 234;
/// Prefixes of CDI annotations, of CRI engines and of NVIDIA's NRI plugin.
const CDI_PREFIXES: [&str; 2] = ["cdi.k8s.io/", "nvidia.cdi.k8s.io/"];
/// Major of `/dev/mem` and its like, which open for CAP_SYS_RAWIO alone.
const MEMORY_MAJOR: u32 = 1;
/// `/dev/mem`, `/dev/kmem`, `/dev/port`.
const MEMORY_MINORS: [u32; 3] = [1, 2, 4];
/// `/dev/dri`.
const DRM_MAJOR: u32 = 226;
/// Drivers without a major of their own share this one; WSL's `/dev/dxg` has a dynamic minor.
const MISC_MAJOR: u32 = 10;
const NVIDIA_RUNTIME: &[u8] = b"nvidia-container-runtime";
const HOOK_NAMES: [&str; 2] = ["nvidia-container-runtime-hook", "nvidia-container-toolkit"];

/// Something in a spec that reaches a managed card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signal {
    /// Code of the refusal that it would be.
    pub code: Code,
    /// What was found, as the beginning of a sentence.
    pub found: String,
    /// What takes it away; empty where nothing can.
    pub remove: Vec<Edit>,
}

/// Whether a part of a spec is anything that mpsgate must look at. Of mounts only the forms that need
/// no file system; [`MountFact`]s are the caller's.
#[must_use]
pub fn may_matter(seen: &Seen<'_>) -> bool {
    match seen {
        Seen::Annotation(name) => {
            is_request_annotation(name)
                || CDI_PREFIXES.iter().any(|p| name.starts_with(p))
                || opens_files(name)
        }
        Seen::Variable(name) => {
            name.starts_with("NVIDIA_")
                || name.starts_with("CUDA_MPS_")
                || *name == "CUDA_VERSION"
                || name.starts_with(SWARM_PREFIX)
                || is_request_env(name)
        }
        Seen::Device(d) => {
            d.is_character()
                && (d.major == NVIDIA_MAJOR
                    || d.major >= FIRST_DYNAMIC_MAJOR
                    || d.major == DRM_MAJOR
                    || (d.major == MISC_MAJOR && is_dynamic_misc(d.minor))
                    || is_memory(d)
                    || d.path.starts_with("/dev/nvidia"))
        }
        Seen::Rule(r) => {
            r.allow
                && (r.covers(NVIDIA_MAJOR, None)
                    || r.major.is_some_and(|m| {
                        (m >= FIRST_DYNAMIC_MAJOR || m == DRM_MAJOR) && r.covers(m, None)
                    }))
        }
        Seen::Mount(m) => {
            VOLUME_LIST.iter().any(|list| m.destination.starts_with(list))
                || (m.is_bind && notes::reaches_engine(m.source))
        }
    }
}

/// The kernel counts dynamic minors down from 63, and since Linux 5.18 up from 256.
fn is_dynamic_misc(minor: u32) -> bool {
    !(64..256).contains(&minor)
}

/// The host's memory or ports as a device.
pub(crate) fn is_memory(device: &Device<'_>) -> bool {
    device.major == MEMORY_MAJOR && MEMORY_MINORS.contains(&device.minor)
}

/// Every signal that reaches a managed card, in the order in which they are reported. What a
/// privileged container shows on account of being privileged is left out.
#[must_use]
pub(crate) fn find(
    view: View<'_>,
    node: &Node,
    mounts: &[MountFact],
    runtime_is_nvidia: bool,
) -> Vec<Signal> {
    if node.manages_nothing() {
        return Vec::new();
    }
    let mut signals = Vec::new();
    visible_devices(view, node, runtime_is_nvidia, &mut signals);
    variables(view, node, &mut signals);
    volume_list(view, node, &mut signals);
    annotations(view, node, &mut signals);
    if !is_privileged(view) {
        devices(view, node, &mut signals);
        rules(view, node, &mut signals);
    }
    for mount in mounts.iter().filter(|m| m.kind == MountKind::Ours) {
        signals.push(Signal {
            code: Code::MpsMount,
            found: format!("it mounts {}, which is mpsgate's own", mount.source),
            // A bundle that is created again still holds the mount of its last grant.
            remove: if mount.destination == crate::CLIENT_DIRECTORY {
                vec![Edit::RemoveMount { destination: mount.destination.clone() }]
            } else {
                Vec::new()
            },
        });
    }
    signals
}

/// A container that was started as privileged: every capability and every device.
#[must_use]
pub fn is_privileged(view: View<'_>) -> bool {
    view.may_gain("CAP_SYS_ADMIN") && view.device_rules().any(|r| r.allows_all())
}

/// An image from before `NVIDIA_REQUIRE_CUDA`, to which the toolkit gives every card where the
/// variable is unset.
#[must_use]
pub(crate) fn is_legacy_image(view: View<'_>) -> bool {
    view.env_value(VISIBLE).is_none()
        && view.env_value("CUDA_VERSION").is_some()
        && view.env_value("NVIDIA_REQUIRE_CUDA").is_none()
}

/// Whether NVIDIA's prestart hook is in the spec. It reads the env, hence is no signal of its own:
/// the toolkit's legacy mode puts it into every container.
#[must_use]
pub fn has_nvidia_hook(view: View<'_>) -> bool {
    view.hooks()
        .any(|hook| hook.path.rsplit('/').next().is_some_and(|name| HOOK_NAMES.contains(&name)))
}

/// Whether a runtime is NVIDIA's wrapper, also under its names with a fixed mode (`….cdi`, `….legacy`).
#[must_use]
pub fn is_nvidia_runtime(runtime: &Path) -> bool {
    let name = runtime.file_name().unwrap_or_default().as_encoded_bytes();
    name.starts_with(NVIDIA_RUNTIME)
}

/// Whether the driver's CUDA library is mounted into the container: by a CDI specification that the engine
/// or nvidia-container-runtime above us has applied (`docker --gpus` from 29.2, `podman --device
/// nvidia.com/gpu=…`), or by its user.
#[must_use]
pub fn has_driver(view: View<'_>) -> bool {
    view.mounts().any(|mount| {
        mount.is_bind
            && mount
                .destination
                .rsplit('/')
                .next()
                .is_some_and(|name| name.starts_with("libcuda.so"))
    })
}

/// What a value of `NVIDIA_VISIBLE_DEVICES` asks for: `void` anywhere is nothing, else the first of
/// `all` and `none` counts, else the names (NVIDIA Container Toolkit 1.20).
pub(crate) fn names(value: &str) -> Vec<&str> {
    let tokens: Vec<&str> = value.split(',').map(str::trim).filter(|t| !t.is_empty()).collect();
    if tokens.contains(&"void") {
        return Vec::new();
    }
    match tokens.iter().find(|t| matches!(**t, "all" | "none")) {
        Some(&"all") => vec!["all"],
        Some(_) => Vec::new(),
        None => tokens,
    }
}

fn visible_devices(
    view: View<'_>,
    node: &Node,
    runtime_is_nvidia: bool,
    signals: &mut Vec<Signal>,
) {
    let hook = has_nvidia_hook(view);
    let value = match view.env_value(VISIBLE) {
        Some(value) => value,
        None if is_legacy_image(view) && hook && !runtime_is_nvidia => "all",
        None => return,
    };
    let Some(name) = names(value).into_iter().find(|name| node.manages_name(name)) else {
        return;
    };
    let (code, found) = if hook && !runtime_is_nvidia {
        (Code::NvidiaHook, format!("NVIDIA's prestart hook would give it {}", card(name)))
    } else {
        (Code::VisibleDevices, visible(value, name))
    };
    signals.push(Signal { code, found, remove: vec![set(VISIBLE, "void")] });
}

/// What was found where the variable names a card.
pub(crate) fn visible(value: &str, name: &str) -> String {
    format!("{VISIBLE}={value} names {}", card(name))
}

/// A name as it reads in a sentence.
fn card(name: &str) -> String {
    match name {
        "all" => "every GPU".to_owned(),
        _ if name.contains(['-', '/']) => name.to_owned(),
        _ => format!("GPU {name}"),
    }
}

fn variables(view: View<'_>, node: &Node, signals: &mut Vec<Signal>) {
    for (name, value) in view.env() {
        let swarm = name
            .strip_prefix(SWARM_PREFIX)
            .is_some_and(|kind| kind.to_ascii_uppercase().contains("GPU"))
            || node.swarm_resources.iter().any(|n| n == name);
        let names = names(value);
        let code = if swarm && names.iter().any(|n| node.manages_name(n)) {
            Code::SwarmResource
        } else if MIG_VARIABLES.contains(&name) && !names.is_empty() {
            Code::MigCaps
        } else if name == IMEX_VARIABLE && !names.is_empty() {
            Code::ImexChannel
        } else {
            continue;
        };
        signals.push(Signal {
            code,
            found: format!("{name}={value} names GPUs"),
            remove: vec![drop(name)],
        });
    }
}

fn volume_list(view: View<'_>, node: &Node, signals: &mut Vec<Signal>) {
    for mount in view.mounts() {
        let below = VOLUME_LIST.iter().find_map(|list| mount.destination.strip_prefix(list));
        let Some(name) = below.map(|rest| rest.trim_matches('/')).filter(|n| !n.is_empty()) else {
            continue;
        };
        let imex = name.starts_with("imex/");
        // cdi/<vendor>/<class>/<device>, or cdi/<vendor>/<class>=<device>.
        let device = name.rsplit('/').next().unwrap_or(name);
        let reaches = match device {
            "all" => true,
            "void" | "none" => false,
            device => node.manages_name(device.rsplit('=').next().unwrap_or(device)),
        };
        if !imex && !reaches {
            continue;
        }
        signals.push(Signal {
            code: if imex { Code::ImexChannel } else { Code::VolumeDevices },
            found: format!("the mount at {} names a GPU", mount.destination),
            remove: vec![Edit::RemoveMount { destination: mount.destination.to_owned() }],
        });
    }
}

fn annotations(view: View<'_>, node: &Node, signals: &mut Vec<Signal>) {
    for (name, value) in view.annotations() {
        if opens_files(name) {
            signals.push(Signal {
                code: Code::Annotation,
                found: format!("the annotation {name} makes the runtime open devices or files"),
                remove: vec![Edit::RemoveAnnotation { name: name.to_owned() }],
            });
            continue;
        }
        if !CDI_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let nri = name.starts_with("nvidia.");
        let reaches = |device: &&str| {
            let nvidia = device.split('/').next().is_some_and(|v| v.ends_with("nvidia.com"));
            (nri || nvidia) && !device.is_empty() && node.manages_name(device)
        };
        let (cards, others): (Vec<&str>, Vec<&str>) =
            value.split(',').map(str::trim).partition(reaches);
        if !cards.is_empty() {
            let name_of = || name.to_owned();
            signals.push(Signal {
                code: Code::CdiAnnotation,
                found: format!("the annotation {name}={value} names a GPU"),
                // Devices of other vendors in the same annotation stay.
                remove: vec![if others.is_empty() {
                    Edit::RemoveAnnotation { name: name_of() }
                } else {
                    Edit::SetAnnotation { name: name_of(), value: others.join(",") }
                }],
            });
        }
    }
}

/// Annotations by which runc and crun open devices, host files, or another bundle. Those that
/// engines set themselves (`org.systemd.property.TimeoutStopUSec`, `run.oci.systemd.subgroup`)
/// are not among them.
fn opens_files(name: &str) -> bool {
    matches!(
        name,
        "bundle"
            | "org.criu.config"
            | "run.oci.hooks.stdout"
            | "run.oci.hooks.stderr"
            | "org.systemd.property.DeviceAllow"
            | "org.systemd.property.DevicePolicy"
    )
}

fn devices(view: View<'_>, node: &Node, signals: &mut Vec<Signal>) {
    for device in view.devices().filter(Device::is_character) {
        let numbers = format!("{}:{}", device.major, device.minor);
        let is = |major: Option<u32>, directory: &str| {
            major == Some(device.major) || (major.is_none() && device.path.starts_with(directory))
        };
        let (code, what) = if device.major == NVIDIA_MAJOR && node.manages_minor(device.minor) {
            (Code::DeviceNode, "a managed GPU")
        } else if node.other_node(device.major, device.minor).is_some() {
            (Code::DeviceNode, "a managed GPU by another driver")
        } else if is(node.majors.imex, "/dev/nvidia-caps-imex-channels/") {
            (Code::ImexChannel, "an IMEX channel")
        } else if is(node.majors.caps, "/dev/nvidia-caps/") {
            (Code::MigCaps, "a MIG capability")
        } else {
            continue;
        };
        let mut remove = vec![Edit::RemoveDevice { major: device.major, minor: device.minor }];
        if view.rules_open(device.major, Some(device.minor)) {
            remove.push(Edit::RemoveRules { major: device.major, minor: Some(device.minor) });
        }
        signals.push(Signal {
            code,
            found: format!("the device {} ({numbers}) is {what}", device.path),
            remove,
        });
    }
}

fn rules(view: View<'_>, node: &Node, signals: &mut Vec<Signal>) {
    let mut opened: Vec<(u32, Option<u32>)> = match &node.cards {
        crate::Cards::AssumeManaged => {
            let mut rules = view.device_rules().filter(|r| r.covers(NVIDIA_MAJOR, None));
            let opens = rules.any(|r| {
                r.minor.is_none_or(|m| node.manages_minor(m))
                    && view.rules_open(NVIDIA_MAJOR, r.minor)
            });
            opens.then_some((NVIDIA_MAJOR, None)).into_iter().collect()
        }
        crate::Cards::Known(cards) => {
            cards.iter().filter(|c| c.managed).map(|c| (NVIDIA_MAJOR, Some(c.minor))).collect()
        }
    };
    opened.extend(node.majors.caps.map(|major| (major, None)));
    let others = node.other_nodes.iter().map(|other| (other.major, Some(other.minor)));
    opened.extend(others);
    opened.retain(|(major, minor)| view.rules_open(*major, *minor));
    if opened.is_empty() {
        return;
    }
    let all =
        view.device_rules().any(|r| r.allow && r.major.is_none() && r.covers(NVIDIA_MAJOR, None));
    let (found, mut remove) = if all {
        let except = node.closed_majors();
        opened = except.iter().map(|major| (*major, None)).collect();
        ("a device-cgroup rule opens every device, GPUs too", vec![Edit::CloseAllowAll { except }])
    } else {
        ("a device-cgroup rule opens a managed GPU", Vec::new())
    };
    remove.extend(opened.into_iter().map(|(major, minor)| Edit::RemoveRules { major, minor }));
    signals.push(Signal { code: Code::DeviceRule, found: found.to_owned(), remove });
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
