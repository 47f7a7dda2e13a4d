//! Why bytes are not a `config.json`.

/// A mistake in the bytes that a person can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No bytes at all.
    #[error("it is empty")]
    Empty,
    /// Not UTF-8, which JSON must be.
    #[error("it is not UTF-8 (byte {at})")]
    NotUtf8 {
        /// Offset of the first bad byte.
        at: usize,
    },
    /// Ends in the middle.
    #[error("it is cut off")]
    CutOff(#[source] serde_json::Error),
    /// Not JSON.
    #[error("it is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// Nested deeper than 127 levels.
    #[error("it is nested deeper than 127 levels")]
    TooDeep,
    /// A key occurs twice in one object: readers differ in which one they take.
    #[error("the key {key:?} stands twice in one object")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A key that is spelled so that some runtimes take it for a known one, and others do not.
    #[error("the key {key:?} is {known:?} to some runtimes and not to others")]
    Spelling {
        /// The key.
        key: String,
        /// What some runtimes take it for.
        known: String,
    },
    /// A text with a NUL, which ends it for runtimes written in C.
    #[error("a text in it has a NUL")]
    Nul,
    /// Larger than the limit for parsing.
    #[error("it is longer than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// Not JSON, found without parsing.
    #[error("it is not JSON (byte {at})")]
    Broken {
        /// Offset of the byte that is not allowed there.
        at: u64,
    },
    /// Ends in the middle, found without parsing.
    #[error("it is cut off after {at} bytes")]
    Ends {
        /// How many bytes there are.
        at: u64,
    },
    /// Nested deeper than any runtime reads.
    #[error("it is nested deeper than a million levels")]
    Bottomless,
    /// The bytes could not be read.
    #[error("it cannot be read")]
    Read(#[source] std::io::Error),
    /// JSON, but not an object.
    #[error("it is {found}, not an object")]
    NotAnObject {
        /// The type found.
        found: &'static str,
    },
}
