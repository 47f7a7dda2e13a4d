//! `mpsgate doctor`: looks at everything that a grant needs, and says what to do.
//!
//! ```text
//! gather (files, NVML, daemon, programs) ─► Facts ─► checks (pure) ─► Finding ─► report
//! ```
//!
//! It changes nothing, and goes on past whatever it cannot read: a node where everything is broken
//! gets a whole report too.

mod checks;
mod elf;
mod facts;
mod gather;
mod report;

use mpsgate_config::ExitCode;

use crate::args::{DoctorArgs, Output};
use crate::{CliError, print};

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let facts = gather::gather(&args.root);
    let findings = checks::all(&facts);
    let simulated = facts.is_simulated();
    let text = match args.output {
        Output::Text => report::render_text(&findings, simulated, print::coloured()),
        Output::Json => report::render_json(&findings, simulated)?,
    };
    print::answer(&text)?;
    let failed = findings.iter().any(|finding| finding.result == checks::Outcome::Fail);
    Ok(if failed { ExitCode::No } else { ExitCode::Done })
}

#[cfg(test)]
mod tests;
