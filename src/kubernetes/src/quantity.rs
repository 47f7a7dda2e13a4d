//! Kubernetes quantities that count things: extended resources are whole numbers.
//!
//! The API server checks and rewrites them (`7000m` becomes `7`), but keeps suffixes and exponents
//! (`1k`, `1e3`). Grammar: apimachinery `pkg/api/resource/quantity.go`.

/// Why a text is no count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// No quantity of Kubernetes.
    #[error("it is not a quantity")]
    NotAQuantity,
    /// `1500m`, `0.5`.
    #[error("it is not a whole number")]
    NotWhole,
    /// Less than zero.
    #[error("it is negative")]
    Negative,
    /// More than 2^63-1, which Kubernetes itself does not count to.
    #[error("it is too large")]
    TooLarge,
}

/// Reads a count such as `7`, `1k`, `2Ki`, `1e3`, `3.0` or `7000m`.
///
/// # Errors
/// What is no quantity, negative, not whole, or more than 2^63-1.
pub fn parse_count(text: &str) -> Result<u64, QuantityError> {
    let (negative, rest) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(split);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(QuantityError::NotAQuantity);
    }
    // value = digits * 10^ten * 2^two
    let (mut ten, two) = scale(suffix).ok_or(QuantityError::NotAQuantity)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(QuantityError::Negative);
    }
    ten = ten.saturating_sub(i32::try_from(fraction.len()).unwrap_or(i32::MAX));
    let number = digits.bytes().try_fold(0_u128, |value, digit| {
        value.checked_mul(10)?.checked_add(u128::from(digit - b'0'))
    });
    let mut value =
        number.and_then(|value| value.checked_mul(1 << two)).ok_or(QuantityError::TooLarge)?;
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
    u64::try_from(value)
        .ok()
        .filter(|value| i64::try_from(*value).is_ok())
        .ok_or(QuantityError::TooLarge)
}

/// An exponent beyond this is cut to it: no number that Kubernetes counts to has it.
const MOST: i32 = 100;

/// Powers of ten and of two.
fn scale(suffix: &str) -> Option<(i32, u32)> {
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
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if unsigned.is_empty() || !unsigned.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            let value = exponent.parse::<i32>().unwrap_or(MOST);
            (value.clamp(-MOST, MOST), 0)
        }
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

    proptest::proptest! {
        #[test]
        fn no_text_breaks_it(text in "[-+.0-9eEkKmMunGTPi]{0,24}|.{0,24}") {
            let _ = parse_count(&text);
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
