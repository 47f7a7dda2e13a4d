//! Who has used which token: one line of JSON for each token, never changed, so that a use costs one line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::TokenId;

/// To whom a token belongs, from its first use on: what the engine says and no pod's author can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bearer {
    /// The pod's uid.
    pub pod: String,
    /// The container's name in the pod's specification, init containers among them.
    pub container: String,
}

/// Why a text is no record of uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UsesError {
    /// A line that is none of ours.
    #[error("line {line} is no use of a token")]
    Line {
        /// Counted from 1.
        line: usize,
    },
    /// A token with two bearers.
    #[error("line {line} gives token {id} away a second time")]
    Twice {
        /// Counted from 1.
        line: usize,
        /// The token.
        id: TokenId,
    },
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
    length: u64,
}

impl Uses {
    /// Reads the file's text. What follows the last end of a line was being written when the power went, and
    /// nobody was told of it.
    ///
    /// # Errors
    /// For a whole line that [`Self::line`] does not write.
    pub fn parse(text: &[u8]) -> Result<Self, UsesError> {
        let mut uses = Self::default();
        for (line, bytes) in (1..).zip(text.split_inclusive(|byte| *byte == b'\n')) {
            let Some(bytes) = bytes.strip_suffix(b"\n") else { break };
            let Line { id, pod, container } =
                serde_json::from_slice(bytes).map_err(|_| UsesError::Line { line })?;
            uses.length += bytes.len() as u64 + 1;
            if uses.by_token.insert(id, Bearer { pod, container }).is_some() {
                return Err(UsesError::Twice { line, id });
            }
        }
        Ok(uses)
    }

    /// The line of a use.
    ///
    /// # Errors
    /// Of `serde_json`, which has no reason for one.
    pub fn line(id: TokenId, bearer: &Bearer) -> serde_json::Result<Vec<u8>> {
        let Bearer { pod, container } = bearer.clone();
        let mut line = serde_json::to_vec(&Line { id, pod, container })?;
        line.push(b'\n');
        Ok(line)
    }

    /// Bytes of the lines that count: where the next one is written.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// To whom a token belongs. `None` where nobody has used it.
    #[must_use]
    pub fn bearer(&self, id: TokenId) -> Option<&Bearer> {
        self.by_token.get(&id)
    }

    /// Everybody who has used a token.
    pub fn bearers(&self) -> impl Iterator<Item = &Bearer> {
        self.by_token.values()
    }

    /// Takes note of a use whose line of `bytes` is in the file.
    pub(crate) fn written(&mut self, id: TokenId, bearer: Bearer, bytes: usize) {
        self.length += bytes as u64;
        self.by_token.insert(id, bearer);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]
    use super::*;

    fn id(n: u8) -> TokenId {
        TokenId::from_bytes([n; 16])
    }

    fn bearer(pod: &str, container: &str) -> Bearer {
        Bearer { pod: pod.to_owned(), container: container.to_owned() }
    }

    #[test]
    fn lines_are_read_up_to_the_one_that_was_being_written() {
        let (one, two) = (bearer("pod\n\"1\"", "main"), bearer("2", "init"));
        let first = Uses::line(id(1), &one).unwrap();
        let text = [first.clone(), Uses::line(id(2), &two).unwrap()].concat();
        for length in 0..=text.len() {
            let uses = Uses::parse(&text[..length]).unwrap();
            assert_eq!(uses.bearer(id(1)), (length >= first.len()).then_some(&one), "{length}");
            assert_eq!(uses.bearer(id(2)), (length == text.len()).then_some(&two), "{length}");
            let whole = [text.len(), first.len(), 0].into_iter().find(|whole| *whole <= length);
            assert_eq!(Some(usize::try_from(uses.length()).unwrap()), whole);
        }
    }

    #[test]
    fn a_line_that_is_none_of_ours_is_an_error() {
        let line = Uses::line(id(1), &bearer("p", "c")).unwrap();
        let twice = [line.clone(), line.clone()].concat();
        assert_eq!(Uses::parse(&twice), Err(UsesError::Twice { line: 2, id: id(1) }));
        for bad in ["\n", "{}\n", "{\"id\":\"01\",\"pod\":\"p\",\"container\":\"c\"}\n", "x\n"] {
            let text = [line.as_slice(), bad.as_bytes()].concat();
            assert_eq!(Uses::parse(&text), Err(UsesError::Line { line: 2 }), "{bad}");
        }
    }
}
