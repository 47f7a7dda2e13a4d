//! Why no card serves, in words: with the numbers and the holders that stand in the way.

use std::cmp::Reverse;
use std::fmt::Write;
use std::num::NonZeroU32;

use mpsgate_model::{Code, GpuSelector, Mib, Refusal};

use super::{Candidate, Candidates, Condition, Holder, Need};

/// Holders that a refusal names for each card, and cards that it lists.
const NAMED_HOLDERS: usize = 5;
const NAMED_CARDS: usize = 16;

pub(super) fn unknown_gpu(gpu: &GpuSelector, cards: &[Candidate<'_>]) -> Refusal {
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

pub(super) fn unmanaged(named: &Candidates<'_, '_>) -> Refusal {
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

pub(super) fn unfit(managed: &Candidates<'_, '_>) -> Refusal {
    reasons(Code::GpuUnfit, managed, Candidate::unfit, "no GPU here can be shared under MPS")
}

pub(super) fn unhealthy(large: &Candidates<'_, '_>) -> Refusal {
    let not_yet = |card: &&Candidate<'_>| matches!(card.condition, Condition::NotReady { .. });
    let code = if large.iter().all(|(_, card)| not_yet(card)) {
        Code::GpuNotReady
    } else {
        Code::GpuUnhealthy
    };
    reasons(code, large, Candidate::unhealthy, "no GPU can take grants now")
}

/// A refusal that also names the cards which take no grants now: they might have had room.
pub(super) fn beside(mut refusal: Refusal, large: &Candidates<'_, '_>) -> Refusal {
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

pub(super) fn too_large(fit: &Candidates<'_, '_>, need: &Need<'_>) -> Refusal {
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

pub(super) fn no_capacity(ready: &Candidates<'_, '_>, need: &Need<'_>) -> Refusal {
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
pub(super) fn too_few(
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

pub(super) fn other_uid(room: &Candidates<'_, '_>, need: &Need<'_>) -> Refusal {
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
    let names = holders(card, |h| h.container.clone()).join(", ");
    format!("{} serves uid {uids} for {names}", card.name())
}

/// The largest holders, each rendered, and how many are left out.
fn holders(card: &Candidate<'_>, render: impl Fn(&Holder) -> String) -> Vec<String> {
    let mut sorted: Vec<&Holder> = card.holders.iter().collect();
    sorted.sort_by_key(|holder| (Reverse(holder.memory), &holder.container));
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
