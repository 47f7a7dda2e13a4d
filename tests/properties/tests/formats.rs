//! Reads what released versions wrote, and what they say to each other on the socket: `tests/formats` has a folder for
//! each release. A node has files of the version before when a new mpsgated starts, and shims and daemons of two versions
//! while it is upgraded.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::fs;
use std::path::{Path, PathBuf};

use mpsgate_allocation::{Mib, ledger_file};
use mpsgate_api::{Call, Envelope, ExecRecord, NodeSnapshot, Reply, parse_envelope};
use mpsgate_mps::{ComputeMode, LeaseDir};
use mpsgate_token::{Keys, Uses};

const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";

fn releases() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats");
    let folders: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!folders.is_empty());
    folders
}

/// A file of each release, which has one.
fn each(name: &str, look: impl Fn(&[u8])) {
    for folder in releases() {
        let path = folder.join(name);
        look(&fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }
}

#[test]
fn the_ledger_of_each_release_is_read_with_its_grant() {
    each("ledger.json", |data| {
        let (_, ledger) = ledger_file::parse(data, Path::new("ledger.json")).unwrap();
        let [entry] = ledger.entries() else { panic!("not one entry: {ledger:?}") };
        assert_eq!(entry.grant.key.container_id.as_str(), "train");
        assert_eq!(entry.grant.memory, Mib(7168));
        assert_eq!(entry.grant.cards.first().unwrap().uuid.as_str(), UUID);
    });
}

#[test]
fn the_cards_that_each_release_was_handed_stay_handed_over() {
    each("managed.json", |data| {
        let cards = mpsgate_daemon::fuzz::managed(data).unwrap();
        assert_eq!(cards.iter().map(|card| card.as_str()).collect::<Vec<_>>(), [UUID]);
    });
}

#[test]
fn the_compute_mode_that_each_release_found_is_still_known() {
    each("lease.json", |data| {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(UUID), data).unwrap();
        let lease = LeaseDir::new(directory.path()).read(UUID).unwrap().unwrap();
        assert_eq!(lease.previous, ComputeMode::Default);
    });
}

#[test]
fn the_shim_reads_the_snapshot_and_the_records_of_each_release() {
    each("node.json", |data| {
        let node: NodeSnapshot = serde_json::from_slice(data).unwrap();
        assert_eq!(node.cards.iter().map(|card| card.managed).collect::<Vec<_>>(), [true, false]);
        assert!(!node.protected.is_empty());
    });
    each("exec-record.json", |data| {
        let record: ExecRecord = serde_json::from_slice(data).unwrap();
        assert_eq!(record.grant.memory, Mib(7168));
        let limit = ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT".to_owned(), "0=7168M".to_owned());
        assert!(record.set.contains(&limit), "{:?}", record.set);
    });
}

#[test]
fn tokens_that_each_release_signed_stay_valid_and_bound() {
    each("keys.json", |data| {
        assert_eq!(Keys::parse(data).unwrap().all().count(), 2);
    });
    each("uses", |data| {
        assert_eq!(Uses::parse(data).unwrap().bearers().count(), 2);
    });
}

#[test]
fn the_daemon_understands_the_shim_of_each_release() {
    for (name, is) in [
        ("reserve.json", (|call| matches!(call, Call::Reserve(_))) as fn(&Call) -> bool),
        ("activate.json", |call| matches!(call, Call::Activate(_))),
        ("release.json", |call| matches!(call, Call::Release(_))),
    ] {
        each(name, |data| {
            let envelope: Envelope = parse_envelope(data).unwrap().unwrap();
            assert!(is(&envelope.call), "{name}: {envelope:?}");
        });
    }
}

#[test]
fn the_shim_understands_the_daemon_of_each_release() {
    each("reserved.json", |data| {
        let reply: Reply = serde_json::from_slice(data).unwrap();
        let Reply::Reserved { grant, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(grant.memory, Mib(7168));
    });
}
