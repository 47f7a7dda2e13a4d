//! What the answers look like: for people, for programs, and as a page for an issue.

use std::fmt::Write as _;

use mpsgate_api::Asking;
use mpsgate_edge::{EdgeError, print};
use mpsgate_model::{Answer, Guarantee, Qualification};
use mpsgate_policy::{GuaranteeLevel, conclude};
use serde::Serialize;

/// Version of the JSON document.
const SCHEMA: u32 = 1;

pub(super) fn text(asking: &Asking, answers: &[Answer]) -> String {
    let mut text = format!(
        "GPU {} ({}), driver {}{}\n\n",
        asking.card_index,
        asking.subject.card,
        asking.subject.driver,
        if asking.subject.simulated { ", SIMULATED: no GPU is behind it" } else { "" }
    );
    for answer in answers {
        let (name, verdict) = (answer.question.as_str(), answer.verdict.as_str());
        let seconds = seconds(answer);
        let _ = writeln!(text, "{name:10} {verdict:10} {seconds:>6}  {}", answer.seen);
        if answer.is_failure() {
            let _ = writeln!(text, "{:30}expected: {}", "", answer.expected);
        }
        if !answer.meanwhile.is_empty() {
            let _ = writeln!(text, "{:30}does not count: meanwhile {}", "", answer.meanwhile);
        }
        if !answer.evidence.is_empty() {
            let _ = writeln!(text, "{:30}{}", "", answer.evidence);
        }
    }
    let _ = write!(text, "\n{}", conclusions(asking, answers));
    text
}

/// What follows, as mpsgated concludes from the same answers.
fn conclusions(asking: &Asking, answers: &[Answer]) -> String {
    let found = Qualification::new(asking.subject.clone(), answers.to_vec());
    let concluded = conclude(Some(&found), &asking.subject);
    let GuaranteeLevel { guarantee, proof, .. } = concluded.level(Guarantee::MpsWatchdog);
    let mut text = format!("guarantee level of a grant: {}, {proof}\n", guarantee.as_str());
    let _ = writeln!(text, "tolerance above a grant: {}", concluded.tolerance);
    if let Some(refusal) = &concluded.refusal {
        let _ = writeln!(text, "NO CONTAINER GETS MEMORY of this GPU: it {refusal}");
    }
    for failure in &concluded.failures {
        let _ = writeln!(text, "FAILS: {failure}");
    }
    text
}

pub(super) fn json(asking: &Asking, answers: &[Answer]) -> Result<String, EdgeError> {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        subject: &'a mpsgate_model::Subject,
        answers: &'a [Answer],
    }
    print::json(&Document { schema: SCHEMA, subject: &asking.subject, answers })
}

/// For an issue: no host, no container, no card by its UUID.
pub(super) fn page(asking: &Asking, answers: &[Answer]) -> String {
    let mut text = format!(
        "| | |\n|---|---|\n| mpsgate | {} |\n| driver | {}{} |\n| control program | {} |\n| kernel | {} |\n\n",
        env!("CARGO_PKG_VERSION"),
        asking.subject.driver,
        if asking.subject.simulated { " (simulated)" } else { "" },
        asking.subject.control,
        kernel()
    );
    text.push_str("| question | expected | seen | evidence | answer |\n|---|---|---|---|---|\n");
    for answer in answers {
        let cell = |text: &str| {
            text.replace(asking.subject.card.as_str(), "GPU-…")
                .replace(&asking.id, "mpsgate-qualify")
                .replace(['|', '\n'], " ")
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {}, {} |",
            answer.question.as_str(),
            cell(&answer.expected),
            cell(&seen(answer)),
            cell(&answer.evidence),
            answer.verdict.as_str(),
            seconds(answer)
        );
    }
    text
}

/// What was seen, and what else meanwhile.
fn seen(answer: &Answer) -> String {
    match answer.meanwhile.as_str() {
        "" => answer.seen.clone(),
        meanwhile => format!("{}; meanwhile {meanwhile}", answer.seen),
    }
}

fn seconds(answer: &Answer) -> String {
    format!("{}.{} s", answer.took_ms / 1000, answer.took_ms % 1000 / 100)
}

fn kernel() -> String {
    let read = mpsgate_host::procfs::text("/proc/sys/kernel/osrelease");
    read.map_or_else(|error| error.to_string(), |text| text.trim().to_owned())
}
