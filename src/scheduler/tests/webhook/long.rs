//! Reviews of new pods that ask for GPU memory, each with 3 MiB of one list, of many such lists
//! that are each just short enough, or of one text: as much as an API server takes of a request.
//! For the table of bounds, and for the benchmark.

/// What an API server takes of a request's body.
const MOST: usize = 3 << 20;
/// The longest path that Linux takes.
const PATH: usize = 4_000;

/// As many elements as have room beside the rest.
fn many(element: impl Fn(usize) -> String) -> String {
    let mut all = String::with_capacity(MOST);
    for n in 0.. {
        let one = element(n);
        if all.len() + one.len() + 4096 > MOST {
            return all;
        }
        if n > 0 {
            all.push(',');
        }
        all += &one;
    }
    all
}

fn review(pod: &str) -> String {
    format!(
        r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u-1","kind":{{"group":"","version":"v1","kind":"Pod"}},"operation":"CREATE","namespace":"default","userInfo":{{"username":"alice","groups":["system:authenticated"]}},"object":{pod}}}}}"#
    )
}

/// `more` beside a container that asks, as fields of the spec.
fn spec(more: &str) -> String {
    review(&format!(r#"{{"metadata":{{"name":"web"}},"spec":{{{ASKING},"hostIPC":true,{more}}}}}"#))
}

const ASKING: &str =
    r#""containers":[{"name":"web","resources":{"limits":{"aliyun.com/gpu-mem":"7"}}}]"#;

/// `more` in the container, as its fields.
fn container(volumes: &str, more: &str) -> String {
    review(&format!(
        r#"{{"metadata":{{"name":"web"}},"spec":{{"hostIPC":true,"volumes":[{volumes}],"containers":[{{"name":"web","resources":{{"limits":{{"aliyun.com/gpu-mem":"7"}}}},{more}}}]}}}}"#
    ))
}

/// So many elements as one list may have.
fn full(element: &str) -> String {
    vec![element; 9_900].join(",")
}

fn path(beginning: &str) -> String {
    let mut path = beginning.to_owned();
    while path.len() < PATH {
        path += "/a";
    }
    path
}

fn volume(path: &str) -> String {
    format!(r#"{{"name":"v","hostPath":{{"path":"{path}"}}}}"#)
}

/// Mounts of one volume, in containers of their own, as many to each as a list may have.
fn mounts_of(path: &str) -> String {
    let mount = |n: usize| format!(r#"{{"name":"v","mountPath":"/m{n}"}}"#);
    let one = |n: usize| {
        let mounts: Vec<String> = (0..9_900).map(mount).collect();
        format!(r#"{{"name":"c{n}","volumeMounts":[{}]}}"#, mounts.join(","))
    };
    spec(&format!(r#""volumes":[{}],"initContainers":[{}]"#, volume(path), many(one)))
}

/// Each with what there is much of.
pub(crate) fn long() -> Vec<(&'static str, String)> {
    let text = "x".repeat(MOST - 4096);
    let cards = |_| "GPU-00000000-0000-0000-0000-000000000000".to_owned();
    let list = |key: &str, element: &dyn Fn(usize) -> String| {
        spec(&format!(r#""{key}":[{}]"#, many(element)))
    };
    vec![
        ("mounts of one path of GPUs", mounts_of(&path("/dev/nvidia0"))),
        ("mounts of one path of processes", mounts_of(&path("/proc/1/root/proc/1/root"))),
        ("mounts of one path of mpsgate's", mounts_of(&path("/run/mpsgate"))),
        ("mounts of one path of nobody's", mounts_of(&path("/srv"))),
        ("mounts of one short path", mounts_of("/dev")),
        (
            "long mounts of one path",
            container(
                &volume("/dev"),
                &format!(
                    r#""volumeMounts":[{}]"#,
                    many(|n| format!(
                        r#"{{"name":"v","mountPath":"/m{n}","subPath":"{}"}}"#,
                        path("snd")
                    ))
                ),
            ),
        ),
        (
            "block devices of one path",
            container(
                &volume(&path("/dev/nvidia0")),
                &format!(
                    r#""volumeDevices":[{}]"#,
                    many(|n| format!(r#"{{"name":"v","devicePath":"/d{n}"}}"#))
                ),
            ),
        ),
        (
            "volumes",
            list("volumes", &|n| {
                format!(r#"{{"name":"v{n}","hostPath":{{"path":"/run/mpsgate/{n}"}}}}"#)
            }),
        ),
        ("long volumes", list("volumes", &|_| volume(&path("/proc")))),
        (
            "containers that ask",
            list("initContainers", &|n| {
                format!(
                    r#"{{"name":"c{n}","env":[{{"name":"NVIDIA_VISIBLE_DEVICES","value":"all"}}],"securityContext":{{"privileged":true}},"resources":{{"limits":{{"aliyun.com/gpu-mem":"1"}}}}}}"#
                )
            }),
        ),
        ("containers", list("initContainers", &|n| format!(r#"{{"name":"c{n}"}}"#))),
        ("ephemeral containers", list("ephemeralContainers", &|n| format!(r#"{{"name":"c{n}"}}"#))),
        (
            "variables",
            container(
                "",
                &format!(
                    r#""env":[{}]"#,
                    many(|n| format!(r#"{{"name":"NVIDIA_A{n}","value":"all"}}"#))
                ),
            ),
        ),
        (
            "cards in a variable",
            container(
                "",
                &format!(
                    r#""env":[{{"name":"NVIDIA_VISIBLE_DEVICES","value":"{}"}}]"#,
                    many(cards)
                ),
            ),
        ),
        (
            "capabilities",
            container(
                "",
                &format!(
                    r#""securityContext":{{"capabilities":{{"add":[{}]}}}}"#,
                    many(|n| format!(r#""C{n}""#))
                ),
            ),
        ),
        (
            "tolerations",
            list("tolerations", &|n| format!(r#"{{"key":"k{n}","operator":"Exists"}}"#)),
        ),
        (
            "selectors",
            spec(&format!(r#""nodeSelector":{{{}}}"#, many(|n| format!(r#""k{n}":"v""#)))),
        ),
        (
            "values of an affinity",
            spec(&format!(
                r#""affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":[{{"matchExpressions":[{{"key":"pool","operator":"NotIn","values":[{}]}}]}}]}}}}}}"#,
                many(|n| format!(r#""z{n}""#))
            )),
        ),
        (
            "terms of an affinity",
            spec(&format!(
                r#""affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":[{}]}}}}}}"#,
                many(|n| format!(
                    r#"{{"matchExpressions":[{{"key":"k{n}","operator":"Exists"}}]}}"#
                ))
            )),
        ),
        (
            "expressions of an affinity",
            spec(&format!(
                r#""affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{{"nodeSelectorTerms":[{}]}}}}}}"#,
                many(|_| format!(r#"{{"matchExpressions":[{}]}}"#, full(r#"{"key":"k"}"#)))
            )),
        ),
        (
            "capabilities of many containers",
            list("initContainers", &|n| {
                format!(
                    r#"{{"name":"c{n}","securityContext":{{"capabilities":{{"add":[{}]}}}},"resources":{{"limits":{{"aliyun.com/gpu-mem":"1"}}}}}}"#,
                    full(r#""CHOWN""#)
                )
            }),
        ),
        (
            "variables of many containers",
            list("initContainers", &|n| {
                let env = full(r#"{"name":"NVIDIA_A","value":"all"}"#);
                format!(r#"{{"name":"c{n}","env":[{env}]}}"#)
            }),
        ),
        (
            "limits",
            review(&format!(
                r#"{{"spec":{{"containers":[{{"name":"web","resources":{{"limits":{{{}}}}}}}]}}}}"#,
                many(|n| format!(r#""nvidia.com/gpu-{n}gb":"1""#))
            )),
        ),
        (
            "annotations",
            review(&format!(
                r#"{{"metadata":{{"annotations":{{{}}}}},"spec":{{{ASKING}}}}}"#,
                many(|n| format!(r#""cdi.k8s.io/a{n}":"nvidia.com/gpu=all""#))
            )),
        ),
        (
            "owners",
            review(&format!(
                r#"{{"metadata":{{"ownerReferences":[{}]}},"spec":{{{ASKING}}}}}"#,
                many(|_| r#"{"controller":true}"#.to_owned())
            )),
        ),
        ("a RuntimeClass", spec(&format!(r#""runtimeClassName":"{text}""#))),
        (
            "a container's name",
            spec(&format!(
                r#""initContainers":[{{"name":"{text}","env":[{{"name":"NVIDIA_VISIBLE_DEVICES","value":"all"}}]}}]"#
            )),
        ),
        (
            "a path",
            container(
                &volume(&format!("/dev/nvidia{text}")),
                r#""volumeMounts":[{"name":"v","mountPath":"/x"}]"#,
            ),
        ),
    ]
}
