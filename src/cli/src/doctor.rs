//! `mpsgate doctor`: looks at everything that a grant needs, and says what to do.
//!
//! ```text
//! Node (settings, NVML, mpsgated) ─► each check: gather ─► decide (pure) ─► report ─► bundle
//! ```
//!
//! It changes nothing but that `--bundle` writes an archive, and goes on past whatever it cannot
//! read: a node where everything is broken gets a whole report too.

mod checks;
mod doctor_bundle;
mod doctor_node;
mod doctor_report;
mod elf;
mod trouble;

use mpsgate_edge::{ExitCode, print};

use crate::CliError;
use crate::args::{DoctorArgs, Output};

pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    if let Some(target) = &args.bundle {
        doctor_bundle::check_target(target)?;
    }
    let node = doctor_node::Node::gather(&args.root);
    let findings = checks::all(&node);
    let simulated = node.is_simulated();
    let text = match args.output {
        Output::Text => doctor_report::render_text(&findings, simulated, print::coloured()),
        Output::Json => doctor_report::render_json(&findings, simulated)?,
    };
    print::answer(&text)?;
    if let Some(target) = &args.bundle {
        let report = doctor_report::render_json(&findings, simulated)?;
        let written =
            doctor_bundle::write(&args.root, target, &report, mpsgate_host::clock::now_ms())?;
        // The answer is the report, which a program may read as JSON.
        print::note(&written);
    }
    let failed = findings.iter().any(|finding| finding.result == checks::Outcome::Fail);
    Ok(if failed { ExitCode::No } else { ExitCode::Done })
}

/// Whether a program's first bytes say that it is linked statically; `None` for what is no ELF
/// program of 64 bits. Door for `tests/fuzz`.
pub(crate) fn is_static(program: &[u8]) -> Option<bool> {
    match elf::linking(program) {
        elf::Linking::Static | elf::Linking::StaticGlibc => Some(true),
        elf::Linking::Dynamic => Some(false),
        elf::Linking::NotElf64 => None,
    }
}
