//! Quantities of Kubernetes: their text and their value.
//!
//! The API server checks and rewrites them (`7000m` becomes `7`), but keeps suffixes and exponents
//! (`1k`, `1e3`). Grammar: apimachinery `pkg/api/resource/quantity.go`.

/// Why a text is not an amount or a count. The caller quotes the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// The text is empty.
    #[error("it is empty")]
    Empty,
    /// A number without a unit.
    #[error("it has no unit")]
    NoUnit,
    /// Quotes that a shell, or a file that is read without one, has left in it.
    #[error("there are quotes in it")]
    Quoted,
    /// A blank, or the carriage return of a file with lines as on Windows.
    #[error("there is a blank or a line end in it")]
    Blank,
    /// `GB`, `GiB`, `gi`, or another suffix that Kubernetes does not know.
    #[error("its unit is not one that Kubernetes knows")]
    UnknownUnit,
    /// Not a decimal number.
    #[error("it is not a number")]
    NotANumber,
    /// Not a quantity of Kubernetes.
    #[error("it is not a quantity")]
    NotAQuantity,
    /// Zero.
    #[error("it is zero")]
    Zero,
    /// Less than zero.
    #[error("it is negative")]
    Negative,
    /// Not a whole number of MiB.
    #[error("it is not a whole number of MiB")]
    FractionOfMib,
    /// Not a whole number of GiB, where only whole ones are allowed.
    #[error("it is not a whole number")]
    NotWhole,
    /// More than fits in 64 bits of bytes.
    #[error("it is too large")]
    TooLarge,
}

/// A decimal number and the suffix after it.
pub(crate) struct Number<'a> {
    pub(crate) negative: bool,
    whole: &'a str,
    fraction: &'a str,
    pub(crate) suffix: &'a str,
}

impl<'a> Number<'a> {
    /// `None` where the text does not begin with a number.
    pub(crate) fn split(text: &'a str) -> Option<Self> {
        let rest = text.strip_prefix(['-', '+']).unwrap_or(text);
        let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (negative, fraction) = (text.starts_with('-'), fraction.trim_end_matches('0'));
        Some(Self { negative, whole, fraction, suffix })
    }

    /// The powers of ten and of two of its suffix.
    fn scale(&self) -> Option<(i32, u32)> {
        unit(self.suffix).or_else(|| exponent(self.suffix))
    }

    /// The value of its digits, scaled by these powers of ten and two, without its sign.
    pub(crate) fn value(&self, (ten, two): (i32, u32)) -> Result<u128, QuantityError> {
        let mut ten = ten.saturating_sub(i32::try_from(self.fraction.len()).unwrap_or(i32::MAX));
        let digits = self.whole.bytes().chain(self.fraction.bytes());
        let number = digits
            .map(|digit| u128::from(digit - b'0'))
            .try_fold(0_u128, |value, digit| value.checked_mul(10)?.checked_add(digit));
        let mut value =
            number.and_then(|value| value.checked_mul(1 << two)).ok_or(QuantityError::TooLarge)?;
        if value == 0 {
            return Ok(0);
        }
        while ten < 0 {
            if !value.is_multiple_of(10) {
                return Err(QuantityError::NotWhole);
            }
            value /= 10;
            ten += 1;
        }
        while ten > 0 {
            value = value.checked_mul(10).ok_or(QuantityError::TooLarge)?;
            ten -= 1;
        }
        Ok(value)
    }
}

/// Reads a count, as of extended resources, which are whole numbers: `7`, `1k`, `2Ki`, `1e3`, `3.0`
/// or `7000m`.
///
/// # Errors
/// A text that is not a quantity, or a number that is negative, not whole, or more than 2^63-1, to
/// which Kubernetes itself counts.
pub fn parse_count(text: &str) -> Result<u64, QuantityError> {
    let number = Number::split(text).ok_or(QuantityError::NotAQuantity)?;
    let value = number.value(number.scale().ok_or(QuantityError::NotAQuantity)?);
    if number.negative && value != Ok(0) {
        return Err(QuantityError::Negative);
    }
    u64::try_from(value?)
        .ok()
        .filter(|value| i64::try_from(*value).is_ok())
        .ok_or(QuantityError::TooLarge)
}

/// Reads any quantity in billionths, to which the API server rounds. `None` where the text is not a
/// quantity, not a whole number of billionths, or too large.
#[must_use]
pub fn parse_nanos(text: &str) -> Option<i128> {
    let number = Number::split(text)?;
    let (ten, two) = number.scale()?;
    let nanos = i128::try_from(number.value((ten + 9, two)).ok()?).ok()?;
    Some(if number.negative { -nanos } else { nanos })
}

/// Whether a suffix is an exponent, so that the number has no unit.
pub(crate) fn is_exponent(suffix: &str) -> bool {
    let rest = suffix.strip_prefix(['e', 'E']).unwrap_or_default();
    let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit())
}

fn exponent(suffix: &str) -> Option<(i32, u32)> {
    let exponent = suffix.get(1..).filter(|_| is_exponent(suffix))?;
    Some((exponent.parse::<i32>().unwrap_or(MOST).clamp(-MOST, MOST), 0))
}

/// The largest exponent that is computed; no number that Kubernetes counts has one above it.
const MOST: i32 = 100;

/// The powers of ten and of two that a suffix means.
pub(crate) fn unit(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form_of_a_whole_number() {
        for (text, value) in [
            ("7", 7),
            ("0", 0),
            ("-0", 0),
            ("+7", 7),
            ("007", 7),
            ("7.", 7),
            ("7.000", 7),
            ("7000m", 7),
            ("7000000u", 7),
            ("7000000000n", 7),
            ("1k", 1000),
            ("1.5k", 1500),
            ("2Ki", 2048),
            ("0.5Ki", 512),
            ("1e3", 1000),
            ("1E3", 1000),
            ("1.5e1", 15),
            ("70e-1", 7),
            ("1M", 1_000_000),
            ("9E", 9_000_000_000_000_000_000),
            ("9223372036854775807", i64::MAX.unsigned_abs()),
        ] {
            assert_eq!(parse_count(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_whole_number() {
        use QuantityError as E;
        for (text, error) in [
            ("", E::NotAQuantity),
            (".", E::NotAQuantity),
            ("Gi", E::NotAQuantity),
            ("7GB", E::NotAQuantity),
            ("7gi", E::NotAQuantity),
            ("7 ", E::NotAQuantity),
            ("1.2.3", E::NotAQuantity),
            ("1e", E::NotAQuantity),
            ("1e+", E::NotAQuantity),
            ("1ee3", E::NotAQuantity),
            ("--1", E::NotAQuantity),
            ("٧", E::NotAQuantity),
            ("-1", E::Negative),
            ("0.5", E::NotWhole),
            ("1500m", E::NotWhole),
            ("1m", E::NotWhole),
            ("1e-1", E::NotWhole),
            ("1e-99999999999", E::TooLarge),
            ("9223372036854775808", E::TooLarge),
            ("8Ei", E::TooLarge),
            ("10E", E::TooLarge),
            ("1e99999999999", E::TooLarge),
            ("99999999999999999999999999999999999999999999999", E::TooLarge),
        ] {
            assert_eq!(parse_count(text), Err(error), "{text}");
        }
    }

    #[test]
    fn what_is_written_in_two_ways_comes_to_the_same() {
        for (one, other) in [
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("1000m", "1"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("1E", "1000P"),
            ("-1", "-1000m"),
            ("0", "0Gi"),
            ("+5", "5"),
            ("0.5", "500m"),
            (".5", "0.5"),
            ("1n", "1e-9"),
        ] {
            assert!(parse_nanos(one).is_some(), "{one}");
            assert_eq!(parse_nanos(one), parse_nanos(other), "{one} {other}");
        }
        assert_eq!(parse_nanos("-1u"), Some(-1000));
        for wrong in [
            "",
            "Gi",
            "1Xi",
            "1.2.3",
            "one",
            "1e",
            "--1",
            "0.0000000001",
            "999999999999999999999999Ei",
            "1e99",
        ] {
            assert_eq!(parse_nanos(wrong), None, "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "[-+.0-9eEkKmMunGTPi]{0,24}|.{0,24}") {
            let count = parse_count(&text).ok().map(|count| i128::from(count) * 1_000_000_000);
            proptest::prop_assert!(count.is_none_or(|count| parse_nanos(&text) == Some(count)));
        }

        #[test]
        fn every_count_is_read_in_each_form_of_it(count in 0..1_u64 << 40, zeros in 0_usize..6) {
            let zeros = "0".repeat(zeros);
            for text in [
                count.to_string(),
                format!("{count}.{zeros}"),
                format!("{count}{zeros}e-{}", zeros.len()),
                format!("{count}000m"),
            ] {
                proptest::prop_assert_eq!(parse_count(&text), Ok(count), "{}", text);
            }
            proptest::prop_assert_eq!(parse_count(&format!("{count}Ki")), Ok(count * 1024));
        }
    }
}
