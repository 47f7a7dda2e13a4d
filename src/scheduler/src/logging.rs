//! Log lines on standard error, as mpsgated writes them: `level message key=value …`.

use std::fmt::Write as _;
use std::io::Write as _;

use log::kv::{Key, Value, VisitSource};
use log::{LevelFilter, Log, Metadata, Record};

use crate::SchedulerError;
use crate::arguments::Level;

/// Installs the logger. Call once.
///
/// # Errors
/// Where another one is installed.
pub(crate) fn init(level: Level) -> Result<(), SchedulerError> {
    let level = match level {
        Level::Error => LevelFilter::Error,
        Level::Warn => LevelFilter::Warn,
        Level::Info => LevelFilter::Info,
        Level::Debug => LevelFilter::Debug,
    };
    log::set_max_level(level);
    let stderr = env_logger::Builder::new()
        .filter_level(level)
        .format(|out, record| {
            let mut line =
                format!("{:<5} {}", record.level().as_str().to_lowercase(), record.args());
            // Writing to a String does not fail.
            let _ = record.key_values().visit(&mut Fields(&mut line));
            writeln!(out, "{line}")
        })
        .build();
    log::set_boxed_logger(Box::new(Ours(stderr))).map_err(SchedulerError::Log)
}

/// Drops what other crates tell of their own work: at `trace` every turn of the event loop.
struct Ours<L>(L);

impl<L: Log> Log for Ours<L> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // A target is its module's path, and all our crates' begin so.
        let target = metadata.target();
        // What kube warns of is said by us with what follows from it.
        let foreign = metadata.level() <= log::Level::Warn && !target.starts_with("kube_");
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
