//! Arguments, help, exit codes, closed outputs.

use mpsgate_testing::golden;
use std::process::Stdio;

use crate::{command, mpsgate};

#[test]
fn wrong_arguments_end_with_64_and_say_what_is_right() {
    for (args, part) in [
        (&["stauts"][..], "a similar subcommand exists: 'status'"),
        (&["status", "--outptu"], "--output"),
        (&["status", "-o", "yaml"], "table"),
        (&["status", "extra"], "unexpected argument"),
        (&["top", "--interval", "0"], "1..=3600"),
        (&["enable"], "<GPU>"),
        (&["enable", "all"], "nvidia-smi -L"),
        (&["disable", "GPU-1"], "nvidia-smi -L"),
        (&["explain"], "<FILE>"),
        (&["mps", "halt", "0"], "unrecognized subcommand"),
        (&["mps", "stop"], "<GPU>"),
        (&["mps", "restart", "all"], "nvidia-smi -L"),
        (&["mps", "stop", "0", "--yes", "-o", "json"], "cannot be used with"),
        (&["reload", "now"], "unexpected argument"),
        (&["completions", "tcsh"], "bash"),
        (&["configure"], "<ENGINE>"),
        (&["configure", "rkt"], "containerd"),
        (&["configure", "docker", "--write", "--undo"], "cannot be used with"),
        (&["configure", "docker", "--write", "--check"], "cannot be used with"),
    ] {
        let ended = mpsgate(args);
        ended.assert_code(64).assert_stderr(&["error: ", part]);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn no_command_is_answered_with_the_help() {
    mpsgate(&[]).assert_code(64).assert_stderr(&["Usage: mpsgate <COMMAND>"]);
    mpsgate(&["mps"]).assert_code(64).assert_stderr(&["Usage: mpsgate mps <COMMAND>"]);
}

#[test]
fn help_and_version_are_answers() {
    let mut text = String::new();
    for args in [
        &["-h"][..],
        &["--help"],
        &["status", "--help"],
        &["top", "--help"],
        &["run-probe", "--help"],
        &["enable", "--help"],
        &["disable", "--help"],
        &["mps", "--help"],
        &["mps", "stop", "--help"],
        &["mps", "restart", "--help"],
        &["mps", "preflight", "--help"],
        &["reload", "--help"],
        &["completions", "--help"],
        &["configure", "--help"],
        &["node-install", "--help"],
        &["explain", "--help"],
        &["doctor", "--help"],
    ] {
        let ended = mpsgate(args);
        ended.assert_code(0);
        assert_eq!(ended.stderr, "", "{args:?}");
        text.push_str(&format!("$ mpsgate {}\n{}\n", args.join(" "), ended.stdout));
    }
    golden!("help.txt", &text);
    assert_eq!(mpsgate(&["--version"]).stdout, format!("mpsgate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_are_an_answer_for_each_shell() {
    for (shell, part) in [
        ("bash", "complete -F _mpsgate"),
        ("zsh", "#compdef mpsgate"),
        ("fish", "complete -c mpsgate"),
    ] {
        let ended = mpsgate(&["completions", shell]);
        ended.assert_code(0);
        assert!(ended.stdout.contains(part), "{shell}");
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    // The pipe's reader is closed before anything is written.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = command(&["doctor", "--root", "/nonexistent", "-o", "json"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["doctor", "--root", "/nonexistent"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("error: cannot write the answer to stdout\ncause: "), "{stderr}");
}
