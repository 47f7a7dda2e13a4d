//! The file that an engine passes as `--log`, in the form that runc writes.
//!
//! It is what people see: containerd, dockerd and conmon read the last error from it. Docker 20.10
//! prints "unable to retrieve OCI runtime error" for a runtime that failed without writing one.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::argv::LogFormat;

/// Appends one line, in one write; makes the file (mode 0644, as runc does) where there is none.
///
/// `level` is logrus': `error`, `warning`, `info`. `now_rfc3339` comes from [`rfc3339`].
///
/// # Errors
/// The error of opening or writing the file. The caller still has stderr.
pub fn append(
    path: &Path,
    format: LogFormat,
    level: &str,
    msg: &str,
    now_rfc3339: &str,
) -> io::Result<()> {
    // The standard library opens with O_CLOEXEC.
    let mut file = OpenOptions::new().append(true).create(true).mode(0o644).open(path)?;
    file.write_all(render(format, level, msg, now_rfc3339).as_bytes())
}

/// One line with its line feed; line feeds within `msg` are escaped in both forms.
#[must_use]
pub fn render(format: LogFormat, level: &str, msg: &str, now_rfc3339: &str) -> String {
    match format {
        LogFormat::Json => {
            let line = serde_json::json!({ "level": level, "msg": msg, "time": now_rfc3339 });
            format!("{line}\n")
        }
        LogFormat::Text => {
            format!("time={} level={level} msg={}\n", quote(now_rfc3339), quote(msg))
        }
    }
}

/// Go's `%q`, which logrus uses in its text form, for all text that is UTF-8.
fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            letter if letter.is_ascii_control() => {
                // Writing to a `String` cannot fail.
                let _ = write!(quoted, "\\x{:02x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// UTC in whole seconds, `2026-09-14T08:30:00Z`; times before 1970 are rounded down.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        Err(before) => {
            let before = before.duration();
            let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
            -whole - i64::from(before.subsec_nanos() > 0)
        }
    };
    let (year, month, day) = civil_date(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The proleptic Gregorian date of a day counted from 1970-01-01.
///
/// Years are taken to start in March, so that the leap day is the last of its year, and are counted
/// in eras of 400 years, which all have 146,097 days.
fn civil_date(day: i64) -> (i64, i64, i64) {
    // 719,468 days from 0000-03-01 to 1970-01-01.
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    // Leave out leap days: one in 4 years, none in 100, one in 400.
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March have 31, 30, 31, 30, 31 days and over again: 153 in five.
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (400 * era + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test is to panic")]
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    const NOW: &str = "2026-11-21T12:58:52Z";

    #[test]
    fn json_lines_are_those_of_runc() {
        // runc 1.1.5: `runc --log F --log-format json create -b /tmp/none x`
        let expected = "{\"level\":\"error\",\"msg\":\"runc create failed: chdir /tmp/none: no such \
                        file or directory\",\"time\":\"2026-11-21T12:58:52Z\"}\n";
        let msg = "runc create failed: chdir /tmp/none: no such file or directory";
        assert_eq!(render(LogFormat::Json, "error", msg, NOW), expected);
    }

    #[test]
    fn text_lines_are_those_of_runc() {
        // runc 1.1.5: `runc --log F create -b '/tmp/no"ne' x`
        let expected = "time=\"2026-11-21T12:58:52Z\" level=error msg=\"runc create failed: chdir \
                        /tmp/no\\\"ne: no such file or directory\"\n";
        let msg = "runc create failed: chdir /tmp/no\"ne: no such file or directory";
        assert_eq!(render(LogFormat::Text, "error", msg, NOW), expected);
    }

    #[test]
    fn a_message_never_breaks_its_line() {
        let msg = "first\nsecond\r\t\"\\\u{0}\u{1b}[31m ü";
        for format in [LogFormat::Json, LogFormat::Text] {
            let line = render(format, "error", msg, NOW);
            let body = line.strip_suffix('\n').unwrap();
            assert!(!body.chars().any(|c| c.is_ascii_control()), "{line:?}");
        }
        let line = render(LogFormat::Json, "error", msg, NOW);
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(back["msg"], msg);
        assert!(
            render(LogFormat::Text, "error", msg, NOW)
                .contains(r#""first\nsecond\r\t\"\\\x00\x1b[31m ü""#)
        );
    }

    #[test]
    fn appends_to_what_the_runtime_wrote_before() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.json");
        append(&path, LogFormat::Json, "warning", "one", NOW).unwrap();
        append(&path, LogFormat::Json, "error", "two", NOW).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let messages: Vec<String> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|line| line["msg"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(messages, ["one", "two"]);
        // The umask may take away, nothing may add.
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777 & !0o644, 0);
    }

    #[test]
    fn a_log_that_cannot_be_opened_is_an_error_and_not_a_panic() {
        let dir = tempfile::tempdir().unwrap();
        let error = append(&dir.path().join("no/log"), LogFormat::Text, "error", "m", NOW);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn known_dates_come_out_right() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        // From `date -u -d @N +%FT%TZ`.
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(at(253_402_300_799), "9999-12-31T23:59:59Z");
        let before = UNIX_EPOCH - Duration::from_millis(1);
        assert_eq!(rfc3339(before), "1969-12-31T23:59:59Z");
    }

    #[test]
    fn every_day_of_eight_centuries_follows_the_one_before() {
        let (mut year, mut month, mut day) = (1600, 1, 1);
        // 135,140 days from 1600-01-01 to 1970-01-01.
        for count in -135_140..157_054 {
            assert_eq!(civil_date(count), (year, month, day), "day {count}");
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let days = match month {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > days {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!((year, month, day), (2400, 1, 1));
    }
}
