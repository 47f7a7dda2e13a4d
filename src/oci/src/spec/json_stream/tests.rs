#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
use proptest::prelude::*;

use super::*;

/// A reader that returns so many bytes at once.
struct Pieces<'a>(&'a [u8], usize);

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = self.1.min(self.0.len()).min(into.len());
        into[..n].copy_from_slice(&self.0[..n]);
        self.0 = &self.0[n..];
        Ok(n)
    }
}

fn skips(bytes: &[u8], piece: usize) -> bool {
    let mut from = Pieces(bytes, piece);
    let mut text = Text::new(&mut from);
    text.skip().is_ok() && matches!(text.look(), Ok(None))
}

fn string(bytes: &[u8], most: usize, piece: usize) -> String {
    let mut from = Pieces(bytes, piece);
    let mut text = Text::new(&mut from);
    assert_eq!(text.scalar(most).unwrap(), Scalar::Text);
    text.kept().to_owned()
}

#[test]
fn syntax_is_taken_as_go_takes_it() {
    for good in [
        "1",
        "-0",
        "0.5e-7",
        "1E+400",
        "true",
        "null",
        "[]",
        "{}",
        " [ 1 , {\"a\" : [ ] } ]\n",
        r#""\ud800""#,
        r#""\u00e4\"\/\b""#,
        "\"\u{7f}\u{e4}\"",
        r#"{"":"","":""}"#,
    ] {
        for piece in [1, 3, PIECE] {
            assert!(skips(good.as_bytes(), piece), "{good}");
        }
    }
    for bad in [
        "",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "--1",
        "-",
        "tru",
        "nul l",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{1:1}",
        "[}",
        "{]",
        "[",
        "\"",
        "'a'",
        r#""\x""#,
        r#""\u12g4""#,
        "\"\n\"",
        "\"\0\"",
        "\u{feff}1",
        "NaN",
        "// x\n1",
        "1 2",
    ] {
        for piece in [1, 3, PIECE] {
            assert!(!skips(bad.as_bytes(), piece), "{bad}");
        }
    }
    assert!(skips(b"\"\xff\xc3\"", 1), "bad UTF-8 is the text's, not the syntax's");
}

#[test]
fn depth_has_no_limit_that_a_runtime_would_reach() {
    let nested = |n: usize| [b"[".repeat(n), b"]".repeat(n)].concat();
    assert!(skips(&nested(500_000), PIECE));
    assert!(!skips(&nested(DEEPEST + 2), PIECE));
    let objects = format!("{}1{}", "{\"a\":[".repeat(20_000), "]}".repeat(20_000));
    assert!(skips(objects.as_bytes(), 7));
    assert!(!skips(objects.replacen("]}", "}]", 1).as_bytes(), 7));
}

#[test]
fn text_is_decoded_as_go_decodes_it() {
    for piece in [1, 2, PIECE] {
        let of = |text: &[u8]| string(text, 100, piece);
        assert_eq!(of(br#""l\u0049nu\/x\t""#), "lInu/x\t");
        assert_eq!(of(br#""\ud83d\ude00\ud83dx\ude00""#), "\u{1f600}\u{fffd}x\u{fffd}");
        assert_eq!(of(br#""\ud83d\ud83d\ude00\ud83d""#), "\u{fffd}\u{1f600}\u{fffd}");
        assert_eq!(of(b"\"a\xe2\x82b\xff\xe2\x82\""), "a\u{fffd}\u{fffd}b\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(string(b"\"0123456789\"", 4, piece), "0123");
    }
}

proptest! {
    #[test]
    fn what_serde_takes_is_taken(bytes in r#"[\[\]{}",:0-9a-z.\\ -]{0,30}"#) {
        if serde_json::from_str::<serde_json::Value>(&bytes).is_ok() {
            prop_assert!(skips(bytes.as_bytes(), 5), "{}", bytes);
        }
    }

    #[test]
    fn a_string_is_the_same_in_pieces(text in ".{0,60}", piece in 1_usize..9) {
        let json = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(string(json.as_bytes(), 1000, piece), text);
    }
}
