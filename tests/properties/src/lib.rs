//! What must hold for every parser of bytes that somebody else wrote, one function per format. A
//! function panics where its property does not hold.
//!
//! The fuzz targets of `tests/fuzz` call them with what libFuzzer invents; `tests/corpus.rs`
//! replays the corpora and every regression in `make test`. Inputs are kept readable, so that a
//! corpus can be written by hand: text in lines where there is more than one part.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a property that does not hold is to panic"
)]

mod admission;
mod argv;
mod cdi;
mod configure;
mod device;
mod dra;
mod kubernetes;
mod ledger;
mod mps;
mod proc_text;
mod programs;
mod request;
mod settings;
mod slurm;
mod spec;
mod state;
mod token;
mod wire;

/// A target's name, as its corpus and its fuzz target have it, and its property.
pub type Target = (&'static str, fn(&[u8]));

/// Every target. `tests/corpus.rs` compares the list with the corpora and the fuzz targets.
pub const TARGETS: &[Target] = &[
    ("admission_review", admission::admission_review),
    ("api_objects", kubernetes::api_objects),
    ("argv", argv::argv),
    ("cdi", cdi::cdi),
    ("chosen_cards", kubernetes::chosen_cards),
    ("config_json", spec::config_json),
    ("device_ids", device::device_ids),
    ("dra_claim", dra::dra_claim),
    ("engine_settings", configure::engine_settings),
    ("exec_record", state::exec_record),
    ("extender", kubernetes::extender),
    ("gate_conversation", mpsgate_gate::fuzz::conversation),
    ("gate_file", mpsgate_gate::fuzz::container),
    ("gate_question", mpsgate_gate::fuzz::question),
    ("hold_message", wire::hold_message),
    ("hook_args", argv::hook_args),
    ("hook_state", spec::hook_state),
    ("inspect_annotations", kubernetes::inspect_annotations),
    ("ledger", ledger::ledger),
    ("lease", state::lease),
    ("managed", state::managed),
    ("message", wire::message),
    ("mps_answer", mps::answer),
    ("mps_log", mps::log),
    ("node_snapshot", state::node_snapshot),
    ("overlay_options", spec::overlay_options),
    ("placement", kubernetes::placement),
    ("proc_text", proc_text::proc_text),
    ("process_document", spec::process_document),
    ("programs", programs::programs),
    ("quantity", request::quantity),
    ("request", request::request),
    ("settings", settings::settings),
    ("slurm", slurm::slurm),
    ("token", token::token),
    ("token_keys", token::token_keys),
    ("token_uses", token::token_uses),
    ("unparsable", spec::unparsable),
];

/// Runs the property of one target.
///
/// # Panics
/// Where there is no such target, and where the property does not hold.
pub fn run(name: &str, data: &[u8]) {
    let (_, property) = TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    property(data);
}

/// The runtime and `explain` give the same answer about a document.
///
/// # Panics
/// Where they do not.
pub fn explained_as_decided(data: &[u8]) {
    spec::explained_as_decided(data);
}

/// The input as text; `None` lets a target pass what its parser is never given.
fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}
