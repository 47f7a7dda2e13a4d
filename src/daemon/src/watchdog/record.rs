//! What is known of the cards' pids, over a restart of mpsgated. Without it whoever has a pid then
//! would be taken for who had it before.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use mpsgate_host::file::Durability;
use mpsgate_host::format::{self, FormatError};
use mpsgate_model::GpuUuid;
use mpsgate_node::holders::Holders;
use serde::{Deserialize, Serialize};

use crate::error::chain;
use crate::managed::write_file;

const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: u32,
    cards: BTreeMap<GpuUuid, Holders>,
}

/// What is in the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<BTreeMap<GpuUuid, Holders>, FormatError> {
    format::read::<File>(bytes, FORMAT).map(|file| file.cards)
}

/// Its file, gone after a reboot as the processes are.
#[derive(Debug, Default)]
pub(super) struct Record {
    path: PathBuf,
    written: Vec<u8>,
    /// It has been said that it cannot be written.
    told: bool,
}

impl Record {
    /// And what is in it: nothing where it cannot be read.
    pub(super) fn open(path: PathBuf) -> (Self, BTreeMap<GpuUuid, Holders>) {
        let written = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::new(path),
            read => read,
        };
        let read = written.map_err(|error| error.to_string()).and_then(|bytes| {
            let cards = parse(&bytes).map_err(|error| chain(&error))?;
            Ok((bytes, cards))
        });
        match read {
            Ok((written, cards)) => (Self { path, written, told: false }, cards),
            Err(reason) => {
                log::warn!(path:% = path.display(), reason; "whose the pids on the cards are is found out anew");
                Self::new(path)
            }
        }
    }

    fn new(path: PathBuf) -> (Self, BTreeMap<GpuUuid, Holders>) {
        (Self { path, ..Self::default() }, BTreeMap::new())
    }

    /// Writes what has changed. Blocks.
    pub(super) fn keep(&mut self, cards: &BTreeMap<GpuUuid, Holders>) {
        if self.written.is_empty() && cards.is_empty() {
            return;
        }
        let file = File { format: FORMAT, cards: cards.clone() };
        let written = serde_json::to_vec(&file).map_err(io::Error::from).and_then(|text| {
            if text != self.written {
                write_file(&self.path, &text, 0o600, Durability::Atomic)?;
                self.written = text;
            }
            Ok(())
        });
        let was_told = std::mem::replace(&mut self.told, written.is_err());
        if let Err(error) = written
            && !was_told
        {
            log::warn!(path:% = self.path.display(), reason:% = error; "whose the pids on the cards are is not kept over a restart");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::example_gpu;
    use mpsgate_model::ledger::ProcessId;
    use mpsgate_node::watchdog::Whose;

    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_anything_else_is_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("holders.json");
        let (mut record, mut cards) = Record::open(path.clone());
        assert_eq!(cards, BTreeMap::new());
        record.keep(&cards);
        assert!(!path.exists(), "nothing has changed");
        let mut holders = Holders::default();
        let process = ProcessId { pid: 7, start_time: 70 };
        holders.share(7, None, Some((process, Whose::Nobody)), None, |_| true);
        cards.insert(example_gpu(0), holders);
        record.keep(&cards);
        // Without what each had, which changes with each look.
        let kept = |cards: &BTreeMap<_, Holders>| serde_json::to_string(cards).unwrap();
        assert_eq!(kept(&Record::open(path.clone()).1), kept(&cards));
        let text = std::fs::read_to_string(&path).unwrap();
        for other in [text.replace("\"format\":1", "\"format\":2"), "{".to_owned(), String::new()] {
            std::fs::write(&path, other).unwrap();
            assert_eq!(Record::open(path.clone()).1, BTreeMap::new());
        }
        // A directory that is not there: said once, and tried again.
        let (mut record, _) = Record::open(root.path().join("no/such"));
        record.keep(&cards);
        assert!(record.told && record.written.is_empty());
    }
}
