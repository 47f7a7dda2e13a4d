//! GPU memory in MiB, and the two ways in which a user may write it.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// GPU memory in MiB (2^20 bytes), the only unit that the ledger and the MPS channel know.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Mib(pub u64);

impl Mib {
    /// Difference, or zero where `other` is larger.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// An equal part for each of so many cards, in whole `unit`s. `None` where there is none.
    #[must_use]
    pub fn split(self, cards: NonZeroU32, unit: Self) -> Option<Self> {
        let cards = u64::from(cards.get());
        let each = Self(self.0 / cards);
        let whole = self.0.is_multiple_of(cards) && each.0.is_multiple_of(unit.0);
        (whole && each.0 > 0).then_some(each)
    }
}

impl fmt::Display for Mib {
    /// Whole GiB as `7 GiB`, everything else as `7500 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 >= 1024 && self.0.is_multiple_of(1024) {
            write!(f, "{} GiB", self.0 / 1024)
        } else {
            write!(f, "{} MiB", self.0)
        }
    }
}

/// Why a text is no amount of GPU memory. The text itself is quoted by the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// Nothing was written.
    #[error("it is empty")]
    Empty,
    /// A number without a unit.
    #[error("it has no unit")]
    NoUnit,
    /// `GB`, `GiB`, `gi`, or another suffix that Kubernetes does not know.
    #[error("its unit is not one that Kubernetes knows")]
    UnknownUnit,
    /// Not a decimal number.
    #[error("it is not a number")]
    NotANumber,
    /// Zero.
    #[error("it is zero")]
    Zero,
    /// Less than zero.
    #[error("it is negative")]
    Negative,
    /// Not a whole number of MiB.
    #[error("it is not a whole number of MiB")]
    FractionOfMib,
    /// Not a whole number of GiB, where only such are allowed.
    #[error("it is not a whole number")]
    NotWhole,
    /// More than fits in 64 bits of bytes.
    #[error("it is too large")]
    TooLarge,
}

const BYTES_PER_MIB: u128 = 1 << 20;

impl Mib {
    /// Parses a Kubernetes quantity with a unit, such as `7Gi`, `7168Mi` or `7.5Gi`.
    ///
    /// # Errors
    /// Every text that is not exactly a positive whole number of MiB, and every number without a
    /// unit: by Kubernetes' rules `7` would be seven bytes, by ACK's it is seven GiB.
    pub fn parse_quantity(text: &str) -> Result<Self, QuantityError> {
        let (negative, rest) = match text.as_bytes().first() {
            None => return Err(QuantityError::Empty),
            Some(b'-') => (true, text.get(1..).unwrap_or_default()),
            Some(b'+') => (false, text.get(1..).unwrap_or_default()),
            Some(_) => (false, text),
        };
        let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, unit) = rest.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(QuantityError::NotANumber);
        }
        if negative {
            return Err(QuantityError::Negative);
        }
        let multiplier: u128 = match unit {
            "" => return Err(QuantityError::NoUnit),
            "Ki" => 1 << 10,
            "Mi" => 1 << 20,
            "Gi" => 1 << 30,
            "Ti" => 1 << 40,
            "Pi" => 1 << 50,
            "Ei" => 1 << 60,
            "k" => 1_000,
            "M" => 1_000_000,
            "G" => 1_000_000_000,
            "T" => 1_000_000_000_000,
            "P" => 1_000_000_000_000_000,
            "E" => 1_000_000_000_000_000_000,
            // `1e9` and `1E9` are bare numbers too: an exponent is no unit.
            exponent if is_exponent(exponent) => return Err(QuantityError::NoUnit),
            _ => return Err(QuantityError::UnknownUnit),
        };
        // Twenty digits hold every amount that fits 64 bits; more would only overflow.
        let fraction = fraction.trim_end_matches('0');
        if whole.trim_start_matches('0').len() > 20 || fraction.len() > 18 {
            return Err(QuantityError::TooLarge);
        }
        let digits = |s: &str| if s.is_empty() { Ok(0) } else { s.parse::<u128>() };
        let whole = digits(whole).map_err(|_| QuantityError::NotANumber)?;
        let part = digits(fraction).map_err(|_| QuantityError::NotANumber)?;
        let scale =
            10_u128.pow(u32::try_from(fraction.len()).map_err(|_| QuantityError::TooLarge)?);
        let scaled = whole
            .checked_mul(scale)
            .and_then(|n| n.checked_add(part))
            .and_then(|n| n.checked_mul(multiplier))
            .ok_or(QuantityError::TooLarge)?;
        if scaled == 0 {
            return Err(QuantityError::Zero);
        }
        if !scaled.is_multiple_of(scale * BYTES_PER_MIB) {
            return Err(QuantityError::FractionOfMib);
        }
        let mib = scaled / (scale * BYTES_PER_MIB);
        u64::try_from(mib)
            .ok()
            .filter(|n| *n <= u64::MAX >> 20)
            .map(Self)
            .ok_or(QuantityError::TooLarge)
    }

    /// Parses a whole number of GiB, the form of `aliyun.com/gpu-mem`.
    ///
    /// # Errors
    /// Everything but decimal digits: `7.5`, `7G`, `+7`, `0`, `-1` are refused.
    pub fn parse_gib(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Empty);
        }
        if let Some(rest) = text.strip_prefix('-')
            && !rest.is_empty()
            && rest.bytes().all(|b| b.is_ascii_digit() || b == b'.')
        {
            return Err(QuantityError::Negative);
        }
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(QuantityError::NotWhole);
        }
        let gib: u64 = text.parse().map_err(|_| QuantityError::TooLarge)?;
        if gib == 0 {
            return Err(QuantityError::Zero);
        }
        if gib > u64::MAX >> 30 {
            return Err(QuantityError::TooLarge);
        }
        Ok(Self(gib * 1024))
    }
}

fn is_exponent(unit: &str) -> bool {
    let rest = unit.strip_prefix(['e', 'E']).unwrap_or_default();
    let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_kubernetes_quantities_that_are_whole_mib() {
        for (text, mib) in [
            ("7Gi", 7168),
            ("7168Mi", 7168),
            ("7.5Gi", 7680),
            ("0.5Gi", 512),
            ("1024Ki", 1),
            ("1Ti", 1_048_576),
            ("1048576k", 1000),
            ("+7Gi", 7168),
            ("7.000Gi", 7168),
        ] {
            assert_eq!(Mib::parse_quantity(text), Ok(Mib(mib)), "{text}");
        }
    }

    #[test]
    fn refuses_every_quantity_that_would_have_to_be_guessed() {
        use QuantityError as E;
        for (text, error) in [
            ("", E::Empty),
            ("7", E::NoUnit),
            ("7.5", E::NoUnit),
            ("1e9", E::NoUnit),
            ("1E9", E::NoUnit),
            ("7GB", E::UnknownUnit),
            ("7GiB", E::UnknownUnit),
            ("7gi", E::UnknownUnit),
            ("7 Gi", E::UnknownUnit),
            ("7m", E::UnknownUnit),
            ("0Gi", E::Zero),
            ("-1Gi", E::Negative),
            ("7G", E::FractionOfMib),
            ("1.0000001Gi", E::FractionOfMib),
            ("1Ki", E::FractionOfMib),
            ("18446744073709551616Mi", E::TooLarge),
            ("99999999999999999999999999Gi", E::TooLarge),
            ("17592186044416Mi", E::TooLarge),
            ("Gi", E::NotANumber),
            (".Gi", E::NotANumber),
            ("1.2.3Gi", E::NotANumber),
            ("٧Gi", E::NotANumber),
        ] {
            assert_eq!(Mib::parse_quantity(text), Err(error), "{text}");
        }
    }

    #[test]
    fn reads_ack_gib_strictly() {
        use QuantityError as E;
        assert_eq!(Mib::parse_gib("7"), Ok(Mib(7168)));
        for (text, error) in [
            ("", E::Empty),
            ("0", E::Zero),
            ("-1", E::Negative),
            ("7.5", E::NotWhole),
            ("7GB", E::NotWhole),
            ("7Gi", E::NotWhole),
            ("1e9", E::NotWhole),
            (" 7", E::NotWhole),
            ("+7", E::NotWhole),
            ("18446744073709551616", E::TooLarge),
            ("18446744073709551615", E::TooLarge),
        ] {
            assert_eq!(Mib::parse_gib(text), Err(error), "{text}");
        }
    }
}
