//! Which grants the driver holds their cgroups to, as the daemon's `cgroup_limits` last saw it.

use mpsgate_model::ledger::State;
use mpsgate_model::{GpuUuid, GrantKey, Mib};

use super::Node;

impl Node {
    /// Whether it holds those of all active grants of a card.
    pub fn all_held(&self, card: &GpuUuid) -> bool {
        let mut active =
            self.ledger.on_card(card).filter(|entry| matches!(entry.state, State::Active { .. }));
        active.all(|entry| self.held.contains(&entry.grant.key))
    }

    /// Whether it holds that of this grant.
    pub fn is_held(&self, key: &GrantKey) -> bool {
        self.held.contains(key)
    }

    /// Notes whether the driver was seen to hold the grant's cgroup to `limit`. What was recorded
    /// once stays: it is tried again. `false` where the grant has ended.
    pub fn set_held(&mut self, key: &GrantKey, limit: Option<Mib>) -> bool {
        let Some(limit) = limit else {
            self.held.remove(key);
            return self.ledger.get(key).is_some();
        };
        match self.ledger.set_cgroup_limit(key, limit) {
            Some(changed) => {
                self.changes += u64::from(changed);
                self.held.insert(key.clone());
                true
            }
            None => false,
        }
    }
}
