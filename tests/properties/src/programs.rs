//! Programs that somebody else built.

/// Header and program headers are read inside the bytes, and a program that names a loader is never
/// called static.
pub(crate) fn programs(data: &[u8]) {
    let found = mpsgate_cli::fuzz::is_static(data);
    if found.is_some() {
        assert!(data.starts_with(b"\x7fELF\x02\x01"));
    }
    // Cut off anywhere, it is the same or unknown.
    for end in [data.len() / 2, data.len().saturating_sub(1)] {
        let cut = mpsgate_cli::fuzz::is_static(&data[..end]);
        assert!(cut.is_none() || cut == found);
    }
}
