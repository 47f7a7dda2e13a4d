//! `mpsgate-runtime`: acts on `create`, `run`, `restore`, `exec`, `update`, `kill` and `delete`,
//! and passes everything else on at once.

use std::ffi::OsString;

use mpsgate_host::crash_point;
use mpsgate_oci::argv::{self, Verb};

use crate::engine_log::Report;
use crate::exec::exec_runtime;
use crate::{create, exec_verb, kill_verb, precreate, update_verb};

/// runc's exit status for its own failures.
const FAILED: i32 = 1;
/// A shell's exit status for a program that is not found; engines print the text.
const NOT_FOUND: i32 = 127;

/// Runs the program; returns its exit code only where the real runtime was not reached.
#[must_use]
pub fn main(argv: &[OsString]) -> i32 {
    let args = argv.get(1..).unwrap_or_default();
    if precreate::is_meant(args) {
        return precreate::main();
    }
    let prepared = match argv::verb_of(args) {
        Verb::Create | Verb::Run | Verb::Restore => {
            create::prepare(&argv::parse(args)).map(|()| None)
        }
        Verb::Exec => exec_verb::prepare(args, &argv::parse(args)),
        Verb::Kill | Verb::Delete => {
            kill_verb::prepare(&argv::parse(args));
            Ok(None)
        }
        Verb::Update => update_verb::prepare(args, &argv::parse(args)),
        Verb::Other | Verb::None => Ok(None),
    };
    let changed = match prepared {
        Ok(changed) => changed,
        Err(refusal) => {
            Report::of(&argv::parse(args)).refused(&refusal);
            return FAILED;
        }
    };
    crash_point!("shim.before_exec");
    let error = match (changed, argv.first()) {
        (Some(changed), Some(name)) => {
            let argv: Vec<OsString> = std::iter::once(name.clone()).chain(changed).collect();
            exec_runtime(&argv)
        }
        _ => exec_runtime(argv),
    };
    Report::of(&argv::parse(args)).failed(&error, &error.hint());
    NOT_FOUND
}
