//! The decision as text and as JSON.

use mpsgate_edge::{EdgeError, print};
use std::borrow::Cow;
use std::fmt::Write as _;

use mpsgate_model::{Priority, Refusal, Request, printable};
use mpsgate_oci::spec::Edit;
use mpsgate_policy::{Decision, Note, Signal, Verdict, Wanted};
use serde::Serialize;

/// Version of the JSON document. Raised when a field goes or changes its meaning, not when one
/// comes.
const SCHEMA: u32 = 1;
/// Lines under one title in the text: a document may need 300,000 changes.
const LINES: usize = 50;

pub(super) fn render_text(decision: &Decision, assumed: &[String]) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    match &decision.verdict {
        Verdict::Pass => text.push_str("decision: start it as it is\n"),
        Verdict::Edit(_) => text.push_str("decision: change it, then start it\n"),
        Verdict::Reserve(wanted) => {
            let _ = writeln!(
                text,
                "decision: ask mpsgated for a grant, then start it with the grant's limits\n\
                 request: {}",
                request(wanted)
            );
        }
        Verdict::Refuse(Refusal { code, sentence, hint }) => {
            let (sentence, hint) = (printable::line(sentence), printable::line(hint));
            let _ = write!(text, "decision: refuse [{code}]\nreason: {sentence}\nhint: {hint}\n");
        }
    }
    list(&mut text, "changes", edits(&decision.verdict).iter().map(edit));
    list(&mut text, "signals", decision.signals.iter().map(signal));
    if decision.signals.is_empty() {
        text.push_str("signals: none, nothing in it reaches a managed card without a grant\n");
    }
    list(&mut text, "notes", decision.notes.iter().map(note));
    list(&mut text, "assumed", assumed.iter().cloned());
    text
}

fn list(text: &mut String, title: &str, lines: impl ExactSizeIterator<Item = String>) {
    if lines.len() > 0 {
        let _ = writeln!(text, "{title}:");
        let more = lines.len().saturating_sub(LINES);
        for line in lines.take(LINES) {
            let _ = writeln!(text, "  {}", printable::line(&line));
        }
        if more > 0 {
            let _ = writeln!(text, "  and {more} more (--output json has them all)");
        }
    }
}

fn note(note: &Note) -> String {
    format!("{} {} ({})", note.code, printable::line(&note.text), note.action.as_str())
}

fn signal(signal: &Signal) -> String {
    let way = if signal.removable { "can be taken away" } else { "cannot be taken away" };
    format!("{} {} ({way})", signal.code, signal.text())
}

fn request(wanted: &Wanted) -> String {
    let Request { memory, cards, gpu, compute, priority, .. } = &wanted.request;
    let said = memory.map_or_else(|| "as much as its token says".to_owned(), |m| m.to_string());
    let mut parts = vec![said];
    parts.push(match (gpu, cards.get()) {
        (Some(gpu), _) => gpu.to_string(),
        (None, 1) => "any GPU".to_owned(),
        (None, cards) => format!("{cards} GPUs in equal parts"),
    });
    parts.extend(compute.as_ref().map(|share| format!("{}% of the SMs", share.0)));
    if *priority == Priority::Low {
        parts.push("low priority".to_owned());
    }
    parts.push(format!("uid {}", wanted.uid));
    parts.extend(wanted.own_limit.map(|limit| format!("its own limit {limit}")));
    parts.extend(wanted.own_share.as_ref().map(|share| format!("its own share {}%", share.0)));
    parts.join(", ")
}

pub(super) fn edits(verdict: &Verdict) -> &[Edit] {
    match verdict {
        Verdict::Edit(edits) => edits,
        Verdict::Reserve(wanted) => &wanted.edits,
        Verdict::Pass | Verdict::Refuse(_) => &[],
    }
}

fn shown(text: String) -> String {
    printable::line(&text).into_owned()
}

/// A change as a person would tell it.
fn edit(edit: &Edit) -> String {
    match edit {
        Edit::Env { drop, set } => {
            let drop = drop.iter().map(|name| format!("unset {name}"));
            let set = set.iter().map(|(name, value)| format!("set {name}={value}"));
            drop.chain(set).collect::<Vec<_>>().join(", ")
        }
        Edit::Bind { source, destination, .. } => format!("mount {source} at {destination}"),
        Edit::Proc { destination } => format!("mount a fresh procfs at {destination}"),
        Edit::OwnPids => "give it a PID namespace of its own".to_owned(),
        Edit::RemoveMount { destination } => format!("remove the mount at {destination}"),
        Edit::AddDevice { path, major, minor, .. } => format!("add {path} ({major}:{minor})"),
        Edit::RemoveDevice { major, minor } => format!("remove the device {major}:{minor}"),
        Edit::RemoveRules { major, minor: None } => {
            format!("remove the rules that open the major {major}")
        }
        Edit::RemoveRules { major, minor: Some(minor) } => {
            format!("remove the rules that open the device {major}:{minor}")
        }
        Edit::CloseAllowAll { except } => {
            let majors: Vec<_> = except.iter().map(u32::to_string).collect();
            format!("open all devices but those of the majors {}", majors.join(", "))
        }
        Edit::OpenAllBut { except } => {
            let majors: Vec<_> = except.iter().map(u32::to_string).collect();
            format!("deny all devices, then open all but those of the majors {}", majors.join(", "))
        }
        Edit::AddHook { stage, path, .. } => format!("run {path} at {}", stage.as_str()),
        Edit::AddGids(gids) => {
            let gids: Vec<_> = gids.iter().map(u32::to_string).collect();
            format!("add the groups {}", gids.join(", "))
        }
        Edit::RemoveHooks { path } => format!("remove the hooks of {path}"),
        Edit::RemoveAnnotation { name } => format!("remove the annotation {name}"),
        Edit::SetAnnotation { name, value } => format!("set the annotation {name} to {value}"),
    }
}

pub(super) fn render_json(decision: &Decision, assumed: &[String]) -> Result<String, EdgeError> {
    #[derive(Serialize)]
    struct Found {
        code: &'static str,
        found: String,
        removable: bool,
    }
    #[derive(Serialize)]
    struct Refused<'a> {
        code: &'static str,
        sentence: Cow<'a, str>,
        hint: Cow<'a, str>,
    }
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        decision: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        refusal: Option<Refused<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<&'a Request>,
        #[serde(skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
        changes: Vec<String>,
        signals: Vec<Found>,
        notes: Vec<String>,
        assumed: Vec<String>,
    }
    let (word, refusal, wanted) = match &decision.verdict {
        Verdict::Pass => ("pass", None, None),
        Verdict::Edit(_) => ("edit", None, None),
        Verdict::Reserve(wanted) => ("reserve", None, Some(wanted)),
        Verdict::Refuse(Refusal { code, sentence, hint }) => {
            let (sentence, hint) = (printable::line(sentence), printable::line(hint));
            ("refuse", Some(Refused { code: code.as_str(), sentence, hint }), None)
        }
    };
    print::json(&Document {
        schema: SCHEMA,
        decision: word,
        refusal,
        request: wanted.map(|wanted| &wanted.request),
        uid: wanted.map(|wanted| wanted.uid),
        changes: edits(&decision.verdict).iter().map(edit).map(shown).collect(),
        signals: decision
            .signals
            .iter()
            .map(|signal| Found {
                code: signal.code.as_str(),
                found: signal.text(),
                removable: signal.removable,
            })
            .collect(),
        notes: decision.notes.iter().map(note).collect(),
        assumed: assumed.iter().cloned().map(shown).collect(),
    })
}
