//! Reads what released versions wrote, and what they say to each other on the socket:
//! `tests/formats` has a folder for each release, and the list of them. A node has files of the
//! version before when a new mpsgated starts, and shims and daemons of two versions while it is
//! upgraded. What a newer version writes: `newer.rs`.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mpsgate_api::{Call, Envelope, ExecRecord, NodeSnapshot, Reply, parse_envelope};
use mpsgate_config::Config;
use mpsgate_edge::ExitCode;
use mpsgate_model::door_file::{Prepared, Question};
use mpsgate_model::{Code, ComputeMode, Mib, Refusal, ledger_file};
use mpsgate_mps::{LeaseDir, MpsDirectories};
use mpsgate_token::{Bearer, Keys, Store, StoreError, Uses};
use serde::Serialize;
use serde_json::Value;

const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";

fn releases() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats");
    let folders: Vec<PathBuf> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
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

/// The lines of a file of each release.
fn each_line(name: &str, look: impl Fn(&str)) {
    each(name, |data| std::str::from_utf8(data).unwrap().lines().for_each(&look));
}

/// What was read says all that was written, in the same words. It may say more: what has come
/// since.
fn says_the_same(written: &[u8], read: &impl Serialize) {
    fn within(old: &Value, new: &Value, at: &str) {
        match (old, new) {
            (Value::Object(old), Value::Object(new)) => {
                for (name, value) in old {
                    let found = new.get(name).unwrap_or_else(|| panic!("{at}/{name} is lost"));
                    within(value, found, &format!("{at}/{name}"));
                }
            }
            (Value::Array(old), Value::Array(new)) => {
                assert_eq!(old.len(), new.len(), "{at}");
                old.iter().zip(new).for_each(|(old, new)| within(old, new, &format!("{at}/-")));
            }
            _ => assert_eq!(old, new, "{at}"),
        }
    }
    within(&serde_json::from_slice(written).unwrap(), &serde_json::to_value(read).unwrap(), "");
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
    // A reservation, a broken grant, one with the driver's limit, one without MPS on two cards, a
    // promise.
    for name in ["ledger.json", "ledger-states.json"] {
        each(name, |data| {
            let (generation, ledger) = ledger_file::parse(data, Path::new(name)).unwrap();
            let mut read = serde_json::to_value(&ledger).unwrap();
            read["format"] = 1.into();
            read["generation"] = generation.into();
            says_the_same(data, &read);
        });
    }
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
        says_the_same(data, &lease);
    });
}

#[test]
fn the_shim_reads_the_snapshot_and_the_records_of_each_release() {
    each("node.json", |data| {
        let node = NodeSnapshot::parse(data).unwrap();
        says_the_same(data, &node);
        assert_eq!(node.cards.iter().map(|card| card.managed).collect::<Vec<_>>(), [true, false]);
    });
    each("exec-record.json", |data| {
        let record = ExecRecord::parse(data).unwrap();
        says_the_same(data, &record);
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
        let uses = Uses::read(data).unwrap();
        assert_eq!((uses.bearers().count(), uses.is_closed()), (2, false));
    });
    for folder in releases() {
        let directory = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir()
            .unwrap();
        for (from, to) in [("keys.json", "keys.json"), ("uses", "aaaaaaaaaaaaaaaa.uses")] {
            let to = directory.path().join(to);
            fs::copy(folder.join(from), &to).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let token = fs::read_to_string(folder.join("token")).unwrap();
        let mut store = Store::open(directory.path(), 0).unwrap();
        let mut bring = |pod: &str| {
            let bearer = Bearer { pod: pod.to_owned(), container: "c".to_owned() };
            store.confirm(token.trim_end(), &bearer)
        };
        assert_eq!(bring("1").unwrap().memory_mib, 7168);
        assert!(matches!(bring("2"), Err(StoreError::Bound { .. })));
    }
}

#[test]
fn what_each_release_changed_in_an_engines_settings_is_put_back() {
    for folder in releases() {
        let root = tempfile::tempdir().unwrap();
        let (engine, kept) = (root.path().join("docker"), root.path().join("state/docker"));
        fs::create_dir_all(engine.join("made")).unwrap();
        fs::create_dir_all(&kept).unwrap();
        for entry in fs::read_dir(folder.join("configure/docker")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), kept.join(entry.file_name())).unwrap();
        }
        // The engine's own place is this test's.
        let record = fs::read_to_string(kept.join("record.json")).unwrap();
        let moved = record.replace("/etc/docker", engine.to_str().unwrap());
        fs::write(kept.join("record.json"), moved).unwrap();
        fs::copy(kept.join("0.after"), engine.join("daemon.json")).unwrap();
        fs::copy(kept.join("1.after"), engine.join("made/by-us.conf")).unwrap();
        let before = fs::read(kept.join("0.before")).unwrap();

        let state = kept.parent().unwrap().as_os_str();
        let words = ["mpsgate", "configure", "docker", "--undo", "--state"].map(OsString::from);
        let ended = mpsgate_cli::main(words.into_iter().chain([state.to_owned()]));
        assert_eq!(ended, ExitCode::Done);
        assert_eq!(fs::read(engine.join("daemon.json")).unwrap(), before);
        assert!(!engine.join("made").exists() && !kept.exists());
    }
}

#[test]
fn the_settings_of_each_release_are_taken_as_they_are() {
    each("config.toml", |data| {
        Config::parse(std::str::from_utf8(data).unwrap(), Path::new("config.toml")).unwrap();
    });
}

#[test]
fn the_hook_takes_the_words_that_each_releases_shim_wrote_into_a_container() {
    each_line("hook-arguments", |line| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let (root, instance) = mpsgate_shim::fuzz::hook_arguments(&words).unwrap();
        assert_eq!(root, "/run/t/runc");
        assert_eq!(instance, "d1a3e90701a65aaf7e505b299bbf8527");
    });
}

#[test]
fn the_unit_for_control_daemons_runs_with_the_environment_that_each_release_wrote() {
    let unit =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/mpsgate-mps@.service");
    let unit = fs::read_to_string(unit).unwrap();
    let started = unit.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
    let wanted: Vec<&str> = started
        .split('$')
        .skip(1)
        .map(|word| word.trim_start_matches('{').split(['}', ' ']).next().unwrap())
        .collect();
    assert_eq!(wanted.len(), 2, "{started}");
    each("mps.env", |data| {
        let text = std::str::from_utf8(data).unwrap();
        for name in &wanted {
            assert!(text.lines().any(|line| line.starts_with(&format!("{name}=\""))), "{name}");
        }
        // Where the next mpsgated looks for the control daemon of the one before.
        let dirs = MpsDirectories::new(Path::new("/run/mpsgate/mps"), 0).unwrap();
        assert!(text.contains(dirs.pipe_dir().to_str().unwrap()));
        assert!(text.contains(dirs.log_dir().to_str().unwrap()));
    });
}

/// How serde names what is said.
fn word(message: &impl Serialize) -> String {
    match serde_json::to_value(message).unwrap() {
        Value::String(word) => word,
        Value::Object(object) => object.keys().next().unwrap().clone(),
        other => panic!("{other}"),
    }
}

#[test]
fn the_daemon_understands_every_call_of_each_release() {
    for folder in releases() {
        let mut words = Vec::new();
        for name in ["reserve.json", "activate.json", "release.json", "calls.jsonl"] {
            for line in fs::read_to_string(folder.join(name)).unwrap().lines() {
                let envelope: Envelope = parse_envelope(line.as_bytes()).unwrap();
                says_the_same(line.as_bytes(), &envelope);
                words.push(word(&envelope.call));
            }
        }
        words.sort();
        words.dedup();
        // All that 0.1.0 had.
        assert_eq!(
            words,
            [
                "activate",
                "disable",
                "enable",
                "mps",
                "release",
                "reload",
                "report",
                "reserve",
                "status",
                "terminate"
            ]
        );
    }
}

#[test]
fn every_program_understands_every_reply_of_each_releases_daemon() {
    for folder in releases() {
        let mut words = Vec::new();
        for name in ["reserved.json", "replies.jsonl"] {
            for line in fs::read_to_string(folder.join(name)).unwrap().lines() {
                let reply: Reply = serde_json::from_str(line).unwrap();
                says_the_same(line.as_bytes(), &reply);
                // As shim and hook read it, who never ask for a status.
                serde_json::from_str::<Reply<mpsgate_api::NoStatus>>(line).unwrap();
                words.push(word(&reply));
                match reply {
                    Reply::WouldEnd { list } => {
                        let text = serde_json::to_value(&list).unwrap();
                        says_the_same(text.as_str().unwrap().as_bytes(), &list.read().unwrap());
                    }
                    // A code that this version does not have keeps its name, in the sentence.
                    Reply::Refused(wire) if wire.code == "E_OF_TOMORROW" => {
                        let refusal = Refusal::from(wire);
                        assert_eq!(refusal.code, Code::DaemonVersion);
                        assert_eq!(refusal.sentence, "it is new [E_OF_TOMORROW]");
                    }
                    _ => {}
                }
            }
        }
        words.sort();
        words.dedup();
        assert_eq!(
            words,
            [
                "done",
                "progress",
                "refused",
                "reloaded",
                "reserved",
                "status",
                "version",
                "would_end"
            ]
        );
    }
}

#[test]
fn what_a_reservation_of_each_release_gives_is_understood() {
    each("reserved.json", |data| {
        let reply: Reply = serde_json::from_slice(data).unwrap();
        let Reply::Reserved { grant, .. } = reply else { panic!("{reply:?}") };
        assert_eq!(grant.memory, Mib(7168));
    });
    each("reserve.json", |data| {
        let envelope = parse_envelope(data).unwrap();
        let Call::Reserve(reserve) = envelope.call else { panic!("{envelope:?}") };
        assert_eq!(reserve.request.memory, Some(Mib(7168)));
    });
}

#[test]
fn what_each_releases_gate_and_mpsgated_say_to_each_other_is_understood() {
    each_line("questions.jsonl", |line| {
        let question = Question::read(line.as_bytes()).unwrap();
        says_the_same(line.as_bytes(), &question);
        // What the gate leaves out for an mpsgated of before, it says no more.
        if let Some(before) = question.of_before() {
            says_the_same(&before.line(), &question);
            assert_eq!(before.of_before(), None);
        }
    });
    each_line("prepared.jsonl", |line| {
        says_the_same(line.as_bytes(), &Prepared::read(line.as_bytes()).unwrap());
    });
    for folder in releases() {
        let lines = fs::read_to_string(folder.join("questions.jsonl")).unwrap();
        let questions = lines.lines().map(|line| Question::read(line.as_bytes()).unwrap());
        let mut words: Vec<String> = questions.map(|question| word(&question)).collect();
        words.dedup();
        assert_eq!(words, ["daemon", "prepare", "unserved", "counts"]);
    }
}

#[test]
fn whose_the_pids_on_the_cards_were_is_known_by_the_record_of_each_release() {
    each("holders.json", |data| {
        let cards = mpsgate_daemon::fuzz::holders(data).unwrap();
        says_the_same(data, &serde_json::json!({ "format": 1, "cards": cards }));
    });
}
