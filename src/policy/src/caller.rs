//! Which engine calls: told by what the engine itself sets and by root's settings, never by
//! annotations, which a pod's author may write.

use std::path::{Path, PathBuf};

use mpsgate_oci::spec::View;

/// Containerd's annotation and CRI-O's by which a pause container is known.
const CONTAINERD_TYPE: &str = "io.kubernetes.cri.container-type";
const CRIO_TYPE: &str = "io.kubernetes.cri-o.ContainerType";

/// Who runs the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// A kubelet's containerd: k3s, RKE2 and `MicroK8s` too.
    Containerd,
    /// CRI-O.
    Crio,
    /// Podman, whose `kube play` uses CRI-O's names.
    Podman,
    /// Docker, ctr, nerdctl, runc by hand: their user is root anyway.
    Local,
    /// Not known: `explain` of a spec from elsewhere.
    Unknown,
}

impl Caller {
    /// Tells the engine by the runtime's `--root` and the bundle, which the engine chooses.
    ///
    /// A kubelet's containerd keeps its containers in the namespace `k8s.io`, which is part of both
    /// paths. CRI-O's bundles lie below one of `kubernetes_roots`; so do Podman's with a transient
    /// store, and on a node with a kubelet these count as CRI-O's: rather a local container that is
    /// not trusted than a pod that is.
    #[must_use]
    pub fn of(
        root: Option<&Path>,
        bundle: &Path,
        kubernetes_roots: &[PathBuf],
        kubelet: bool,
    ) -> Self {
        let paths = || root.into_iter().chain([bundle]).map(tidy);
        if paths().any(|path| path.components().any(|part| part.as_os_str() == "k8s.io")) {
            Self::Containerd
        } else if kubelet
            && paths().any(|path| kubernetes_roots.iter().any(|k| path.starts_with(tidy(k))))
        {
            Self::Crio
        } else if bundle.ends_with("userdata") {
            Self::Podman
        } else {
            Self::Local
        }
    }

    /// Whether a pod's author wrote the annotations.
    #[must_use]
    pub fn is_kubernetes(self) -> bool {
        matches!(self, Self::Containerd | Self::Crio)
    }

    fn knows(self, annotation: &str) -> bool {
        match annotation {
            CONTAINERD_TYPE => matches!(self, Self::Containerd | Self::Unknown),
            _ => matches!(self, Self::Crio | Self::Podman | Self::Unknown),
        }
    }

    /// A pause container: the pod's annotations are on it, the request is not.
    pub(crate) fn is_sandbox(self, view: View<'_>) -> bool {
        [CONTAINERD_TYPE, CRIO_TYPE]
            .iter()
            .any(|name| self.knows(name) && view.annotation(name) == Some("sandbox"))
    }

    /// The annotation of another engine than this one that would have made it a pause container.
    #[must_use]
    pub fn foreign_annotation(self, view: View<'_>) -> Option<&'static str> {
        [CONTAINERD_TYPE, CRIO_TYPE]
            .into_iter()
            .find(|name| !self.knows(name) && view.annotation(name) == Some("sandbox"))
    }
}

/// A path below the root. `/var/run` is `/run` by another name, and engines use both.
fn tidy(path: &Path) -> &Path {
    let inside = path.strip_prefix("/").unwrap_or(path);
    inside.strip_prefix("var").ok().filter(|rest| rest.starts_with("run")).unwrap_or(inside)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use mpsgate_oci::argv;
    use serde_json::json;

    use super::*;

    fn caller(line: &str, kubelet: bool) -> Caller {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let invocation = argv::parse(&args);
        let bundle = invocation.bundle.as_deref().unwrap_or_else(|| Path::new("/"));
        let roots = [PathBuf::from("/run/containers/storage")];
        Caller::of(invocation.root.as_deref(), bundle, &roots, kubelet)
    }

    /// As the engines write them; ID stands for the container's id.
    const LINES: &[(&str, &str, Caller)] = &[
        (
            "containerd 1.6, 1.7 and 2.1 through CRI (captured from 1.6)",
            "--root /run/containerd/runc/k8s.io --log /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/log.json --log-format json create --bundle /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID --pid-file /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID/init.pid ID",
            Caller::Containerd,
        ),
        (
            "the same with the systemd cgroup driver",
            "--root /run/containerd/runc/k8s.io --log /l --log-format json --systemd-cgroup create --bundle /run/containerd/io.containerd.runtime.v2.task/k8s.io/ID --pid-file /p ID",
            Caller::Containerd,
        ),
        (
            "k3s and RKE2",
            "--root /run/containerd/runc/k8s.io --log /l --log-format json create --bundle /run/k3s/containerd/io.containerd.runtime.v2.task/k8s.io/ID --pid-file /p ID",
            Caller::Containerd,
        ),
        (
            "MicroK8s, a root of its own",
            "--root /var/snap/microk8s/common/run/containerd/runc --log /l create --bundle /var/snap/microk8s/common/run/containerd/io.containerd.runtime.v2.task/k8s.io/ID ID",
            Caller::Containerd,
        ),
        (
            "ctr",
            "--root /run/containerd/runc/default --log /l --log-format json create --bundle /run/containerd/io.containerd.runtime.v2.task/default/ID --pid-file /p ID",
            Caller::Local,
        ),
        (
            "nerdctl in a namespace of its own",
            "--root /run/containerd/runc/buildkit --log /l --log-format json create --bundle /run/containerd/io.containerd.runtime.v2.task/buildkit/ID --pid-file /p ID",
            Caller::Local,
        ),
        (
            "Docker 20.10 (captured)",
            "--root /var/run/docker/runtime-runc/moby --log /run/containerd/io.containerd.runtime.v2.task/moby/ID/log.json --log-format json create --bundle /run/containerd/io.containerd.runtime.v2.task/moby/ID --pid-file /run/containerd/io.containerd.runtime.v2.task/moby/ID/init.pid ID",
            Caller::Local,
        ),
        (
            "Docker 26 and 28 with a containerd of their own",
            "--root /var/run/docker/runtime-mpsgate/moby --log /l --log-format json --systemd-cgroup create --bundle /var/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/ID --pid-file /p ID",
            Caller::Local,
        ),
        (
            "BuildKit in dockerd",
            "--log /var/lib/docker/buildkit/executor/runc-log.json --log-format json run --bundle /var/lib/docker/buildkit/executor/ID ID",
            Caller::Local,
        ),
        (
            "Podman 4.3 on runc, with a runtime that it knows",
            "--log-format=json --log=/run/containers/storage/vfs-containers/ID/userdata/oci-log create --bundle /var/lib/containers/storage/vfs-containers/ID/userdata --pid-file /run/containers/storage/vfs-containers/ID/userdata/pidfile ID",
            Caller::Podman,
        ),
        (
            "Podman 5.4 on crun (captured)",
            "--systemd-cgroup create --bundle /var/lib/containers/storage/overlay-containers/ID/userdata --pid-file /run/containers/storage/overlay-containers/ID/userdata/pidfile ID",
            Caller::Podman,
        ),
        (
            "CRI-O (internal/oci/runtime_oci.go, 1.36) on crun",
            "--root=/run/crun --systemd-cgroup create --bundle /run/containers/storage/overlay-containers/ID/userdata --pid-file /run/containers/storage/overlay-containers/ID/userdata/pidfile ID",
            Caller::Crio,
        ),
        (
            "CRI-O on runc, by the other name of /run",
            "--root=/run/runc create --bundle /var/run/containers/storage/overlay-containers/ID/userdata --pid-file /p ID",
            Caller::Crio,
        ),
        ("runc by hand", "run --bundle /tmp/not-k8s.io/b ID", Caller::Local),
    ];

    #[test]
    fn the_engine_is_told_by_what_it_sets_itself() {
        for (engine, line, expected) in LINES {
            assert_eq!(caller(line, true), *expected, "{engine}");
            // Without a kubelet nobody drives CRI-O but root: it looks like Podman's transient
            // store.
            let alone = if *expected == Caller::Crio { Caller::Podman } else { *expected };
            assert_eq!(caller(line, false), alone, "{engine} on a node without a kubelet");
        }
    }

    #[test]
    fn roots_bound_what_is_a_kubelets() {
        let roots = [PathBuf::from("/srv/crio"), PathBuf::from("/var/run/docker")];
        let of = |root: Option<&str>, bundle: &str| {
            Caller::of(root.map(Path::new), Path::new(bundle), &roots, true)
        };
        assert_eq!(of(None, "/srv/crio/x/userdata"), Caller::Crio);
        assert_eq!(of(None, "/srv/crio-not/x/userdata"), Caller::Podman);
        assert_eq!(of(Some("/run/docker/runtime-runc/moby"), "/x"), Caller::Crio);
        assert_eq!(of(None, "/run/containers/storage/x/userdata"), Caller::Podman);
    }

    #[test]
    fn another_engines_annotation_makes_no_pause_container() {
        let cri = json!({ "annotations": { CONTAINERD_TYPE: "sandbox" } });
        let crio = json!({ "annotations": { CRIO_TYPE: "sandbox" } });
        use Caller as C;
        for (caller, own) in [
            (C::Containerd, [true, false]),
            (C::Crio, [false, true]),
            (C::Podman, [false, true]),
            (C::Local, [false, false]),
            (C::Unknown, [true, true]),
        ] {
            for (spec, own) in [&cri, &crio].into_iter().zip(own) {
                let view = View::new(spec);
                assert_eq!(caller.is_sandbox(view), own, "{caller:?}");
                assert_eq!(caller.foreign_annotation(view).is_some(), !own, "{caller:?}");
            }
        }
        let container = json!({ "annotations": { CONTAINERD_TYPE: "container" } });
        assert_eq!(C::Local.foreign_annotation(View::new(&container)), None);
    }
}
