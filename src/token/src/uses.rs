//! The uses of tokens: one line of JSON for each token, so that a use costs one line.
//!
//! A use is never forgotten while its key still confirms unused tokens: if the pod is gone, the
//! line stays without a name. A closed key confirms only what is in its record, so there such lines
//! are removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

use crate::TokenId;

/// The first line of a closed key's record. An earlier version does not read it as a use and
/// refuses the file; otherwise it would accept tokens that are not in the record.
const CLOSED: &[u8] = b"{\"closed\":1}\n";
/// No line that mpsgated writes is longer: names have 253 letters at most (DNS-1123), a uid is
/// shorter.
const LINE_MAX: u64 = 4096;

/// The container that a token belongs to from its first use on. The engine names it, and a pod's
/// author cannot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bearer {
    /// The pod's uid.
    pub pod: String,
    /// The container's name in the pod's specification, init containers among them.
    pub container: String,
}

/// The owner of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// Unused: the first bearer may take it.
    Unused,
    /// It belongs to this bearer.
    Bearer(&'a Bearer),
    /// It belonged to a bearer whose pod is gone, or its key is closed: nobody may use it any more.
    Spent,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: TokenId,
    pod: String,
    container: String,
}

/// The uses of one key's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    by_token: BTreeMap<TokenId, Bearer>,
    /// Tokens of pods that are gone.
    spent: BTreeSet<TokenId>,
    length: u64,
    closed: bool,
    /// The first line that is not a use, if there is one.
    damaged: Option<u64>,
}

impl Uses {
    /// Reads the file's text, of any length. Text after the last line feed was being written when
    /// the power went, before any caller got an answer. A whole line that [`Self::line`] does not
    /// write may have been a use: then the used tokens are not all known, and the record is
    /// [`Self::damaged`].
    ///
    /// # Errors
    /// Errors of `text`.
    pub fn read(mut text: impl BufRead) -> io::Result<Self> {
        let mut uses = Self::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = text.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? as u64;
            if line.ends_with(b"\n") {
                uses.length += read;
                if !uses.take(&line, number) {
                    uses.damaged.get_or_insert(number);
                }
                continue;
            }
            if read < LINE_MAX {
                break;
            }
            match skip_line(&mut text)? {
                (skipped, true) => {
                    uses.length += read + skipped;
                    uses.damaged.get_or_insert(number);
                }
                (_, false) => break,
            }
        }
        Ok(uses)
    }

    /// Takes a line; returns whether it has the right form and contradicts no earlier line.
    fn take(&mut self, line: &[u8], number: u64) -> bool {
        if line == CLOSED && number == 1 {
            self.closed = true;
            return true;
        }
        let Ok(Line { id, pod, container }) = serde_json::from_slice(line) else { return false };
        let bearer = Bearer { pod, container };
        if bearer == gone() {
            // A bearer who was named before has lost the token.
            let unnamed = self.by_token.remove(&id).is_none();
            return self.spent.insert(id) && unnamed;
        }
        if self.spent.contains(&id) {
            return false;
        }
        match self.by_token.get(&id) {
            Some(first) => *first == bearer,
            None => self.by_token.insert(id, bearer).is_none(),
        }
    }

    /// The line of a use.
    ///
    /// # Errors
    /// An error of `serde_json`, for which there is no reason.
    pub fn line(id: TokenId, bearer: &Bearer) -> serde_json::Result<Vec<u8>> {
        let Bearer { pod, container } = bearer.clone();
        let mut line = serde_json::to_vec(&Line { id, pod, container })?;
        line.push(b'\n');
        Ok(line)
    }

    /// The whole record in its shortest form.
    ///
    /// # Errors
    /// An error of `serde_json`, for which there is no reason.
    pub(crate) fn text(&self) -> serde_json::Result<Vec<u8>> {
        let mut text = if self.closed { CLOSED.to_vec() } else { Vec::new() };
        let unnamed = gone();
        for id in &self.spent {
            text.extend(Self::line(*id, &unnamed)?);
        }
        for (id, bearer) in &self.by_token {
            text.extend(Self::line(*id, bearer)?);
        }
        Ok(text)
    }

    /// Bytes of the valid lines: the offset of the next one.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The owner of a token.
    #[must_use]
    pub fn owner(&self, id: TokenId) -> Owner<'_> {
        match self.by_token.get(&id) {
            Some(bearer) => Owner::Bearer(bearer),
            None if self.is_closed() || self.spent.contains(&id) => Owner::Spent,
            None => Owner::Unused,
        }
    }

    /// All bearers, except those whose pods are known to be gone.
    pub fn bearers(&self) -> impl Iterator<Item = &Bearer> {
        self.by_token.values()
    }

    /// Whether tokens that are not in the record are refused.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed || self.damaged.is_some()
    }

    /// The first line that is not a use: the file then does not have all uses.
    #[must_use]
    pub fn damaged(&self) -> Option<u64> {
        self.damaged
    }

    /// Removes the names of pods that are gone; returns whether that shortens the record.
    pub(crate) fn forget(&mut self, lives: &impl Fn(&str) -> bool) -> bool {
        let before = self.by_token.len();
        let (closed, spent) = (self.is_closed(), &mut self.spent);
        self.by_token.retain(|id, bearer| {
            let stays = lives(&bearer.pod);
            if !stays && !closed {
                spent.insert(*id);
            }
            stays
        });
        before > self.by_token.len()
    }

    /// Closes the record: from now on only tokens in it are accepted.
    pub(crate) fn close(&mut self) {
        (self.closed, self.damaged) = (true, None);
        self.spent.clear();
    }

    /// Records a use whose line of `bytes` is in the file.
    pub(crate) fn written(&mut self, id: TokenId, bearer: Bearer, bytes: usize) {
        self.length += bytes as u64;
        self.by_token.insert(id, bearer);
    }

    /// Records the length of a file that was replaced whole.
    pub(crate) fn replaced(&mut self, bytes: usize) {
        self.length = bytes as u64;
    }
}

/// The bearer in place of one whose pod is gone: no pod and no container has this name.
fn gone() -> Bearer {
    Bearer { pod: String::new(), container: String::new() }
}

/// Skips to the line's end; returns how many bytes, and whether there was an end.
fn skip_line(text: &mut impl BufRead) -> io::Result<(u64, bool)> {
    let mut skipped = 0;
    loop {
        let held = text.fill_buf()?;
        if held.is_empty() {
            return Ok((skipped, false));
        }
        let end = held.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(held.len(), |end| end + 1);
        text.consume(used);
        skipped += used as u64;
        if end.is_some() {
            return Ok((skipped, true));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]
    use proptest::prelude::*;

    use super::*;

    fn id(n: u8) -> TokenId {
        TokenId::from_bytes([n; 16])
    }

    fn bearer(pod: &str, container: &str) -> Bearer {
        Bearer { pod: pod.to_owned(), container: container.to_owned() }
    }

    fn read(text: &[u8]) -> Uses {
        Uses::read(text).unwrap()
    }

    #[test]
    fn lines_are_read_up_to_the_one_that_was_being_written() {
        let (one, two) = (bearer("pod\n\"1\"", "main"), bearer("2", "init"));
        let first = Uses::line(id(1), &one).unwrap();
        let text = [first.clone(), Uses::line(id(2), &two).unwrap()].concat();
        for length in 0..=text.len() {
            let uses = read(&text[..length]);
            let owner = |known, bearer| if known { Owner::Bearer(bearer) } else { Owner::Unused };
            assert_eq!(uses.owner(id(1)), owner(length >= first.len(), &one), "{length}");
            assert_eq!(uses.owner(id(2)), owner(length == text.len(), &two), "{length}");
            let whole = [text.len(), first.len(), 0].into_iter().find(|whole| *whole <= length);
            assert_eq!(Some(usize::try_from(uses.length()).unwrap()), whole);
            assert!(!uses.is_closed());
        }
    }

    #[test]
    fn after_a_foreign_line_no_further_token_can_be_used() {
        let line = Uses::line(id(1), &bearer("p", "c")).unwrap();
        let other = Uses::line(id(1), &bearer("p", "d")).unwrap();
        let spent = Uses::line(id(1), &gone()).unwrap();
        let long = [vec![b'x'; 100_000], b"\n".to_vec()].concat();
        let (open, closed) = (false, true);
        for (what, bad, is_closed) in [
            ("an empty line", &b"\n"[..], closed),
            ("another document", b"{}\n", closed),
            ("a short id", b"{\"id\":\"01\",\"pod\":\"p\",\"container\":\"c\"}\n", closed),
            ("a word", b"x\n", closed),
            ("zeros", b"\0\0\0\0\n", closed),
            ("a long line", &long, closed),
            ("the mark of a closed key, late", CLOSED, closed),
            ("another bearer", &other, closed),
            ("nobody", &spent, closed),
            ("the same again", &line, open),
            ("a long line without an end", &long[..99_000], open),
        ] {
            let uses = read(&[line.as_slice(), bad].concat());
            assert_eq!(uses.is_closed(), is_closed, "{what}");
            assert_eq!(uses.damaged(), is_closed.then_some(2), "{what}");
            let unused = if is_closed { Owner::Spent } else { Owner::Unused };
            assert_eq!(uses.owner(id(9)), unused, "{what}");
            // The lines around it are still read.
            let last = Uses::line(id(2), &bearer("q", "c")).unwrap();
            if bad.ends_with(b"\n") {
                let uses = read(&[line.as_slice(), bad, &last].concat());
                assert_eq!(uses.owner(id(2)), Owner::Bearer(&bearer("q", "c")), "{what}");
                assert_eq!(uses.length(), (line.len() + bad.len() + last.len()) as u64, "{what}");
            }
        }
    }

    proptest! {
        /// Uses and ends of pods in any order, with forgetting and closing in between, and the file
        /// read again each time.
        #[test]
        fn no_token_is_ever_two_containers_and_none_that_is_used_is_free(
            steps in prop::collection::vec((0..6u8, 0..8u8, 0..5u8), 0..40),
        ) {
            let mut uses = Uses::default();
            let mut first: BTreeMap<u8, u8> = BTreeMap::new();
            for (what, token, pod) in steps {
                let who = bearer(&pod.to_string(), "c");
                match what {
                    0..=3 => match uses.owner(id(token)) {
                        Owner::Unused => {
                            prop_assert!(!first.contains_key(&token));
                            first.insert(token, pod);
                            let line = Uses::line(id(token), &who).unwrap();
                            uses.written(id(token), who, line.len());
                        }
                        Owner::Bearer(known) => {
                            prop_assert_eq!(&known.pod, &first[&token].to_string());
                        }
                        Owner::Spent => prop_assert!(uses.is_closed() || first.contains_key(&token)),
                    },
                    4 => drop(uses.forget(&|uid| uid != pod.to_string())),
                    _ if token == 0 => uses.close(),
                    _ => {
                        let text = uses.text().unwrap();
                        uses.replaced(text.len());
                        prop_assert_eq!(&read(&text), &uses);
                    }
                }
            }
        }

        #[test]
        fn any_bytes_are_read_and_no_use_in_a_whole_line_is_lost(
            before in prop::collection::btree_set(0..200u8, 0..9),
            garbage in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let lines: Vec<u8> =
                before.iter().flat_map(|n| Uses::line(id(*n), &bearer("p", "c")).unwrap()).collect();
            let uses = read(&[lines.as_slice(), &garbage].concat());
            for n in before {
                prop_assert_ne!(uses.owner(id(n)), Owner::Unused);
            }
            if garbage.contains(&b'\n') {
                prop_assert!(uses.is_closed());
            }
        }
    }
}
