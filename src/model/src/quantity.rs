//! GPU memory in MiB, its two written forms, and Kubernetes' own.

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::number::{Number, QuantityError, is_exponent, parse_count, unit};

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

    /// An equal part for each card, in whole `unit`s. `None` where the amount has none.
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

const BYTES_PER_MIB: u128 = 1 << 20;

impl Mib {
    /// Parses a Kubernetes quantity with a unit, such as `7Gi`, `7168Mi` or `7.5Gi`.
    ///
    /// # Errors
    /// Every text that is not exactly a positive whole number of MiB, and every number without a
    /// unit: by Kubernetes' rules `7` would be seven bytes, by ACK's it is seven GiB.
    pub fn parse_quantity(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Empty);
        }
        if text.contains(is_quote) {
            return Err(QuantityError::Quoted);
        }
        if text.contains(char::is_whitespace) {
            return Err(QuantityError::Blank);
        }
        let number = Number::split(text).ok_or(QuantityError::NotANumber)?;
        if number.negative {
            return Err(QuantityError::Negative);
        }
        let suffix = number.suffix;
        // `1e9` and `1E9` are bare numbers too: an exponent is no unit.
        if suffix.is_empty() || is_exponent(suffix) {
            return Err(QuantityError::NoUnit);
        }
        // A part of a byte is not an amount.
        let unit = unit(suffix).filter(|(ten, _)| *ten >= 0).ok_or(QuantityError::UnknownUnit)?;
        let bytes = number.value(unit).map_err(|error| match error {
            QuantityError::NotWhole => QuantityError::FractionOfMib,
            other => other,
        })?;
        if bytes == 0 {
            return Err(QuantityError::Zero);
        }
        if !bytes.is_multiple_of(BYTES_PER_MIB) {
            return Err(QuantityError::FractionOfMib);
        }
        let mib = u64::try_from(bytes / BYTES_PER_MIB).ok();
        mib.filter(|n| *n <= u64::MAX >> 20).map(Self).ok_or(QuantityError::TooLarge)
    }

    /// Parses a quantity of bytes as the API server writes them, where a bare number is bytes:
    /// `7516192768`, `7340032Ki` and `7Gi` are the same.
    ///
    /// # Errors
    /// Every text that is not exactly a positive whole number of MiB, and what is more than
    /// 2^63-1 bytes, to which Kubernetes itself counts.
    pub fn parse_bytes(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Empty);
        }
        let bytes = parse_count(text).map_err(|error| match error {
            QuantityError::NotWhole => QuantityError::FractionOfMib,
            other => other,
        })?;
        if bytes == 0 {
            return Err(QuantityError::Zero);
        }
        if bytes.trailing_zeros() < 20 {
            return Err(QuantityError::FractionOfMib);
        }
        Ok(Self(bytes >> 20))
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

/// Whether a character is one that a shell would have taken away.
pub(crate) fn is_quote(one: char) -> bool {
    matches!(one, '"' | '\'' | '`' | '“' | '”' | '‘' | '’')
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
            ("7 Gi", E::Blank),
            ("7Gi\r", E::Blank),
            (" ", E::Blank),
            ("\"7Gi\"", E::Quoted),
            ("'7Gi'", E::Quoted),
            ("50%", E::UnknownUnit),
            ("all", E::NotANumber),
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
    fn reads_bytes_as_the_api_server_writes_them() {
        for (text, mib) in [
            ("7516192768", 7168),
            ("7Gi", 7168),
            ("7168Mi", 7168),
            ("7340032Ki", 7168),
            ("7.5Gi", 7680),
            ("1048576", 1),
            ("1048576k", 1000),
            ("1048576e3", 1000),
            ("7516192768000m", 7168),
            ("1Ti", 1_048_576),
            ("9223372036853727232", (1 << 43) - 1),
        ] {
            assert_eq!(Mib::parse_bytes(text), Ok(Mib(mib)), "{text}");
        }
    }

    #[test]
    fn refuses_bytes_that_are_no_whole_mib() {
        use QuantityError as E;
        for (text, error) in [
            ("", E::Empty),
            ("0", E::Zero),
            ("-0", E::Zero),
            ("0Gi", E::Zero),
            ("1", E::FractionOfMib),
            ("7", E::FractionOfMib),
            ("7G", E::FractionOfMib),
            ("1048577", E::FractionOfMib),
            ("1Ki", E::FractionOfMib),
            ("1500m", E::FractionOfMib),
            ("0.5", E::FractionOfMib),
            ("-1", E::Negative),
            ("-7Gi", E::Negative),
            ("8Ei", E::TooLarge),
            ("9223372036854775808", E::TooLarge),
            ("99999999999999999999999999Gi", E::TooLarge),
            ("7GB", E::NotAQuantity),
            ("7gi", E::NotAQuantity),
            ("7 Gi", E::NotAQuantity),
            ("Gi", E::NotAQuantity),
            ("٧Gi", E::NotAQuantity),
        ] {
            assert_eq!(Mib::parse_bytes(text), Err(error), "{text}");
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
