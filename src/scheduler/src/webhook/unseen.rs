//! An object that is not looked at, and what becomes of it. What its author alone could bring about
//! shall open nothing to them: a pod that shows one word of ours is refused. What shows none is
//! allowed with a warning, as it has nothing of GPUs in it. Nor is a pod refused that is there
//! already, unless an update has made it so, or what makes pods: their pods come here, too.

use mpsgate_model::{Code, Refusal};

use super::Unreadable;
use super::bounds::{self, TOO_LARGE, Unseen};
use super::object;
use super::reply::Reply;
use super::review_wire::Request;
use super::shape::TOO_LONG;

/// Bytes of a usual review. It takes no time by itself: where there was none, others have taken it.
const USUAL: usize = 256 << 10;

/// Texts by which an object is about GPUs, whatever stands around them: what NVIDIA's toolkit, a
/// node's device plugin and schedulers of GPU memory read. The API server writes what it has read
/// itself, and escapes no letter of it.
const WORDS: [&str; 10] = [
    "nvidia",
    "NVIDIA_",
    "CUDA_VERSION",
    "DOCKER_RESOURCE_",
    "cdi.k8s.io",
    "mpsgate",
    "aliyun.com/gpu",
    "ALIYUN_COM_GPU",
    "gpushare",
    // A device of the host by a variable.
    "subPathExpr",
];

impl Unseen {
    /// The answer for such an object, in a review of so many bytes.
    ///
    /// # Errors
    /// There was no time for a usual one.
    pub(super) fn answer(
        &self,
        reply: Reply,
        request: &Request<'_>,
        bytes: usize,
    ) -> Result<Reply, Unreadable> {
        if *self == Self::Late && bytes <= USUAL {
            return Err(Unreadable::Late);
        }
        Ok(self.said(reply, request))
    }

    fn said(&self, reply: Reply, request: &Request<'_>) -> Reply {
        let Some(word) = request.object.and_then(|object| word_in(object.get())) else {
            return reply.warn(&self.to_string());
        };
        let hint = match self {
            Self::TooMuch(_) => bounds::hint(),
            Self::Late => format!("{}; or try again when less is asked", bounds::hint()),
            Self::NoPod => {
                "write it as this says, or make it smaller: kubectl explain pod.spec".to_owned()
            }
        };
        let found = format!("{self}, and something of GPUs ({word})");
        let refusal = Refusal::new(Code::Request, found, hint);
        if is_new(request) || self.is_by_update(request) {
            return reply.refuse(&[(String::new(), refusal)]);
        }
        reply.warn(&refusal.to_string()).warn(&format!("hint: {}", refusal.hint))
    }

    /// Whether the update of a pod that waits made it so: tolerations can be added to one. One that
    /// was too long before is held up by nothing.
    fn is_by_update(&self, request: &Request<'_>) -> bool {
        let kind = request.kind.0.as_ref().map_or("", |kind| kind.kind.as_str());
        let what = (kind, request.operation.as_str(), request.sub_resource.as_str());
        let is_longer = || match self {
            Self::NoPod => false,
            Self::Late => true,
            Self::TooMuch(more) => {
                [TOO_LONG, TOO_LARGE].contains(&more.as_str())
                    && object::could_be_read(request.old_object)
            }
        };
        what == ("Pod", "UPDATE", "") && !object::is_bound(request.old_object) && is_longer()
    }
}

/// Whether what runs would be new.
fn is_new(request: &Request<'_>) -> bool {
    let kind = request.kind.0.as_ref().map_or("", |kind| kind.kind.as_str());
    matches!(
        (kind, request.operation.as_str(), request.sub_resource.as_str()),
        ("Pod", "CREATE", "") | ("Pod", "UPDATE", "ephemeralcontainers")
    )
}

fn word_in(text: &str) -> Option<&'static str> {
    WORDS.into_iter().find(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use mpsgate_kubernetes::WRITTEN;
    use mpsgate_model::{GPU_CORE, GPU_COUNT, MEMORY_ANNOTATIONS};
    use mpsgate_policy::{VISIBLE, may_read_annotation, may_read_variable};

    use super::*;

    #[test]
    fn whatever_the_webhook_reads_of_gpus_is_a_word_of_ours() {
        let variables = [
            VISIBLE,
            "NVIDIA_MIG_CONFIG_DEVICES",
            "NVIDIA_IMEX_CHANNELS",
            "CUDA_VERSION",
            "DOCKER_RESOURCE_GPU",
        ];
        assert!(variables.into_iter().all(may_read_variable));
        let annotations = ["nvidia.cdi.k8s.io", "nvidia.cdi.k8s.io/container.a", "cdi.k8s.io/x"];
        assert!(annotations.into_iter().all(may_read_annotation));
        let others = [
            GPU_COUNT,
            GPU_CORE,
            "aliyun.com/gpu-mem",
            "nvidia.com/gpu-10gb",
            "nvidia.com/gpu",
            "mpsgate.io/gpu-mem-512mi",
            "deviceclass.resource.kubernetes.io/shared-gpu.mpsgate.io",
            "/dev/nvidia0",
            "/var/run/nvidia-container-devices/all",
            "subPathExpr",
        ];
        let all = variables.into_iter().chain(annotations).chain(others);
        for text in all.chain(MEMORY_ANNOTATIONS).chain(WRITTEN) {
            assert!(word_in(&format!(r#"{{"{text}":""}}"#)).is_some(), "{text}");
        }
    }

    #[test]
    fn what_has_nothing_of_gpus_shows_no_word_of_ours() {
        for text in [
            r#"{"spec":{"containers":[{"name":"web","image":"nginx","terminationMessagePath":"/dev/termination-log"}]}}"#,
            r#"{"volumes":[{"name":"shm","hostPath":{"path":"/dev/shm"}}],"subPath":"x"}"#,
            r#"{"env":[{"name":"CUDA","value":"12"},{"name":"GPU","value":"none"}]}"#,
        ] {
            assert_eq!(word_in(text), None, "{text}");
        }
    }

    #[test]
    fn a_usual_review_that_others_have_kept_waiting_is_refused_nothing() {
        let text =
            r#"{"uid":"u","kind":{"kind":"Pod"},"operation":"CREATE","object":{"mpsgate":1}}"#;
        let request: Request<'_> = serde_json::from_str(text).unwrap();
        let of = |why: &Unseen, bytes| why.answer(Reply::to(&request).unwrap(), &request, bytes);
        assert!(matches!(of(&Unseen::Late, USUAL), Err(Unreadable::Late)));
        for (why, bytes) in [(Unseen::Late, USUAL + 1), (Unseen::NoPod, USUAL)] {
            let answer = String::from_utf8(of(&why, bytes).unwrap().render()).unwrap();
            assert!(answer.contains(r#""allowed":false"#), "{answer}");
        }
    }

    #[test]
    fn a_review_that_takes_too_long_by_itself_is_as_what_is_too_long() {
        let of = |operation: &str, object: &str| {
            let text = format!(
                r#"{{"uid":"u","kind":{{"kind":"Pod"}},"operation":"{operation}","object":{object},"oldObject":{{}}}}"#
            );
            let request: Request<'_> = serde_json::from_str(&text).unwrap();
            let reply = Reply::to(&request).unwrap();
            let answer = Unseen::Late.answer(reply, &request, USUAL + 1).unwrap();
            String::from_utf8(answer.render()).unwrap()
        };
        for operation in ["CREATE", "UPDATE"] {
            let asking = of(operation, r#"{"limits":{"aliyun.com/gpu-mem":"7"}}"#);
            assert!(asking.contains(r#""allowed":false"#), "{asking}");
            assert!(asking.contains("make it smaller"), "{asking}");
            let quiet = of(operation, r#"{"limits":{"cpu":"7"}}"#);
            assert!(quiet.contains(r#""allowed":true"#), "{quiet}");
            assert!(quiet.contains("too long to be looked at"), "{quiet}");
        }
    }
}
