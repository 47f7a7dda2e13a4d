//! What is known of the cards' pids, over a restart of mpsgated. Without it whoever has a pid then
//! would be taken for who had it before, and what one had left would be its.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use mpsgate_host::file::Durability;
use mpsgate_host::format::{self, FormatError};
use mpsgate_model::GpuUuid;
use mpsgate_node::holders::Holders;
use serde::{Deserialize, Serialize};

use crate::error::chain;
use crate::files::write_file;

const FORMAT: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    format: u32,
    cards: BTreeMap<GpuUuid, Holders>,
}

/// What is in the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<BTreeMap<GpuUuid, Holders>, FormatError> {
    format::read::<Kept>(bytes, FORMAT).map(|file| file.cards)
}

/// Its file, gone after a reboot as the processes are.
#[derive(Debug, Default)]
pub(super) struct Record {
    path: PathBuf,
    /// What is in it.
    kept: BTreeMap<GpuUuid, Holders>,
    /// It has been said that it cannot be written.
    told: bool,
}

impl Record {
    /// And what is in it: nothing where it cannot be read.
    pub(super) fn open(path: PathBuf) -> (Self, BTreeMap<GpuUuid, Holders>) {
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::new(path),
            read => read,
        };
        let read = bytes.map_err(|error| error.to_string());
        match read.and_then(|bytes| parse(&bytes).map_err(|error| chain(&error))) {
            Ok(cards) => (Self { path, kept: cards.clone(), told: false }, cards),
            Err(reason) => {
                log::warn!(path:% = path.display(), reason; "whose the pids on the cards are is found out anew");
                Self::new(path)
            }
        }
    }

    fn new(path: PathBuf) -> (Self, BTreeMap<GpuUuid, Holders>) {
        (Self { path, ..Self::default() }, BTreeMap::new())
    }

    /// How long ago the last round of looks was; `None` where nobody can tell.
    pub(super) fn age(&self) -> Option<Duration> {
        let written = std::fs::metadata(&self.path).and_then(|file| file.modified()).ok()?;
        SystemTime::now().duration_since(written).ok()
    }

    /// Writes what has changed. Memory changes with each look, and a look is not to cost a file:
    /// what is off by little stays, and the file's time alone says that it was looked. Blocks.
    pub(super) fn keep(&mut self, cards: &BTreeMap<GpuUuid, Holders>) {
        let is_kept = cards.len() == self.kept.len()
            && cards.iter().zip(&self.kept).all(|((card, holders), (kept_card, kept))| {
                card == kept_card && holders.is_about(kept)
            });
        let written = match is_kept {
            true if cards.is_empty() => Ok(()),
            true => self.touch().or_else(|_| self.write(cards.clone())),
            false => self.write(cards.clone()),
        };
        let was_told = std::mem::replace(&mut self.told, written.is_err());
        if let Err(error) = written
            && !was_told
        {
            log::warn!(path:% = self.path.display(), reason:% = error; "whose the pids on the cards are is not kept over a restart");
        }
    }

    fn touch(&self) -> io::Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        file.set_modified(SystemTime::now())
    }

    fn write(&mut self, cards: BTreeMap<GpuUuid, Holders>) -> io::Result<()> {
        let kept = Kept { format: FORMAT, cards };
        let text = serde_json::to_vec(&kept).map_err(io::Error::from)?;
        write_file(&self.path, &text, 0o600, Durability::Atomic)?;
        self.kept = kept.cards;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::ledger::ProcessId;
    use mpsgate_model::{ContainerId, GrantKey, Instance, example_gpu};
    use mpsgate_node::holders::Now;
    use mpsgate_node::overuse::Whose;

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
        holders.share(7, None, Now::Living(process, Whose::Nobody), None, |_| true);
        cards.insert(example_gpu(0), holders);
        record.keep(&cards);
        assert_eq!(Record::open(path.clone()).1, cards);
        // A look that changes nothing is seen at its time.
        let old = SystemTime::now() - Duration::from_secs(3600);
        File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
        let (mut record, _) = Record::open(path.clone());
        let is_old = |record: &Record| record.age().unwrap() > Duration::from_secs(3000);
        assert!(is_old(&record));
        record.keep(&cards);
        assert!(!is_old(&record));
        let text = std::fs::read_to_string(&path).unwrap();
        let of = |format: &str| text.replace("\"format\":1", format);
        for other in [of("\"format\":2"), of("\"format\":0"), "{".to_owned(), String::new()] {
            std::fs::write(&path, other).unwrap();
            assert_eq!(Record::open(path.clone()).1, BTreeMap::new());
        }
        // A directory that is not there: said once, and tried again.
        let (mut record, _) = Record::open(root.path().join("no/such"));
        record.keep(&cards);
        assert!(record.told && record.kept.is_empty());
    }

    #[test]
    fn what_each_had_is_kept_and_not_written_for_each_look() {
        const MIB: u64 = 1 << 20;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("holders.json");
        let grant = |container: &str| GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse(container).unwrap(),
            instance: Instance::from_bytes([7; 16]),
        };
        let (victim, thief) = (70, 90);
        let id = |start_time| ProcessId { pid: 7, start_time };
        let (mut record, mut cards) = Record::open(path.clone());
        cards.insert(example_gpu(0), Holders::default());
        let mut texts = Vec::new();
        for mib in [200, 264, 136, 265, 265] {
            let now = Now::Living(id(victim), Whose::Grant(grant("victim")));
            let holders = cards.get_mut(&example_gpu(0)).unwrap();
            holders.share(7, Some(mib * MIB), now, None, |_| true);
            record.keep(&cards);
            texts.push(std::fs::read_to_string(&path).unwrap());
        }
        let is_new: Vec<bool> = texts.windows(2).map(|two| two[0] != two[1]).collect();
        assert_eq!(is_new, [false, false, true, false]);
        // The next mpsgated: another has the pid, and came to its own door.
        let (_, mut cards) = Record::open(path);
        let holders = cards.get_mut(&example_gpu(0)).unwrap();
        holders.hand_over(id(thief), grant("thief"), |_| true);
        let now = Now::Living(id(thief), Whose::Grant(grant("thief")));
        let shares = holders.share(7, Some(3265 * MIB), now, None, |_| true);
        let shares: Vec<_> = shares
            .iter()
            .map(|share| (share.of.as_ref().unwrap().0.start_time, share.used.unwrap() / MIB))
            .collect();
        assert_eq!(shares, [(victim, 265), (thief, 3000)]);
    }
}
