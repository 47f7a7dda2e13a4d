//! The node's keys, and their file's text.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mpsgate_host::format::{self, FormatError};
use serde::{Deserialize, Serialize};

use crate::KeyId;

/// The format that this version writes.
const FORMAT: u32 = 1;

/// One key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Its name, which tokens carry.
    pub id: KeyId,
    /// When it was made, milliseconds since 1970.
    pub made_ms: u64,
    secret: [u8; 32],
}

impl Key {
    /// From random bytes.
    #[must_use]
    pub fn new(id: KeyId, secret: [u8; 32], made_ms: u64) -> Self {
        Self { id, made_ms, secret }
    }

    pub(crate) fn secret(&self) -> &[u8] {
        &self.secret
    }
}

impl fmt::Debug for Key {
    /// Without the secret, because debug output ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id.to_string())
            .field("made_ms", &self.made_ms)
            .finish_non_exhaustive()
    }
}

/// Why a text is not a list of keys. No error quotes the text: it may hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// Not JSON of the right form.
    #[error("it is no list of keys (line {line}, column {column})")]
    Form {
        /// Where reading stopped.
        line: usize,
        /// Where reading stopped.
        column: usize,
    },
    /// Written by another version.
    #[error("it has format {found}, this mpsgated knows {FORMAT}")]
    Format {
        /// Its format.
        found: u32,
    },
    /// The list is empty.
    #[error("it holds no key")]
    Empty,
    /// A secret is not base64, or has the wrong length.
    #[error("the secret of key {id} is not 32 bytes in base64")]
    Secret {
        /// The key.
        id: KeyId,
    },
    /// Two keys under one name.
    #[error("it holds key {id} twice")]
    Twice {
        /// The key.
        id: KeyId,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    format: u32,
    keys: Vec<KeyOnDisk>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyOnDisk {
    id: KeyId,
    made_ms: u64,
    secret: String,
}

/// The node's keys, oldest first: the last one signs, all of them confirm. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keys {
    older: Vec<Key>,
    newest: Key,
}

impl Keys {
    /// A list with a first key.
    #[must_use]
    pub fn new(first: Key) -> Self {
        Self { older: Vec::new(), newest: first }
    }

    /// The key that signs.
    #[must_use]
    pub fn newest(&self) -> &Key {
        &self.newest
    }

    /// All keys, oldest first.
    pub fn all(&self) -> impl Iterator<Item = &Key> {
        self.older.iter().chain([&self.newest])
    }

    /// The key of a name.
    #[must_use]
    pub fn get(&self, id: KeyId) -> Option<&Key> {
        self.all().find(|key| key.id == id)
    }

    /// The list with one more key, which signs from now on.
    #[must_use]
    pub fn rotated(&self, newest: Key) -> Self {
        Self { older: self.all().cloned().collect(), newest }
    }

    /// Keys that no longer sign, each with the time of its replacement, milliseconds since 1970.
    pub fn replaced(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.older.iter().zip(self.all().skip(1).map(|next| next.made_ms))
    }

    /// The list without these keys, except the one that signs.
    #[must_use]
    pub fn without(&self, ids: &BTreeSet<KeyId>) -> Self {
        let older = self.older.iter().filter(|key| !ids.contains(&key.id)).cloned().collect();
        Self { older, newest: self.newest.clone() }
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// For everything that [`Self::to_text`] does not write.
    pub fn parse(text: &[u8]) -> Result<Self, KeysError> {
        let OnDisk { keys, .. } = format::read(text, FORMAT).map_err(|error| match error {
            FormatError::Other { found, .. } => KeysError::Format { found },
            FormatError::Content(e) => KeysError::Form { line: e.line(), column: e.column() },
        })?;
        let mut seen = BTreeSet::new();
        let mut read = Vec::new();
        for KeyOnDisk { id, made_ms, secret } in keys {
            let secret = STANDARD.decode(secret).ok().and_then(|bytes| bytes.try_into().ok());
            let Some(secret) = secret else { return Err(KeysError::Secret { id }) };
            if !seen.insert(id) {
                return Err(KeysError::Twice { id });
            }
            read.push(Key { id, made_ms, secret });
        }
        let newest = read.pop().ok_or(KeysError::Empty)?;
        Ok(Self { older: read, newest })
    }

    /// The file's text.
    ///
    /// # Errors
    /// An error of `serde_json`, for which there is no reason.
    pub fn to_text(&self) -> serde_json::Result<Vec<u8>> {
        let on_disk = |key: &Key| KeyOnDisk {
            id: key.id,
            made_ms: key.made_ms,
            secret: STANDARD.encode(key.secret),
        };
        let mut text = serde_json::to_vec_pretty(&OnDisk {
            format: FORMAT,
            keys: self.all().map(on_disk).collect(),
        })?;
        text.push(b'\n');
        Ok(text)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    pub(crate) fn key(n: u8) -> Key {
        Key::new(KeyId::from_bytes([n; 8]), [n; 32], u64::from(n) * 1000)
    }

    #[test]
    fn what_is_written_is_read_and_the_last_key_signs() {
        let keys = Keys::new(key(1)).rotated(key(2)).rotated(key(3));
        let read = Keys::parse(&keys.to_text().unwrap()).unwrap();
        assert_eq!(read, keys);
        assert_eq!(read.newest().id, key(3).id);
        assert_eq!(
            read.replaced().map(|(key, at)| (key.id, at)).collect::<Vec<_>>(),
            [(key(1).id, 2000), (key(2).id, 3000)]
        );
        let left = read.without(&[key(1).id, key(3).id].into());
        assert_eq!(left.all().map(|key| key.id).collect::<Vec<_>>(), [key(2).id, key(3).id]);
    }

    #[test]
    fn what_is_no_list_of_keys_is_refused_without_a_word_of_it() {
        let text = String::from_utf8(Keys::new(key(1)).to_text().unwrap()).unwrap();
        let secret = STANDARD.encode([1; 32]);
        for (from, to, expected) in [
            ("\"format\": 1", "\"format\": 2", "it has format 2, this mpsgated knows 1"),
            ("\"keys\"", "\"kies\"", "it is no list of keys (line 3, column 8)"),
            (&secret, "AQ==", "the secret of key 0101010101010101 is not 32 bytes in base64"),
            (&secret, "!", "the secret of key 0101010101010101 is not 32 bytes in base64"),
            ("0101010101010101", "01", "it is no list of keys (line 5, column 16)"),
        ] {
            let error = Keys::parse(text.replace(from, to).as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        assert_eq!(Keys::parse(br#"{"format":1,"keys":[]}"#), Err(KeysError::Empty));
        let twice = Keys::new(key(1)).rotated(key(1)).to_text().unwrap();
        assert_eq!(Keys::parse(&twice), Err(KeysError::Twice { id: key(1).id }));
        for length in 0..text.trim_end().len() {
            assert!(Keys::parse(text.get(..length).unwrap().as_bytes()).is_err(), "{length}");
        }
    }

    #[test]
    fn a_key_is_printed_without_its_secret() {
        assert_eq!(format!("{:?}", key(7)), "Key { id: \"0707070707070707\", made_ms: 7000, .. }");
    }
}
