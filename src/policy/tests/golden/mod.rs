//! Text that is compared with a file beside this one, so that a review of the file shows what changes.

/// Compares block by block, so that a difference is read where it is. `MPSGATE_BLESS=1` in the environment writes the
/// file first.
pub(crate) fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("MPSGATE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    for (now, then) in text.split("\n\n").zip(recorded.split("\n\n")) {
        assert_eq!(now, then, "\nMPSGATE_BLESS=1 records the new text");
    }
    assert_eq!(text, recorded, "MPSGATE_BLESS=1 records the new text");
}
