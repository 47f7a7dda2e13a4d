//! What a card's MPS channel costs its control daemon, and who is to blame: what was seen becomes
//! what is to be done. Nothing that a container writes counts here, only what the kernel shows.
//!
//! The daemon keeps the descriptor of a connection for ever that said a word which it does not
//! know, also when the other end has gone. So a connection that is **over** and still there is a
//! loss; one that is open is a client, as long as there are not many more of them than a server
//! takes.

use std::collections::BTreeMap;

/// Descriptors that a container may cost the control daemon, beside its clients.
pub const DESCRIPTORS: u64 = 256;
/// Connections over of which a container must have been seen to be the maker, before those count as
/// its own, too, whose maker had ended when they were seen.
const PROVEN: u64 = 8;

/// A connection of the control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<K> {
    /// The container that made it, where its maker was seen to live in one with a grant on the
    /// card.
    pub owner: Option<K>,
    /// The network namespace that it was made in.
    pub network: Option<u64>,
    /// Over, and still there.
    pub over: bool,
}

/// What a container costs the control daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Connections over that it was seen to have made.
    pub proven: u64,
    /// Descriptors of makers that nobody saw, from the network namespace in which it alone was seen
    /// to make any.
    pub likely: u64,
    /// Connections that are open.
    pub open: u64,
}

impl Cost {
    fn add(&mut self, over: bool) {
        *(if over { &mut self.proven } else { &mut self.open }) += 1;
    }

    /// Descriptors that it costs beside its clients, of which a server takes `clients`.
    #[must_use]
    pub fn descriptors(&self, clients: u64) -> u64 {
        self.proven + self.likely + self.open.saturating_sub(clients)
    }

    /// Whether it has to be ended for it.
    #[must_use]
    pub fn is_too_much(&self, clients: u64) -> bool {
        self.descriptors(clients) > DESCRIPTORS
    }
}

/// Adds up what each container costs, where a server takes `clients` of each. A container is
/// charged with a connection whose maker had ended only if it was itself seen to waste some, and
/// nobody else in its network namespace was: a neighbour that wastes nothing is never charged.
#[must_use]
pub fn costs<'a, K: Ord + Clone + 'a>(
    seen: impl Iterator<Item = &'a Seen<K>>,
    clients: u64,
) -> BTreeMap<K, Cost> {
    let mut costs = BTreeMap::<K, Cost>::new();
    let mut unseen = BTreeMap::<u64, Cost>::new();
    let mut makers = BTreeMap::<u64, BTreeMap<K, Cost>>::new();
    for one in seen {
        if let Some(owner) = &one.owner {
            costs.entry(owner.clone()).or_default().add(one.over);
        }
        match (&one.owner, one.network) {
            (Some(owner), Some(network)) => {
                makers.entry(network).or_default().entry(owner.clone()).or_default().add(one.over);
            }
            (None, Some(network)) => unseen.entry(network).or_default().add(one.over),
            (_, None) => {}
        }
    }
    for (network, makers) in makers {
        let mut wasters = makers.into_iter().filter(|(_, cost)| cost.descriptors(clients) > 0);
        if let (Some((owner, cost)), None) = (wasters.next(), wasters.next())
            && cost.descriptors(clients) >= PROVEN
            && let Some(of_nobody) = unseen.get(&network)
        {
            costs.entry(owner).or_default().likely += of_nobody.descriptors(clients);
        }
    }
    costs
}

/// Whether a control daemon has so few descriptors left that it must be restarted before they end:
/// from then on it answers nobody, and no container can be named for what is gone.
#[must_use]
pub fn needs_restart(used: u64, limit: u64) -> bool {
    used >= limit / 2
}

#[cfg(test)]
mod tests;
