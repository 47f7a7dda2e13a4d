//! Findings as text and as JSON.

use mpsgate_edge::{EdgeError, print};
use mpsgate_model::printable;
use std::fmt::Write as _;

use serde::Serialize;

use super::checks::{Finding, Outcome};

/// Version of the JSON document. Raised when a field goes or changes its meaning, not when one
/// comes.
const SCHEMA: u32 = 1;

pub(super) fn render_text(findings: &[Finding], simulated: bool, coloured: bool) -> String {
    let mut text = String::new();
    if simulated {
        text.push_str("SIMULATED: no GPU is behind these answers\n\n");
    }
    let label = |f: &Finding| match &f.subject {
        Some(subject) => format!("{} {}", f.name, printable::plain(subject)),
        None => f.name.to_owned(),
    };
    let width = findings.iter().map(|f| label(f).chars().count()).max().unwrap_or(0);
    for finding in findings {
        let word = finding.result.as_str();
        let (on, off) = if coloured { (colour(finding.result), "\x1b[0m") } else { ("", "") };
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{on}{word:<4}{off}  {:<width$}  {}",
            label(finding),
            printable::lines(&finding.evidence).replace('\n', "\n      ")
        );
        if let Some(hint) = &finding.hint {
            let _ = writeln!(text, "      hint: {}", printable::lines(hint));
        }
    }
    let count = |outcome| findings.iter().filter(|f| f.result == outcome).count();
    let _ = writeln!(
        text,
        "\n{} ok, {} warn, {} fail, {} skip",
        count(Outcome::Ok),
        count(Outcome::Warn),
        count(Outcome::Fail),
        count(Outcome::Skip)
    );
    text
}

pub(super) fn render_json(findings: &[Finding], simulated: bool) -> Result<String, EdgeError> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        simulated: bool,
        checks: &'a [Finding],
    }
    print::json(&Document { schema: SCHEMA, simulated, checks: findings })
}

fn colour(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "\x1b[32m",
        Outcome::Warn => "\x1b[33m",
        Outcome::Fail => "\x1b[31m",
        Outcome::Skip => "\x1b[2m",
    }
}
