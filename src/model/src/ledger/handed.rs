//! Memory that kubelet handed out, and memory that kubelet does not know to be taken, which it must
//! not hand out again.

use super::{Entry, Ledger};
use crate::{CLAIM, GpuUuid, GrantKey, Handed, Mib};

impl Ledger {
    /// Records that kubelet handed an entry's memory out. `false` where the key has no entry.
    pub fn set_handed(&mut self, key: &GrantKey, handed: Handed) -> bool {
        self.keep_promise(&handed.pod.uid, &handed.pod.container);
        let entry = self.entries.iter_mut().find(|e| e.grant.key == *key);
        entry.map(|entry| entry.handed = Some(handed)).is_some()
    }

    /// Entries of one pod, by its uid.
    pub fn of_pod<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |e| e.handed.as_ref().is_some_and(|h| h.pod.uid == uid))
    }

    /// Memory on one card that kubelet did not hand out as `resource`: what local engines hold, and
    /// what kubelet counts as another resource of pods.
    #[must_use]
    pub fn withheld(&self, card: &GpuUuid, resource: &str) -> Mib {
        let others = self
            .on_card(card)
            .filter(|e| e.handed.as_ref().is_none_or(|handed| handed.resource != resource));
        // kube-scheduler has counted those claims that no container holds yet.
        let claimed = if resource == CLAIM { Mib(0) } else { self.claimed(card) };
        let promised = self.promised_as_others(card, resource).0.saturating_add(claimed.0);
        Mib(others.fold(promised, |sum, e| sum.saturating_add(e.grant.memory.0)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;
    use crate::PodContainer;
    use crate::ledger::tests::{card, grant};
    use crate::ledger::{Capacity, ProcessId};

    fn handed(uid: &str, resource: &str) -> Handed {
        let [uid, namespace, pod, container] =
            [uid, "default", "web", "main"].map(ToOwned::to_owned);
        Handed {
            pod: PodContainer { uid, namespace, pod, container },
            resource: resource.to_owned(),
            share: None,
        }
    }

    #[test]
    fn what_others_hold_is_withheld_and_a_resources_own_is_not() {
        let mut ledger = Ledger::default();
        let all = Capacity { memory: Mib(100), max_clients: 9 };
        for (id, mib) in [(1, 1), (2, 10), (3, 20)] {
            let holder = ProcessId { pid: 7, start_time: 1 };
            ledger.reserve(grant(id, 1, 0, mib), holder, std::slice::from_ref(&all), 0).unwrap();
        }
        let key = |id| grant(id, 1, 0, 0).key;
        assert_eq!(ledger.withheld(&card(0), "mem"), Mib(31));
        assert!(ledger.set_handed(&key(2), handed("p", "mem")));
        assert!(ledger.set_handed(&key(3), handed("q", "slice")));
        assert!(!ledger.set_handed(&key(9), handed("p", "mem")));
        assert_eq!(ledger.withheld(&card(0), "mem"), Mib(21));
        assert_eq!(ledger.withheld(&card(0), "slice"), Mib(11));
        assert_eq!(ledger.withheld(&card(1), "mem"), Mib(0));
        assert_eq!(ledger.of_pod("p").map(|e| e.grant.memory).collect::<Vec<_>>(), [Mib(10)]);
        let text = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
    }
}
