//! Text as somebody hostile writes it, and whether what was made of it may be printed.

/// It turns the reading, ends a text of C, moves the cursor, and begins a line.
pub const ODD: &str = "a\u{202e}b\0\u{1b}[2J\u{9b}\u{7f}\u{2066}\nc";

/// The same, until it has so many bytes.
#[must_use]
pub fn odd(bytes: usize) -> String {
    ODD.repeat(bytes.div_ceil(ODD.len()))
}

/// # Panics
/// Where a terminal would obey some of `text`, or a reader be shown another one. Lines may end.
#[track_caller]
pub fn assert_printable(text: &str) {
    let turns = |c: char| {
        let marks = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
        marks.contains(&c) || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let obeyed = |(_, c): &(usize, char)| (c.is_control() && *c != '\n') || turns(*c);
    if let Some((at, letter)) = text.char_indices().find(obeyed) {
        panic!("{letter:?} as it is, at byte {at} of {}: {:?}", text.len(), around(text, at));
    }
}

fn around(text: &str, at: usize) -> &str {
    let from = text.floor_char_boundary(at.saturating_sub(80));
    let until = text.ceil_char_boundary(at.saturating_add(80).min(text.len()));
    text.get(from..until).unwrap_or_default()
}
