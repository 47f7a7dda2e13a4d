//! Who may reach managed cards without a grant, as the settings list them: exporters, feature
//! discovery, drivers.

use mpsgate_config::{Exempt, Policy};
use mpsgate_oci::spec::View;

use crate::Caller;

/// containerd: the image as the pod names it, written over a pod's own annotation.
const CONTAINERD_IMAGE: &[&str] = &["io.kubernetes.cri.image-name"];
/// CRI-O: a name that the image has in its store, and what kubelet asked for, which is the image's
/// id. Both are written over a pod's own annotations, always (`SpecAddAnnotations`, 1.24 to 1.37).
/// `…ImageRepoDigests` is not one of them: versions before 1.34.10, 1.35.5 and 1.36.1 do not write
/// it, and leave what a pod's author wrote.
const CRIO_IMAGE: &[&str] = &["io.kubernetes.cri-o.ImageName", "io.kubernetes.cri-o.Image"];
/// What an image's name means that names no registry (distribution's reference format).
const DEFAULT_REGISTRY: &str = "docker.io";

/// Why a container is exempt: its namespace and image. Only a kubelet's engine can say that, and
/// only for pods: `None` for every other container.
#[must_use]
pub fn exempt_as(policy: &Policy, caller: Caller, view: View<'_>) -> Option<String> {
    // Most nodes exempt nobody, and most containers are not looked at any further.
    if policy.exempt.is_empty() {
        return None;
    }
    let namespace = caller.pod(view)?.namespace;
    let names = match caller {
        Caller::Containerd => CONTAINERD_IMAGE,
        _ => CRIO_IMAGE,
    };
    let image = names
        .iter()
        .filter_map(|name| view.annotation(name))
        .find(|image| is_exempt(&policy.exempt, &namespace, image))?;
    Some(format!("namespace {namespace}, image {image}"))
}

/// Whether one of the entries is for that namespace and image.
#[must_use]
pub fn is_exempt(entries: &[Exempt], namespace: &str, image: &str) -> bool {
    entries.iter().any(|entry| entry.namespace == namespace && image_matches(&entry.image, image))
}

/// An entry is a repository, a digest, or both; an image's name is a repository with tag, digest,
/// or both.
fn image_matches(entry: &str, image: &str) -> bool {
    let (image, digest) = match image.split_once('@') {
        Some((image, digest)) => (image, Some(digest)),
        None => (image, None),
    };
    let (repository, wanted) = match entry.split_once('@') {
        Some((repository, digest)) => (Some(repository), Some(digest)),
        None if entry.starts_with("sha256:") => (None, Some(entry)),
        None => (Some(entry), None),
    };
    wanted.is_none_or(|wanted| digest.is_some_and(|found| found.eq_ignore_ascii_case(wanted)))
        && repository.is_none_or(|repository| parts(repository) == parts(without_tag(image)))
}

fn without_tag(image: &str) -> &str {
    match image.rsplit_once(':') {
        // A port of the registry is followed by a path.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    }
}

/// Registry and path. `busybox` is `docker.io/library/busybox`.
fn parts(repository: &str) -> (&str, String) {
    match repository.split_once('/') {
        Some((registry, path)) if registry.contains(['.', ':']) || registry == "localhost" => {
            let official = registry == DEFAULT_REGISTRY && !path.contains('/');
            (registry, if official { format!("library/{path}") } else { path.to_owned() })
        }
        Some(_) => (DEFAULT_REGISTRY, repository.to_owned()),
        None => (DEFAULT_REGISTRY, format!("library/{repository}")),
    }
}

#[cfg(test)]
mod tests {
    use mpsgate_config::Exempt;
    use mpsgate_oci::spec::parse;
    use serde_json::json;

    use super::*;

    /// Annotations as a CRI-O with a kubelet writes them, the image's name and its digests being
    /// `name` and `digests`.
    fn under_crio(entry: &str, name: &str, digests: &str) -> Option<String> {
        let spec = json!({"ociVersion": "1.3.0", "annotations": {
            "io.kubernetes.pod.uid": "u", "io.kubernetes.pod.namespace": "gpu-operator",
            "io.kubernetes.pod.name": "exporter", "io.kubernetes.container.name": "c",
            "io.kubernetes.cri-o.Image": "c5a86506f3b1a1a2c9e3d4f5061728394a5b6c7d8e9f00112233445566778899",
            "io.kubernetes.cri-o.ImageName": name,
            "io.kubernetes.cri-o.ImageRepoDigests": digests,
            "io.kubernetes.cri.image-name": "nvcr.io/nvidia/forged:1"
        }});
        let document = parse(spec.to_string().as_bytes()).ok()?;
        let exempt = vec![Exempt { namespace: "gpu-operator".to_owned(), image: entry.to_owned() }];
        let policy = Policy { exempt, ..Policy::default() };
        exempt_as(&policy, Caller::Crio, document.view())
    }

    #[test]
    fn under_crio_the_name_in_its_store_counts_and_nothing_that_a_pod_can_write() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let exporter = "nvcr.io/nvidia/k8s/dcgm-exporter";
        let pinned = format!("{exporter}@{digest}");
        for (entry, name, digests, expected) in [
            (exporter, format!("{exporter}:3.3.9"), "", true),
            (exporter, pinned.clone(), "", true),
            (&pinned, pinned.clone(), "", true),
            (&digest, pinned.clone(), "", true),
            (&pinned, format!("{exporter}:3.3.9"), "", false),
            // Where CRI-O does not write them, these are the pod's author's.
            (exporter, "evil.io/x:1".to_owned(), &*pinned, false),
            (&digest, format!("{exporter}:3.3.9"), &*pinned, false),
            ("nvcr.io/nvidia/forged", "evil.io/x:1".to_owned(), "", false),
            // An image without a name.
            (exporter, String::new(), "", false),
        ] {
            assert_eq!(
                under_crio(entry, &name, digests).is_some(),
                expected,
                "{entry} {name} {digests}"
            );
        }
    }

    #[test]
    fn an_image_matches_by_repository_and_by_digest_and_never_by_a_part_of_a_name() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let other = format!("sha256:{}", "cd".repeat(32));
        let exporter = "nvcr.io/nvidia/k8s/dcgm-exporter";
        for (entry, image, expected) in [
            (exporter, format!("{exporter}:3.3.9"), true),
            (exporter, format!("{exporter}@{digest}"), true),
            (exporter, format!("{exporter}:3.3.9@{digest}"), true),
            (exporter, exporter.to_owned(), true),
            (exporter, format!("{exporter}-evil:1"), false),
            (exporter, format!("evil.io/{exporter}:1"), false),
            (exporter, "nvcr.io/nvidia/k8s/dcgm:1".to_owned(), false),
            (exporter, "nvcr.io:443/nvidia/k8s/dcgm-exporter:1".to_owned(), false),
            ("r.example:5000/x", "r.example:5000/x:1".to_owned(), true),
            ("r.example:5000/x", "r.example:5000/x".to_owned(), true),
            ("busybox", "docker.io/library/busybox:latest".to_owned(), true),
            ("docker.io/busybox", "busybox".to_owned(), true),
            ("nvidia/cuda", "docker.io/nvidia/cuda:12".to_owned(), true),
            ("localhost/x", "localhost/x:1".to_owned(), true),
            (&digest, format!("any.io/x@{digest}"), true),
            (&digest, format!("any.io/x@{other}"), false),
            (&digest, "any.io/x:1".to_owned(), false),
            (&digest, digest.clone(), false),
            (&format!("{exporter}@{digest}"), format!("{exporter}:1@{digest}"), true),
            (&format!("{exporter}@{digest}"), format!("{exporter}:1"), false),
            (&format!("{exporter}@{digest}"), format!("any.io/x@{digest}"), false),
        ] {
            assert_eq!(image_matches(entry, &image), expected, "{entry} {image}");
        }
    }
}
