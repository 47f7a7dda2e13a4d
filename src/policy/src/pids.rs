//! Whose PID namespace a container has. A process can signal and trace others of its uid, and no
//! limit of ours holds one that is traced: with GPU memory it may see its own pod's alone
//! (`processes.rs`).

use mpsgate_oci::spec::View;

use crate::Caller;

/// The PID namespace that a container will have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pids {
    /// One of its own.
    Own,
    /// The one that its pod shares (`shareProcessNamespace`).
    Pod,
    /// The host's.
    Host,
    /// That of another container, or one that cannot be looked at, by this path.
    Other(String),
}

/// Containerd's annotation and CRI-O's with the id of a container's pause container.
const SANDBOX_IDS: [(Caller, &str); 2] = [
    (Caller::Containerd, "io.kubernetes.cri.sandbox-id"),
    (Caller::Crio, "io.kubernetes.cri-o.SandboxID"),
];
/// Shorter ones could be part of another's; engines' have 64 letters.
const ID_MIN: usize = 12;

/// Whether a process is one of the container's own pod, by its cgroups as the kernel has them
/// (`/proc/PID/cgroup`). The pod is named by kubelet's engine, whose annotations no pod's author
/// can write; nobody else names one.
#[must_use]
pub fn shares_pod(view: View<'_>, caller: Caller, cgroups: &str) -> bool {
    let sandbox = SANDBOX_IDS
        .iter()
        .find(|(engine, _)| *engine == caller)
        .and_then(|(_, name)| view.annotation(name))
        .filter(|id| id.len() >= ID_MIN);
    let uid = caller.pod(view).map(|pod| pod.uid).filter(|uid| uid.len() >= ID_MIN);
    // kubelet's names: podUID, and with systemd `…-podUID.slice` with underscores.
    let pods = uid.map(|uid| [format!("pod{uid}"), format!("pod{}.slice", uid.replace('-', "_"))]);
    cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| {
        path.split('/').any(|part| {
            sandbox.is_some_and(|id| part.trim_end_matches(".scope").ends_with(id))
                || pods.iter().flatten().any(|pod| {
                    part.strip_suffix(pod.as_str())
                        .is_some_and(|r| r.is_empty() || r.ends_with('-'))
                })
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "6f1e0ea1-98fb-4a3c-8f4e-0f6e3e5a1b2c";

    #[test]
    fn a_process_of_the_pod_is_known_by_its_cgroup() {
        let spec = json!({ "annotations": {
            "io.kubernetes.cri.sandbox-id": ID, "io.kubernetes.cri.sandbox-uid": UID,
            "io.kubernetes.cri.sandbox-name": "p", "io.kubernetes.cri.sandbox-namespace": "n",
            "io.kubernetes.cri.container-name": "c", "io.kubernetes.cri-o.SandboxID": "f".repeat(64)
        } });
        let view = View::new(&spec);
        let slice = UID.replace('-', "_");
        for path in [
            format!("0::/kubepods/burstable/pod{UID}/{ID}"),
            format!("12:memory:/x\n3:devices:/k8s.io/{ID}"),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/cri-containerd-{ID}.scope"),
            // A container of the pod by kubectl debug --target.
            format!(
                "0::/kubepods.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{}.scope",
                "e".repeat(64)
            ),
        ] {
            assert!(shares_pod(view, Caller::Containerd, &path), "{path}");
            assert!(
                !shares_pod(view, Caller::Local, &path),
                "nobody but kubelet's engine names a pod"
            );
            assert!(!shares_pod(view, Caller::Podman, &path), "its user writes annotations");
        }
        let other = "d".repeat(64);
        for path in [
            format!("0::/kubepods/burstable/pod1{UID}/{other}"),
            format!("0::/kubepods/besteffort/pod6f1e0ea1/{other}"),
            format!("0::/kubepods/besteffort/x/{ID}x"),
            "0::/".to_owned(),
            ID.to_string(),
            String::new(),
        ] {
            assert!(!shares_pod(view, Caller::Containerd, &path), "{path}");
        }
        let short = json!({ "annotations": { "io.kubernetes.cri.sandbox-id": "" } });
        assert!(!shares_pod(View::new(&short), Caller::Containerd, "0::/any"));
    }
}
