//! Looks each minute and at reload which runtime handlers of the node lead through mpsgate, and
//! shows it on the node's object, in the metrics and, where it changes, in the log. Decides nothing
//! about containers: those that pass mpsgate are evaluated whatever this says.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mpsgate_config::paths;
use mpsgate_configure::Options;
use mpsgate_host::engine::{Engine, Kind, running};
use mpsgate_model::printable;

use crate::around::handler_status::Handlers;
use crate::daemon::Daemon;
use crate::engine_settings::{self, Reading};
use crate::error::chain;
use crate::{DaemonError, node_root};

/// Between two looks at the engine's files.
const LOOK: Duration = Duration::from_secs(60);

/// How `configure` reads settings where nothing is to be written.
pub(crate) fn options(runtime: &Path) -> Options {
    Options {
        name: "mpsgate".to_owned(),
        shim: paths::RUNTIME.to_owned(),
        runtime: runtime.to_string_lossy().into_owned(),
        ..Options::default()
    }
}

/// Looks for as long as the process lives. Without a kubelet nobody uses the CRI.
pub(crate) async fn watch(daemon: Arc<Daemon>) -> Result<(), DaemonError> {
    let mut last = None;
    loop {
        if daemon.node().kubelet {
            let options = options(&daemon.settings.now().runtime.path);
            let before = last.clone();
            let looked =
                daemon.blocking(move |_| node_root::look(|| look(&options, before.as_deref())));
            let found = match looked.await {
                Ok(Look::Same) => None,
                Ok(Look::New { marks, handlers }) => {
                    last = marks;
                    Some(*handlers)
                }
                Err(error) => {
                    last = None;
                    Some(Handlers::unknown(format!(
                        "the node's files cannot be looked at: {error}"
                    )))
                }
            };
            if let Some(handlers) = found {
                take(&daemon, handlers);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = daemon.look_at_handlers.notified() => {}
        }
    }
}

enum Look {
    /// As it was: no program is asked again.
    Same,
    New {
        /// Of each engine; `None` where it has to be asked again in any case.
        marks: Option<Vec<u64>>,
        handlers: Box<Handlers>,
    },
}

fn look(options: &Options, before: Option<&[u64]>) -> Look {
    let unknown = |why| Look::New { marks: None, handlers: Box::new(Handlers::unknown(why)) };
    let found = match running(Path::new("/")) {
        Ok(found) => found,
        Err(error) => return unknown(chain(&error)),
    };
    // A kubelet uses no Docker.
    let engines: Vec<Engine> =
        found.engines.into_iter().filter(|engine| engine.kind != Kind::Dockerd).collect();
    if let ([], [doubted, ..]) = (engines.as_slice(), found.doubted.as_slice()) {
        return unknown(chain(doubted));
    }
    let mark = |engine: &Engine| engine_settings::fingerprint(engine, options);
    let marks: Option<Vec<u64>> = engines.iter().map(mark).collect();
    if marks.as_deref().is_some_and(|marks| !marks.is_empty() && Some(marks) == before) {
        return Look::Same;
    }
    let read = |engine: &Engine| {
        let options = Options { engine: engine_settings::version(engine), ..options.clone() };
        engine_settings::read(engine, &options)
    };
    let readings: Vec<Reading> = engines.iter().filter_map(read).collect();
    // What went wrong may go well in a minute; an engine that has just been started is asked by
    // nobody yet.
    let is_certain = readings.iter().all(|reading| reading.said.is_ok() && !reading.stale);
    Look::New { marks: marks.filter(|_| is_certain), handlers: Box::new(Handlers::of(&readings)) }
}

fn take(daemon: &Daemon, handlers: Handlers) {
    {
        let mut around = daemon.around();
        if around.handlers.as_ref() == Some(&handlers) {
            return;
        }
        let names = |names: &BTreeSet<String>| {
            printable::plain(&names.iter().map(String::as_str).collect::<Vec<_>>().join(","))
        };
        let report = &handlers.report;
        log::info!(
            engine = report.engine.as_str(), by = report.by.as_str(), led = names(&report.led).as_str(), round = names(&report.round).as_str(),
            unknown = names(&report.unknown).as_str();
            "handlers of the engine"
        );
        around.handlers = Some(handlers);
    }
    daemon.tell_change();
}
