//! Log lines: to the journal with fields where standard error is the journal, else to standard
//! error as `level message key=value …`.

use std::fmt::Write as _;
use std::io::Write as _;

use log::kv::{Key, Value, VisitSource};
use mpsgate_config::LogLevel;

use crate::DaemonError;

/// Installs the logger. Call once.
///
/// # Errors
/// Where the journal cannot be reached.
pub(crate) fn init(level: LogLevel) -> Result<(), DaemonError> {
    set_level(level);
    if systemd_journal_logger::connected_to_journal() {
        let journal = systemd_journal_logger::JournalLog::new()
            .map_err(|error| DaemonError::Log(Box::new(error)))?
            .with_syslog_identifier("mpsgated".to_owned());
        return journal.install().map_err(|error| DaemonError::Log(Box::new(error)));
    }
    env_logger::Builder::new()
        // The level is `log`'s own maximum, so that SIGHUP can change it.
        .filter_level(log::LevelFilter::Trace)
        .format(|out, record| {
            let mut line =
                format!("{:<5} {}", record.level().as_str().to_lowercase(), record.args());
            // Writing to a String does not fail.
            let _ = record.key_values().visit(&mut Fields(&mut line));
            writeln!(out, "{line}")
        })
        .try_init()
        .map_err(|error| DaemonError::Log(Box::new(error)))
}

/// Changes the level while running.
pub(crate) fn set_level(level: LogLevel) {
    log::set_max_level(match level {
        LogLevel::Error => log::LevelFilter::Error,
        LogLevel::Warn => log::LevelFilter::Warn,
        LogLevel::Info => log::LevelFilter::Info,
        LogLevel::Debug => log::LevelFilter::Debug,
        LogLevel::Trace => log::LevelFilter::Trace,
    });
}

struct Fields<'a>(&'a mut String);

impl<'kvs> VisitSource<'kvs> for Fields<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        let text = value.to_string();
        let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'"');
        let _ =
            if plain { write!(self.0, " {key}={text}") } else { write!(self.0, " {key}={text:?}") };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_spaces_or_line_breaks_stay_one_quoted_field() {
        let mut line = String::new();
        for (key, value) in [("a", "1"), ("b", "two words"), ("c", "x\ny"), ("d", "")] {
            assert!(Fields(&mut line).visit_pair(Key::from(key), Value::from(value)).is_ok());
        }
        assert_eq!(line, " a=1 b=\"two words\" c=\"x\\ny\" d=\"\"");
    }
}
