//! Who is meant by the name that a person has typed.
//!
//! ```text
//!   alice/train, /run/runc/web   a whole name: one process or container, or none
//!   3f2a9c01                     a container's id, or the beginning of it
//! ```
//!
//! Users name their processes, and every user reads the containers' ids in the names of cgroups. So
//! a word without a `/` never means a process. And one that fits several is nobody's: who has typed
//! a whole id has typed the beginning of another one as well.

use mpsgate_model::ledger::Entry;
use mpsgate_model::printable::few;
use mpsgate_model::{Code, Mib, Refusal};

/// Names in a sentence.
const NAMED: usize = 5;

/// The one container or process that is meant; `memory` is what it is to have.
pub(super) fn find<'a>(
    word: &str,
    memory: Mib,
    entries: &'a [Entry],
) -> Result<&'a Entry, Refusal> {
    let found: Vec<&Entry> = entries.iter().filter(|entry| is_meant(word, entry)).collect();
    let refuse = |why, hint| Err(Refusal::new(Code::Resize, why, hint));
    let again = |name: &str| format!("mpsgate resize '{name}' {}Mi", memory.0);
    match found.as_slice() {
        [entry] => Ok(entry),
        [] => {
            let is_its_name = |entry: &&Entry| {
                let key = &entry.grant.key;
                key.is_run() && key.container_id.as_str() == word
            };
            let why = format!("no container or process {word:?} has a grant on this node");
            refuse(
                why,
                entries.iter().find(is_its_name).map_or_else(
                    || "mpsgate status lists those that have".to_owned(),
                    |it| format!("a process is named with its user: {}", again(&it.grant.name())),
                ),
            )
        }
        several => {
            let names: Vec<String> = several.iter().map(|it| it.grant.key.full_name()).collect();
            let commands: Vec<String> = names.iter().take(NAMED).map(|name| again(name)).collect();
            let hint = format!("name the one that you mean in full: {}", commands.join(", or "));
            refuse(format!("{word:?} may mean any of: {}", few(&names, NAMED)), hint)
        }
    }
}

fn is_meant(word: &str, entry: &Entry) -> bool {
    let key = &entry.grant.key;
    if word.contains('/') {
        return entry.grant.name() == word || key.full_name() == word;
    }
    !word.is_empty() && !key.is_run() && key.container_id.as_str().starts_with(word)
}
