//! The built `mpsgate` against fake daemons and fake nodes: what it prints and how it ends.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

mod bundle;
mod configure;
mod daemon;
mod doctor;
mod explain;
mod probe;
mod usage;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// How one call ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    #[track_caller]
    fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    fn assert_stderr(&self, parts: &[&str]) -> &Self {
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {self:#?}");
        }
        self
    }
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mpsgate"));
    command.args(args).stdin(Stdio::null()).env_remove("RUST_BACKTRACE");
    command
}

fn mpsgate(args: &[&str]) -> Ended {
    ended(command(args).output().unwrap())
}

/// With `input` on standard input.
fn mpsgate_reading(args: &[&str], input: &[u8]) -> Ended {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may stop reading early: then the pipe breaks, and that is its right.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    ended(output)
}

fn ended(output: std::process::Output) -> Ended {
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
