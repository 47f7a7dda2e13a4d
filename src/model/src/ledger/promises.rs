//! Memory that Kubernetes has bound to pods of this node whose containers do not hold it now.
//!
//! A promise binds local containers, and what is advertised as another resource. It does not bind
//! other pods: kubelet has counted those itself, and knows first when a pod ends. For them a
//! promise is only a reason to choose another card.

use serde::{Deserialize, Serialize};

use super::Ledger;
use crate::{GpuUuid, Mib};

/// Memory that Kubernetes has bound to a pod of this node whose container does not run now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// The pod's uid, as its engine shows it.
    pub pod_uid: String,
    /// The container's name in the pod.
    pub container: String,
    /// Name of the resource, as kubelet counts it.
    pub resource: String,
    /// The card that the scheduler chose, or where it is expected.
    pub card: GpuUuid,
    /// GPU memory.
    pub memory: Mib,
}

impl Ledger {
    /// All promises.
    #[must_use]
    pub fn promises(&self) -> &[Promise] {
        &self.promises
    }

    /// Replaces all promises. Whether that changed anything.
    pub fn set_promises(&mut self, promises: Vec<Promise>) -> bool {
        let changed = self.promises != promises;
        self.promises = promises;
        changed
    }

    /// Memory on one card that only promises hold.
    #[must_use]
    pub fn promised(&self, card: &GpuUuid) -> Mib {
        sum(self.promises.iter().filter(|promise| promise.card == *card))
    }

    /// The same, without those of one pod.
    #[must_use]
    pub fn promised_beside(&self, card: &GpuUuid, pod_uid: &str) -> Mib {
        let others = |promise: &&Promise| promise.card == *card && promise.pod_uid != pod_uid;
        sum(self.promises.iter().filter(others))
    }

    /// The same, without what kubelet counts as `resource`.
    pub(super) fn promised_as_others(&self, card: &GpuUuid, resource: &str) -> Mib {
        let others = |promise: &&Promise| promise.card == *card && promise.resource != resource;
        sum(self.promises.iter().filter(others))
    }

    /// Removes a promise, because its container now has the memory.
    pub(super) fn keep_promise(&mut self, pod_uid: &str, container: &str) {
        self.promises
            .retain(|promise| promise.pod_uid != pod_uid || promise.container != container);
    }
}

fn sum<'a>(promises: impl Iterator<Item = &'a Promise>) -> Mib {
    Mib(promises.fold(0, |sum: u64, promise| sum.saturating_add(promise.memory.0)))
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        reason = "test code fails by panicking"
    )]
    use super::*;
    use crate::ledger::tests::{card, grant};
    use crate::ledger::{Capacity, LedgerError, ProcessId};
    use crate::{Handed, PodContainer};

    fn promise(pod: &str, container: &str, resource: &str, on: u8, mib: u64) -> Promise {
        let [pod_uid, container, resource] = [pod, container, resource].map(ToOwned::to_owned);
        Promise { pod_uid, container, resource, card: card(on), memory: Mib(mib) }
    }

    #[test]
    fn promises_take_memory_until_they_are_kept() {
        let mut ledger = Ledger::default();
        let all = vec![
            promise("p", "a", "mem", 0, 40),
            promise("p", "b", "mem", 0, 20),
            promise("q", "a", "slice", 0, 10),
            promise("q", "a", "slice", 1, 5),
        ];
        assert!(ledger.set_promises(all.clone()));
        assert!(!ledger.set_promises(all), "the same again");
        assert_eq!((ledger.promised(&card(0)), ledger.promised(&card(1))), (Mib(70), Mib(5)));
        assert_eq!(ledger.promised_beside(&card(0), "p"), Mib(10));
        assert_eq!(ledger.withheld(&card(0), "mem"), Mib(10));
        assert_eq!(ledger.withheld(&card(0), "slice"), Mib(60));

        // A local container may have only what promises leave of a card.
        let left = Mib(100).saturating_sub(ledger.promised(&card(0)));
        let capacity = [Capacity { memory: left, max_clients: 9 }];
        let holder = ProcessId { pid: 7, start_time: 1 };
        let local = ledger.reserve(grant(1, 1, 0, 31), holder, &capacity, 0).unwrap_err();
        assert!(matches!(local, LedgerError::NoMemory { free: Mib(30), .. }), "{local}");
        ledger.reserve(grant(1, 1, 0, 30), holder, &capacity, 0).unwrap();

        let whole = [Capacity { memory: Mib(100), max_clients: 9 }];
        ledger.reserve(grant(2, 1, 0, 40), holder, &whole, 0).unwrap();
        let pod = PodContainer {
            uid: "p".to_owned(),
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            container: "a".to_owned(),
        };
        ledger.set_handed(
            &grant(2, 1, 0, 0).key,
            Handed { pod, resource: "mem".to_owned(), share: None },
        );
        assert_eq!(ledger.promised(&card(0)), Mib(30), "that of its container is kept");
        assert_eq!(ledger.granted(&card(0)), Mib(70));
    }

    #[test]
    fn promises_are_in_the_file() {
        let mut ledger = Ledger::default();
        ledger.set_promises(vec![promise("p", "a", "mem", 0, 40)]);
        let text = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
    }
}
