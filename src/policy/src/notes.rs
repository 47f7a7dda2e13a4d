//! What is said about a container besides its verdict: what was taken away, what was let through,
//! and what nobody is stopped for but an operator should be able to find.

use mpsgate_model::{Code, is_request_annotation, printable};
use mpsgate_oci::spec::{Device, View};

use crate::found::{Few, Note};
use crate::input::{Input, MountKind};
use crate::path::clean;
use crate::reach::is_privileged;

/// Sockets by which their user can start containers, under their engines' names.
const ENGINE_SOCKETS: [&str; 6] = [
    "docker.sock",
    "containerd.sock",
    "crio.sock",
    "podman.sock",
    "cri-dockerd.sock",
    "buildkitd.sock",
];
/// Directories that hold one, or where a device plugin registers.
const ENGINE_DIRECTORIES: [&str; 6] = [
    "/run/containerd",
    "/run/crio",
    "/run/podman",
    "/run/k3s/containerd",
    "/var/lib/kubelet",
    "/var/lib/kubelet/device-plugins",
];
/// Major of `/dev/mem` and its like, which open for CAP_SYS_RAWIO alone.
const MEMORY_MAJOR: u32 = 1;
/// `/dev/mem`, `/dev/kmem`, `/dev/port`.
const MEMORY_MINORS: [u32; 3] = [1, 2, 4];
/// Stages after the one at which mpsgate's hook looks at the container.
const LATE_STAGES: [&str; 3] = ["createContainer", "startContainer", "poststart"];
/// Hooks of the driver's injection: they link libraries.
const INJECTION_HOOKS: [&str; 2] = ["nvidia-cdi-hook", "nvidia-ctk"];

/// What is found and stops nobody, with a request or without.
pub(crate) fn of(input: &Input<'_>) -> Vec<Note> {
    let mut ancestors = Few::default();
    for mount in input.mounts.iter().filter(|m| m.kind == MountKind::Ancestor) {
        let source = || printable::value(&mount.source);
        ancestors.add(|| format!("it mounts {}, which holds mpsgate's directories", source()));
    }
    let ancestors = Note::of_few(Code::MpsMount, &ancestors);
    if input.node.manages_nothing() {
        return ancestors.into_iter().collect();
    }
    let view = input.view;
    let mut engines = Few::default();
    for mount in view.mounts().filter(|m| m.is_bind() && reaches_engine(m.source)) {
        engines.add(|| {
            format!(
                "it mounts {}, by which containers can be started past mpsgate (SECURITY.md, row 22)",
                printable::value(mount.source)
            )
        });
    }
    let engines = Note::of_few(Code::EngineSocket, &engines);
    let devices = if is_privileged(view) { None } else { devices(input) };
    ancestors.into_iter().chain(engines).chain(devices).collect()
}

/// Devices that reach more than a card, or none by themselves.
fn devices(input: &Input<'_>) -> Option<Note> {
    let view = input.view;
    // The kernel opens memory and ports for this capability alone.
    let raw = view.may_gain("CAP_SYS_RAWIO");
    let mut found = Few::default();
    for device in view.devices().filter(Device::is_character) {
        let what = if raw && is_memory(&device) {
            "the host's memory or ports, which its CAP_SYS_RAWIO opens"
        } else if input.node.majors.nvswitch == Some(device.major) {
            "the switch between the GPUs: no memory, but every GPU's links"
        } else {
            continue;
        };
        let (major, minor) = (device.major, device.minor);
        found.add(|| {
            let path = printable::value(device.path);
            format!("its device {path} ({major}:{minor}) is {what} (SECURITY.md, row 27)")
        });
    }
    Note::of_few(Code::DeviceNode, &found)
}

/// Annotations of a pod that ask for memory, on a container that has none in its own limits.
pub(crate) fn not_its_own(input: &Input<'_>) -> Option<Note> {
    if !input.node.device_plugin || !input.caller.is_kubernetes() {
        return None;
    }
    if input.caller.is_sandbox(input.view) {
        return None;
    }
    let (name, _) = input.view.annotations().find(|(name, _)| is_request_annotation(name))?;
    let text = format!(
        "its pod's annotation {name} asks for GPU memory and its own resources.limits do not; it gets none"
    );
    Some(Note::noted(Code::Unconfirmed, text))
}

/// Hooks of a container with a request that run when mpsgate's has proved the other cards shut.
pub(crate) fn late_hooks(view: View<'_>) -> Option<Note> {
    let mut found = Few::default();
    for hook in view.hooks().filter(|hook| LATE_STAGES.contains(&hook.stage)) {
        if hook.path.rsplit('/').next().is_some_and(|name| INJECTION_HOOKS.contains(&name)) {
            continue;
        }
        found.add(|| {
            let path = printable::value(hook.path);
            format!(
                "its {} hook {path} runs after mpsgate has looked (SECURITY.md, row 16)",
                hook.stage
            )
        });
    }
    Note::of_few(Code::LateHook, &found)
}

/// The host's memory or ports as a device.
pub(crate) fn is_memory(device: &Device<'_>) -> bool {
    device.major == MEMORY_MAJOR && MEMORY_MINORS.contains(&device.minor)
}

/// Whether a mount's source is an engine's socket or holds one. By name, as it decides nothing.
pub(crate) fn reaches_engine(source: &str) -> bool {
    let source = clean(source);
    let source = source.strip_prefix("/var").filter(|s| s.starts_with("/run")).unwrap_or(&source);
    let name = source.rsplit('/').next().unwrap_or_default();
    let below = |directory| source.strip_prefix(directory).is_some_and(|r| r.starts_with('/'));
    ENGINE_SOCKETS.contains(&name)
        || ENGINE_DIRECTORIES.contains(&source)
        || below("/var/lib/kubelet/device-plugins")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_known_by_the_names_of_their_sockets() {
        for source in [
            "/var/run/docker.sock",
            "/run/docker.sock",
            "/run/containerd/containerd.sock",
            "/var/run/containerd",
            "/run/k3s/containerd/containerd.sock",
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/device-plugins/kubelet.sock",
            "/var/run//docker.sock",
            "/tmp/../run/containerd/",
        ] {
            assert!(reaches_engine(source), "{source}");
        }
        for source in [
            "/var/lib/kubelet/pods/UID/volumes/x",
            "/var/lib/docker/containers/ID/hosts",
            "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/ID/shm",
            "/run/docker.socket",
            "/run/app.sock",
            "",
        ] {
            assert!(!reaches_engine(source), "{source}");
        }
    }
}
