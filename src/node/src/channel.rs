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
mod tests {
    use super::*;

    fn seen(
        owner: Option<&'static str>,
        network: u64,
        over: bool,
        count: usize,
    ) -> Vec<Seen<&'static str>> {
        vec![Seen { owner, network: Some(network), over }; count]
    }

    fn too_much(all: &[Vec<Seen<&'static str>>]) -> Vec<&'static str> {
        let all = all.concat();
        let costs = costs(all.iter(), 48);
        costs.iter().filter(|(_, cost)| cost.is_too_much(48)).map(|(key, _)| *key).collect()
    }

    #[test]
    fn who_costs_too_much() {
        let (a, b) = (Some("a"), Some("b"));
        for (what, all, ended) in [
            ("nothing", vec![], vec![]),
            ("as many as allowed", vec![seen(a, 1, true, 256)], vec![]),
            ("one more", vec![seen(a, 1, true, 257)], vec!["a"]),
            (
                "clients that stay, and neighbours'",
                vec![seen(a, 1, false, 48), seen(b, 1, false, 48)],
                vec![],
            ),
            (
                "clients that stay, and what is allowed",
                vec![seen(a, 1, false, 48), seen(a, 1, true, 256)],
                vec![],
            ),
            (
                "connections that wait, many times what a server takes",
                vec![seen(a, 1, false, 305)],
                vec!["a"],
            ),
            (
                "of two that waste, each its own",
                vec![seen(a, 1, true, 300), seen(b, 1, true, 200)],
                vec!["a"],
            ),
            (
                "makers that have ended, of one that was seen",
                vec![seen(a, 1, true, 8), seen(None, 1, true, 249)],
                vec!["a"],
            ),
            (
                "the same, seen too seldom",
                vec![seen(a, 1, true, 7), seen(None, 1, true, 1000)],
                vec![],
            ),
            (
                "in another network namespace",
                vec![seen(a, 1, true, 8), seen(None, 2, true, 1000)],
                vec![],
            ),
            (
                "where two waste, nobody is guessed",
                vec![seen(a, 1, true, 8), seen(b, 1, true, 1), seen(None, 1, true, 1000)],
                vec![],
            ),
            (
                "beside a neighbour with clients",
                vec![seen(a, 1, true, 8), seen(b, 1, false, 9), seen(None, 1, true, 1000)],
                vec!["a"],
            ),
            (
                "kept open by another process than their makers, which have ended",
                vec![seen(a, 1, false, 56), seen(None, 1, false, 300)],
                vec!["a"],
            ),
            (
                "the same, by as many as a server's clients may be",
                vec![seen(a, 1, false, 48), seen(None, 1, false, 5000)],
                vec![],
            ),
            (
                "a neighbour's clients whose makers have ended, beside one that wastes little",
                vec![seen(a, 1, true, 208), seen(b, 1, false, 2), seen(None, 1, false, 48)],
                vec![],
            ),
            ("nobody seen at all", vec![seen(None, 1, true, 5000), seen(b, 1, false, 9)], vec![]),
        ] {
            assert_eq!(too_much(&all), ended, "{what}");
        }
    }

    #[test]
    fn a_restart_is_due_at_half_the_limit() {
        assert!(!needs_restart(8191, 16384));
        assert!(needs_restart(8192, 16384));
        assert!(!needs_restart(20, u64::MAX));
    }
}
