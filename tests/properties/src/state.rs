//! Files of mpsgate's own that it reads back: what they hold is root's, but a disk may fail and a
//! person may edit.

use std::fmt::Debug;

use mpsgate_api::{ExecRecord, NodeSnapshot};
use mpsgate_mps::{LeaseDir, MpsError, Taken};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cdi::as_file;

const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";

/// What can be read is written and read again the same; `None` where it cannot be read.
fn round_trip<T: Serialize + DeserializeOwned + PartialEq + Debug>(data: &[u8]) -> Option<T> {
    let read: T = serde_json::from_slice(data).ok()?;
    let again: T = serde_json::from_slice(&serde_json::to_vec(&read).unwrap()).unwrap();
    assert_eq!(again, read);
    Some(read)
}

/// A snapshot that is read is written the same, and every card in it has a whole UUID.
pub(crate) fn node_snapshot(data: &[u8]) {
    let Some(snapshot) = round_trip::<NodeSnapshot>(data) else { return };
    assert!(snapshot.cards.iter().all(|card| card.uuid.as_str().len() == UUID.len()));
}

/// A record that is read is written the same, and its key names one file of its directory, or none.
pub(crate) fn exec_record(data: &[u8]) {
    let Some(record) = round_trip::<ExecRecord>(data) else { return };
    let key = &record.grant.key;
    let name = mpsgate_model::GrantKey::record_name(&key.runtime_root, key.container_id.as_str());
    if let Some(name) = name {
        assert!(!name.is_empty() && name.len() <= 240, "{name:?}");
        assert!(
            !name.contains('/') && name != "." && name != "..",
            "{name:?} leaves the directory"
        );
    }
}

/// The list of handed-over cards is read whole or refused; no card in it is anything but a UUID.
pub(crate) fn managed(data: &[u8]) {
    // So are a card's answers, and whatever they say something follows from them.
    if let Ok(found) = mpsgate_model::Qualification::parse(data) {
        let text = serde_json::to_vec(&found).expect("what was read can be written");
        assert_eq!(mpsgate_model::Qualification::parse(&text).ok().as_ref(), Some(&found));
        let _ = mpsgate_policy::conclude(Some(&found), &found.subject);
    }
    // A day of usage is read as it is written.
    if let Ok(day) = mpsgate_api::UsageDay::parse(data) {
        let text = serde_json::to_vec(&day).expect("what was read can be written");
        assert_eq!(mpsgate_api::UsageDay::parse(&text).ok(), Some(day));
    }
    match mpsgate_daemon::fuzz::managed(data) {
        Ok(cards) => {
            let text = String::from_utf8_lossy(data).to_lowercase();
            for card in cards {
                let card = card.as_str().to_lowercase();
                // An escape in the JSON spells it differently.
                assert!(text.contains(&card) || text.contains('\\'), "{card} is not in the file");
            }
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::InvalidData),
    }
}

/// A lease is read or named as corrupt. One that cannot be read is never overwritten, nor is any
/// while the card shows our own mode.
pub(crate) fn lease(data: &[u8]) {
    as_file(UUID, data, |path| {
        let directory = LeaseDir::new(path.parent().unwrap());
        let read = directory.read(UUID);
        let taken = directory.take(UUID, mpsgate_model::ComputeMode::ExclusiveProcess);
        assert_eq!(std::fs::read(&path).unwrap(), data, "a lease was overwritten");
        match (read, taken) {
            (Ok(Some(read)), Ok(Taken::Existing(taken))) => {
                assert_eq!(read, taken);
                assert_eq!(read.uuid, UUID);
            }
            (
                Err(MpsError::LeaseCorrupt { path: read, reason }),
                Err(MpsError::LeaseCorrupt { .. }),
            ) => {
                assert!(read == path && !reason.is_empty());
            }
            (Err(MpsError::LeaseNewer { .. }), Err(MpsError::LeaseNewer { .. })) => {}
            (read, taken) => panic!("{read:?}, then {taken:?}"),
        }
        std::fs::remove_file(&path).unwrap();
    });
}
