//! For `tests/properties` alone: parsers of text that others wrote.

/// Checks the rules for annotations of nodes and pods.
///
/// # Panics
/// If one is broken.
pub fn annotations(text: &str) {
    crate::annotations::check(text);
}
