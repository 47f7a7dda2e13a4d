//! Text that is compared with a file, for the tests of this crate.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

/// Compares with a file below `tests/golden`. With `MPSGATE_BLESS=1` in the environment it writes the file instead.
pub(crate) fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("MPSGATE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(text == wanted, "{path} differs; it is now:\n{text}\nMPSGATE_BLESS=1 writes it");
}
