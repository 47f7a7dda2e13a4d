//! The signal argument of `kill`.

use std::ffi::OsStr;

/// A signal as `kill` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// By number, or by a name of Linux on `x86_64` and `aarch64` (the two agree).
    Number(i32),
    /// Any other text. The runtime refuses it or, as crun with `RTMIN+n`, knows more signals.
    Unknown,
}

impl Signal {
    /// The signal that can be neither caught nor delayed.
    pub const KILL: Self = Self::Number(9);
    /// The default of `kill`.
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::argv::parse;

    fn sends_sigkill(line: &str) -> bool {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&args).sends_sigkill()
    }

    #[test]
    fn a_sigkill_is_seen_in_every_spelling_and_nothing_else_is_taken_for_one() {
        for line in [
            "kill c1 KILL",
            "kill c1 SIGKILL",
            "kill c1 sigkill",
            "kill c1 9",
            "--root /r --log=/l kill c1 9",
            "kill --all c1 KILL",
            "kill -a c1 9",
            "kill c1 9 --all",
            "kill -- c1 9",
            "delete --force c1",
            "delete -f c1",
            "delete c1 -f",
            "delete --force=true c1",
            "--root /r delete -force c1",
        ] {
            assert!(sends_sigkill(line), "{line}");
        }
        for line in [
            "kill c1",
            "kill KILL",
            "kill 9",
            "kill c1 TERM",
            "kill c1 19",
            "kill c1 USR1 KILL",
            "kill --help c1 KILL",
            "--help kill c1 KILL",
            "delete c1",
            "delete force",
            "delete --force=false c1",
            "exec c1 kill c1 KILL",
            "state c1",
        ] {
            assert!(!sends_sigkill(line), "{line}");
        }
    }
}
