//! What is said about a container besides its verdict: what was taken away, what was let through,
//! and what nobody is stopped for but an operator should be able to find.

use mpsgate_model::{Code, is_request_annotation, printable};
use mpsgate_oci::spec::View;

use crate::found::Few;
use crate::path::clean;
use crate::signals::{is_memory, is_privileged};
use crate::{Input, MountKind};

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
/// Stages after the one at which mpsgate's hook looks at the container.
const LATE_STAGES: [&str; 3] = ["createContainer", "startContainer", "poststart"];
/// Hooks of the driver's injection: they link libraries.
const INJECTION_HOOKS: [&str; 2] = ["nvidia-cdi-hook", "nvidia-ctk"];

/// Something to be logged about a container that is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// What was done about it.
    pub action: NoteAction,
    /// The code of what was found.
    pub code: Code,
    /// What was found, as a sentence.
    pub text: String,
}

/// What was done about something that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoteAction {
    /// Taken away.
    Stripped,
    /// Let through, because the settings say so.
    Warned,
    /// Nothing: it is not mpsgate's to decide.
    Noted,
}

impl NoteAction {
    /// The word in logs and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stripped => "stripped",
            Self::Warned => "warned",
            Self::Noted => "noted",
        }
    }
}

impl Note {
    pub(crate) fn new(action: NoteAction, code: Code, text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self { action, code, text: printable::line(&text).into_owned() }
    }

    fn noted(code: Code, text: String) -> Self {
        Self::new(NoteAction::Noted, code, text)
    }

    /// Of several things of one kind; `None` where there is none.
    pub(crate) fn of_few(code: Code, found: &Few) -> Option<Self> {
        found.text().map(|text| Self::noted(code, text))
    }
}

/// Notes of the same code and action as one: each is a message to mpsgated.
pub(crate) fn one_of_each(notes: Vec<Note>) -> Vec<Note> {
    let mut kept: Vec<Note> = Vec::new();
    for note in notes {
        match kept.iter_mut().find(|k| (k.action, k.code) == (note.action, note.code)) {
            Some(same) => same.text = format!("{}; {}", same.text, note.text),
            None => kept.push(note),
        }
    }
    kept
}

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
    for mount in view.mounts().filter(|m| m.is_bind && reaches_engine(m.source)) {
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
    for device in view.devices().filter(mpsgate_oci::spec::Device::is_character) {
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
