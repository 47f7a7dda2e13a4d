//! How much of a pod's word counts: what kubelet handed out (a token) beside what the API server
//! lists in the container's `resources.limits`.

use mpsgate_model::{Code, ComputeShare, GPU_CORE, Mib, Refusal};

use crate::ASK_LIMITS;

/// ACK's step, least and most.
const CORE_STEP: u64 = 5;
const CORE_MOST: u64 = 100;

/// What the API server says of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListedLimits {
    /// Nothing: nobody asks it, it has not answered yet, or it does not know the pod (a static
    /// pod's mirror).
    Unknown,
    /// The pod has no such container.
    NoContainer,
    /// A limit that cannot be counted, in a sentence.
    Unreadable(String),
    /// GPU memory by resource; empty where its limits give none.
    Given(Vec<(String, Mib)>),
}

/// The resource and memory that a container has from Kubernetes; `None` where nobody confirms
/// anything. `token` is what kubelet handed out to it.
///
/// # Errors
/// A refusal where the API server says otherwise: a copied token, an annotation of the pod's
/// author.
pub fn confirmed(
    token: Option<(String, Mib)>,
    listed: &ListedLimits,
) -> Result<Option<(String, Mib)>, Refusal> {
    let given = match listed {
        ListedLimits::Unknown => return Ok(token),
        ListedLimits::NoContainer => {
            return Err(refusal(
                "it is started as a container of a pod that has none of this name at the API server".to_owned(),
            ));
        }
        ListedLimits::Unreadable(why) => return Err(uncountable(why)),
        ListedLimits::Given(given) => given,
    };
    match (token, given.as_slice()) {
        (Some(token), given) if given.contains(&token) => Ok(Some(token)),
        (Some((resource, memory)), given) => Err(refusal(format!(
            "its token (mpsgate.io/grant) is for {memory} of {resource}, but its resources.limits give {}",
            list(given)
        ))),
        // An engine that does not hand a device plugin's annotations on.
        (None, [only]) => Ok(Some(only.clone())),
        (None, []) => Err(refusal(
            "it asks for GPU memory by annotation, but its resources.limits give none".to_owned(),
        )),
        (None, several) => Err(refusal(format!(
            "its resources.limits give {}, and it has no token (mpsgate.io/grant) that says which of them this is",
            list(several)
        ))),
    }
}

/// The share of each card's compute that a container has: the smaller of its annotation's and its
/// limits'. Without either it has all of it, so that an annotation takes and never gives, whether
/// or not its limits are known.
#[must_use]
pub fn compute_share(
    annotation: Option<ComputeShare>,
    limits: Option<ComputeShare>,
) -> Option<ComputeShare> {
    annotation.into_iter().chain(limits).min_by_key(|share| share.0)
}

/// A limit that cannot be counted.
#[must_use]
pub fn uncountable(why: &str) -> Refusal {
    refusal(format!("its resources.limits cannot be counted: {why}"))
}

/// Resources and what they give, as they read in a sentence.
#[must_use]
pub fn list(given: &[(String, Mib)]) -> String {
    if given.is_empty() {
        return "no GPU memory".to_owned();
    }
    let parts: Vec<String> =
        given.iter().map(|(resource, memory)| format!("{memory} as {resource}")).collect();
    parts.join(" and ")
}

/// Why a share of a card's compute cannot be given, whatever the cards have left; 0 asks for none.
#[must_use]
pub fn core_refusal(percentage: u64, with_memory: bool) -> Option<Refusal> {
    if percentage == 0 {
        return None;
    }
    if !percentage.is_multiple_of(CORE_STEP) || percentage > CORE_MOST {
        return Some(Refusal::new(
            Code::Request,
            format!(
                "it asks for {percentage} of {GPU_CORE}, which is no multiple of {CORE_STEP} from {CORE_STEP} to \
                 {CORE_MOST}"
            ),
            format!("ask for a multiple of {CORE_STEP}; 100 is one whole card"),
        ));
    }
    (!with_memory).then(|| {
        Refusal::new(
            Code::Request,
            format!("it asks for {percentage} of {GPU_CORE}, but for no GPU memory"),
            format!("{ASK_LIMITS} as well, or remove {GPU_CORE}"),
        )
    })
}

fn refusal(sentence: String) -> Refusal {
    Refusal::new(
        Code::Unconfirmed,
        sentence,
        "ask for GPU memory in the container's resources.limits (aliyun.com/gpu-mem: 7, in GiB) and nowhere else; \
         what they are: kubectl get pod POD -o yaml",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "test code fails by panicking")]
    use super::*;

    const MEM: &str = "aliyun.com/gpu-mem";
    const SLICE: &str = "nvidia.com/gpu-10gb";

    fn of(resource: &str, gib: u64) -> (String, Mib) {
        (resource.to_owned(), Mib(gib * 1024))
    }

    #[test]
    fn an_annotation_never_gives_more_compute_than_a_container_has_without_it() {
        /// Of a share that is not set.
        const ALL: u8 = 100;
        let shares = || std::iter::once(None).chain((1..=ALL).map(|n| Some(ComputeShare(n))));
        let held = |annotation, limits| compute_share(annotation, limits).map_or(ALL, |s| s.0);
        for limits in shares() {
            let without = held(None, limits);
            assert_eq!(without, limits.map_or(ALL, |share| share.0));
            for annotation in shares() {
                let with = held(annotation, limits);
                assert!(with <= without, "{annotation:?} {limits:?}");
                assert!(annotation.is_none_or(|share| with <= share.0));
            }
        }
    }

    #[test]
    fn kubelet_and_the_api_server_must_agree() {
        let given = |list: &[(String, Mib)]| ListedLimits::Given(list.to_vec());
        let seven = || Some(of(MEM, 7));
        for (token, listed, expected) in [
            // Without an API server the token alone counts.
            (None, ListedLimits::Unknown, Ok(None)),
            (seven(), ListedLimits::Unknown, Ok(seven())),
            (seven(), given(&[of(MEM, 7)]), Ok(seven())),
            (seven(), given(&[of(SLICE, 10), of(MEM, 7)]), Ok(seven())),
            (None, given(&[of(SLICE, 10)]), Ok(Some(of(SLICE, 10)))),
            (seven(), ListedLimits::NoContainer, Err("has none of this name at the API server")),
            (None, ListedLimits::NoContainer, Err("has none of this name at the API server")),
            (
                seven(),
                ListedLimits::Unreadable("limit a: \"x\"".to_owned()),
                Err("its resources.limits cannot be counted: limit a: \"x\""),
            ),
            (
                seven(),
                given(&[of(MEM, 4)]),
                Err(
                    "is for 7 GiB of aliyun.com/gpu-mem, but its resources.limits give 4 GiB as aliyun.com/gpu-mem",
                ),
            ),
            (seven(), given(&[of(SLICE, 7)]), Err("give 7 GiB as nvidia.com/gpu-10gb")),
            (seven(), given(&[]), Err("but its resources.limits give no GPU memory")),
            (None, given(&[]), Err("by annotation, but its resources.limits give none")),
            (
                None,
                given(&[of(MEM, 7), of(SLICE, 10)]),
                Err(
                    "give 7 GiB as aliyun.com/gpu-mem and 10 GiB as nvidia.com/gpu-10gb, and it has no token",
                ),
            ),
        ] {
            let case = format!("{token:?} {listed:?}");
            match (confirmed(token, &listed), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{case}"),
                (Err(refusal), Err(part)) => {
                    assert_eq!(refusal.code, Code::Unconfirmed);
                    assert!(refusal.sentence.contains(part), "{case}: {refusal}");
                }
                (found, expected) => panic!("{case}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
