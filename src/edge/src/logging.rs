//! Log lines: in the journal with fields, on standard error as `level message key=value …`.

use std::fmt::Write as _;
use std::io::Write as _;

use log::kv::{Key, Value, VisitSource};
use log::{Level, Log, Metadata, Record};
use mpsgate_config::LogLevel;

use crate::EdgeError;

/// Lines go to the journal under the name `program` where standard error is the journal, else to
/// standard error. Call once.
///
/// # Errors
/// If the journal cannot be reached.
pub fn to_journal(program: &str, level: LogLevel) -> Result<(), EdgeError> {
    if !systemd_journal_logger::connected_to_journal() {
        return to_stderr(level);
    }
    let journal = systemd_journal_logger::JournalLog::new()
        .map_err(|error| EdgeError::Log(Box::new(error)))?
        .with_syslog_identifier(program.to_owned());
    install(journal, level)
}

/// Lines go to standard error. Call once.
///
/// # Errors
/// If there is a logger already.
pub fn to_stderr(level: LogLevel) -> Result<(), EdgeError> {
    let stderr = env_logger::Builder::new()
        // The level is `log`'s own maximum, so that it can change while running.
        .filter_level(log::LevelFilter::Trace)
        .format(|out, record| {
            let mut line =
                format!("{:<5} {}", record.level().as_str().to_lowercase(), record.args());
            // Writing to a String does not fail.
            let _ = record.key_values().visit(&mut Fields(&mut line));
            writeln!(out, "{line}")
        })
        .build();
    install(stderr, level)
}

fn install(logger: impl Log + 'static, level: LogLevel) -> Result<(), EdgeError> {
    set_level(level);
    log::set_boxed_logger(Box::new(Ours(logger))).map_err(|error| EdgeError::Log(Box::new(error)))
}

/// Drops other crates' messages about their own work: at `trace` they log every turn of the event
/// loop.
struct Ours<L>(L);

impl<L: Log> Log for Ours<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // A target is a module's path, and those of mpsgate's crates all begin with its name.
        let target = metadata.target();
        // mpsgate reports kube's warnings itself, with what follows from them.
        let foreign = metadata.level() <= Level::Warn && !target.starts_with("kube_");
        let wanted = foreign || target.starts_with("mpsgate");
        wanted && self.0.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        // The macros do not ask first.
        if self.enabled(record.metadata()) {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// Changes the level while running.
pub fn set_level(level: LogLevel) {
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
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Log for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &Record<'_>) {
            self.0.lock().unwrap().push(format!("{} {}", record.level(), record.target()));
        }

        fn flush(&self) {}
    }

    #[test]
    fn other_crates_are_heard_only_when_they_warn() {
        let logger = Ours(Kept::default());
        for target in [
            "mio::poll",
            "kube_client::client::builder",
            "hyper::proto",
            module_path!(),
            "mpsgate_mps::card",
        ] {
            for level in [Level::Trace, Level::Info, Level::Warn] {
                logger.log(&Record::builder().level(level).target(target).build());
            }
        }
        let own = ["mpsgate_edge::logging::tests", "mpsgate_mps::card"];
        let own =
            own.into_iter().flat_map(|t| ["TRACE", "INFO", "WARN"].map(|l| format!("{l} {t}")));
        let foreign = ["WARN mio::poll", "WARN hyper::proto"].map(str::to_owned);
        let expected: Vec<_> = foreign.into_iter().chain(own).collect();
        assert_eq!(*logger.0.0.lock().unwrap(), expected);
    }

    #[test]
    fn values_with_spaces_or_line_breaks_stay_one_quoted_field() {
        let mut line = String::new();
        for (key, value) in [("a", "1"), ("b", "two words"), ("c", "x\ny"), ("d", "")] {
            assert!(Fields(&mut line).visit_pair(Key::from(key), Value::from(value)).is_ok());
        }
        assert_eq!(line, " a=1 b=\"two words\" c=\"x\\ny\" d=\"\"");
    }
}
