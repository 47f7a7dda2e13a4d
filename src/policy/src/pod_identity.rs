//! Whose container it is: told by what the engine writes last, which no annotation of a pod's
//! author replaces.

use mpsgate_model::PodContainer;
use mpsgate_oci::spec::View;

use crate::Caller;

/// Annotations of one engine.
struct Names {
    uid: &'static str,
    namespace: &'static str,
    pod: &'static str,
    container: &'static str,
}

/// containerd's CRI sets them after the pod's own and the container's (seen in 1.6, 1.7 and 2.1:
/// `tests/engines/cri.bats`).
const CONTAINERD: Names = Names {
    uid: "io.kubernetes.cri.sandbox-uid",
    namespace: "io.kubernetes.cri.sandbox-namespace",
    pod: "io.kubernetes.cri.sandbox-name",
    container: "io.kubernetes.cri.container-name",
};
/// Kubelet's labels, which CRI-O copies over all annotations (`SpecAddAnnotations`, CRI-O
/// `internal/factory/container/container.go`). It copies a pod's own `io.kubernetes.cri.*` too.
const CRIO: Names = Names {
    uid: "io.kubernetes.pod.uid",
    namespace: "io.kubernetes.pod.namespace",
    pod: "io.kubernetes.pod.name",
    container: "io.kubernetes.container.name",
};

impl Caller {
    /// The pod and container of a spec. `None` where no kubelet's engine calls, where it does not
    /// say so, and where the cgroup that kubelet chose is another pod's.
    #[must_use]
    pub fn pod(self, view: View<'_>) -> Option<PodContainer> {
        let names = match self {
            Self::Containerd => CONTAINERD,
            Self::Crio => CRIO,
            Self::Podman | Self::Local | Self::Unknown => return None,
        };
        let read = |name| view.annotation(name).filter(|value| !value.is_empty());
        let found = PodContainer {
            uid: read(names.uid)?.to_owned(),
            namespace: read(names.namespace)?.to_owned(),
            pod: read(names.pod)?.to_owned(),
            container: read(names.container)?.to_owned(),
        };
        let contradicts = view.cgroup_path().and_then(pod_of_cgroup).is_some_and(|in_cgroup| {
            // systemd's names of slices have no dashes of their own.
            in_cgroup.replace('_', "-") != found.uid.replace('_', "-")
        });
        (!contradicts).then_some(found)
    }
}

/// The pod's uid in a cgroup's path, as kubelet names them: `/kubepods/burstable/podUID/ID`, or
/// `kubepods-burstable-podUID.slice:cri-containerd:ID` with the systemd driver.
fn pod_of_cgroup(path: &str) -> Option<&str> {
    if !path.contains("kubepods") {
        return None;
    }
    path.split(['/', ':']).find_map(|part| match part.strip_suffix(".slice") {
        Some(slice) => slice.split_once("-pod").map(|(_, uid)| uid),
        None => part.strip_prefix("pod"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing, reason = "a failing index is the test's failure")]
    use serde_json::{Value, json};

    use super::*;

    const UID: &str = "0a1b2c3d-0000-4000-8000-00000000beef";

    fn containerd(cgroup: &str) -> Value {
        json!({
            "annotations": {
                CONTAINERD.uid: UID, CONTAINERD.namespace: "default", CONTAINERD.pod: "web",
                CONTAINERD.container: "main"
            },
            "linux": {"cgroupsPath": cgroup}
        })
    }

    fn web() -> PodContainer {
        let [uid, namespace, pod, container] =
            [UID, "default", "web", "main"].map(ToOwned::to_owned);
        PodContainer { uid, namespace, pod, container }
    }

    #[test]
    fn each_engines_own_names_count_and_the_others_do_not() {
        let cri = containerd("/x");
        let mut crio = json!({"annotations": {
            CRIO.uid: UID, CRIO.namespace: "default", CRIO.pod: "web", CRIO.container: "main",
            // By the pod's author, whom CRI-O lets.
            CONTAINERD.uid: "victim", CONTAINERD.container: "victim"
        }});
        assert_eq!(Caller::Containerd.pod(View::new(&cri)), Some(web()));
        assert_eq!(Caller::Crio.pod(View::new(&crio)), Some(web()));
        assert_eq!(Caller::Crio.pod(View::new(&cri)), None);
        assert_eq!(Caller::Containerd.pod(View::new(&crio)), None);
        for other in [Caller::Podman, Caller::Local, Caller::Unknown] {
            assert_eq!(other.pod(View::new(&cri)), None, "{other:?}");
        }
        crio["annotations"][CRIO.container] = json!("");
        assert_eq!(Caller::Crio.pod(View::new(&crio)), None);
    }

    #[test]
    fn a_cgroup_of_another_pod_contradicts() {
        let systemd = UID.replace('-', "_");
        for (cgroup, fits) in [
            (format!("/kubepods/burstable/pod{UID}/ID"), true),
            (format!("/kubepods/pod{UID}/ID"), true),
            (format!("kubepods-burstable-pod{systemd}.slice:cri-containerd:ID"), true),
            (format!("kubelet-kubepods-pod{systemd}.slice:crio:ID"), true),
            (
                format!(
                    "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{systemd}.slice/ID"
                ),
                true,
            ),
            // Without kubelet's names nothing can contradict: crictl, --cgroups-per-qos=false.
            ("/k8s.io/podother/ID".to_owned(), true),
            ("/kubepods/burstable/podother/ID".to_owned(), false),
            ("kubepods-besteffort-podother.slice:cri-containerd:ID".to_owned(), false),
            (format!("/kubepods/burstable/pod{UID}0/ID"), false),
        ] {
            let spec = containerd(&cgroup);
            let found = Caller::Containerd.pod(View::new(&spec));
            assert_eq!(found, fits.then(web), "{cgroup}");
        }
    }
}
