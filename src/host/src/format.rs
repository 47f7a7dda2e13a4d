//! Files that begin with the number of their format: `{"format": 1, …}`.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Why a file's bytes are not what this version writes.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// Another version wrote it.
    #[error("it has format {found}, this version knows {known}")]
    Other {
        /// Its format.
        found: u32,
        /// The format that this version reads.
        known: u32,
    },
    /// Not JSON, cut off, or JSON of another shape.
    #[error(transparent)]
    Content(#[from] serde_json::Error),
}

/// Reads the bytes of a file that has format `known`.
///
/// # Errors
/// The format is checked first: a newer file may differ in anything else.
pub fn read<T: DeserializeOwned>(bytes: &[u8], known: u32) -> Result<T, FormatError> {
    #[derive(Deserialize)]
    struct Header {
        format: u32,
    }
    let Header { format: found } = serde_json::from_slice(bytes)?;
    if found != known {
        return Err(FormatError::Other { found, known });
    }
    Ok(serde_json::from_slice(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Small {
        #[expect(dead_code, reason = "a file has it")]
        format: u32,
        cards: Vec<u32>,
    }

    #[test]
    fn another_format_is_named_whatever_else_the_file_holds() {
        let small = read::<Small>(br#"{"format":1,"cards":[7]}"#, 1);
        assert!(matches!(small, Ok(Small { cards, .. }) if cards == [7]));
        for other in [0, 2] {
            let text = format!(r#"{{"format":{other},"elsewhere":true}}"#);
            let read = read::<Small>(text.as_bytes(), 1);
            let is_named =
                matches!(read, Err(FormatError::Other { found, known: 1 }) if found == other);
            assert!(is_named, "{read:?}");
        }
        for text in ["", "{", r#"{"format":1}"#, r#"{"format":1,"cards":[],"more":1}"#] {
            let read = read::<Small>(text.as_bytes(), 1);
            assert!(matches!(read, Err(FormatError::Content(_))), "{text}: {read:?}");
        }
    }
}
