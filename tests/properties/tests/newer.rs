//! What a newer version writes and says. A file of a newer format is named with its format and
//! stays as it is; on the socket, what is not known is passed over, or refused by name. What an
//! older one wrote: `formats.rs`.

#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use mpsgate_api::{Envelope, ExecRecord, FrameError, NodeSnapshot, Reply, VERSION, parse_envelope};
use mpsgate_edge::ExitCode;
use mpsgate_model::ComputeMode;
use mpsgate_model::door_file::Question;
use mpsgate_model::ledger_file::LedgerFile;
use mpsgate_model::printable::chain;
use mpsgate_mps::LeaseDir;
use mpsgate_token::Store;
use serde_json::{Value, json};

const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/0.1.0")
}

/// Of tomorrow's format: one that differs in nothing else, and one of which nothing is as it was.
fn of_tomorrow(name: &str) -> [Vec<u8>; 2] {
    let text = fs::read(fixtures().join(name)).unwrap();
    let mut alike: Value = serde_json::from_slice(&text).unwrap();
    alike["format"] = 2.into();
    [alike, json!({"format": 2, "elsewhere": [{"all": "is"}, "new"]})]
        .map(|document| serde_json::to_vec(&document).unwrap())
}

/// `read` names the format, and does not touch the file.
fn names_it_and_keeps_it(name: &str, lies: &Path, read: impl Fn() -> Option<String>) {
    for text in of_tomorrow(name) {
        fs::write(lies, &text).unwrap();
        let sentence = read().unwrap_or_else(|| panic!("{name} was read"));
        assert!(sentence.contains("has format 2"), "{name}: {sentence}");
        assert_eq!(fs::read(lies).unwrap(), text, "{name}");
    }
}

#[test]
fn a_file_of_a_newer_format_is_named_with_it_and_kept() {
    use std::os::unix::fs::PermissionsExt;
    let directory =
        tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o700)).tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let file = |name: &str| fs::read(at(name)).unwrap();

    names_it_and_keeps_it("ledger.json", &at("ledger.json"), || {
        Some(chain(&LedgerFile::open(directory.path()).err()?))
    });
    names_it_and_keeps_it("managed.json", &at("managed.json"), || {
        Some(chain(&mpsgate_daemon::fuzz::managed(&file("managed.json")).err()?))
    });
    let leases = LeaseDir::new(directory.path());
    names_it_and_keeps_it("lease.json", &at(UUID), || {
        // It may be the only memory of the mode, whatever the card shows.
        for mode in [ComputeMode::Default, ComputeMode::ExclusiveProcess] {
            leases.take(UUID, mode).unwrap_err();
        }
        Some(chain(&leases.read(UUID).err()?))
    });
    names_it_and_keeps_it("keys.json", &at("keys.json"), || {
        fs::set_permissions(at("keys.json"), fs::Permissions::from_mode(0o600)).unwrap();
        Some(chain(&Store::open(directory.path(), 0).err()?))
    });
    names_it_and_keeps_it("node.json", &at("node.json"), || {
        Some(chain(&NodeSnapshot::parse(&file("node.json")).err()?))
    });
    names_it_and_keeps_it("exec-record.json", &at("record"), || {
        Some(chain(&ExecRecord::parse(&file("record")).err()?))
    });
}

#[test]
fn nothing_is_put_back_by_a_record_of_a_newer_format() {
    let state = tempfile::tempdir().unwrap();
    let record = state.path().join("docker/record.json");
    fs::create_dir(state.path().join("docker")).unwrap();
    let words = ["mpsgate", "configure", "docker", "--undo", "--state"].map(OsString::from);
    for text in of_tomorrow("configure/docker/record.json") {
        fs::write(&record, &text).unwrap();
        let argv = words.iter().cloned().chain([state.path().as_os_str().to_owned()]);
        assert_eq!(mpsgate_cli::main(argv), ExitCode::Failed);
        assert_eq!(fs::read(&record).unwrap(), text);
    }
}

/// Every object of a document, as paths, but those that are no structures: serde's enums have one
/// key, which is the variant, and a map's keys are data.
fn structures(value: &Value, at: &str, found: &mut Vec<String>) {
    const OTHERS: [&str; 7] =
        ["", "/call", "/request/gpu", "/reserved/cdi", "/cdi", "/status/refusals", "/status/notes"];
    match value {
        Value::Object(object) => {
            let is_enum = OTHERS.iter().any(|other| {
                if other.is_empty() {
                    at.is_empty() && !object.contains_key("call")
                } else {
                    at.ends_with(other)
                }
            });
            if !is_enum {
                found.push(at.to_owned());
            }
            for (name, value) in object {
                structures(value, &format!("{at}/{name}"), found);
            }
        }
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                structures(value, &format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

/// The document with a field that nobody knows in one of its structures, for each of them.
fn with_a_new_field(line: &str) -> Vec<(String, Vec<u8>)> {
    let document: Value = serde_json::from_str(line).unwrap();
    let mut paths = Vec::new();
    structures(&document, "", &mut paths);
    paths
        .into_iter()
        .map(|at| {
            let mut changed = document.clone();
            changed.pointer_mut(&at).unwrap()["of_tomorrow"] = json!({"a": [1]});
            (at, serde_json::to_vec(&changed).unwrap())
        })
        .collect()
}

fn lines(names: &[&str]) -> Vec<String> {
    let texts = names.iter().map(|name| fs::read_to_string(fixtures().join(name)).unwrap());
    texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn a_field_that_is_not_known_is_passed_over_in_every_call_and_reply() {
    let mut tried = 0;
    for line in lines(&["reserve.json", "activate.json", "release.json", "calls.jsonl"]) {
        let as_it_was = parse_envelope(line.as_bytes()).unwrap();
        for (at, changed) in with_a_new_field(&line) {
            let read: Envelope = parse_envelope(&changed).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(
                serde_json::to_value(&read).unwrap(),
                serde_json::to_value(&as_it_was).unwrap()
            );
            tried += 1;
        }
    }
    for line in lines(&["reserved.json", "replies.jsonl"]) {
        let as_it_was: Reply = serde_json::from_str(&line).unwrap();
        for (at, changed) in with_a_new_field(&line) {
            let read: Reply =
                serde_json::from_slice(&changed).unwrap_or_else(|e| panic!("{line} {at}: {e}"));
            assert_eq!(
                serde_json::to_value(&read).unwrap(),
                serde_json::to_value(&as_it_was).unwrap()
            );
            tried += 1;
        }
    }
    assert!(tried > 60, "{tried}");
}

#[test]
fn a_neighbouring_version_is_understood_and_a_further_one_is_told_from_garbage() {
    for line in lines(&["reserve.json", "activate.json", "release.json", "calls.jsonl"]) {
        for (version, understood) in
            [(VERSION - 1, true), (VERSION + 1, true), (VERSION + 2, false), (u16::MAX, false)]
        {
            let mut call: Value = serde_json::from_str(&line).unwrap();
            call["version"] = version.into();
            let read = parse_envelope(&serde_json::to_vec(&call).unwrap());
            let is_far = matches!(read, Err(FrameError::Version(far)) if far == version);
            assert_eq!((read.is_ok(), is_far), (understood, !understood), "{version}: {line}");
        }
        // Further away, nothing else of it has to be known.
        let far = format!(r#"{{"version":{},"call":{{"teleport":{{}}}},"signed":1}}"#, VERSION + 2);
        let read = parse_envelope(far.as_bytes());
        assert!(matches!(read, Err(FrameError::Version(far)) if far == VERSION + 2), "{read:?}");
    }
    // A neighbour's new call is an error, which mpsgated answers with E_DAEMON_VERSION; it is no
    // other call.
    let new = format!(r#"{{"version":{},"call":{{"teleport":{{}}}}}}"#, VERSION + 1);
    assert!(parse_envelope(new.as_bytes()).unwrap_err().to_string().contains("no message"));
    assert!(serde_json::from_str::<Reply>(r#"{"teleported":{}}"#).is_err());
}

#[test]
fn a_gates_question_with_what_is_not_known_is_none_and_without_it_is_one() {
    for line in lines(&["questions.jsonl"]) {
        let question: Value = serde_json::from_str(&line).unwrap();
        let Some((word, _)) = question.as_object().and_then(|one| one.iter().next()) else {
            continue;
        };
        let mut changed = question.clone();
        changed[word]["of_tomorrow"] = json!(1);
        assert!(Question::read(&serde_json::to_vec(&changed).unwrap()).is_err(), "{changed}");
        assert!(Question::read(line.as_bytes()).is_ok(), "{line}");
    }
}
