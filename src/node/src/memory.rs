//! What the memory in use on a card is made of: the part of each owner, and what is left over.
//!
//! Some memory is nobody's: managed memory, which is no process's by NVML's lists (nvtop issue 213,
//! pynvml issue 63), and what is listed under a pid that nobody can name. Imported memory (CUDA
//! IPC) stands with its owner and with whoever imported it, so the parts may be more than the
//! whole.

use mpsgate_api::CardMemory;

use crate::overuse::{Look, Whose};

/// The parts of one look; `None` where NVML did not tell the whole, or a part of it.
#[must_use]
pub fn parts(look: &Look) -> Option<CardMemory> {
    let mut parts = CardMemory { used: look.used?, ..CardMemory::default() };
    for user in &look.users {
        let part = match user.whose {
            Whose::Grant(_) => &mut parts.containers,
            Whose::Server => &mut parts.servers,
            Whose::Nobody => &mut parts.others,
        };
        *part = part.saturating_add(user.used?);
    }
    let told = parts.containers.saturating_add(parts.servers).saturating_add(parts.others);
    parts.nobody = parts.used.saturating_sub(told);
    parts.counted_twice = told.saturating_sub(parts.used);
    Some(parts)
}
