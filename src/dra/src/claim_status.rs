//! The driver's entry about a share in the claim's status, where the claim's owner reads it.
//!
//! One entry of `status.devices` is one device of the allocation. So a claim that was refused
//! before its shares were known has no entry: the API server accepts only devices that are
//! allocated ("must be an allocated device in the claim", `validateDeviceStatus` of
//! pkg/apis/resource/validation). Only kubelet's event of the pod shows such a refusal.

use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use k8s_openapi::jiff::Timestamp;
use mpsgate_model::{ClaimShare, DRIVER, Refusal, printable};
use serde_json::json;

/// The condition that a prepared device has (k8s.io/api resource/v1, `AllocatedDeviceStatus`: "the
/// `Ready` condition should be True").
const READY: &str = "Ready";
/// The most bytes of a condition's message (`maxMessageLen` of apimachinery
/// pkg/apis/meta/v1/validation).
const MESSAGE_MAX: usize = 32 * 1024;
/// The most bytes of a text in `data`, which has at most 10 KiB in all.
const TEXT_MAX: usize = 1024;

/// The entry of one share: what enforces its limit, or why it was refused.
///
/// `outcome` has the guarantee, its proof and whether this node proved it. `now` is RFC 3339;
/// another text becomes 1970, because the API requires a time for a condition.
#[must_use]
pub fn status(
    share: &ClaimShare,
    outcome: Result<(&str, &str, bool), &Refusal>,
    now: &str,
) -> AllocatedDeviceStatus {
    let (ready, reason, message, data) = match outcome {
        Ok((guarantee, proof, proven)) => {
            let (guarantee, proof) = (printable::line(guarantee), printable::line(proof));
            let data = json!({
                "guarantee": cut(&guarantee, TEXT_MAX),
                "proof": cut(&proof, TEXT_MAX),
                "proven": proven,
                "memoryMiB": share.memory.0,
            });
            let message =
                format!("{} of {}, held by {guarantee}: {proof}", share.memory, share.card);
            ("True", "Prepared".to_owned(), message, Some(RawExtension(data)))
        }
        Err(refusal) => {
            let sentence = printable::line(&refusal.sentence);
            let hint = printable::line(&refusal.hint);
            let message = format!("{sentence} [{}]; hint: {hint}", refusal.code);
            ("False", camel(refusal.code.as_str()), message, None)
        }
    };
    let condition = Condition {
        last_transition_time: Time(now.parse().unwrap_or(Timestamp::UNIX_EPOCH)),
        message: cut(&message, MESSAGE_MAX).to_owned(),
        observed_generation: None,
        reason,
        status: ready.to_owned(),
        type_: READY.to_owned(),
    };
    AllocatedDeviceStatus {
        conditions: Some(vec![condition]),
        data,
        device: share.device.clone(),
        driver: DRIVER.to_owned(),
        network_data: None,
        pool: share.pool.clone(),
        share_id: share.share_id.clone(),
    }
}

/// The entries that have to be written: none if the claim already has each of them in the same
/// words, because kubelet asks again each minute for a refused claim. A condition that does not
/// change keeps its time (k8s.io/apimachinery meta/v1, `Condition`: "the last time the condition
/// transitioned from one status to another").
#[must_use]
pub fn news(
    mut entries: Vec<AllocatedDeviceStatus>,
    shown: &[AllocatedDeviceStatus],
) -> Vec<AllocatedDeviceStatus> {
    let mut is_news = false;
    for entry in &mut entries {
        let Some(before) = shown.iter().find(|one| is_same(one, entry)) else {
            is_news = true;
            continue;
        };
        is_news |= before.data != entry.data;
        for condition in entry.conditions.iter_mut().flatten() {
            let mut all = before.conditions.iter().flatten();
            match all.find(|one| one.type_ == condition.type_) {
                Some(one) if one.status == condition.status => {
                    is_news |= one.reason != condition.reason || one.message != condition.message;
                    condition.last_transition_time = one.last_transition_time.clone();
                }
                _ => is_news = true,
            }
        }
    }
    if is_news { entries } else { Vec::new() }
}

/// Whether both entries are of one share, by the fields that the API server compares.
fn is_same(one: &AllocatedDeviceStatus, other: &AllocatedDeviceStatus) -> bool {
    one.driver == other.driver
        && one.pool == other.pool
        && one.device == other.device
        && one.share_id == other.share_id
}

/// A code as the reason of a condition: without its first letter, so `E_NO_CAPACITY` is
/// `NoCapacity`.
fn camel(code: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        first
            .into_iter()
            .chain(letters.map(|letter| letter.to_ascii_lowercase()))
            .collect::<String>()
    };
    code.split('_').skip(1).map(word).collect()
}

/// The beginning of a text, at most so many bytes, in whole characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_becomes_a_reason() {
        assert_eq!(camel("E_NO_CAPACITY"), "NoCapacity");
        for code in mpsgate_model::Code::ALL {
            // `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$` of apimachinery.
            let reason = camel(code.as_str());
            assert!(reason.starts_with(|c: char| c.is_ascii_uppercase()), "{code}: {reason}");
            assert!(reason.chars().all(|c| c.is_ascii_alphanumeric()), "{code}: {reason}");
        }
    }

    #[test]
    fn cuts_between_characters() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("", 3), "");
    }
}
