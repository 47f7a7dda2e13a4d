//! Which card serves a request, or the sentence that says why none does.
//!
//! A card must be managed, fit, ready, large enough, have that much left, have room for one more
//! MPS client, and serve the uid: an MPS server serves one uid at a time, so a card with clients of
//! another uid would make ours wait without end. Among the cards that remain, the one that kubelet
//! chose is taken first (its own count per card then stays near the truth), then one whose grants
//! have the same size (equal sizes leave no odd rests, and the largest grant is then each one's
//! own), then the one with the least left, then the lowest index. Where the node spreads, size
//! counts for nothing and the one with the most left is taken.

use std::cmp::Reverse;
use std::num::NonZeroU32;

use mpsgate_model::{GpuSelector, GpuUuid, Mib, Refusal};

mod no_card;
#[cfg(test)]
mod tests;

use no_card::{
    beside, no_capacity, other_uid, too_few, too_large, unfit, unhealthy, unknown_gpu, unmanaged,
};

/// One card as placement sees it.
#[derive(Debug, Clone)]
pub struct Candidate<'a> {
    /// NVML's UUID.
    pub uuid: &'a GpuUuid,
    /// NVML's index.
    pub index: u32,
    /// Whether it is handed to mpsgate.
    pub managed: bool,
    /// Whether grants are possible.
    pub condition: Condition<'a>,
    /// Memory that may be granted in all.
    pub memory: Mib,
    /// Memory promised to pods that do not run now.
    pub promised: Mib,
    /// Reservations and grants on it.
    pub holders: Vec<Holder>,
    /// Holders that it takes: the clients of its MPS server, and any number without MPS.
    pub max_clients: u32,
    /// One server for all uids, or none.
    pub multiuser: bool,
}

/// Whether a managed card can take grants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition<'a> {
    /// It can.
    Ready,
    /// Not under MPS at all: before Volta, or MIG.
    Unfit {
        /// Why, as the end of a sentence that begins with the card.
        why: &'a str,
        /// What to do.
        hint: &'a str,
    },
    /// Not now: NVML, the control daemon or the server fails.
    Unhealthy {
        /// Why, as the end of a sentence that begins with the card.
        why: &'a str,
        /// What to do.
        hint: &'a str,
    },
    /// Not yet: the node is asked what holds on it.
    NotReady {
        /// Why, as the end of a sentence that begins with the card.
        why: &'a str,
        /// What to do.
        hint: &'a str,
    },
}

/// A reservation or grant on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The container, by its name.
    pub container: String,
    /// What it holds.
    pub memory: Mib,
    /// Host uid of its CUDA processes.
    pub uid: u32,
}

/// What a container needs of a card.
#[derive(Debug, Clone, Copy)]
pub struct Need<'a> {
    /// GPU memory on each card.
    pub memory: Mib,
    /// Host uid of its CUDA processes.
    pub uid: u32,
    /// A certain card.
    pub gpu: Option<&'a GpuSelector>,
    /// The cards that a scheduler chose, or the one that kubelet chose devices of: taken where they
    /// serve, and no other is refused for them.
    pub hints: &'a [GpuUuid],
    /// The emptiest card instead of the fullest.
    pub spread: bool,
}

impl<'a> Candidate<'a> {
    /// Memory that nobody holds.
    #[must_use]
    pub fn free(&self) -> Mib {
        let held =
            self.holders.iter().fold(self.promised.0, |sum, h| sum.saturating_add(h.memory.0));
        self.memory.saturating_sub(Mib(held))
    }

    fn client_left(&self) -> bool {
        u32::try_from(self.holders.len()).is_ok_and(|clients| clients < self.max_clients)
    }

    fn serves(&self, uid: u32) -> bool {
        self.multiuser || self.holders.iter().all(|holder| holder.uid == uid)
    }

    fn unfit(&self) -> Option<(&'a str, &'a str)> {
        match self.condition {
            Condition::Unfit { why, hint } => Some((why, hint)),
            _ => None,
        }
    }

    fn unhealthy(&self) -> Option<(&'a str, &'a str)> {
        match self.condition {
            Condition::Unhealthy { why, hint } | Condition::NotReady { why, hint } => {
                Some((why, hint))
            }
            _ => None,
        }
    }

    fn selected_by(&self, selector: &GpuSelector) -> bool {
        match selector {
            GpuSelector::Index(index) => self.index == *index,
            GpuSelector::Uuid(uuid) => self.uuid == uuid,
        }
    }

    fn name(&self) -> String {
        format!("GPU {} ({})", self.index, self.uuid)
    }
}

/// The position in `cards` of the card that serves `need`.
///
/// # Errors
/// A refusal with the numbers and the holders that stand in the way.
pub fn choose(cards: &[Candidate<'_>], need: &Need<'_>) -> Result<usize, Refusal> {
    let (ready, usable) = usable(cards, need)?;
    let best = usable.iter().min_by_key(|(_, card)| rank(card, need));
    // `usable` is not empty, as `keep` saw to it; the refusal keeps this function total.
    best.map(|(position, _)| *position).ok_or_else(|| no_capacity(&ready, need))
}

/// The positions in `cards` of so many different cards that each serve `need`, the best first.
///
/// # Errors
/// As [`choose`], and where not as many do.
pub fn choose_several(
    cards: &[Candidate<'_>],
    need: &Need<'_>,
    count: NonZeroU32,
) -> Result<Vec<usize>, Refusal> {
    if count == NonZeroU32::MIN {
        return choose(cards, need).map(|position| vec![position]);
    }
    let (ready, mut usable) = usable(cards, need)?;
    let wanted = usize::try_from(count.get()).unwrap_or(usize::MAX);
    if usable.len() < wanted {
        return Err(too_few(cards, &ready, usable.len(), need, count));
    }
    usable.sort_by_key(|(_, card)| rank(card, need));
    Ok(usable.into_iter().take(wanted).map(|(position, _)| position).collect())
}

/// The card that comes first is taken.
fn rank(card: &Candidate<'_>, need: &Need<'_>) -> impl Ord + use<> {
    let equal = card.holders.iter().any(|holder| holder.memory == need.memory);
    (!need.hints.contains(card.uuid), order(need.spread, equal, card.free(), card.index))
}

/// Among cards that serve, on the node and in the cluster: the one that comes first is taken.
/// `equal`: it has a holder of the same size.
pub fn order(spread: bool, equal: bool, left: Mib, index: u32) -> impl Ord + use<> {
    let by_rest = if spread { u64::MAX - left.0 } else { left.0 };
    (Reverse(equal && !spread), by_rest, index)
}

/// The cards that could serve if they had room, and of these the ones that have; neither is empty.
fn usable<'c, 'a>(
    cards: &'c [Candidate<'a>],
    need: &Need<'_>,
) -> Result<(Candidates<'c, 'a>, Candidates<'c, 'a>), Refusal> {
    let all: Vec<(usize, &Candidate<'_>)> = cards.iter().enumerate().collect();
    let named = match need.gpu {
        None => all,
        Some(gpu) => {
            let named: Vec<_> = all.into_iter().filter(|(_, c)| c.selected_by(gpu)).collect();
            if named.is_empty() {
                return Err(unknown_gpu(gpu, cards));
            }
            named
        }
    };
    let managed = keep(&named, |c| c.managed).ok_or_else(|| unmanaged(&named))?;
    let fit = keep(&managed, |c| c.unfit().is_none()).ok_or_else(|| unfit(&managed))?;
    let large = keep(&fit, |c| c.memory >= need.memory).ok_or_else(|| too_large(&fit, need))?;
    let ready = keep(&large, |c| c.unhealthy().is_none()).ok_or_else(|| unhealthy(&large))?;
    let room = keep(&ready, |c| c.free() >= need.memory && c.client_left())
        .ok_or_else(|| beside(no_capacity(&ready, need), &large))?;
    let usable = keep(&room, |c| c.serves(need.uid)).ok_or_else(|| other_uid(&room, need))?;
    Ok((ready, usable))
}

type Candidates<'c, 'a> = Vec<(usize, &'c Candidate<'a>)>;

fn keep<'c, 'a>(
    cards: &Candidates<'c, 'a>,
    wanted: impl Fn(&Candidate<'a>) -> bool,
) -> Option<Candidates<'c, 'a>> {
    let kept: Candidates<'c, 'a> = cards.iter().filter(|(_, c)| wanted(c)).copied().collect();
    (!kept.is_empty()).then_some(kept)
}
