//! Who is meant by a name, and who waits for whom.

use mpsgate_api::{Activate, Engine, Reserve};
use mpsgate_config::Switch;
use mpsgate_model::{Code, GrantKey, Instance, Mib};
use mpsgate_node::Node;
use mpsgate_node::card::CardEvent;

use crate::fixture::{ALL, HOLDER, INIT, Living, call, control, happens, node};

/// Active, 1 GiB; of `user` a process.
fn active(node: &mut Node, root: &str, name: &str, user: Option<&str>) -> GrantKey {
    let number = u8::try_from(node.entries().len()).unwrap();
    let mut call = Reserve { user: user.map(str::to_owned), ..call(name, 1) };
    root.clone_into(&mut call.key.runtime_root);
    call.key.instance = Instance::from_bytes([number; 16]);
    if call.key.is_run() {
        call.engine = Engine::User;
    }
    let key = call.key.clone();
    node.reserve(&call, None, HOLDER, &ALL, 0, &mut Vec::new()).unwrap();
    let activate = Activate { key: key.clone(), pid: 8, cgroup: None, grant: None };
    node.activate(&activate, INIT, &ALL, 0, &mut Vec::new()).unwrap();
    key
}

const LONG: &str = "3f2a9c01b2d34e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7";

#[test]
fn a_word_means_one_container_or_a_whole_name_and_else_nobody() {
    let mut node = node();
    node.trust_local = Switch::On;
    happens(&mut node, 0, CardEvent::Answers(Box::new(control(true))));
    let alice = GrantKey::run_of(Some(1000));
    let docker = "/run/docker";
    let keys = [
        active(&mut node, docker, LONG, None),
        // What alice reads in the names of cgroups.
        active(&mut node, &alice, "3f2a9c01b2d3", Some("alice")),
        active(&mut node, &alice, LONG, Some("alice")),
        active(&mut node, &GrantKey::run_of(Some(1001)), "train", None),
        active(&mut node, &GrantKey::run_of(None), "train", None),
        active(&mut node, "/run/runc", "web", None),
        active(&mut node, "/run/crun", "web", None),
        active(&mut node, "/run/runc", "db", None),
        active(&mut node, "/run/runc", "db2", None),
        active(&mut node, &alice, "train", Some("alice")),
        active(&mut node, &alice, "train2", Some("alice")),
    ];
    let hers = format!("alice/{LONG}");
    for (word, meant) in [
        (LONG, 0),
        ("3f2a9c01b2d3", 0),
        ("3f2a", 0),
        ("alice/3f2a9c01b2d3", 1),
        (hers.as_str(), 2),
        ("1001/train", 3),
        ("root/train", 4),
        ("/run/runc/web", 5),
        ("/run/crun/web", 6),
        ("/run/runc/db", 7),
        ("db2", 8),
        ("alice/train", 9),
        ("mpsgate run/1000/train2", 10),
    ] {
        let found = node.resizing(word, Mib(2048), &ALL).unwrap();
        assert_eq!(found.entry.grant.key, keys[meant], "{word}");
    }
    for (word, sentence, hint) in [
        (
            "db",
            "\"db\" may mean any of: /run/runc/db, /run/runc/db2",
            "name the one that you mean in full: mpsgate resize '/run/runc/db' 2048Mi, or mpsgate resize '/run/runc/db2' 2048Mi",
        ),
        (
            "web",
            "\"web\" may mean any of: /run/runc/web, /run/crun/web",
            "name the one that you mean in full: mpsgate resize '/run/runc/web' 2048Mi, or mpsgate resize '/run/crun/web' 2048Mi",
        ),
        (
            "train2",
            "no container or process \"train2\" has a grant on this node",
            "a process is named with its user: mpsgate resize 'alice/train2' 2048Mi",
        ),
        (
            "alice/tra",
            "no container or process \"alice/tra\" has a grant on this node",
            "mpsgate status lists those that have",
        ),
        (
            "",
            "no container or process \"\" has a grant on this node",
            "mpsgate status lists those that have",
        ),
        (
            "/",
            "no container or process \"/\" has a grant on this node",
            "mpsgate status lists those that have",
        ),
        (
            "bob/train",
            "no container or process \"bob/train\" has a grant on this node",
            "mpsgate status lists those that have",
        ),
    ] {
        let refusal = node.resizing(word, Mib(2048), &ALL).unwrap_err();
        assert_eq!(
            (refusal.code, refusal.sentence.as_str(), refusal.hint.as_str()),
            (Code::Resize, sentence, hint)
        );
    }
    // So they are shown.
    let mut names: Vec<String> =
        node.status().grants.into_iter().map(|grant| grant.container_id).collect();
    names.sort();
    let expected = [
        "1001/train",
        LONG,
        "alice/3f2a9c01b2d3",
        &hers,
        "alice/train",
        "alice/train2",
        "db",
        "db2",
        "root/train",
        "web",
        "web",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_process_waits_for_one_of_its_name_that_may_be_ending_and_a_container_for_what_its_init_left() {
    let mut node = node();
    node.trust_local = Switch::On;
    happens(&mut node, 0, CardEvent::Answers(Box::new(control(true))));
    let run = GrantKey::run_of(Some(1000));
    let process = active(&mut node, &run, "train", Some("alice"));
    let container = active(&mut node, "/run/runc", "train", None);
    let again =
        |key: &GrantKey| GrantKey { instance: Instance::from_bytes([9; 16]), ..key.clone() };
    assert!(node.is_ending(&again(&process), &ALL));
    assert!(!node.is_ending(&again(&process), &Living(&[])), "nothing is left of it");
    assert!(!node.is_ending(&again(&container), &ALL), "its engine knows better");
    let other = GrantKey { runtime_root: GrantKey::run_of(Some(1001)), ..again(&process) };
    assert!(!node.is_ending(&other, &ALL), "another user's");
    // It is refused while it lives, and by its name.
    let mut call = Reserve { engine: Engine::User, ..call("train", 1) };
    call.key = again(&process);
    let refusal = node.reserve(&call, None, HOLDER, &ALL, 0, &mut Vec::new()).unwrap_err();
    assert_eq!(
        refusal.sentence,
        "a process of this name, alice/train, has a grant of 1 GiB already, and its pid 8 lives"
    );
    node.reserve(&call, None, HOLDER, &Living(&[HOLDER]), 0, &mut Vec::new()).unwrap();
}
