//! The signal argument of `kill`.

use std::ffi::OsStr;

/// A signal as `kill` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// By number, or by a name of Linux on `x86_64` and `aarch64` (the two agree).
    Number(i32),
    /// Neither. The runtime refuses it, or (crun's `RTMIN+n`) knows more than we do.
    Unknown,
}

impl Signal {
    /// The one that may be neither caught nor delayed.
    pub const KILL: Self = Self::Number(9);
    /// What `kill` sends unless told otherwise.
    pub const TERM: Self = Self::Number(15);

    /// Reads `9`, `KILL`, `SIGKILL` or `sigkill`; empty is `SIGTERM`, as in runc.
    #[must_use]
    pub fn parse(text: &OsStr) -> Self {
        let Some(text) = text.to_str() else { return Self::Unknown };
        if text.is_empty() {
            return Self::TERM;
        }
        if let Ok(number) = text.parse() {
            return Self::Number(number);
        }
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map_or(Self::Unknown, |(_, n)| Self::Number(*n))
    }
}

/// `signal(7)`, the column of x86 and ARM.
const NAMES: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];
