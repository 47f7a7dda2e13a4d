//! JSON as a stream of bytes: read in pieces, without a tree, whatever its size and depth.
//!
//! As strict about syntax as Go's encoding/json and yajl, and as lenient about text as Go: bytes
//! that are no UTF-8 and half surrogates become U+FFFD, and a number is any number.

use std::io::{ErrorKind, Read};

use super::SpecError;

/// Read at once. Small enough to be a piece of the shim's own memory.
const PIECE: usize = 16 << 10;
/// Levels that can be open at once. Go gives up at 10,000.
const DEEPEST: usize = 1 << 20;

/// Reads tokens. After a string or number that was to be kept, [`Text::kept`] has it.
pub(super) struct Text<'r> {
    from: &'r mut dyn Read,
    piece: Vec<u8>,
    at: usize,
    end: usize,
    /// Bytes before the piece.
    before: u64,
    kept: Vec<u8>,
    most: usize,
    /// Whether the last string or number was longer than was to be kept.
    pub(super) is_cut: bool,
}

impl<'r> Text<'r> {
    pub(super) fn new(from: &'r mut dyn Read) -> Self {
        Self {
            from,
            piece: vec![0; PIECE],
            at: 0,
            end: 0,
            before: 0,
            kept: Vec::with_capacity(256),
            most: 0,
            is_cut: false,
        }
    }

    /// Whether there is another piece.
    fn fill(&mut self) -> Result<bool, SpecError> {
        self.before += self.end as u64;
        (self.at, self.end) = (0, 0);
        loop {
            match self.from.read(&mut self.piece) {
                Ok(n) => {
                    self.end = n;
                    return Ok(n > 0);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(SpecError::Read(error)),
            }
        }
    }

    fn no_json(&self) -> SpecError {
        SpecError::Broken { at: self.before + self.at.saturating_sub(1) as u64 }
    }

    fn ends(&self) -> SpecError {
        SpecError::Ends { at: self.before + self.at as u64 }
    }

    fn byte(&mut self) -> Result<u8, SpecError> {
        if self.at == self.end && !self.fill()? {
            return Err(self.ends());
        }
        let byte = self.piece[self.at];
        self.at += 1;
        Ok(byte)
    }

    /// The next byte that is no white space, which stays; `None` at the end.
    pub(super) fn look(&mut self) -> Result<Option<u8>, SpecError> {
        loop {
            while self.at < self.end {
                let byte = self.piece[self.at];
                if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                    return Ok(Some(byte));
                }
                self.at += 1;
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// The next byte that is no white space.
    #[inline]
    fn token(&mut self) -> Result<u8, SpecError> {
        if self.at < self.end && self.piece[self.at] > b' ' {
            self.at += 1;
            return Ok(self.piece[self.at - 1]);
        }
        let byte = self.look()?.ok_or_else(|| self.ends())?;
        self.at += 1;
        Ok(byte)
    }

    /// Takes a byte that has to come next.
    pub(super) fn expect(&mut self, expected: u8) -> Result<(), SpecError> {
        if self.token()? == expected { Ok(()) } else { Err(self.no_json()) }
    }

    /// The rest of a string that nobody wants: half of a usual document is such.
    fn skip_string(&mut self) -> Result<(), SpecError> {
        let rest = self.piece.get(self.at..self.end).unwrap_or_default();
        let run = plain(rest);
        self.at += run;
        if rest.get(run) == Some(&b'"') {
            self.at += 1;
            return Ok(());
        }
        self.string(0)
    }

    /// A key that nobody wants, and its colon.
    fn skip_key(&mut self) -> Result<(), SpecError> {
        self.expect(b'"')?;
        self.skip_string()?;
        self.expect(b':')
    }

    /// Whether another member or element follows in what `close` ends; takes the comma before it,
    /// or `close`.
    pub(super) fn follows(&mut self, close: u8, is_first: &mut bool) -> Result<bool, SpecError> {
        let next = self.look()?.ok_or_else(|| self.ends())?;
        if std::mem::take(is_first) {
            if next == close {
                self.at += 1;
            }
            return Ok(next != close);
        }
        self.at += 1;
        match next {
            b',' => Ok(true),
            byte if byte == close => Ok(false),
            _ => Err(self.no_json()),
        }
    }

    /// Nothing but white space follows.
    pub(super) fn ends_here(&mut self) -> Result<(), SpecError> {
        if self.look()?.is_none() {
            return Ok(());
        }
        self.at += 1;
        Err(self.no_json())
    }

    /// What was kept, as text.
    pub(super) fn kept(&mut self) -> &str {
        if std::str::from_utf8(&self.kept).is_err() {
            self.kept = replaced(&self.kept).into_bytes();
        }
        std::str::from_utf8(&self.kept).unwrap_or_default()
    }

    /// A key and its colon, of which so many bytes are kept.
    pub(super) fn key(&mut self, most: usize) -> Result<(), SpecError> {
        self.expect(b'"')?;
        self.string(most)?;
        self.expect(b':')
    }

    /// A string or number of which so many bytes are kept; any other value is skipped. Says which
    /// it was.
    pub(super) fn scalar(&mut self, most: usize) -> Result<Scalar, SpecError> {
        match self.look()?.ok_or_else(|| self.ends())? {
            b'"' => {
                self.at += 1;
                self.string(most)?;
                Ok(Scalar::Text)
            }
            b'{' | b'[' => {
                self.skip()?;
                Ok(Scalar::Other)
            }
            first => {
                self.at += 1;
                self.bare(first, most)
            }
        }
    }

    fn bare(&mut self, first: u8, most: usize) -> Result<Scalar, SpecError> {
        match first {
            b't' => self.word(b"rue").map(|()| Scalar::Bool(true)),
            b'f' => self.word(b"alse").map(|()| Scalar::Bool(false)),
            b'n' => self.word(b"ull").map(|()| Scalar::Null),
            _ => self.number(first, most).map(|()| Scalar::Number),
        }
    }

    fn word(&mut self, rest: &[u8]) -> Result<(), SpecError> {
        for expected in rest {
            if self.byte()? != *expected {
                return Err(self.no_json());
            }
        }
        Ok(())
    }

    fn start(&mut self, most: usize) {
        self.kept.clear();
        self.most = most;
        self.is_cut = false;
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.most - self.kept.len();
        self.is_cut |= bytes.len() > room;
        self.kept.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// Digits of which there has to be one; the first may have been read.
    fn digits(&mut self, mut has_one: bool) -> Result<(), SpecError> {
        loop {
            match self.ahead()? {
                Some(digit) if digit.is_ascii_digit() => {
                    has_one = true;
                    self.keep(&[digit]);
                    self.at += 1;
                }
                Some(_) | None if has_one => return Ok(()),
                Some(_) => {
                    self.at += 1;
                    return Err(self.no_json());
                }
                None => return Err(self.ends()),
            }
        }
    }

    /// The next byte, which stays.
    fn ahead(&mut self) -> Result<Option<u8>, SpecError> {
        if self.at == self.end && !self.fill()? {
            return Ok(None);
        }
        Ok(Some(self.piece[self.at]))
    }

    fn number(&mut self, first: u8, most: usize) -> Result<(), SpecError> {
        self.start(most);
        self.keep(&[first]);
        let first = if first == b'-' {
            let digit = self.byte()?;
            self.keep(&[digit]);
            digit
        } else {
            first
        };
        match first {
            b'0' => {}
            b'1'..=b'9' => self.digits(true)?,
            _ => return Err(self.no_json()),
        }
        if self.ahead()? == Some(b'.') {
            self.at += 1;
            self.keep(b".");
            self.digits(false)?;
        }
        if matches!(self.ahead()?, Some(b'e' | b'E')) {
            self.at += 1;
            self.keep(b"e");
            if let Some(sign @ (b'+' | b'-')) = self.ahead()? {
                self.at += 1;
                self.keep(&[sign]);
            }
            self.digits(false)?;
        }
        Ok(())
    }

    /// The rest of a string whose quote was read.
    fn string(&mut self, most: usize) -> Result<(), SpecError> {
        self.start(most);
        // Half a pair of surrogates.
        let mut half = None;
        loop {
            let run = plain(self.piece.get(self.at..self.end).unwrap_or_default());
            if run > 0 {
                self.flush(&mut half);
                if self.most > 0 {
                    let room = self.most - self.kept.len();
                    self.is_cut |= run > room;
                    self.kept.extend_from_slice(&self.piece[self.at..self.at + run.min(room)]);
                }
                self.at += run;
            }
            match self.byte()? {
                b'"' => {
                    self.flush(&mut half);
                    return Ok(());
                }
                b'\\' => self.escape(&mut half)?,
                // A new piece began.
                byte if byte >= b' ' => self.at -= 1,
                _ => return Err(self.no_json()),
            }
        }
    }

    fn escape(&mut self, half: &mut Option<u32>) -> Result<(), SpecError> {
        let escape = self.byte()?;
        let meant = match escape {
            b'"' | b'\\' | b'/' => escape,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.unit(half),
            _ => return Err(self.no_json()),
        };
        self.flush(half);
        self.keep(&[meant]);
        Ok(())
    }

    /// A unit of UTF-16.
    fn unit(&mut self, half: &mut Option<u32>) -> Result<(), SpecError> {
        let mut unit = 0;
        for _ in 0..4 {
            let digit = char::from(self.byte()?).to_digit(16).ok_or_else(|| self.no_json())?;
            unit = unit << 4 | digit;
        }
        if let (Some(high), 0xdc00..=0xdfff) = (*half, unit) {
            *half = None;
            self.keep_char(char::from_u32(0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00)));
            return Ok(());
        }
        self.flush(half);
        match unit {
            0xd800..=0xdbff => *half = Some(unit),
            unit => self.keep_char(char::from_u32(unit)),
        }
        Ok(())
    }

    fn flush(&mut self, half: &mut Option<u32>) {
        if half.take().is_some() {
            self.keep_char(None);
        }
    }

    fn keep_char(&mut self, c: Option<char>) {
        let mut bytes = [0; 4];
        let text = c.unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut bytes);
        self.keep(text.as_bytes());
    }

    /// Skips a value, however deep it is.
    pub(super) fn skip(&mut self) -> Result<(), SpecError> {
        let mut open = Open::default();
        // The innermost that is open is an object.
        let mut object = false;
        let mut next = self.token()?;
        loop {
            // `next` begins a value.
            match next {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    if !self.follows(if next == b'{' { b'}' } else { b']' }, &mut true)? {
                        // Empty.
                    } else if open.levels == DEEPEST {
                        return Err(SpecError::Bottomless);
                    } else {
                        object = next == b'{';
                        open.push(object);
                        next = self.element(object)?;
                        continue;
                    }
                }
                byte => drop(self.bare(byte, 0)?),
            }
            loop {
                if open.levels == 0 {
                    return Ok(());
                }
                match self.token()? {
                    b',' => break,
                    b'}' if object => {}
                    b']' if !object => {}
                    _ => return Err(self.no_json()),
                }
                object = open.pop();
            }
            next = self.element(object)?;
        }
    }

    /// The beginning of the next value, of an object's member past its key.
    fn element(&mut self, object: bool) -> Result<u8, SpecError> {
        if object {
            self.skip_key()?;
        }
        self.token()
    }
}

/// What a value was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scalar {
    Text,
    Number,
    Bool(bool),
    Null,
    Other,
}

/// Which of the open levels are objects, a bit for each.
#[derive(Default)]
struct Open {
    bits: Vec<u64>,
    levels: usize,
}

impl Open {
    fn push(&mut self, object: bool) {
        let (word, bit) = (self.levels / 64, self.levels % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        if let Some(bits) = self.bits.get_mut(word) {
            *bits = *bits & !(1 << bit) | u64::from(object) << bit;
        }
        self.levels += 1;
    }

    /// Leaves the innermost; says whether what it stands in is an object.
    fn pop(&mut self) -> bool {
        self.levels -= 1;
        let last = self.levels.wrapping_sub(1);
        self.bits.get(last / 64).is_some_and(|bits| bits >> (last % 64) & 1 == 1)
    }
}

/// How many bytes at the beginning are neither quote, backslash nor control character.
#[inline]
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    let (words, rest) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest bit that is set is right; those above it may come of its borrow.
        let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word;
        let quote = below(word ^ (ONES * u64::from(b'"')), 1);
        let backslash = below(word ^ (ONES * u64::from(b'\\')), 1);
        let found = (quote | backslash | below(word, 0x20)) & (ONES << 7);
        if found != 0 {
            return i * 8 + found.trailing_zeros() as usize / 8;
        }
    }
    let is_plain = |byte: &u8| *byte >= b' ' && !matches!(byte, b'"' | b'\\');
    words.len() * 8 + rest.iter().take_while(|byte| is_plain(byte)).count()
}

/// Bytes as text the way Go reads them: U+FFFD for each byte that is not UTF-8.
fn replaced(mut bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 8);
    while !bytes.is_empty() {
        let error = match std::str::from_utf8(bytes) {
            Ok(rest) => {
                text.push_str(rest);
                break;
            }
            Err(error) => error,
        };
        let (good, bad) = bytes.split_at(error.valid_up_to());
        text.push_str(std::str::from_utf8(good).unwrap_or_default());
        let length = error.error_len().unwrap_or(bad.len());
        text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, length));
        bytes = bad.get(length..).unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use proptest::prelude::*;

    use super::*;

    /// Hands out so many bytes at once.
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
            assert_eq!(
                of(b"\"a\xe2\x82b\xff\xe2\x82\""),
                "a\u{fffd}\u{fffd}b\u{fffd}\u{fffd}\u{fffd}"
            );
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
}
