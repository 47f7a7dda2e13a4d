//! Why a request cannot be read, and what to write instead.

use std::num::NonZeroU32;

use super::{CARDS_ANNOTATION, MEMORY, MEMORY_ACK};
use crate::{Mib, QuantityError, likely};

/// Why a request cannot be read. Each message quotes name and value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The value is not an amount of memory.
    #[error("{name} is {value:?}: {why}")]
    Memory {
        /// Annotation or variable.
        name: String,
        /// As written.
        value: String,
        /// What is wrong.
        why: QuantityError,
    },
    /// Two names give different values.
    #[error("{first} is {first_value:?} but {second} is {second_value:?}")]
    Conflict {
        /// One name.
        first: String,
        /// Its value.
        first_value: String,
        /// Another name.
        second: String,
        /// Its value.
        second_value: String,
    },
    /// Another field's value is not allowed.
    #[error("{name} is {value:?}, which is not {allowed}")]
    Value {
        /// Annotation or variable.
        name: String,
        /// As written.
        value: String,
        /// What would be.
        allowed: &'static str,
    },
    /// A name with mpsgate's prefix that mpsgate does not know.
    #[error("{name} is not an annotation that mpsgate knows (did you mean {nearest}?)")]
    Unknown {
        /// As written.
        name: String,
        /// The closest one that exists.
        nearest: &'static str,
    },
    /// GPU, share, priority or uid without an amount of memory.
    #[error("{name} is set but no amount of GPU memory is")]
    NoMemory {
        /// The annotation that is there.
        name: String,
    },
    /// So many cards cannot have the amount in equal parts.
    #[error("{name} is {value:?}, which {cards} cards cannot have in equal parts of whole {unit}")]
    Indivisible {
        /// The amount's annotation.
        name: String,
        /// As written.
        value: String,
        /// Cards asked for.
        cards: NonZeroU32,
        /// What each part is counted in.
        unit: &'static str,
    },
    /// The request names one card and asks for several.
    #[error("{name} is {value:?}, which is one card, but {cards} are asked for")]
    NamedCard {
        /// The card's annotation.
        name: String,
        /// As written.
        value: String,
        /// Cards asked for.
        cards: NonZeroU32,
    },
}

impl RequestError {
    /// What to write instead.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Memory { name, value, .. } => memory(name, likely::quantity(value)),
            Self::Conflict { second, .. } => format!("remove {second}, or make both the same"),
            Self::Value { name, allowed, .. } => format!("set {name} to {allowed}, or remove it"),
            Self::Unknown { name, nearest } => format!("rename {name} to {nearest}, or remove it"),
            Self::NoMemory { .. } => "add the amount, such as mpsgate.io/gpu-mem=7Gi".to_owned(),
            Self::Indivisible { name, cards, .. } => {
                format!(
                    "write a multiple of {cards} in {name}, or another number of cards in {CARDS_ANNOTATION}"
                )
            }
            Self::NamedCard { name, .. } => format!("remove {name}, or {CARDS_ANNOTATION}"),
        }
    }
}

/// How an amount is written; where it is known what was meant, that one.
fn memory(name: &str, meant: Option<String>) -> String {
    let whole =
        |meant: &str| Mib::parse_quantity(meant).ok().filter(|mib| mib.0.is_multiple_of(1024));
    match meant {
        Some(meant) if name != MEMORY_ACK => format!("write {name}={meant}"),
        Some(meant) => match whole(&meant) {
            Some(mib) => format!("write {name}={}: it counts GiB", mib.0 / 1024),
            None => format!("{name} counts whole GiB: use {MEMORY}={meant}"),
        },
        None if name == MEMORY_ACK => {
            format!("write whole GiB, such as {name}=7, or use {MEMORY}=7168Mi")
        }
        None => format!(
            "write a whole number of MiB with its unit, such as {name}=7Gi or {name}=7168Mi"
        ),
    }
}
