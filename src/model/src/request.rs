//! A container's request, read from annotations or, for engines without annotations, from env.
//!
//! Strict throughout: what is not certain is an error that quotes the text.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::resource::{GPU_COUNT, GPU_MEMORY};
use crate::{GpuUuid, Mib};

mod error;

pub use error::RequestError;

/// The prefix of mpsgate's own annotations.
const PREFIX: &str = "mpsgate.io/";
const MEMORY: &str = "mpsgate.io/gpu-mem";
const MEMORY_ACK: &str = GPU_MEMORY;
/// The two that ask for memory.
pub const MEMORY_ANNOTATIONS: [&str; 2] = [MEMORY, MEMORY_ACK];
const GPU: &str = "mpsgate.io/gpu";
const COMPUTE: &str = "mpsgate.io/gpu-compute";
const PRIORITY: &str = "mpsgate.io/gpu-priority";
const UID: &str = "mpsgate.io/gpu-uid";
/// The device plugin's token.
pub const TOKEN_ANNOTATION: &str = "mpsgate.io/grant";
/// ACK's number of cards over which a request is spread.
pub const CARDS_ANNOTATION: &str = GPU_COUNT;
/// Environment names of the same values, for engines without annotations (Docker before 24).
pub const REQUEST_ENV_PREFIX: &str = "MPSGATE_GPU_";

/// The variable in which a container's programs find their grant: the MiB on each card.
pub const GRANTED_MEMORY: &str = "MPSGATE_GPU_MEM_MIB";
/// The variable with the UUIDs of the grant's cards, with commas between.
pub const GRANTED_CARDS: &str = "MPSGATE_GPU_UUID";
/// These are below the prefix of requests and never read as one: a container may have another
/// one's, from an image or from the process that started it.
const GRANTED: [&str; 2] = [GRANTED_MEMORY, GRANTED_CARDS];

/// The prefix of variables with a claim's token, one for each share:
/// `MPSGATE_GRANT_<claim>.<request>`. CDI has no edit that makes an annotation, and its variables
/// replace a pod's own of the same name (container-device-interface, `pkg/cdi/container-edits.go`).
pub const CLAIM_ENV_PREFIX: &str = "MPSGATE_GRANT_";

const KNOWN: [&str; 8] =
    [MEMORY, MEMORY_ACK, GPU, COMPUTE, PRIORITY, UID, TOKEN_ANNOTATION, CARDS_ANNOTATION];

/// Share of a card's streaming multiprocessors in percent, 1 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ComputeShare(pub u8);

/// Scheduling priority among the clients of one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// CUDA's default.
    #[default]
    Normal,
    /// Below normal.
    Low,
}

/// Which card a request names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuSelector {
    /// By NVML index.
    Index(u32),
    /// By UUID.
    Uuid(GpuUuid),
}

impl std::fmt::Display for GpuSelector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index) => write!(f, "GPU {index}"),
            Self::Uuid(uuid) => write!(f, "{uuid}"),
        }
    }
}

/// What a container asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// GPU memory on all cards together. Absent where the token has it.
    pub memory: Option<Mib>,
    /// Cards over which it is spread, in equal parts.
    pub cards: NonZeroU32,
    /// A certain card; without it the ledger chooses.
    pub gpu: Option<GpuSelector>,
    /// Share of the card's SMs.
    pub compute: Option<ComputeShare>,
    /// Scheduling priority.
    pub priority: Priority,
    /// The uid that the program drops to, where it is not `process.user.uid`.
    pub uid: Option<u32>,
    /// A device plugin's token, which is not read here.
    pub token: Option<String>,
}

/// Who wrote the annotations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// A person who is root anyway.
    Operator,
    /// A pod's author; kubelet and the engine add some. With a token the author does not choose the
    /// memory or the card: what the annotations have of these is not read.
    Pod,
}

/// Whether an annotation of this name belongs to a request.
#[must_use]
pub fn is_request_annotation(name: &str) -> bool {
    name.starts_with("mpsgate.io/g") || name == MEMORY_ACK || name == CARDS_ANNOTATION
}

/// Whether an environment variable of this name belongs to a request.
#[must_use]
pub fn is_request_env(name: &str) -> bool {
    (name.starts_with(REQUEST_ENV_PREFIX) || name == "MPSGATE_GPU") && !GRANTED.contains(&name)
}

/// Whether an environment variable of this name holds a claim's token.
#[must_use]
pub fn is_claim_env(name: &str) -> bool {
    name.starts_with(CLAIM_ENV_PREFIX)
}

#[derive(Default)]
struct Found<'a> {
    values: Vec<(&'static str, String, &'a str)>,
}

impl<'a> Found<'a> {
    /// Every value whose name belongs to a request.
    fn collect(
        annotations: impl Iterator<Item = (&'a str, &'a str)>,
        env: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, RequestError> {
        let mut found = Self::default();
        for (name, value) in annotations.filter(|(name, _)| is_request_annotation(name)) {
            let Some(field) = KNOWN.into_iter().find(|known| *known == name) else {
                return Err(RequestError::Unknown {
                    name: name.to_owned(),
                    nearest: nearest(name),
                });
            };
            found.values.push((field, name.to_owned(), value));
        }
        for (name, value) in env.filter(|(name, _)| is_request_env(name)) {
            let as_annotation = annotation_of_env(name);
            let Some(field) =
                KNOWN.into_iter().find(|k| k.starts_with(PREFIX) && **k == *as_annotation)
            else {
                return Err(RequestError::Unknown {
                    name: name.to_owned(),
                    nearest: env_of_annotation(nearest(&as_annotation)),
                });
            };
            // As in process.env itself, a later duplicate wins.
            found.values.retain(|(_, n, _)| n != name);
            found.values.push((field, name.to_owned(), value));
        }
        Ok(found)
    }

    /// Every value of one field, with the name under which it was written.
    fn of(&self, field: &'static str) -> impl Iterator<Item = (&str, &'a str)> {
        self.values.iter().filter(move |(f, ..)| *f == field).map(|(_, n, v)| (n.as_str(), *v))
    }

    /// The one value of fields that mean the same, parsed; two that differ are a conflict.
    fn one<T: PartialEq>(
        &self,
        fields: &[&'static str],
        parse: impl Fn(&str, &str) -> Result<T, RequestError>,
    ) -> Result<Option<T>, RequestError> {
        let mut first: Option<(&str, &str, T)> = None;
        for (name, value) in fields.iter().flat_map(|field| self.of(field)) {
            let parsed = parse(name, value)?;
            if let Some((first_name, first_value, first_parsed)) = &first {
                if *first_parsed != parsed {
                    return Err(RequestError::Conflict {
                        first: (*first_name).to_owned(),
                        first_value: (*first_value).to_owned(),
                        second: name.to_owned(),
                        second_value: value.to_owned(),
                    });
                }
            } else {
                first = Some((name, value, parsed));
            }
        }
        Ok(first.map(|(_, _, parsed)| parsed))
    }
}

/// Reads a container's request from annotations of `author`.
///
/// `annotations` and `env` may hold anything; only the names that belong to a request are read.
/// `env` is empty where requests from env are switched off. Returns `None` where nothing was asked.
///
/// # Errors
/// See [`RequestError`]: the first value that cannot be taken literally.
pub fn parse_request<'a>(
    author: Author,
    annotations: impl Iterator<Item = (&'a str, &'a str)>,
    env: impl Iterator<Item = (&'a str, &'a str)>,
) -> Result<Option<Request>, RequestError> {
    let mut found = Found::collect(annotations, env)?;
    let Some(any) = found.values.first().map(|(_, name, _)| name.clone()) else {
        return Ok(None);
    };
    let token = found.one(&[TOKEN_ANNOTATION], |_, value| Ok(value.to_owned()))?;
    if author == Author::Pod && token.is_some() {
        found
            .values
            .retain(|(field, ..)| ![MEMORY, MEMORY_ACK, GPU, CARDS_ANNOTATION].contains(field));
    }
    let memory = found.one(&MEMORY_ANNOTATIONS, parse_memory)?;
    let cards = found.one(&[CARDS_ANNOTATION], |name, value| {
        number(value).ok_or_else(|| value_error(name, value, "a number of cards, 1 or more"))
    })?;
    let cards = cards.unwrap_or(NonZeroU32::MIN);
    let gpu = found.one(&[GPU], parse_gpu)?;
    spread(&found, memory, cards)?;
    let compute = found.one(&[COMPUTE], |name, value| {
        let share = number(value).filter(|percent| (1..=100).contains(percent)).map(ComputeShare);
        share.ok_or_else(|| value_error(name, value, "a whole percentage from 1 to 100"))
    })?;
    let priority = found.one(&[PRIORITY], |name, value| match value {
        "normal" => Ok(Priority::Normal),
        "low" => Ok(Priority::Low),
        _ => Err(value_error(name, value, "\"normal\" or \"low\"")),
    })?;
    let uid = found.one(&[UID], |name, value| {
        // (uid_t)-1 is no user: every system call takes it for "leave as it is".
        let uid = number(value).filter(|uid| *uid != u32::MAX);
        uid.ok_or_else(|| value_error(name, value, "a user id from 0 to 4294967294"))
    })?;
    if memory.is_none() && (author == Author::Operator || token.is_none()) {
        return Err(RequestError::NoMemory { name: any });
    }
    let priority = priority.unwrap_or_default();
    Ok(Some(Request { memory, cards, gpu, compute, priority, uid, token }))
}

fn parse_memory(name: &str, value: &str) -> Result<Mib, RequestError> {
    let parsed =
        if name == MEMORY_ACK { Mib::parse_gib(value) } else { Mib::parse_quantity(value) };
    parsed.map_err(|why| RequestError::Memory {
        name: name.to_owned(),
        value: value.to_owned(),
        why,
    })
}

/// A number that consists of digits alone.
fn number<T: FromStr>(value: &str) -> Option<T> {
    value.parse().ok().filter(|_| value.bytes().all(|b| b.is_ascii_digit()))
}

/// Checks that so many cards can have the amount in equal parts: in whole GiB in ACK's form, else
/// in whole MiB.
fn spread(found: &Found<'_>, memory: Option<Mib>, cards: NonZeroU32) -> Result<(), RequestError> {
    let (Some(memory), 2..) = (memory, cards.get()) else { return Ok(()) };
    if let Some((name, value)) = found.of(GPU).next() {
        let (name, value) = (name.to_owned(), value.to_owned());
        return Err(RequestError::NamedCard { name, value, cards });
    }
    for (field, unit, word) in [(MEMORY_ACK, Mib(1024), "GiB"), (MEMORY, Mib(1), "MiB")] {
        if let Some((name, value)) = found.of(field).next()
            && memory.split(cards, unit).is_none()
        {
            let (name, value) = (name.to_owned(), value.to_owned());
            return Err(RequestError::Indivisible { name, value, cards, unit: word });
        }
    }
    Ok(())
}

fn parse_gpu(name: &str, value: &str) -> Result<GpuSelector, RequestError> {
    let uuid = || GpuUuid::parse(value).ok().map(GpuSelector::Uuid);
    let selector = number(value).map(GpuSelector::Index).or_else(uuid);
    selector.ok_or_else(|| value_error(name, value, "a GPU's index or UUID"))
}

fn value_error(name: &str, value: &str, allowed: &'static str) -> RequestError {
    RequestError::Value { name: name.to_owned(), value: value.to_owned(), allowed }
}

/// `MPSGATE_GPU_MEM` → `mpsgate.io/gpu-mem`.
fn annotation_of_env(name: &str) -> String {
    let rest = name.strip_prefix("MPSGATE_").unwrap_or(name);
    format!("{PREFIX}{}", rest.to_ascii_lowercase().replace('_', "-"))
}

fn env_of_annotation(name: &'static str) -> &'static str {
    match name {
        GPU => "MPSGATE_GPU",
        COMPUTE => "MPSGATE_GPU_COMPUTE",
        PRIORITY => "MPSGATE_GPU_PRIORITY",
        UID => "MPSGATE_GPU_UID",
        _ => "MPSGATE_GPU_MEM",
    }
}

/// The known name that shares the longest beginning with a mistyped one.
fn nearest(name: &str) -> &'static str {
    let shared = |known: &&str| known.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    // Of equals the first is chosen: it corrects the most common mistake, an amount of memory.
    KNOWN.iter().rev().max_by_key(|known| shared(known)).copied().unwrap_or(MEMORY)
}

#[cfg(test)]
mod tests;
