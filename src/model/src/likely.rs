//! What somebody meant who wrote an amount in another unit's words: for hints, and never counted
//! with.

use crate::quantity::is_quote;
use crate::{Mib, Resource};

/// More than any card has. The largest of 2026 have 288 GiB.
pub const ANY_CARD: Mib = Mib(1024 * 1024);

/// Bytes from here on: as MiB it would be 8 TiB.
const BYTES: u64 = 1 << 23;
/// No CUDA process runs with less.
const LEAST: Mib = Mib(256);
/// The power of two of a MiB.
const MIB: u32 = 20;

/// The quantity that a text which is none means, where one unit alone comes near it: `7Gi` for
/// `7g`, `7GB`, `7GiB`, `7 Gi` and `"7Gi"`.
#[must_use]
pub fn quantity(text: &str) -> Option<String> {
    let text = text.trim_matches(|one: char| one.is_whitespace() || is_quote(one));
    let split = text.find(|one: char| !one.is_ascii_digit() && one != '.')?;
    let (number, unit) = text.split_at(split);
    let unit = match unit.trim_start().to_ascii_lowercase().as_str() {
        "k" | "kb" | "ki" | "kib" => "Ki",
        "m" | "mb" | "mi" | "mib" => "Mi",
        "g" | "gb" | "gi" | "gib" => "Gi",
        "t" | "tb" | "ti" | "tib" => "Ti",
        _ => return None,
    };
    let meant = format!("{number}{unit}");
    Mib::parse_quantity(&meant).is_ok().then_some(meant)
}

impl Resource {
    /// What to write instead of an amount that no card has. `largest` is what the largest card has.
    /// Empty for what is no memory.
    #[must_use]
    pub fn instead(self, asked: Mib, largest: Mib) -> String {
        let Some(unit) = self.unit().filter(|unit| unit.0 > 0) else { return String::new() };
        let most = largest.0 / unit.0;
        if matches!(self, Self::Slice(_)) {
            return "take a smaller slice: kubectl inspect cgpu shows what cards have".to_owned();
        }
        let counts = match self {
            Self::Memory => "counts GiB".to_owned(),
            _ => format!("counts pieces of {unit}"),
        };
        let count = asked.0 / unit.0;
        let pieces = |mib: Mib| mib.0.div_ceil(unit.0).min(most);
        let fits = |mib: &Mib| (LEAST..=largest).contains(mib);
        let bytes = Some(Mib(count >> MIB)).filter(|_| count >= BYTES).filter(fits);
        let mib = Some(Mib(count)).filter(fits);
        match (bytes.map(pieces), mib.map(pieces)) {
            (Some(pieces), _) if pieces > 0 => {
                format!("{count} is a number of bytes, and {self} {counts}: write {pieces}")
            }
            (_, Some(pieces)) if pieces > 0 => {
                format!("{count} looks like MiB, and {self} {counts}: write {pieces}")
            }
            _ if most > 0 => format!("{self} {counts}: write {most} at most"),
            _ => format!("{self} {counts}, and no card has so much: take a smaller unit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_and_shells_write_means_one_quantity() {
        for (text, meant) in [
            ("7g", Some("7Gi")),
            ("7G", Some("7Gi")),
            ("7GB", Some("7Gi")),
            ("7gb", Some("7Gi")),
            ("7GiB", Some("7Gi")),
            ("7gi", Some("7Gi")),
            ("7 Gi", Some("7Gi")),
            ("7 GiB", Some("7Gi")),
            ("7Gi\r", Some("7Gi")),
            ("\"7Gi\"", Some("7Gi")),
            ("'7Gi'", Some("7Gi")),
            ("‘1.5g’", Some("1.5Gi")),
            ("512m", Some("512Mi")),
            ("6500M", Some("6500Mi")),
            ("7168MiB", Some("7168Mi")),
            ("1tb", Some("1Ti")),
            ("2048kb", Some("2048Ki")),
            ("1kb", None),
            ("0g", None),
            ("7", None),
            ("", None),
            ("all", None),
            ("50%", None),
            ("g", None),
            ("1.2.3g", None),
            ("7Eib", None),
        ] {
            assert_eq!(quantity(text).as_deref(), meant, "{text:?}");
        }
    }

    #[test]
    fn a_count_in_another_unit_is_told_from_one_that_is_too_large() {
        let fifteen = Mib(15360);
        let (gib, mi) = (Resource::Memory, Resource::Unit(256));
        for (resource, count, largest, hint) in [
            (
                gib,
                7_516_192_768,
                fifteen,
                "7516192768 is a number of bytes, and aliyun.com/gpu-mem counts GiB: write 7",
            ),
            (
                gib,
                7_000_000_000,
                fifteen,
                "7000000000 is a number of bytes, and aliyun.com/gpu-mem counts GiB: write 7",
            ),
            (
                gib,
                536_870_912,
                fifteen,
                "536870912 is a number of bytes, and aliyun.com/gpu-mem counts GiB: write 1",
            ),
            (gib, 8138, fifteen, "8138 looks like MiB, and aliyun.com/gpu-mem counts GiB: write 8"),
            (gib, 2048, fifteen, "2048 looks like MiB, and aliyun.com/gpu-mem counts GiB: write 2"),
            // The card of a T4 as gpushare shows it: 14.75 GiB.
            (
                gib,
                15_109,
                Mib(15_109),
                "15109 looks like MiB, and aliyun.com/gpu-mem counts GiB: write 14",
            ),
            (gib, 512, fifteen, "512 looks like MiB, and aliyun.com/gpu-mem counts GiB: write 1"),
            (gib, 40, fifteen, "aliyun.com/gpu-mem counts GiB: write 15 at most"),
            (gib, 81_920, fifteen, "aliyun.com/gpu-mem counts GiB: write 15 at most"),
            (gib, u64::MAX >> 20, fifteen, "aliyun.com/gpu-mem counts GiB: write 15 at most"),
            (
                mi,
                7168,
                fifteen,
                "7168 looks like MiB, and mpsgate.io/gpu-mem-256mi counts pieces of 256 MiB: write 28",
            ),
            (
                Resource::Unit(20_000),
                1,
                fifteen,
                "mpsgate.io/gpu-mem-20000mi counts pieces of 20000 MiB, and no card has so much: take a smaller unit",
            ),
            (
                Resource::Slice(40),
                1,
                fifteen,
                "take a smaller slice: kubectl inspect cgpu shows what cards have",
            ),
            (Resource::Cards, 1, fifteen, ""),
        ] {
            let asked = resource.memory(count).unwrap_or_default();
            assert_eq!(resource.instead(asked, largest), hint, "{resource} {count}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_and_no_number_breaks_it(
            text in "[-+.0-9a-zA-Z \"']{0,12}|.{0,12}",
            unit: u64,
            asked: u64,
            largest: u64,
        ) {
            let meant = quantity(&text);
            proptest::prop_assert!(meant.is_none_or(|meant| Mib::parse_quantity(&meant).is_ok()));
            for resource in [Resource::Memory, Resource::Unit(unit), Resource::Slice(unit)] {
                let _ = resource.instead(Mib(asked), Mib(largest));
            }
        }
    }
}
