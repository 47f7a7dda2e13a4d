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

    /// Notes the limit that the driver has for the grant's cgroup, and whether it came when a
    /// program of the container may have run. `false` where the grant has ended.
    pub fn record_limit(&mut self, key: &GrantKey, limit: Mib, late: bool) -> bool {
        let news = self.ledger.set_cgroup_limit(key, limit, late);
        self.changes += u64::from(news == Some(true));
        news.is_some()
    }

    /// Notes whether the limit was seen to hold all that the container has. One that is recorded
    /// stays so: it is looked at again.
    pub fn set_held(&mut self, key: &GrantKey, holds: bool) {
        if holds && self.ledger.get(key).is_some() {
            self.held.insert(key.clone());
        } else {
            self.held.remove(key);
        }
    }

    /// What the watchdog saw the container use of a card; `None` where it sees nothing.
    pub fn seen(&self, key: &GrantKey, card: &GpuUuid) -> Option<Mib> {
        let watched = self.card(card)?.watched();
        let sees = watched.looks > 0 && watched.blind.is_none() && self.driver.trouble.is_none();
        sees.then(|| watched.used.get(key).copied().unwrap_or_default())
    }
}
