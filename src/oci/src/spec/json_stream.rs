//! JSON as a stream of bytes: read in pieces, without a tree, whatever its size and depth.
//!
//! It is as strict about syntax as Go's encoding/json and yajl, and as lenient about text as Go:
//! bytes that are not UTF-8 and half surrogates become U+FFFD, and a number is any number.

use std::io::{ErrorKind, Read};

use super::error::SpecError;

mod scalar;
#[cfg(test)]
mod tests;

pub(super) use scalar::Scalar;
use scalar::{plain, replaced};

/// The bytes that are read at once. Small enough to be a piece of the shim's own memory.
const PIECE: usize = 16 << 10;
/// The most levels that can be open at once. Go gives up at 10,000.
const DEEPEST: usize = 1 << 20;

/// Reads tokens. After a string or number that was to be kept, [`Text::kept`] returns it.
pub(super) struct Text<'r> {
    from: &'r mut dyn Read,
    piece: Vec<u8>,
    at: usize,
    end: usize,
    /// Bytes before the current piece.
    before: u64,
    kept: Vec<u8>,
    most: usize,
    /// Whether the last string or number was cut to the length that was to be kept.
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

    /// Reads the next piece; returns whether there is one.
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

    /// The next byte that is not white space, without taking it; `None` at the end.
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

    /// Takes the next byte that is not white space.
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

    /// Takes a byte that must come next.
    pub(super) fn expect(&mut self, expected: u8) -> Result<(), SpecError> {
        if self.token()? == expected { Ok(()) } else { Err(self.no_json()) }
    }

    /// Skips the rest of a string: half of a usual document is strings that nothing reads.
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

    /// Skips a key and its colon.
    fn skip_key(&mut self) -> Result<(), SpecError> {
        self.expect(b'"')?;
        self.skip_string()?;
        self.expect(b':')
    }

    /// Whether another member or element follows in an object or list that `close` ends; takes the
    /// comma before it, or `close`.
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

    /// Checks that only white space follows.
    pub(super) fn ends_here(&mut self) -> Result<(), SpecError> {
        if self.look()?.is_none() {
            return Ok(());
        }
        self.at += 1;
        Err(self.no_json())
    }

    /// The kept text.
    pub(super) fn kept(&mut self) -> &str {
        if std::str::from_utf8(&self.kept).is_err() {
            self.kept = replaced(&self.kept).into_bytes();
        }
        std::str::from_utf8(&self.kept).unwrap_or_default()
    }

    /// Reads a key and its colon, and keeps at most so many bytes of the key.
    pub(super) fn key(&mut self, most: usize) -> Result<(), SpecError> {
        self.expect(b'"')?;
        self.string(most)?;
        self.expect(b':')
    }

    /// Reads a string or number and keeps at most so many bytes; skips any other value. Returns
    /// which it was.
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

    /// Skips a value, however deep it is.
    pub(super) fn skip(&mut self) -> Result<(), SpecError> {
        let mut open = Open::default();
        // Whether the innermost open level is an object.
        let mut object = false;
        let mut next = self.token()?;
        loop {
            // `next` begins a value.
            match next {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    if !self.follows(if next == b'{' { b'}' } else { b']' }, &mut true)? {
                        // An empty object or list.
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

    /// The beginning of the next value; of an object's member, after its key.
    fn element(&mut self, object: bool) -> Result<u8, SpecError> {
        if object {
            self.skip_key()?;
        }
        self.token()
    }
}

/// Which of the open levels are objects, one bit for each level.
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

    /// Leaves the innermost level; returns whether the level around it is an object.
    fn pop(&mut self) -> bool {
        self.levels -= 1;
        let last = self.levels.wrapping_sub(1);
        self.bits.get(last / 64).is_some_and(|bits| bits >> (last % 64) & 1 == 1)
    }
}
