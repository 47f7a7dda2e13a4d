//! For `tests/properties` alone: parsers of what others wrote.

/// Holds what must hold for the annotations of nodes and pods.
///
/// # Panics
/// Where it does not.
pub fn annotations(text: &str) {
    crate::annotations::check(text);
}
