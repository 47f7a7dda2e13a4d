//! Which of a node's runtime handlers lead through mpsgate: an annotation of the node, and a
//! condition. Pure.
//!
//! A pod chooses a handler by its RuntimeClass. One that does not lead to mpsgate-runtime starts
//! containers that nobody has evaluated.

use std::collections::BTreeMap;

use mpsgate_model::HandlerReport;
use serde::{Deserialize, Serialize};

/// The annotation: a [`HandlerReport`] as JSON.
pub const HANDLERS: &str = "mpsgate.io/handlers";
/// How it is laid out.
const VERSION: u64 = 1;
/// The condition: `True` while containers of a handler bypass mpsgate.
pub const BYPASS: &str = "GPUMemorySharingBypass";

/// What a node says of its handlers; where nothing that can be read, why.
pub(crate) fn of(annotations: &BTreeMap<String, String>) -> Result<HandlerReport, String> {
    let text = annotations.get(HANDLERS).ok_or_else(|| format!("has no annotation {HANDLERS}"))?;
    let odd = |why| format!("has an annotation {HANDLERS} that cannot be read: {why}");
    parse_handlers(text).map_err(odd)
}

/// As the annotation has it.
pub(crate) fn render(report: &HandlerReport) -> String {
    #[derive(Serialize)]
    struct Versioned<'a> {
        version: u64,
        #[serde(flatten)]
        report: &'a HandlerReport,
    }
    // Text and lists of text: nothing in it can fail.
    serde_json::to_string(&Versioned { version: VERSION, report }).unwrap_or_default()
}

/// The annotation [`HANDLERS`].
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse_handlers(text: &str) -> Result<HandlerReport, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }
    let error = |error: serde_json::Error| error.to_string();
    match serde_json::from_str(text).map_err(error)? {
        Version { version: VERSION } => serde_json::from_str(text).map_err(error),
        Version { version } => Err(format!("its version is {version}, and not {VERSION}")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mpsgate_model::By;

    use super::*;

    fn report() -> HandlerReport {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        HandlerReport {
            engine: "containerd".to_owned(),
            by: By::Engine,
            default: Some("mpsgate".to_owned()),
            led: names(&["mpsgate", "runc"]),
            round: names(&["kata", "nvidia"]),
            unknown: BTreeSet::new(),
        }
    }

    #[test]
    fn reads_back_what_it_wrote() {
        let text = render(&report());
        assert_eq!(
            text,
            r#"{"version":1,"engine":"containerd","by":"engine","default":"mpsgate","led":["mpsgate","runc"],"round":["kata","nvidia"]}"#
        );
        assert_eq!(parse_handlers(&text), Ok(report()));
        for by in [By::Nobody, By::Files, By::Engine] {
            assert_eq!(serde_json::to_value(by).ok(), Some(by.as_str().into()));
        }
    }

    #[test]
    fn another_version_and_what_is_no_report_are_told_apart_from_an_empty_one() {
        assert_eq!(parse_handlers(r#"{"version":1}"#), Ok(HandlerReport::default()));
        assert_eq!(
            parse_handlers(r#"{"version":2,"led":3}"#),
            Err("its version is 2, and not 1".to_owned())
        );
        for text in ["", "[]", "{}", r#"{"version":1,"led":["a",1]}"#, "\u{feff}{}"] {
            assert!(parse_handlers(text).is_err(), "{text}");
        }
    }
}
