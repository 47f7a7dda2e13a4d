//! Mistakes in a settings file.

use std::io;
use std::path::PathBuf;

/// The longest settings file that is read.
pub const MAX_BYTES: usize = 1 << 20;

/// Why settings cannot be used. Lines count from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is there, but could not be opened or read.
    #[error("cannot read {}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A directory, device, pipe or socket.
    #[error("{} is not a regular file", file.display())]
    NotRegular {
        /// What has the file's name.
        file: PathBuf,
    },
    /// Another user than root could have written it, and root reads it.
    #[error("{} could have been written by others than root (owner {uid}, mode {mode:04o})",
            file.display())]
    NotTrusted {
        /// The file.
        file: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// Longer than [`MAX_BYTES`].
    #[error("{} is longer than {} bytes", file.display(), MAX_BYTES)]
    TooLong {
        /// The file.
        file: PathBuf,
    },
    /// Not UTF-8, which TOML requires.
    #[error("{}:{line}: not UTF-8", file.display())]
    NotUtf8 {
        /// The file.
        file: PathBuf,
        /// Where the first wrong byte is.
        line: usize,
    },
    /// Not TOML.
    #[error("{}:{line}: {message}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// Where parsing stopped.
        line: usize,
        /// What the parser expected.
        message: String,
    },
    /// A key or table that does not exist.
    #[error("{}:{line}: unknown key `{key}`{}", file.display(), did_you_mean(nearest.as_deref()))]
    UnknownKey {
        /// The file.
        file: PathBuf,
        /// Where the key is.
        line: usize,
        /// Its full name, `table.key`.
        key: String,
        /// The full name of the known key that is most like it, if one is.
        nearest: Option<String>,
        /// The keys of that table.
        allowed: String,
    },
    /// A key that an older version had.
    #[error("{}:{line}: there is no `{key}` any more: {why}", file.display())]
    GoneKey {
        /// The file.
        file: PathBuf,
        /// Where the key is.
        line: usize,
        /// Its full name, `table.key`.
        key: String,
        /// What replaced it.
        why: &'static str,
    },
    /// A key with a value of the wrong type or out of range.
    #[error("{}:{line}: `{key}` is {value}, but must be {allowed}", file.display())]
    BadValue {
        /// The file.
        file: PathBuf,
        /// Where the value begins.
        line: usize,
        /// The key's full name.
        key: String,
        /// The value as it is written, shortened.
        value: String,
        /// The allowed values.
        allowed: String,
    },
    /// An entry of a list of tables lacks a key.
    #[error("{}:{line}: `{key}` is missing", file.display())]
    MissingKey {
        /// The file.
        file: PathBuf,
        /// Where the entry begins.
        line: usize,
        /// The key's full name.
        key: String,
    },
}

fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean `{key}`?"))
}

impl ConfigError {
    /// The remedy.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Read { file, .. } => format!("see: ls -l {}", file.display()),
            Self::NotRegular { file } => {
                format!("replace {} by a file, or remove it to use the defaults", file.display())
            }
            Self::NotTrusted { file, .. } => {
                let file = file.display();
                format!("look at its contents first, then: chown root: {file} && chmod 644 {file}")
            }
            Self::TooLong { file } | Self::NotUtf8 { file, .. } => {
                format!("is this the right file? see: head {}", file.display())
            }
            Self::Syntax { .. } => "values are written as in the shipped file: words in quotes, \
                                    numbers without, one key a line"
                .to_owned(),
            Self::UnknownKey { allowed, .. } => format!("known here: {allowed}"),
            Self::GoneKey { .. } => "remove the line".to_owned(),
            Self::BadValue { key, allowed, .. } => format!("set {key} to {allowed}"),
            Self::MissingKey { key, .. } => format!("add {key}, or remove the entry"),
        }
    }
}
