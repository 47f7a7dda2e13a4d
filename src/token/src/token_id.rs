//! Names of keys and tokens: random bytes, written as hexadecimal digits.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `N` random bytes; as text `2 * N` lower-case hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id<const N: usize>([u8; N]);

/// Names a key.
pub type KeyId = Id<8>;
/// Names a token.
pub type TokenId = Id<16>;

impl<const N: usize> Id<N> {
    /// From random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; N]) -> Self {
        Self(bytes)
    }

    /// From its text; `None` for every other text, upper-case digits among them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Some(byte - b'0'),
            b'a'..=b'f' => Some(byte - b'a' + 10),
            _ => None,
        };
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
        Some(Self(bytes?.try_into().ok()?))
    }
}

impl<const N: usize> fmt::Display for Id<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl<const N: usize> TryFrom<String> for Id<N> {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text).ok_or_else(|| format!("{text:?} is not {} hexadecimal digits", 2 * N))
    }
}

impl<const N: usize> From<Id<N>> for String {
    fn from(id: Id<N>) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_text_is_an_id() {
        let id = Id::from_bytes([0x00, 0xaf]);
        assert_eq!(id.to_string(), "00af");
        assert_eq!(Id::parse("00af"), Some(id));
        for bad in ["", "00a", "00AF", "00af0", "00af00", "0ßf", "+0af"] {
            assert_eq!(Id::<2>::parse(bad), None, "{bad}");
        }
    }
}
