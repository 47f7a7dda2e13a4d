//! What an OCI engine hands to a runtime: argv, `config.json`, hook state and log file; and the
//! node's CDI specifications.
//!
//! Each module owns one of these formats. All of them are lenient when they read, because engines
//! and runtimes add fields and flags with every release, and exact when they write. Nothing here
//! decides anything, reads settings, or talks to the daemon.
#![warn(clippy::pedantic)]

pub mod argv;
pub mod cdi;
pub mod hook_state;
pub mod process_edit;
pub mod runtime_log;
pub mod spec;

/// The JSON type of a value, worded for "the … is TYPE, not an object".
fn json_type(value: &serde_json::Value) -> &'static str {
    use serde_json::Value;
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
