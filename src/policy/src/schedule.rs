//! How a node shares its cards, `mps` or `share`, and how it comes from one to the other.
//!
//! ```text
//!   wanted: the node label, else the settings
//!   holds:  mps ── wanted: share ─► no new grant ── the last one under mps has ended ─► share
//!   label of another system ─► no new grant on cards of the settings ─► given back, one by one
//! ```
//!
//! Containers of both never run beside each other: under `mps` a card is EXCLUSIVE_PROCESS, and a
//! container without MPS could not use it. A switch is never forced: who wants it drains the node.

use std::num::NonZeroU32;

use mpsgate_config::Schedule;
use mpsgate_model::printable::few;
use mpsgate_model::{CARDS_ANNOTATION, Code, Mib, Priority, Refusal, Request, Resource};

/// The node label, which wins over the settings.
pub const LABEL: &str = "ack.node.gpu.schedule";
/// Containers that a sentence names.
const NAMED: usize = 10;

/// What somebody wants of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Grants under MPS.
    Mps,
    /// Grants by agreement alone.
    Share,
    /// The node is another system's: of its cards mpsgate keeps those alone that an operator handed
    /// over.
    Off,
}

mpsgate_model::words!(Word: Mps = "mps", Share = "share", Off = "off");

impl Word {
    /// The word of the node label; every word that is not ours is another system's (`default`,
    /// `cgpu`, `core_mem`, `topology`, `mig`, `disabled`, and what is yet to come).
    #[must_use]
    pub fn of_label(value: &str) -> Self {
        Self::parse(value).unwrap_or(Self::Off)
    }
}

impl From<Schedule> for Word {
    fn from(schedule: Schedule) -> Self {
        match schedule {
            Schedule::Mps => Self::Mps,
            Schedule::Share => Self::Share,
        }
    }
}

/// Who may want something of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wants {
    /// `gpus.schedule`.
    pub settings: Schedule,
    /// The node label, where there is one.
    pub label: Option<Word>,
}

/// What is to become of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// How its cards are to be shared.
    pub schedule: Schedule,
    /// Whether the cards that the settings name are another system's.
    pub yields: bool,
    /// Whether the label says so.
    pub by_label: bool,
}

impl Wants {
    /// The label wins. Under `Off` the cards that an operator handed over are shared as the
    /// settings say.
    #[must_use]
    pub fn target(self) -> Target {
        let (schedule, yields) = match self.label {
            None => (self.settings, false),
            Some(Word::Mps) => (Schedule::Mps, false),
            Some(Word::Share) => (Schedule::Share, false),
            Some(Word::Off) => (self.settings, true),
        };
        Target { schedule, yields, by_label: self.label.is_some() }
    }
}

/// A reservation or grant, and how it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// Whose it is, by name.
    pub name: String,
    /// How it was given.
    pub schedule: Schedule,
}

/// What is to be done about the node's schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// What holds is what is wanted.
    Stay,
    /// These containers have to end first.
    Wait(Vec<String>),
    /// Now.
    Switch,
}

/// What is to be done where `now` holds.
#[must_use]
pub fn next(now: Schedule, target: Target, held: &[Holding]) -> Step {
    if now == target.schedule {
        return Step::Stay;
    }
    let waits: Vec<String> = others(target, held);
    if waits.is_empty() { Step::Switch } else { Step::Wait(waits) }
}

/// What holds after a start: as the containers were given their grants, and without any what is
/// wanted.
#[must_use]
pub fn at_start(target: Target, held: &[Holding]) -> Schedule {
    match (others(target, held).is_empty(), target.schedule) {
        (true, wanted) => wanted,
        (false, Schedule::Mps) => Schedule::Share,
        (false, Schedule::Share) => Schedule::Mps,
    }
}

fn others(target: Target, held: &[Holding]) -> Vec<String> {
    let other = held.iter().filter(|held| held.schedule != target.schedule);
    other.map(|held| held.name.clone()).collect()
}

/// What is to be done about a card that the settings name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CardStep {
    /// Nothing.
    Keep,
    /// It takes no new grant, and is given back when the last one has ended.
    Fence,
    /// It is given back.
    GiveBack,
    /// It was given back for another system, and is taken again.
    Take,
}

/// What is to be done about a card of the settings on which so many reservations and grants are;
/// `managed`: mpsgate has it, by the settings alone.
#[must_use]
pub fn card_step(target: Target, managed: bool, grants: usize) -> CardStep {
    match (target.yields, managed, grants) {
        (true, true, 0) => CardStep::GiveBack,
        (true, true, _) => CardStep::Fence,
        (true, false, _) | (false, true, _) => CardStep::Keep,
        (false, false, _) => CardStep::Take,
    }
}

/// Why no grant is given while a switch waits.
#[must_use]
pub fn waits(now: Schedule, target: Target, containers: &[String]) -> Refusal {
    let by = if target.by_label { "its node label" } else { "gpus.schedule" };
    let names = few(containers, NAMED);
    let back = if target.by_label {
        format!("kubectl label --overwrite node NODE {LABEL}={now}")
    } else {
        format!("set gpus.schedule = \"{now}\" in /etc/mpsgate/config.toml and run: mpsgate reload")
    };
    let wanted = target.schedule;
    Refusal::new(
        Code::Schedule,
        format!(
            "this node goes from schedule {now} to {wanted}, as {by} says, and gives no GPU memory until the \
             containers have ended that have theirs under {now}: {names}"
        ),
        format!(
            "end these containers (drain the node; mpsgate status names them); or stay: {back}"
        ),
    )
}

/// Why a request cannot be met under a schedule, whatever the cards have left.
#[must_use]
pub fn refuses(schedule: Schedule, request: &Request, cards: NonZeroU32) -> Option<Refusal> {
    match schedule {
        Schedule::Mps if cards.get() > 1 => Some(several_cards(cards)),
        Schedule::Share if request.compute.is_some() || request.priority == Priority::Low => {
            let what = match request.compute {
                Some(_) => "a share of the card's SMs (mpsgate.io/gpu-compute)",
                None => "a low priority (mpsgate.io/gpu-priority)",
            };
            Some(Refusal::new(
                Code::Request,
                format!(
                    "it asks for {what}, which MPS alone can give, and this node shares its cards without"
                ),
                "remove it, or run it on a node with gpus.schedule = \"mps\"",
            ))
        }
        Schedule::Mps | Schedule::Share => None,
    }
}

/// Several cards, under MPS.
#[must_use]
pub fn several_cards(cards: NonZeroU32) -> Refusal {
    Refusal::new(
        Code::MultiCard,
        format!(
            "it asks for GPU memory on {cards} cards ({CARDS_ANNOTATION}), but a CUDA process reaches one MPS \
             daemon, hence one card"
        ),
        format!(
            "set {CARDS_ANNOTATION} to 1, or remove it; a node whose cards are shared without MPS gives several \
             (gpus.schedule = \"share\", node label {LABEL}=share)"
        ),
    )
}

/// Over how many cards a pod's label spreads its memory.
///
/// # Errors
/// A refusal where the label is no number of cards.
pub fn gpu_count(label: &str) -> Result<NonZeroU32, Refusal> {
    label.parse().map_err(|_| {
        Refusal::new(
            Code::Request,
            format!("its pod's label {CARDS_ANNOTATION} is {label:?}, which is no number of cards"),
            "set it to 1 or more, or remove it",
        )
    })
}

/// What a part of the memory that `resource` gives is counted in: the N MiB of
/// `mpsgate.io/gpu-mem-<N>mi`, else GiB.
#[must_use]
pub fn unit_of(resource: &str) -> Mib {
    match Resource::parse(resource) {
        Some(Resource::Unit(mib)) => Mib(mib),
        _ => Mib(1024),
    }
}

/// The memory on each of `cards`, in whole units of the request.
///
/// # Errors
/// A refusal where there is no such part.
pub fn each(memory: Mib, cards: NonZeroU32, unit: Mib) -> Result<Mib, Refusal> {
    memory.split(cards, unit).ok_or_else(|| {
        Refusal::new(
            Code::Request,
            format!(
                "it asks for {memory} on {cards} cards ({CARDS_ANNOTATION}), which cannot have it in equal parts of \
                 whole {unit}"
            ),
            format!("ask for a multiple of {cards} times {unit}, or for another number of cards"),
        )
    })
}

#[cfg(test)]
mod tests;
