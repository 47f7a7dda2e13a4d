//! The cards that `mpsgate enable` handed over, those whose MPS `mpsgate mps stop` ended, and what
//! the node's label last said of its schedule: a small file that survives a reboot.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use mpsgate_host::file::Durability;
use mpsgate_host::format;
use mpsgate_model::GpuUuid;
use mpsgate_policy::schedule::Word;
use serde::{Deserialize, Serialize};

use crate::files::write_file;

const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: u32,
    cards: BTreeSet<GpuUuid>,
    stopped: BTreeSet<GpuUuid>,
    schedule: Option<String>,
}

/// What the operator's commands and the node's label have set.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Managed {
    /// Cards that were handed over.
    pub(crate) cards: BTreeSet<GpuUuid>,
    /// Cards whose MPS stays down, whoever handed them over.
    pub(crate) stopped: BTreeSet<GpuUuid>,
    /// What the label last said, where the settings say something else.
    pub(crate) schedule: Option<Word>,
}

/// The file; empty where there is none.
///
/// # Errors
/// What the kernel says, and `InvalidData` for what is no list of ours: it is never overwritten.
pub(crate) fn read(path: &Path) -> io::Result<Managed> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Managed::default()),
        Err(error) => return Err(error),
    };
    parse(&text)
}

pub(crate) fn parse(text: &[u8]) -> io::Result<Managed> {
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let found: OnDisk = format::read(text, FORMAT).map_err(|error| invalid(error.to_string()))?;
    let schedule = match found.schedule {
        None => None,
        Some(word) => {
            let known = Word::parse(&word);
            Some(known.ok_or_else(|| {
                invalid(format!("its schedule is {word:?}, which is none of ours"))
            })?)
        }
    };
    Ok(Managed { cards: found.cards, stopped: found.stopped, schedule })
}

/// Adds or removes one card. One that is given back is no stopped one any more. The old file stays
/// where writing fails.
pub(crate) fn change(path: &Path, card: &GpuUuid, present: bool) -> io::Result<()> {
    let mut found = read(path)?;
    let changed = if present {
        found.cards.insert(card.clone())
    } else {
        let was_stopped = found.stopped.remove(card);
        found.cards.remove(card) || was_stopped
    };
    if changed { write(path, found) } else { Ok(()) }
}

/// Remembers that the operator stopped a card's MPS, or forgets it.
pub(crate) fn set_stopped(path: &Path, card: &GpuUuid, stopped: bool) -> io::Result<()> {
    let mut found = read(path)?;
    let changed =
        if stopped { found.stopped.insert(card.clone()) } else { found.stopped.remove(card) };
    if changed { write(path, found) } else { Ok(()) }
}

/// Remembers what the label says of the node's schedule, or forgets it.
pub(crate) fn set_schedule(path: &Path, schedule: Option<Word>) -> io::Result<()> {
    let mut found = read(path)?;
    if std::mem::replace(&mut found.schedule, schedule) == schedule {
        return Ok(());
    }
    write(path, found)
}

fn write(path: &Path, Managed { cards, stopped, schedule }: Managed) -> io::Result<()> {
    let schedule = schedule.map(|word| word.as_str().to_owned());
    let text = serde_json::to_vec_pretty(&OnDisk { format: FORMAT, cards, stopped, schedule })?;
    write_file(path, &text, 0o600, Durability::Synced)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::example_gpu as uuid;

    use super::*;

    #[test]
    fn cards_are_added_and_removed_and_survive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.json");
        assert_eq!(read(&path).unwrap(), Managed::default());
        for _ in 0..2 {
            change(&path, &uuid(1), true).unwrap();
            change(&path, &uuid(2), true).unwrap();
        }
        assert_eq!(read(&path).unwrap().cards, [uuid(1), uuid(2)].into());
        change(&path, &uuid(1), false).unwrap();
        assert_eq!(read(&path).unwrap().cards, [uuid(2)].into());
        assert_eq!(dir.path().read_dir().unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_stopped_card_is_remembered_until_it_is_started_or_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.json");
        change(&path, &uuid(1), true).unwrap();
        let before = std::fs::read(&path).unwrap();
        set_stopped(&path, &uuid(1), true).unwrap();
        // One that the settings manage.
        set_stopped(&path, &uuid(2), true).unwrap();
        let found = read(&path).unwrap();
        assert_eq!((found.cards, found.stopped), ([uuid(1)].into(), [uuid(1), uuid(2)].into()));
        set_stopped(&path, &uuid(2), false).unwrap();
        set_stopped(&path, &uuid(1), false).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), before);
        set_stopped(&path, &uuid(1), true).unwrap();
        change(&path, &uuid(1), false).unwrap();
        assert_eq!(read(&path).unwrap(), Managed::default());
    }

    #[test]
    fn the_labels_word_is_remembered_and_leaves_no_trace_when_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.json");
        set_schedule(&path, None).unwrap();
        assert!(!path.exists(), "nothing to remember");
        change(&path, &uuid(1), true).unwrap();
        let before = std::fs::read(&path).unwrap();
        for word in [Word::Share, Word::Mps, Word::Off] {
            set_schedule(&path, Some(word)).unwrap();
            let found = read(&path).unwrap();
            assert_eq!((found.cards, found.schedule), ([uuid(1)].into(), Some(word)));
        }
        set_schedule(&path, None).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    #[test]
    fn a_list_that_is_cut_off_or_newer_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("managed.json");
        for text in [
            "",
            "{\"format\":1,\"ca",
            "{\"format\":2,\"cards\":[]}",
            "{\"format\":0,\"cards\":[],\"stopped\":[],\"schedule\":null}",
            "{\"format\":1,\"cards\":[\"0\"],\"stopped\":[]}",
            "{\"format\":1,\"cards\":[],\"stopped\":[],\"schedule\":\"cgpu\"}",
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData, "{text}");
            assert!(change(&path, &uuid(1), true).is_err());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
