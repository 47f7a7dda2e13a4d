//! How Slurm names a job on a node: by its number, or by its SLUID (from 26.05 on, in the name of
//! the job's cgroup).

use std::fmt;

/// The name of a job, as Slurm has given it to the job's cgroup. `scontrol show job` takes both.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    /// Its number. A job that is requeued keeps it.
    Id(u32),
    /// Its SLUID. A job that is requeued has another one.
    Sluid(Sluid),
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id}"),
            Self::Sluid(sluid) => f.write_str(&sluid.0),
        }
    }
}

/// Slurm's lexicographically sortable unique ID of a job: `s`, then 64 bits as 13 digits of
/// Crockford's Base32.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sluid(String);

impl Sluid {
    /// `None` for what Slurm does not print: other lengths, other or small letters, more than 64
    /// bits, and zero, which is no job.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('s').filter(|digits| digits.len() == 13)?;
        // Base32 without what looks like another digit.
        let is_digit = |byte: u8| {
            byte.is_ascii_digit()
                || byte.is_ascii_uppercase() && !matches!(byte, b'I' | b'L' | b'O' | b'U')
        };
        let has_64_bits = digits.bytes().next().is_some_and(|byte| byte <= b'F');
        let is_zero = digits.bytes().all(|byte| byte == b'0');
        (digits.bytes().all(is_digit) && has_64_bits && !is_zero).then(|| Self(text.to_owned()))
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.0 == text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sluid_is_what_slurm_prints_and_nothing_else() {
        for text in ["s5K1KKYAYG5D00", "s0000000000001", "sFZZZZZZZZZZZZ"] {
            let sluid = Sluid::parse(text).map(|sluid| Named::Sluid(sluid).to_string());
            assert_eq!(sluid.as_deref(), Some(text));
        }
        for text in [
            "",
            "s",
            "s0000000000000",
            "s5K1KKYAYG5D0",
            "s5K1KKYAYG5D000",
            "S5K1KKYAYG5D00",
            "s5k1kkyayg5d00",
            "5K1KKYAYG5D00s",
            "s5K1KKYAYG5D0I",
            "s5K1KKYAYG5D0L",
            "s5K1KKYAYG5D0O",
            "s5K1KKYAYG5D0U",
            "sGK1KKYAYG5D00",
            "s5K1KKYAYG5D0 ",
            "s5K1KKYAYG5D/.",
            "s5K1KKYAYG5D0\n",
            "s5K1KKYAYG5Dé",
            "system",
        ] {
            assert_eq!(Sluid::parse(text), None, "{text:?}");
        }
    }
}
