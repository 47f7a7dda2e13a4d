//! What was granted and used of a card over time: each look stands for the time since the one
//! before it.
//!
//! Of a look in which NVML does not tell all, only the grants count: so what containers used in sum
//! is always what the card's row says of containers.

use mpsgate_api::{GrantUsage, MOST_GRANTS, UsageDay};
use mpsgate_model::GrantKey;
use mpsgate_model::ledger::Entry;

use crate::memory::parts;
use crate::overuse::{Look, Whose};

/// Adds a look at a card to its day. `granted` are the entries of the ledger on that card; `ms` is
/// for how long it was so.
pub fn add(
    day: &mut UsageDay,
    (uuid, index): (&str, u32),
    ms: u64,
    look: &Look,
    granted: &[Entry],
) {
    let look = in_kib(look);
    let parts = parts(&look);
    let card = day.cards.entry(uuid.to_owned()).or_default();
    card.index = index;
    card.looked_ms += ms;
    if let Some(parts) = parts {
        card.told_ms += ms;
        let sums = &mut card.memory;
        for (sum, part) in [
            (&mut sums.used, parts.used),
            (&mut sums.containers, parts.containers),
            (&mut sums.servers, parts.servers),
            (&mut sums.others, parts.others),
            (&mut sums.nobody, parts.nobody),
            (&mut sums.counted_twice, parts.counted_twice),
        ] {
            *sum = sum.saturating_add(part.saturating_mul(ms));
        }
    }
    for entry in granted {
        let used = parts.map(|_| used_by(&look, &entry.grant.key));
        let row = row(day, uuid, entry);
        row.looked_ms += ms;
        row.granted = row.granted.saturating_add((entry.grant.memory.0 << 10).saturating_mul(ms));
        if let Some(used) = used {
            row.told_ms += ms;
            row.used = row.used.saturating_add(used.saturating_mul(ms));
        }
    }
}

/// Bytes become KiB first, each process by itself, so that the parts add up afterwards.
fn in_kib(look: &Look) -> Look {
    let mut look = look.clone();
    look.used = look.used.map(|bytes| bytes >> 10);
    look.users.iter_mut().for_each(|user| user.used = user.used.map(|bytes| bytes >> 10));
    look
}

fn used_by(look: &Look, key: &GrantKey) -> u64 {
    let own = look.users.iter().filter(|user| user.whose == Whose::Grant(key.clone()));
    own.filter_map(|user| user.used).fold(0, u64::saturating_add)
}

fn row<'a>(day: &'a mut UsageDay, uuid: &str, entry: &Entry) -> &'a mut GrantUsage {
    let key = UsageDay::key(uuid, entry.grant.key.instance.as_str());
    let is_known = day.grants.contains_key(&key);
    let (key, container_id, pod) = if is_known || day.grants.len() < MOST_GRANTS {
        let pod = entry.handed.as_ref().map(|handed| handed.pod.clone());
        (key, entry.grant.name(), pod)
    } else {
        (UsageDay::key(uuid, ""), "(more)".to_owned(), None)
    };
    day.grants.entry(key).or_insert_with(|| GrantUsage {
        container_id,
        pod,
        card: uuid.to_owned(),
        uid: entry.grant.uid,
        looked_ms: 0,
        told_ms: 0,
        granted: 0,
        used: 0,
    })
}
