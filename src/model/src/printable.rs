//! Text from outside as it may be printed: on terminals, in logs, in what engines show.
//!
//! Text that a container's author writes reaches an operator's terminal. There a control character
//! moves the cursor, clears the screen or sets the title, a line feed forges a line of mpsgate, and
//! a change of direction makes a text look like another one. All of these are shown as Rust shows
//! them in quotes (`\u{1b}`), which is also what mpsgated's log does. Escaping an escaped text
//! changes nothing. Where nobody needs to see the character, in an answer or an event, [`plain`]
//! replaces it, so that the text does not grow. JSON has its own escapes ([`json`]).

use std::borrow::Cow;
use std::error::Error;
use std::fmt::{Display, Write as _};

/// The most characters of a value, such as a path or a variable.
const VALUE_MAX: usize = 256;
/// The most characters of a line.
const LINE_MAX: usize = 4096;
/// The most characters of the mark at the end of a cut text.
const MARK_MAX: usize = 40;

/// Escapes one line, a sentence with text from outside. An absurdly long one is cut, with a mark.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    shown(text, LINE_MAX)
}

/// Escapes one value: a name, a path, the value of a variable. A long one is cut, with a mark.
#[must_use]
pub fn value(text: &str) -> Cow<'_, str> {
    shown(text, VALUE_MAX)
}

fn shown(text: &str, max: usize) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    if text.len() <= max && text.bytes().all(plain) {
        return Cow::Borrowed(text);
    }
    // A cut text with its mark is no longer than a text that fits: escaping it again changes
    // nothing.
    let fits = text.chars().map(width).sum::<usize>() <= max;
    let max = if fits { max } else { max - MARK_MAX };
    let mut shown = String::with_capacity(text.len().min(max));
    let mut count = 0;
    for (at, letter) in text.char_indices() {
        count += width(letter);
        if count > max {
            // Writing to a `String` cannot fail.
            let _ = write!(shown, "… ({} bytes more)", text.len() - at);
            break;
        }
        match letter {
            '\\' | '"' | '\'' => shown.push(letter),
            letter => shown.extend(letter.escape_debug()),
        }
    }
    Cow::Owned(shown)
}

/// The number of characters that show it.
fn width(letter: char) -> usize {
    match letter {
        '\\' | '"' | '\'' => 1,
        letter => letter.escape_debug().count(),
    }
}

/// Makes bytes UTF-8 text in place: each byte that is not part of UTF-8 becomes a `?`, so that
/// nothing grows or moves.
pub fn make_text(bytes: &mut [u8]) {
    let mut rest = bytes;
    while let Err(error) = std::str::from_utf8(rest) {
        let from = error.valid_up_to();
        let end = error.error_len().map_or(rest.len(), |length| from + length);
        let (before, after) = std::mem::take(&mut rest).split_at_mut(end);
        before.split_at_mut(from).1.fill(b'?');
        rest = after;
    }
}

/// One line without the characters that a terminal obeys or that change the reading direction: each
/// becomes U+FFFD.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_obeyed(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// As [`plain`], but keeps line feeds.
#[must_use]
pub fn lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// Makes a JSON document printable: in its strings each character that a terminal obeys becomes
/// JSON's own escape (`\u202e`). So a terminal obeys none, nothing is lost, and programs read the
/// same document. A line feed is the document's own: JSON has escaped those in strings already.
#[must_use]
pub fn json(document: String) -> String {
    let obeyed = |c: char| c != '\n' && is_obeyed(c);
    if !document.contains(obeyed) {
        return document;
    }
    let mut shown = String::with_capacity(document.len() + document.len() / 8);
    for letter in document.chars() {
        if obeyed(letter) {
            // All of them are in the basic plane, where one escape suffices. Writing to a `String`
            // cannot fail.
            let _ = write!(shown, "\\u{:04x}", u32::from(letter));
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// At most so many characters of a text; `…` is the last of those that are left of a longer one.
#[must_use]
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.chars().nth(most).is_none() {
        return Cow::Borrowed(text);
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// At most so many bytes of a text, in whole characters. A text that was cut ends with `…`.
#[must_use]
pub fn cut_bytes(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most.saturating_sub('…'.len_utf8())));
        text.push('…');
    }
    text
}

/// The first `most` of `all`, and how many more there are: `a, b and 3 more`. Text from outside is
/// not escaped.
#[must_use]
pub fn few(
    all: impl IntoIterator<Item: Display, IntoIter: ExactSizeIterator>,
    most: usize,
) -> String {
    let all = all.into_iter();
    let more = all.len().saturating_sub(most);
    let named: Vec<String> = all.take(most).map(|one| one.to_string()).collect();
    let named = named.join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// An error's text and its causes, in one line. Text from outside is not escaped.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut texts = vec![error.to_string()];
    texts.append(&mut causes(error));
    texts.join(": ")
}

/// The causes of an error, the nearest first, without those that an earlier text quotes.
#[must_use]
pub fn causes(error: &dyn Error) -> Vec<String> {
    let mut quoted = error.to_string();
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !quotes(&quoted, &text) {
            quoted.push('\n');
            quoted.push_str(&text);
            causes.push(text);
        }
        next = cause.source();
    }
    causes
}

/// Whether `earlier` has `text` in whole words: "cannot" does not quote "no".
fn quotes(earlier: &str, text: &str) -> bool {
    let is_end = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    earlier.match_indices(text).any(|(at, _)| {
        let (before, rest) = earlier.split_at(at);
        let after = rest.chars().nth(text.chars().count());
        text.is_empty() || (is_end(before.chars().next_back()) && is_end(after))
    })
}

/// Control characters (C0, DEL, C1), ends of lines and paragraphs, and Unicode's bidirectional
/// controls (UAX #9).
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_moves_a_terminal_is_shown_and_not_done() {
        for (text, shown) in [
            ("/dev/nvidia0", "/dev/nvidia0"),
            ("two words, \"quoted\" and \\", "two words, \"quoted\" and \\"),
            ("Größe 内存 ✓", "Größe 内存 ✓"),
            ("", ""),
            ("a\nmpsgate: all is well", "a\\nmpsgate: all is well"),
            ("\r\t\0", "\\r\\t\\0"),
            ("\u{1b}]0;title\u{7}\u{1b}[2J", "\\u{1b}]0;title\\u{7}\\u{1b}[2J"),
            ("\u{7f}\u{9b}2J\u{85}", "\\u{7f}\\u{9b}2J\\u{85}"),
            ("\u{202e}txt.exe\u{2066}x\u{2069}", "\\u{202e}txt.exe\\u{2066}x\\u{2069}"),
            (
                "\u{200e}\u{200f}\u{61c}\u{2028}\u{feff}",
                "\\u{200e}\\u{200f}\\u{61c}\\u{2028}\\u{feff}",
            ),
        ] {
            assert_eq!(line(text), shown, "{text:?}");
            assert_eq!(value(text), shown, "{text:?}");
        }
    }

    #[test]
    fn what_is_too_long_is_cut_between_characters_with_a_mark() {
        for (text, most, chars, bytes) in [
            ("", 3, "", ""),
            ("abc", 3, "abc", "abc"),
            ("abcd", 3, "ab…", "…"),
            ("üüüü", 4, "üüüü", "…"),
            ("üüüü", 8, "üüüü", "üüüü"),
            ("üüüüü", 8, "üüüüü", "üü…"),
        ] {
            assert_eq!(cut(text, most), chars, "{text} {most}");
            assert_eq!(cut_bytes(text.to_owned(), most), bytes, "{text} {most}");
        }
    }

    #[test]
    fn what_a_terminal_obeys_is_replaced() {
        let text = "a\u{1b}[2J\u{9b}\u{7f}\u{202e}\u{2069}b\r\tc\nd ü – 名";
        assert_eq!(plain(text), "a�[2J����b��c�d ü – 名");
        assert_eq!(lines(text), "a�[2J����b��c\nd ü – 名");
    }

    #[test]
    fn in_a_json_document_what_a_terminal_obeys_is_escaped_and_read_as_before() {
        let hostile = "a\u{202e}b\u{2066}\u{9b}2J\u{7f}\u{2028}\u{61c}\0\u{1b}\n ü – 名 🙂 \\u202e";
        for text in [hostile.to_owned(), hostile.repeat((1 << 20) / hostile.len())] {
            let value = serde_json::json!({"key \u{202e}": [text, 1, null]});
            for document in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let shown = json(document);
                assert!(!shown.contains(|c: char| c != '\n' && is_obeyed(c)), "{shown:.200}");
                assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
            }
        }
        let shown = json("\"\u{202e}\u{7f}\u{85}\u{200f}\"\n".to_owned());
        assert_eq!(shown, "\"\\u202e\\u007f\\u0085\\u200f\"\n");
        assert_eq!(json("{\n  \"name\": \"名 ü\"\n}\n".to_owned()), "{\n  \"name\": \"名 ü\"\n}\n");
    }

    #[test]
    fn the_first_are_named_and_the_others_counted() {
        assert_eq!(few(["a", "b"], 2), "a, b");
        assert_eq!(few(&["a".to_owned(), "b".to_owned(), "c".to_owned()], 2), "a, b and 1 more");
        assert_eq!(few((1..=300).collect::<Vec<u32>>(), 3), "1, 2, 3 and 297 more");
        assert_eq!(few(Vec::<String>::new(), 3), "");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Link(&'static str, #[source] Option<Box<Link>>);

    #[test]
    fn a_cause_that_was_quoted_is_not_repeated() {
        let within = |text, error| Link(text, Some(Box::new(error)));
        let refused = || Link("connection refused", None);
        assert_eq!(chain(&refused()), "connection refused");
        assert_eq!(chain(&within("no answer", refused())), "no answer: connection refused");
        let quoting = within("tcp: connection refused (111)", refused());
        assert_eq!(chain(&quoting), "tcp: connection refused (111)");
        let outer = within("no answer", within("tcp: connection refused", refused()));
        assert_eq!(causes(&outer), ["tcp: connection refused"]);
        assert_eq!(chain(&within("cannot try", Link("no", None))), "cannot try: no");
    }

    #[test]
    fn what_is_too_long_is_cut_with_a_mark() {
        let long = "x".repeat(1000);
        assert_eq!(value(&long), format!("{}… (784 bytes more)", "x".repeat(216)));
        assert_eq!(line(&long), long);
        let escapes = "\u{1b}".repeat(100);
        let cut = value(&escapes);
        assert!(cut.ends_with("\\u{1b}… (64 bytes more)"), "{cut}");
        for long in ["\n".repeat(1 << 20), "x".repeat(LINE_MAX + 1)] {
            let cut = line(&long).into_owned();
            assert!(cut.chars().count() <= LINE_MAX);
            assert_eq!(line(&cut), cut);
        }
    }

    #[test]
    fn what_a_terminal_obeys_is_replaced_and_what_people_read_is_not() {
        for (text, shown) in [
            ("gpu-1: 7 GiB, ü – 名 🙂", "gpu-1: 7 GiB, ü – 名 🙂"),
            ("\u{1b}]0;x\u{7}\u{1b}[2J", "�]0;x��[2J"),
            ("a\nb\rc\td", "a�b�c�d"),
            ("\u{9b}2J\u{7f}\u{85}", "�2J��"),
            ("\u{202e}\u{2066}\u{2028}\u{200f}\u{61c}", "�����"),
        ] {
            assert_eq!(plain(text), shown);
        }
    }

    proptest! {
        #[test]
        fn nothing_else_gets_through_and_twice_is_once(text in ".*", control in any::<char>()) {
            let text = format!("{text}{control}{text}\n");
            let once = line(&text).into_owned();
            prop_assert!(!once.chars().any(|c| c.is_control()), "{once:?}");
            let directions = ['\u{200e}', '\u{200f}', '\u{61c}', '\u{2028}', '\u{2029}'];
            let bidi = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            prop_assert!(!once.chars().any(|c| directions.contains(&c) || bidi(c)), "{once:?}");
            let twice = line(&once).into_owned();
            prop_assert_eq!(twice, once);
        }
    }

    #[test]
    fn each_byte_that_is_no_text_is_a_question_mark_and_no_other_is_touched() {
        let cases: [(&[u8], &str); 9] = [
            (b"", ""),
            ("a\u{e9}\u{1f600}".as_bytes(), "a\u{e9}\u{1f600}"),
            (b"\xff", "?"),
            (b"a\xff\xfeb", "a??b"),
            (b"\xe2\"", "?\""),
            (b"\xed\xa0\x80:", "???:"),
            (b"x\xf0\x9f\x98", "x???"),
            (b"\xc0\x80x", "??x"),
            (b"\xc3\xa9\xc3\xff\xc3\xa9", "\u{e9}??\u{e9}"),
        ];
        for (bytes, expected) in cases {
            let mut made = bytes.to_vec();
            make_text(&mut made);
            assert_eq!(String::from_utf8(made).unwrap(), expected, "{bytes:?}");
        }
        // In one pass, however many there are.
        let mut many = vec![0xff; 1 << 20];
        make_text(&mut many);
        assert_eq!(many, vec![b'?'; 1 << 20]);
    }
}
