//! The claims of one call: which of them reach the daemon, one call at a time for each.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use mpsgate_model::ClaimName;
use mpsgate_model::names::{is_label, is_name, is_uid};
use mpsgate_model::printable::value;
use tokio::sync::OwnedMutexGuard;

use crate::api::dra::Claim;

/// The most claims of one call. Kubelet names those of one pod.
pub(crate) const MOST: usize = 1024;

/// The claims of one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// The claims for the daemon, each once.
    pub(crate) whole: Vec<ClaimName>,
    /// Claims that are wrong, each with the reason.
    pub(crate) wrong: Vec<(ClaimName, String)>,
}

/// Checks the claims of a call.
pub(crate) fn sort(claims: Vec<Claim>) -> Asked {
    let mut by_uid = BTreeMap::<String, Vec<ClaimName>>::new();
    for Claim { namespace, uid, name } in claims {
        let names = by_uid.entry(uid.clone()).or_default();
        let claim = ClaimName { namespace, name, uid };
        if !names.contains(&claim) {
            names.push(claim);
        }
    }
    let mut asked = Asked::default();
    for mut names in by_uid.into_values() {
        let Some(claim) = names.pop() else { continue };
        let error = match names.first() {
            Some(other) => Some(two_names(&claim, other)),
            None => check(&claim).err(),
        };
        match error {
            Some(error) => asked.wrong.push((claim, error)),
            None => asked.whole.push(claim),
        }
    }
    asked
}

fn two_names(claim: &ClaimName, other: &ClaimName) -> String {
    let [one, other] = [other, claim].map(|claim| value(&claim.to_string()).into_owned());
    let uid = value(&claim.uid);
    format!(
        "kubelet gives uid {uid} to both {one} and {other}: delete the pod, and make it anew with \
         claims of its own"
    )
}

fn check(claim: &ClaimName) -> Result<(), String> {
    let wrong = |what: &str, text: &str, of: &str| {
        Err(format!("{what} {:?} is not one of Kubernetes: 1 to {of}", value(text)))
    };
    if !is_uid(&claim.uid) {
        return wrong("uid", &claim.uid, "63 letters, digits and hyphens");
    }
    if !is_label(&claim.namespace) {
        let of = "63 lower-case letters, digits and hyphens";
        return wrong("namespace", &claim.namespace, of);
    }
    if !is_name(&claim.name) {
        let of = "253 lower-case letters, digits, hyphens and dots";
        return wrong("claim name", &claim.name, of);
    }
    Ok(())
}

/// The calls' turns, by the claim's uid.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until no other call has this claim, and keeps it until the guard is dropped.
    pub(crate) async fn of(&self, uid: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(uid.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(namespace: &str, name: &str, uid: &str) -> Claim {
        let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
        Claim { namespace, uid, name }
    }

    fn error(claim: Claim) -> String {
        let asked = sort(vec![claim]);
        assert_eq!((asked.whole.len(), asked.wrong.len()), (0, 1));
        errors(&asked)
    }

    fn errors(asked: &Asked) -> String {
        asked.wrong.iter().map(|(_, error)| error.as_str()).collect()
    }

    #[test]
    fn names_that_kubernetes_has_none_of_are_refused_by_sentence() {
        let uid = "8ec7a6b9-9a3c-4bd6-ae0e-3b5f4f3e9a10";
        let long = "a".repeat(254);
        for good in [
            claim("default", "gpu-7gi", uid),
            claim(&long[..63], &long[..253], &long[..63]),
            claim("a", "0.b-c.d", "0"),
        ] {
            let asked = sort(vec![good.clone(), good]);
            assert_eq!((asked.whole.len(), asked.wrong.len()), (1, 0));
        }
        for bad in ["", "../x", "a b", "a\0", "ä", &long[..64]] {
            let sentence = error(claim("default", "gpu", bad));
            assert!(sentence.contains("1 to 63 letters, digits and hyphens"), "{sentence}");
            assert!(sentence.starts_with("uid \""), "{sentence}");
        }
        for bad in ["", "a.b", "A", "-a", "a-", "a/b", &long[..64]] {
            let sentence = error(claim(bad, "gpu", uid));
            assert!(sentence.starts_with("namespace \""), "{sentence}");
        }
        for bad in ["", "A", "..", ".a", "a.", "a/b", "a\n", &long] {
            let sentence = error(claim("default", bad, uid));
            assert!(sentence.starts_with("claim name \""), "{sentence}");
        }
    }

    #[test]
    fn one_uid_under_two_names_is_neither() {
        let asked = sort(vec![
            claim("default", "b", "1"),
            claim("default", "a", "0"),
            claim("other", "b", "1"),
        ]);
        assert_eq!(asked.whole.iter().map(ToString::to_string).collect::<Vec<_>>(), ["default/a"]);
        let sentence = errors(&asked);
        assert!(sentence.starts_with("kubelet gives uid 1 to both default/b and other/b: "));
    }

    #[tokio::test(flavor = "current_thread")]
    async fn turns_are_by_uid_and_nothing_of_them_stays() {
        let turns = Turns::default();
        let first = turns.of("a").await;
        let other = turns.of("b").await;
        let mut second = Box::pin(turns.of("a"));
        let waits = std::future::poll_fn(|cx| {
            std::task::Poll::Ready(second.as_mut().poll(cx).is_pending())
        });
        assert!(waits.await);
        drop(first);
        drop(second.await);
        drop(other);
        drop(turns.of("c").await);
        drop(turns.of("d").await);
        assert_eq!(turns.0.lock().unwrap_or_else(PoisonError::into_inner).len(), 1);
    }

    proptest! {
        #[test]
        fn every_uid_has_one_answer(
            claims in proptest::collection::vec((".{0,3}", "[ab]", "[a-c.]{0,2}"), 0..20)
        ) {
            let claims: Vec<Claim> =
                claims.iter().map(|(namespace, uid, name)| claim(namespace, name, uid)).collect();
            let uids: std::collections::BTreeSet<_> =
                claims.iter().map(|claim| claim.uid.clone()).collect();
            let asked = sort(claims);
            let answered = asked.whole.iter().chain(asked.wrong.iter().map(|(claim, _)| claim));
            let answered: Vec<_> = answered.map(|claim| claim.uid.clone()).collect();
            prop_assert_eq!(answered.len(), uids.len());
            prop_assert!(answered.into_iter().all(|uid| uids.contains(&uid)));
        }
    }
}
