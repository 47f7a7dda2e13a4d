//! The admission webhook: what a pod's author is told at `kubectl apply`, rather than by a pod that
//! does not start.
//!
//! Pure: bytes of an AdmissionReview (`admission.k8s.io/v1`) in, bytes of one out. Must never talk,
//! nor stop a pod by a fault of its own: nodes enforce in any case, so what cannot be read is
//! allowed, with a warning, unless it shows something of GPUs: then its author made it so
//! (`unseen`). How much is looked at is bounded (`bounds`). Called by the HTTP server, at
//! [`VALIDATE`] and [`MUTATE`].
//!
//! | object | [`VALIDATE`] | [`MUTATE`] |
//! |---|---|---|
//! | a new pod | refused as a node refuses, or warned of | `hostIPC`, `schedulerName` if set so |
//! | annotations of a pod's placement | refused, unless the scheduler's account sets them | – |
//! | tolerations of a pod that waits | its handler is evaluated anew | – |
//! | a new ephemeral container | the same, for it alone | – |
//! | a new or changed template of pods | warned of | – |
//! | anything else | allowed | allowed |
//!
//! A template is that of a Deployment, StatefulSet, DaemonSet, ReplicaSet, Job or CronJob. To
//! refuse it would stop whoever only scales it, and its pods are evaluated anyway
//! ([`mpsgate_cluster::admission`]).

mod bounds;
mod forged_placement;
mod kept_fields;
mod object;
mod patch;
mod reply;
mod review_wire;
mod shape;
mod unseen;

use std::time::Instant;

use mpsgate_cluster::admission::{self, Evaluated, Said};
use mpsgate_cluster::bypass::Known;

use bounds::Unseen;
use object::Subject;
pub use patch::Mutation;
use reply::Reply;
use review_wire::{Request, Review};
use shape::Object;

/// Where the API server posts what is to be evaluated.
pub const VALIDATE: &str = "/mpsgate/validate";
/// Where it posts what may be changed. It does so first.
pub const MUTATE: &str = "/mpsgate/mutate";

/// Why bytes get no answer of the protocol: for HTTP 400.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// No JSON.
    #[error("the body is no JSON")]
    Json(#[source] serde_json::Error),
    /// JSON, but nobody could know which question an answer belongs to.
    #[error("the body is no AdmissionReview: it has no request.uid")]
    NoUid,
    /// The caller does not wait any longer.
    #[error("the time for this review is over; try again")]
    Late,
}

/// Answers a review at [`VALIDATE`]. Pods come here with what [`mutate`] has written; of a template
/// `mutation` says what its pods will have. `known` is what is known of the cluster's nodes and
/// RuntimeClasses. It answers `until` then: what is large and takes longer is as what is too long,
/// because its author made it so.
///
/// # Errors
/// Where the body is no review at all, or the time was over before its turn came, or, of a usual
/// one, before it was looked at.
pub fn validate(
    body: &[u8],
    mutation: &Mutation,
    known: &Known,
    until: Instant,
) -> Result<Vec<u8>, Unreadable> {
    in_time(until)?;
    let request = read(body)?;
    let reply = Reply::to(&request)?;
    Ok(match Subject::of(&request, mutation, until) {
        Err(why) => why.answer(reply, &request, body.len())?,
        Ok(Subject::Nothing) => reply,
        Ok(Subject::Pod { pod, more, .. }) => {
            said(reply, with(more, admission::evaluate(&pod, known, mutation.ipc)), true)
        }
        Ok(Subject::Forged(why)) => said(reply, with(Some(why), Evaluated::default()), true),
        Ok(Subject::Opened(pod)) => said(reply, admission::evaluate_way(&pod, known), true),
        Ok(Subject::Ephemeral { pod, new }) => {
            let Evaluated { mut refused, mut warned } =
                admission::evaluate(&pod, known, mutation.ipc);
            refused.retain(|(container, _)| new.contains(container));
            warned.retain(|(container, _)| new.contains(container));
            said(reply, Evaluated { refused, warned }, true)
        }
        Ok(Subject::Template { mut pod, more }) => {
            pod.host_ipc |= mutation.host_ipc && pod.takes_host_ipc(mutation.ipc);
            said(reply, with(more, admission::evaluate(&pod, known, mutation.ipc)), false)
        }
    }
    .render())
}

/// Answers a review at [`MUTATE`]; refuses nothing. It answers `until` then.
///
/// # Errors
/// Where the body is no review at all, or the time is over.
pub fn mutate(body: &[u8], mutation: &Mutation, until: Instant) -> Result<Vec<u8>, Unreadable> {
    in_time(until)?;
    let request = read(body)?;
    let reply = Reply::to(&request)?;
    Ok(match Subject::of(&request, mutation, until) {
        Err(Unseen::Late) => return Err(Unreadable::Late),
        // Validation says it.
        Err(_) => reply,
        Ok(Subject::Pod { pod, scheduling, .. }) => reply.patch(mutation.patch(&pod, &scheduling)),
        Ok(
            Subject::Nothing
            | Subject::Forged(_)
            | Subject::Opened(_)
            | Subject::Ephemeral { .. }
            | Subject::Template { .. },
        ) => reply,
    }
    .render())
}

fn in_time(until: Instant) -> Result<(), Unreadable> {
    if Instant::now() < until { Ok(()) } else { Err(Unreadable::Late) }
}

fn with(more: impl IntoIterator<Item = Said>, mut evaluated: Evaluated) -> Evaluated {
    evaluated.refused.extend(more);
    evaluated
}

fn said(mut reply: Reply, evaluated: Evaluated, refuses: bool) -> Reply {
    for (container, refusal) in evaluated.warned {
        reply = reply.warn_of(&container, &refusal);
    }
    if refuses {
        return reply.refuse(&evaluated.refused);
    }
    for (container, refusal) in evaluated.refused {
        reply = reply.warn_of(&container, &refusal);
    }
    reply
}

/// The request of a review; an empty one where there is none.
fn read(body: &[u8]) -> Result<Request<'_>, Unreadable> {
    let review: Object<Review<'_>> = serde_json::from_slice(body).map_err(Unreadable::Json)?;
    Ok(review.0.and_then(|review| review.request.0).unwrap_or_default())
}
