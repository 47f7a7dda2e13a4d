//! `explain` on files and on standard input, good and bad.

use crate::{Ended, mpsgate, mpsgate_reading, text};

/// Away from the machine's own settings.
const NO_CONFIG: [&str; 2] = ["--config", "/nonexistent/config.toml"];

fn explain(document: &str, more: &[&str]) -> Ended {
    mpsgate_reading(&[&["explain", "-"], &NO_CONFIG[..], more].concat(), document.as_bytes())
}

#[test]
fn a_plain_container_starts_as_it_is() {
    let ended = explain(r#"{"process":{"env":["PATH=/bin"]}}"#, &[]);
    ended.assert_code(0);
    assert!(ended.stdout.starts_with("decision: start it as it is\n"), "{ended:#?}");
}

#[test]
fn a_refused_container_is_1_and_still_the_answer() {
    let ended = explain(r#"{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}"#, &[]);
    ended.assert_code(1);
    assert!(ended.stdout.starts_with("decision: refuse [E_VISIBLE_DEVICES]\n"), "{ended:#?}");
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_file_and_standard_input_give_the_same_answer() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let document =
        r#"{"annotations":{"aliyun.com/gpu-mem":"7"},"linux":{"namespaces":[{"type":"pid"}]}}"#;
    std::fs::write(&file, document).unwrap();
    let by_file = mpsgate(&[&["explain", text(&file), "-o", "json"], &NO_CONFIG[..]].concat());
    let by_stdin = explain(document, &["-o", "json"]);
    by_file.assert_code(0);
    assert_eq!(by_file.stdout, by_stdin.stdout);
    assert!(by_file.stdout.contains("\"decision\": \"reserve\""), "{by_file:#?}");
}

#[test]
fn the_snapshot_tells_which_cards_are_managed() {
    let dir = tempfile::tempdir().unwrap();
    let node = dir.path().join("node.json");
    let snapshot = |managed: bool| {
        format!(
            r#"{{"format":1,"ipc_inode":7,"kubelet":false,"majors":{{"nvidia":195}},"shm":null,"shared_memory":"",
                "swarm_resources":[],"annotation_prefixes":[],"other_nodes":[],"device_plugin":false,"share":false,"cards":[
                {{"uuid":"GPU-00000000-0000-0000-0000-000000000000","index":0,"minor":0,"managed":{managed}}},
                {{"uuid":"GPU-11111111-1111-1111-1111-111111111111","index":1,"minor":1,"managed":true}}]}}"#
        )
    };
    let document = r#"{"process":{"env":["NVIDIA_VISIBLE_DEVICES=0"]}}"#;
    for (managed, code) in [(false, 0), (true, 1)] {
        std::fs::write(&node, snapshot(managed)).unwrap();
        let ended = explain(document, &["--node", text(&node)]);
        ended.assert_code(code);
        assert!(!ended.stdout.contains("every card is managed"), "{ended:#?}");
    }
}

#[test]
fn a_bad_snapshot_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let node = dir.path().join("node.json");
    for (content, parts) in [
        ("", ["is no node snapshot", "cause: EOF"]),
        (r#"{"format":2,"cards":7}"#, ["has format 2", "systemctl restart mpsgated"]),
        (r#"{"format":1}"#, ["is no node snapshot", "cause: missing field"]),
    ] {
        std::fs::write(&node, content).unwrap();
        explain("{}", &["--node", text(&node)]).assert_code(2).assert_stderr(&parts);
    }
    explain("{}", &["--node", "/nonexistent/node.json"])
        .assert_code(2)
        .assert_stderr(&["cannot read /nonexistent/node.json", "hint: "]);
}

#[test]
fn bad_documents_are_told_apart() {
    for (document, cause) in [
        (&b""[..], "it is empty"),
        (b" \n", "it is empty"),
        (br#"{"process":{"#, "it is cut off"),
        (b"hello", "it is not JSON (byte 0)"),
        (b"[]", "it is a list, not an object"),
        (b"{} {}", "it is not JSON (byte 3)"),
    ] {
        let ended = mpsgate_reading(&[&["explain", "-"], &NO_CONFIG[..]].concat(), document);
        ended.assert_code(2).assert_stderr(&[
            "error: standard input is no config.json of a container\n",
            cause,
            "\nhint: ",
        ]);
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn what_runtimes_read_differently_is_told_as_it_would_be_decided() {
    let deep = [b"[".repeat(1000), b"]".repeat(1000)].concat();
    let rule = br#""linux":{"resources":{"devices":[{"allow":true,"type":"c","major":195}]}}"#;
    for (beside, cause) in [
        (&b"\"x\":\"\xff\""[..], "it is not UTF-8 (byte 6)"),
        (b"\"a\":1,\"a\":2", "the key \"a\" stands twice"),
        (b"\"Hooks\":{}", "the key \"Hooks\" is \"hooks\" to some runtimes"),
        (&[b"\"deep\":".as_slice(), &deep].concat(), "nested deeper"),
    ] {
        let of = |document: Vec<u8>| {
            mpsgate_reading(&[&["explain", "-"], &NO_CONFIG[..]].concat(), &document)
        };
        let ended = of([b"{", beside, b"}"].concat());
        ended.assert_code(0);
        assert!(ended.stdout.starts_with("decision: start it as it is\n"), "{ended:#?}");
        let ended = of([b"{", beside, b",", rule, b"}"].concat());
        ended.assert_code(1);
        let words = ["decision: refuse [E_BUNDLE]\n", "the device rule c 195:*", cause];
        assert!(words.iter().all(|word| ended.stdout.contains(word)), "{ended:#?}");
    }
}

#[test]
fn a_document_that_is_too_long_is_read_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let note = "x".repeat(17 << 20);
    let explain = |rest: &str| {
        std::fs::write(&file, format!(r#"{{"annotations":{{"note":"{note}"}}{rest}}}"#)).unwrap();
        mpsgate(&[&["explain", text(&file)], &NO_CONFIG[..]].concat())
    };
    explain("").assert_code(0);
    let ended = explain(r#","process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}"#);
    ended.assert_code(1);
    assert!(ended.stdout.contains("it is longer than 16777216 bytes"), "{ended:#?}");
    // Sparse: takes no space.
    std::fs::File::create(&file).unwrap().set_len(100 << 20).unwrap();
    mpsgate(&[&["explain", text(&file)], &NO_CONFIG[..]].concat())
        .assert_code(2)
        .assert_stderr(&["cause: it is not JSON (byte 0)", "\nhint: "]);
}

#[test]
fn a_missing_file_and_a_directory_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("config.json");
    mpsgate(&["explain", text(&missing)]).assert_code(2).assert_stderr(&[
        text(&missing),
        "cause: No such file",
        "hint: ",
    ]);
    let hint = format!("hint: name the file in it: mpsgate explain {}", text(&missing));
    mpsgate(&["explain", text(dir.path())])
        .assert_code(2)
        .assert_stderr(&["cause: Is a directory", hint.as_str()]);
}

#[test]
fn settings_that_cannot_be_used_are_78() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[polcy]\n").unwrap();
    mpsgate_reading(&["explain", "-", "--config", text(&config)], b"{}")
        .assert_code(78)
        .assert_stderr(&["polcy", "policy", "hint: "]);
}

#[test]
fn the_settings_decide() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.toml");
    std::fs::write(&config, "[policy]\nvisible_devices = \"strip\"\n").unwrap();
    let document = br#"{"process":{"env":["NVIDIA_VISIBLE_DEVICES=all"]}}"#;
    let ended = mpsgate_reading(&["explain", "-", "--config", text(&config)], document);
    ended.assert_code(0);
    assert!(
        ended.stdout.starts_with("decision: change it, then start it\nchanges:\n"),
        "{ended:#?}"
    );
}
