//! `mpsgate slurm`: what Slurm calls before each task of a job, and when the job has ended.
//!
//! Before a task it is the user's process, and slurmd reads its stdout: `export` and `unset` change
//! the task's environment, `print` is shown to the user. Slurm does not show stderr. Any exit
//! status but 0 fails the task, and its job; the node stays (Slurm 22.05, measured).

use std::fmt::Write as _;
use std::path::Path;

use mpsgate_api::{ApiError, Call, Reply};
use mpsgate_config::paths;
use mpsgate_edge::{ExitCode, Remedy as _};
use mpsgate_model::Grant;
use mpsgate_model::printable::{chain, plain};
use mpsgate_policy::run_env;

use crate::args::{SlurmArgs, SlurmCommand};
use crate::error::SlurmError;
use crate::run::open_beside;
use crate::{CliError, daemon_call};

/// What Slurm sets for a task with a GPU or a part of one. A user can unset them, and gets nothing.
const WITH_GPU: [&str; 3] = ["SLURM_SHARDS_ON_NODE", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"];

pub(crate) fn run(command: &SlurmCommand) -> Result<ExitCode, CliError> {
    match command {
        SlurmCommand::TaskProlog(args) => Ok(task_prolog(args)),
        SlurmCommand::Epilog(args) => epilog(args),
    }
}

/// Prints what slurmd is to do, whatever happens.
fn task_prolog(args: &SlurmArgs) -> ExitCode {
    if !WITH_GPU.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        return ExitCode::Done;
    }
    let (lines, code) = match grant(args) {
        Ok(Some(grant)) => (variables(&grant), ExitCode::Done),
        Ok(None) => (String::new(), ExitCode::Done),
        Err(error) => (refusal(&error), ExitCode::No),
    };
    // Nobody else reads it; where slurmd does not, the task goes on without what is printed.
    print!("{lines}");
    code
}

fn grant(args: &SlurmArgs) -> Result<Option<Grant>, CliError> {
    let socket = args.socket.as_deref().unwrap_or_else(|| Path::new(paths::SLURM_SOCKET));
    let grant = match daemon_call::ask(socket, Call::Job)? {
        Reply::Reserved { grant, .. } => *grant,
        Reply::Done { .. } => return Ok(None),
        _ => return Err(ApiError::Unexpected.into()),
    };
    match open_beside(&grant.devices) {
        Some(path) => Err(SlurmError::Open(path).into()),
        None => Ok(Some(grant)),
    }
}

fn variables(grant: &Grant) -> String {
    let (drop, set) = run_env(grant);
    let mut lines = String::new();
    for name in drop {
        let _ = writeln!(lines, "unset {name}");
    }
    for (name, value) in set {
        let _ = writeln!(lines, "export {name}={value}");
    }
    lines
}

fn refusal(error: &CliError) -> String {
    let mut lines = format!("print mpsgate: {}\n", plain(&chain(error)));
    if let Some(hint) = error.hint() {
        let _ = writeln!(lines, "print   {}", plain(&hint));
    }
    lines
}

fn epilog(args: &SlurmArgs) -> Result<ExitCode, CliError> {
    let id = std::env::var("SLURM_JOB_ID").ok().and_then(|id| id.parse().ok());
    let job = id.ok_or(SlurmError::NoJob)?;
    let socket = args.socket.as_deref().unwrap_or_else(|| Path::new(paths::SOCKET));
    daemon_call::change(socket, Call::EndJob { job })?;
    Ok(ExitCode::Done)
}

#[cfg(test)]
mod tests {
    use mpsgate_api::WireRefusal;

    use super::*;

    #[test]
    fn a_refusal_is_what_slurmd_prints() {
        let error = CliError::Refused(WireRefusal {
            code: "E_TOO_LARGE".to_owned(),
            sentence: "it is\nlarge".to_owned(),
            hint: "ask for less".to_owned(),
        });
        assert_eq!(
            refusal(&error),
            "print mpsgate: it is\u{fffd}large [E_TOO_LARGE]\nprint   ask for less\n"
        );
    }
}
