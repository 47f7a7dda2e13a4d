//! What is taken out, and what stays.

use mpsgate_testing::{ODD, assert_printable};

use super::*;

#[test]
fn secrets_in_text_go_and_the_rest_stays() {
    for (before, after) in [
        ("card 0 is ready", "card 0 is ready"),
        ("token mpsgate1.k1.eyJ9.AbC-_9 of pod p", "token [redacted]"),
        ("got mpsgate1.k1.eyJ9.AbC-_9 of pod p", "got mpsgate1.[redacted] of pod p"),
        ("proxy http://joe:pw@proxy:3128/x", "proxy http://[redacted]@proxy:3128/x"),
        ("http://127.0.0.1:19400/metrics", "http://127.0.0.1:19400/metrics"),
        ("DB_PASSWORD=hunter2 rest", "DB_PASSWORD=[redacted]"),
        ("a=1,api_key=xyz,b=2", "a=1,api_key=[redacted]"),
        ("journalctl -u mpsgated -n 50", "journalctl -u mpsgated -n 50"),
        ("its card task passes 3 of 4 kubelets", "its card task passes 3 of 4 kubelets"),
        ("pid 7 (sleep) held it for 5 s", "pid 7 (sleep) held it for 5 s"),
        ("pid 7 (bash ./t --x hunter2) held it", "pid 7 (bash [redacted]"),
    ] {
        assert_eq!(text(before), after);
    }
}

#[test]
fn no_way_to_write_a_secret_leaves_it_in() {
    for line in [
        "--x-pass S3CR3T",
        "--x-pass=S3CR3T",
        "--db-password 'a S3CR3T'",
        "Authorization: Bearer S3CR3T",
        "Authorization: Basic S3CR3T",
        "-H 'X-Whatever: S3CR3T'",
        "curl -u user:S3CR3T https://h",
        "curl -uuser:S3CR3T https://h",
        "curl --user user:S3CR3T",
        "# password: S3CR3T",
        "#the password is S3CR3T",
        "password = \"S3CR3T\"",
        "password = 'a b S3CR3T'",
        "Password: S3CR3T",
        "api-key: S3CR3T",
        "apikey: S3CR3T",
        "API_KEY = S3CR3T",
        "key S3CR3T",
        "AWS_SECRET_ACCESS_KEY=S3CR3T",
        "AWS_ACCESS_KEY_ID: S3CR3T",
        "DBPASS=S3CR3T",
        "DB_PWD: S3CR3T",
        "pgpassword=S3CR3T",
        "MYSQL_PW=S3CR3T",
        "{\"password\": \"S3CR3T\"}",
        "client_credentials S3CR3T",
        "Set-Cookie: id=S3CR3T",
        "passphrase\tS3CR3T",
        "PIN=S3CR3T",
        "Environment = X=S3CR3T",
        "hf_S3CR3TS3CR3TS3CR3T",
        "see ghp_S3CR3TS3CR3TS3CR3T, please",
        "eyJS3CR3TS3CR3T.S3CR3T.S3CR3T",
        "joe:S3CR3T@host:5432/db",
        "postgres://joe:S3CR3T@host:5432/db",
        "pid 7 (mysql -pS3CR3T) uses 3 MiB",
        "password = \"\"\"\n  S3CR3T\n\"\"\"",
        "password = '''S3CR3T\nS3CR3T'''",
        "password: |\n  S3CR3T\n  S3CR3T",
        "password:\n  S3CR3T",
        "tokens = [\n  \"S3CR3T\",\n]",
        "--password \\\nS3CR3T",
        "-----BEGIN PRIVATE KEY-----\nS3CR3T\nS3CR3T\n-----END PRIVATE KEY-----",
        "password=S3CR3T\r\n",
    ] {
        let left = text(&format!("before = 1\n{line}\nafter = 1\n"));
        assert!(!left.contains("S3CR3T"), "{line:?}: {left}");
        assert!(left.starts_with("before = 1\n") && left.ends_with("after = 1\n"), "{left}");
    }
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
fn secrets_in_documents_go_by_their_key() {
    let before = r#"{"env":["CUDA_VISIBLE_DEVICES=0","AWS=abc"],"environment":{"NVIDIA_X":"1","Y":"abc"},
        "grant_token":"abc","note":"see mpsgate1.a.b.c","n":1,"inner":[{"password":"abc"}],
        "api-key":["abc"],"db_pass":4711,"key":{"container_id":"c1"},"why":"pid 7 (x --y abc) -u joe:abc"}"#;
    let after = json(before);
    for secret in ["abc", "a.b.c", "4711"] {
        assert!(!after.contains(secret), "{secret}: {after}");
    }
    let value: Value = serde_json::from_str(&after).unwrap_or_default();
    assert_eq!(value["env"][0], "CUDA_VISIBLE_DEVICES=0");
    assert_eq!(value["environment"]["NVIDIA_X"], "1");
    assert_eq!(value["key"]["container_id"], "c1");
    assert_eq!((&value["n"], &value["note"]), (&1.into(), &"see mpsgate1.[redacted]".into()));
}

#[test]
fn a_document_is_one_that_may_be_printed() {
    let after = json(&serde_json::json!({"why": ODD}).to_string());
    assert_printable(&after);
    let value: Value = serde_json::from_str(&after).unwrap_or_default();
    assert!(value["why"].as_str().is_some_and(|why| why.contains("a\u{202e}b")), "{after}");
}

#[test]
fn a_document_that_is_broken_is_taken_as_text() {
    assert_eq!(json("{\"a\": SECRET=1"), "{\"a\": SECRET=[redacted]");
}
