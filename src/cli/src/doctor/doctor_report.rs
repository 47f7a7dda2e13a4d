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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use mpsgate_testing::{ODD, assert_printable, odd};

    use super::*;

    fn findings() -> Vec<Finding> {
        let finding = |name, result, hint: Option<&str>| Finding {
            name,
            subject: None,
            result,
            evidence: "evidence".to_owned(),
            hint: hint.map(str::to_owned),
        };
        vec![
            finding("root", Outcome::Ok, None),
            finding("driver", Outcome::Skip, None),
            finding("nvml", Outcome::Warn, Some("rm -r")),
        ]
    }

    #[test]
    fn the_text_says_simulated_first_and_counts_at_the_end() {
        let text = render_text(&findings(), true, false);
        assert!(text.starts_with("SIMULATED: no GPU"), "{text}");
        assert!(text.ends_with("\n\n1 ok, 1 warn, 0 fail, 1 skip\n"), "{text}");
        assert!(!text.contains('\x1b'));
        assert!(render_text(&findings(), true, true).contains("\x1b[33mwarn\x1b[0m"));
    }

    #[test]
    fn what_others_wrote_is_escaped_in_the_document() {
        let mut findings = findings();
        let finding = findings.first_mut().unwrap();
        finding.subject = Some(ODD.to_owned());
        finding.evidence = odd(1 << 20);
        finding.hint = Some(ODD.to_owned());
        let text = render_json(&findings, false).unwrap();
        assert_printable(&text);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["checks"][0]["subject"], ODD);
        assert_eq!(value["checks"][0]["evidence"], odd(1 << 20));
    }

    #[test]
    fn the_document_has_a_schema_and_every_finding() {
        let text = render_json(&findings(), false).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], 1);
        assert_eq!(value["checks"].as_array().unwrap().len(), 3);
        let last = value["checks"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["name"], &last["result"]), (&"nvml".into(), &"warn".into()));
        assert!(last["hint"].as_str().unwrap().contains("rm -r"));
    }
}
