//! The control daemon's lenient reading of values (measured on 550).

/// Bytes of a limit; `None` removes it. Only a `G` or `M` right after the integer counts: `7.5G` is
/// 7 MiB and `1T` 1 MiB.
pub(crate) fn limit_bytes(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
    let number: i64 = digits.get(..end)?.parse().ok()?;
    let number = if text.starts_with('-') { -number } else { number };
    let shift = if digits[end..].starts_with(['G', 'g']) { 30 } else { 20 };
    let bytes = number.cast_unsigned().wrapping_shl(shift);
    (bytes != 0).then_some(bytes)
}

/// As the daemon prints it: whole GiB from one GiB up.
pub(crate) fn render_limit(bytes: u64) -> String {
    if bytes >> 30 > 0 { format!("{}G", bytes >> 30) } else { format!("{}M", bytes >> 20) }
}

/// A share in percent; everything outside (0, 100] is 100.
pub(crate) fn percentage(text: &str) -> f64 {
    text.parse().ok().filter(|share| *share > 0.0 && *share <= 100.0).unwrap_or(100.0)
}
