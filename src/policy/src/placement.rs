//! Which card serves a request, or the sentence that says why none does.
//!
//! A card must be managed, fit, ready, large enough, have that much left, have room for one more
//! MPS client, and serve the uid: an MPS server serves one uid at a time, so a card with clients of
//! another uid would make ours wait without end. Among the cards that remain, the one that kubelet
//! chose is taken first (its own count per card then stays near the truth), then one whose grants
//! have the same size (equal sizes leave no odd rests, and the server's cap is then exact for all
//! of them), then the one with the least left, then the lowest index. Where the node spreads, size
//! counts for nothing and the one with the most left is taken.

use std::cmp::Reverse;
use std::fmt::Write;
use std::num::NonZeroU32;

use mpsgate_model::{GpuSelector, GpuUuid, Mib};

use mpsgate_model::{Code, Refusal};

/// Holders that a refusal names for each card, and cards that it lists.
const NAMED_HOLDERS: usize = 5;
const NAMED_CARDS: usize = 16;

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
    pub holders: Vec<Holder<'a>>,
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
}

/// A reservation or grant on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder<'a> {
    /// The container's id.
    pub container: &'a str,
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
            Condition::Unhealthy { why, hint } => Some((why, hint)),
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

fn unknown_gpu(gpu: &GpuSelector, cards: &[Candidate<'_>]) -> Refusal {
    let sentence = if cards.is_empty() {
        format!("it asks for {gpu}, but this node has no GPU")
    } else {
        let names = list(cards.iter().map(Candidate::name), cards.len(), ", ");
        format!("it asks for {gpu}, but this node has only {names}")
    };
    Refusal::new(
        Code::UnknownGpu,
        sentence,
        "name one of these in mpsgate.io/gpu, or leave it out and mpsgate chooses",
    )
}

fn unmanaged(named: &Candidates<'_, '_>) -> Refusal {
    let Some((_, first)) = named.first() else {
        return Refusal::new(
            Code::UnknownGpu,
            "it asks for GPU memory, but this node has no GPU",
            "look at what the driver sees: nvidia-smi -L",
        );
    };
    let sentence = match named.len() {
        1 => format!("it asks for memory of {}, which is not handed to mpsgate", first.name()),
        count => format!("none of the {count} GPUs of this node is handed to mpsgate"),
    };
    Refusal::new(Code::GpuUnmanaged, sentence, format!("mpsgate enable {}", first.uuid))
}

fn unfit(managed: &Candidates<'_, '_>) -> Refusal {
    reasons(Code::GpuUnfit, managed, Candidate::unfit, "no GPU here can be shared under MPS")
}

fn unhealthy(large: &Candidates<'_, '_>) -> Refusal {
    reasons(Code::GpuUnhealthy, large, Candidate::unhealthy, "no GPU can take grants now")
}

/// A refusal that also names the cards which take no grants now: they might have had room.
fn beside(mut refusal: Refusal, large: &Candidates<'_, '_>) -> Refusal {
    for (_, card) in large {
        if let Some((why, _)) = card.unhealthy() {
            refusal.sentence = format!("{}; {} {why}", refusal.sentence, card.name());
        }
    }
    refusal
}

/// One card: its reason and hint. Several: all reasons, and the first hint.
fn reasons<'a>(
    code: Code,
    cards: &Candidates<'_, 'a>,
    reason: impl Fn(&Candidate<'a>) -> Option<(&'a str, &'a str)>,
    several: &str,
) -> Refusal {
    let told: Vec<(String, &str)> = cards
        .iter()
        .filter_map(|(_, card)| {
            reason(card).map(|(why, hint)| (format!("{} {why}", card.name()), hint))
        })
        .collect();
    let hint = told.first().map_or("mpsgate status", |(_, hint)| *hint);
    let texts = list(told.iter().map(|(text, _)| text.clone()), told.len(), "; ");
    let sentence = if told.len() == 1 { texts } else { format!("{several}: {texts}") };
    Refusal::new(code, sentence, hint)
}

fn too_large(fit: &Candidates<'_, '_>, need: &Need<'_>) -> Refusal {
    let asked = need.memory;
    let largest = fit.iter().max_by_key(|(_, card)| (card.memory, Reverse(card.index)));
    let (sentence, most) = match largest {
        Some((_, card)) if need.gpu.is_some() => (
            format!("it asks for {asked} of {}, which has {} to give", card.name(), card.memory),
            card.memory,
        ),
        Some((_, card)) => (
            format!(
                "it asks for {asked}, but the largest card, {}, has {} to give",
                card.name(),
                card.memory
            ),
            card.memory,
        ),
        None => (format!("it asks for {asked}, but there is no card"), Mib(0)),
    };
    Refusal::new(Code::TooLarge, sentence, format!("ask for at most {}", quantity(most)))
}

fn no_capacity(ready: &Candidates<'_, '_>, need: &Need<'_>) -> Refusal {
    let asked = need.memory;
    let cards = list(ready.iter().map(|(_, card)| describe(card)), ready.len(), "; ");
    let scope = if need.gpu.is_some() || ready.len() == 1 { "" } else { "no card has that: " };
    let open: Vec<_> =
        ready.iter().filter(|(_, c)| c.client_left() && c.serves(need.uid)).collect();
    let most = open.iter().map(|(_, card)| card.free()).max().unwrap_or_default();
    let hint = if most.0 == 0 {
        "stop one of these containers and try again; all grants: mpsgate status".to_owned()
    } else {
        format!(
            "ask for at most {}, or stop one of these containers; all grants: mpsgate status",
            quantity(most)
        )
    };
    Refusal::new(Code::NoCapacity, format!("it asks for {asked}, {scope}{cards}"), hint)
}

/// Some cards serve, and not as many as are wanted.
fn too_few(
    cards: &[Candidate<'_>],
    ready: &Candidates<'_, '_>,
    usable: usize,
    need: &Need<'_>,
    count: NonZeroU32,
) -> Refusal {
    let asked = need.memory;
    let able = |c: &&Candidate<'_>| c.managed && c.unfit().is_none() && c.memory >= asked;
    let ever = cards.iter().filter(able).count();
    if u32::try_from(ever).is_ok_and(|ever| ever < count.get()) {
        return Refusal::new(
            Code::TooLarge,
            format!(
                "it asks for {asked} on each of {count} cards, and {ever} of this node can have that"
            ),
            format!("ask for at most {ever} cards"),
        );
    }
    let list = list(ready.iter().map(|(_, card)| describe(card)), ready.len(), "; ");
    Refusal::new(
        Code::NoCapacity,
        format!(
            "it asks for {asked} on each of {count} cards, and {usable} can have that now: {list}"
        ),
        "stop one of these containers and try again; all grants: mpsgate status; cards that take no grants \
         stand there, too",
    )
}

fn other_uid(room: &Candidates<'_, '_>, need: &Need<'_>) -> Refusal {
    let cards = list(room.iter().map(|(_, card)| describe_uids(card)), room.len(), "; ");
    let other =
        room.iter().flat_map(|(_, card)| &card.holders).map(|h| h.uid).next().unwrap_or_default();
    Refusal::new(
        Code::Uid,
        format!(
            "its CUDA processes run as uid {}, and an MPS server serves one uid at a time: {cards}",
            need.uid
        ),
        format!(
            "run it as uid {other} (docker run --user {other}), or wait until these containers end"
        ),
    )
}

/// `GPU 0 (GPU-…) has 3 GiB of 15 GiB left: web holds 7 GiB, db 5 GiB`.
fn describe(card: &Candidate<'_>) -> String {
    let mut text = format!("{} has {} of {} left", card.name(), card.free(), card.memory);
    if !card.client_left() {
        let _ = write!(text, " and all {} MPS clients taken", card.max_clients);
    }
    let mut parts = holders(card, |h| format!("{} holds {}", h.container, h.memory));
    if card.promised.0 > 0 {
        parts.push(format!("{} promised to pods", card.promised));
    }
    if !parts.is_empty() {
        let _ = write!(text, ": {}", parts.join(", "));
    }
    text
}

/// `GPU 0 (GPU-…) serves uid 0 for web and db`.
fn describe_uids(card: &Candidate<'_>) -> String {
    let mut uids: Vec<u32> = card.holders.iter().map(|h| h.uid).collect();
    uids.sort_unstable();
    uids.dedup();
    let uids = list(uids.iter().map(u32::to_string), uids.len(), " and ");
    let names = holders(card, |h| h.container.to_owned()).join(", ");
    format!("{} serves uid {uids} for {names}", card.name())
}

/// The largest holders, each rendered, and how many are left out.
fn holders(card: &Candidate<'_>, render: impl Fn(&Holder<'_>) -> String) -> Vec<String> {
    let mut sorted: Vec<&Holder<'_>> = card.holders.iter().collect();
    sorted.sort_by_key(|holder| (Reverse(holder.memory), holder.container));
    let mut parts: Vec<String> = sorted.iter().take(NAMED_HOLDERS).map(|h| render(h)).collect();
    let rest = sorted.get(NAMED_HOLDERS..).unwrap_or_default();
    if !rest.is_empty() {
        let memory: u64 = rest.iter().map(|h| h.memory.0).sum();
        parts.push(format!("{} more hold {}", rest.len(), Mib(memory)));
    }
    parts
}

fn list(items: impl Iterator<Item = String>, count: usize, separator: &str) -> String {
    let mut parts: Vec<String> = items.take(NAMED_CARDS).collect();
    if count > NAMED_CARDS {
        parts.push(format!("and {} more", count - NAMED_CARDS));
    }
    parts.join(separator)
}

/// As `mpsgate.io/gpu-mem` takes it.
fn quantity(memory: Mib) -> String {
    if memory.0 >= 1024 && memory.0.is_multiple_of(1024) {
        format!("{}Gi", memory.0 / 1024)
    } else {
        format!("{}Mi", memory.0)
    }
}

#[cfg(test)]
mod tests;
