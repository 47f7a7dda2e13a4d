//! What is taken out, and what stays.

use mpsgate_testing::{ODD, assert_printable};

use super::*;

#[test]
fn users_and_passwords_in_addresses_go() {
    let before = "proxy socks5://joe:pw@proxy:1080/ is unknown\nhttps://api:6443\nmail a@b\n";
    let after = "proxy socks5://[redacted]@proxy:1080/ is unknown\nhttps://api:6443\nmail a@b\n";
    assert_eq!(text(before), after);
}

#[test]
fn tokens_in_texts_go_and_the_rest_stays() {
    let before = "card 0 is ready\ngot mpsgate1.k1.eyJ9.AbC-_9 of pod p\n";
    assert_eq!(text(before), "card 0 is ready\ngot mpsgate1.[redacted] of pod p\n");
}

#[test]
fn settings_have_no_comments() {
    let before = "# S3CR3T\n[run] # S3CR3T\n\nmax_mib = 7 #S3CR3T\n  # S3CR3T";
    assert_eq!(settings(before), "[run]\nmax_mib = 7\n");
}

#[test]
fn of_units_what_is_known_stays_and_of_the_rest_the_name() {
    let before = "[Service]\n# password: S3CR3T\nUser=x\nEnvironment = X=S3CR3T\n  Environment=\"A=S3CR3T\" \\\n  \
                  C=S3CR3T\n# S3CR3T\nSetCredential=key:S3CR3T\nExecStart=/usr/bin/mpsgated --x S3CR3T\nExecStartPre=\
                  curl S3CR3T\nLimitNOFILE = 1024\nX-Whatever=S3CR3T\nS3CR3T\nEnvironmentFile=/run/S3CR3T\nAfter=a \\\n  b\nWants=c\n";
    let after = unit(before);
    assert!(!after.contains("S3CR3T"), "{after}");
    for line in [
        "[Service]",
        "User=x",
        "Environment=[redacted]",
        "SetCredential=[redacted]",
        "ExecStart=/usr/bin/mpsgated [redacted]",
        "ExecStartPre=[redacted]",
        "LimitNOFILE= 1024",
        "After=a \\",
        "  b",
        "Wants=c",
    ] {
        assert!(after.lines().any(|left| left == line), "{line}: {after}");
    }
}

#[test]
fn of_documents_variables_and_tokens_go() {
    let before = r#"{"env":["CUDA_VISIBLE_DEVICES=0","AWS=abc"],"environment":{"NVIDIA_X":"1","Y":"abc"},
        "note":"see mpsgate1.a.b.c","n":1,"key":{"container_id":"c1"}}"#;
    let after = json(before).unwrap_or_default();
    let value: Value = serde_json::from_str(&after).unwrap_or_default();
    assert!(!after.contains("abc"), "{after}");
    assert_eq!(value["env"][0], "CUDA_VISIBLE_DEVICES=0");
    assert_eq!(value["environment"]["NVIDIA_X"], "1");
    assert_eq!(value["key"]["container_id"], "c1");
    assert_eq!((&value["n"], &value["note"]), (&1.into(), &"see mpsgate1.[redacted]".into()));
}

#[test]
fn a_document_is_one_that_may_be_printed() {
    let after = json(&serde_json::json!({"why": ODD}).to_string()).unwrap_or_default();
    assert_printable(&after);
    let value: Value = serde_json::from_str(&after).unwrap_or_default();
    assert!(value["why"].as_str().is_some_and(|why| why.contains("a\u{202e}b")), "{after}");
}

#[test]
fn a_document_that_is_broken_is_none() {
    assert_eq!(json("{\"a\": SECRET=1"), None);
}
