//! Strings, numbers and words: values without other values in them, read byte by byte.

use super::Text;
use crate::spec::error::SpecError;

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::spec) enum Scalar {
    Text,
    Number,
    Bool(bool),
    Null,
    Other,
}

impl Text<'_> {
    pub(super) fn bare(&mut self, first: u8, most: usize) -> Result<Scalar, SpecError> {
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

    /// Reads digits, at least one; `has_one` if the first was read already.
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

    /// The next byte, without taking it.
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

    /// Reads the rest of a string after its quote.
    pub(super) fn string(&mut self, most: usize) -> Result<(), SpecError> {
        self.start(most);
        // The first half of a surrogate pair.
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
                // A new piece begins.
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

    /// Reads a unit of UTF-16.
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
}

/// How many bytes at the beginning are neither quote, backslash nor control character.
#[inline]
pub(super) fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    let (words, rest) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // The lowest set bit is right; those above it may come from its borrow.
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
pub(super) fn replaced(mut bytes: &[u8]) -> String {
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
