//! What people read: on standard error, and in the log file that the engine passed, because that is
//! what `docker run` and `kubectl describe pod` show.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mpsgate_api::{Call, Client};
use mpsgate_config::paths;
use mpsgate_model::{Code, PodContainer, Refusal, printable};
use mpsgate_oci::argv::{Invocation, LogFormat};
use mpsgate_oci::runtime_log;
use mpsgate_policy::{Note, NoteAction};

/// A refusal, and whether the daemon made it: then it has counted it already.
pub(crate) struct Refused {
    pub(crate) refusal: Refusal,
    pub(crate) by_daemon: bool,
    /// Whose container it is, where a kubelet's engine says so.
    pub(crate) pod: Option<Box<PodContainer>>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, by_daemon: false, pod: None }
    }
}

/// Where to report, and about which container.
pub(crate) struct Report {
    log: Option<PathBuf>,
    format: LogFormat,
    container: String,
}

impl Report {
    pub(crate) fn of(invocation: &Invocation) -> Self {
        let id = invocation.container_id.as_deref().map(|id| id.to_string_lossy().into_owned());
        Self {
            log: invocation.log.clone(),
            format: invocation.log_format,
            container: id.unwrap_or_default(),
        }
    }

    /// Of a hook that is told no log, and its container only later.
    pub(crate) fn of_hook() -> Self {
        Self { log: None, format: LogFormat::Text, container: String::new() }
    }

    pub(crate) fn name(&mut self, container: &str) {
        container.clone_into(&mut self.container);
    }

    /// The container is not started: for the daemon to know. Returns what its user is to read.
    pub(crate) fn told(&self, Refused { refusal, by_daemon, pod }: &Refused) -> String {
        if !by_daemon {
            let pod = pod.as_deref().cloned();
            let hint = Some(refusal.hint.to_string());
            let sentence = printable::line(&refusal.sentence);
            self.tell_daemon(NoteAction::Refused, refusal.code, &sentence, hint, pod);
        }
        refusal.render(&self.container)
    }

    /// The container is not started.
    pub(crate) fn refused(&self, refused: &Refused) {
        self.write("error", &refused.refusal.render(&self.container));
        self.told(refused);
    }

    /// The container is started, but an operator should know something.
    /// `pod`: whose author is told, too.
    pub(crate) fn noted(
        &self,
        Note { action, code, text: note }: &Note,
        pod: Option<PodContainer>,
    ) {
        let note = printable::line(note);
        let text = format!("mpsgate: container {:?}: {note} [{code}]", self.container);
        if let Some(log) = &self.log {
            let _ = runtime_log::append(log, self.format, "warning", &text, &now());
        }
        self.tell_daemon(*action, *code, &note, None, pod);
    }

    /// What was asked for is done, but not as well as it could be. For the engine's log alone: it
    /// is not said on standard error, which belongs to the runtime.
    pub(crate) fn warned(&self, what: &str) {
        if let Some(log) = &self.log {
            let what = printable::line(what);
            let text = format!("mpsgate: container {:?} {what}", self.container);
            let _ = runtime_log::append(log, self.format, "warning", &text, &now());
        }
    }

    /// The real runtime did not start.
    pub(crate) fn failed(&self, error: &dyn Error, hint: &str) {
        let (error, hint) = (chain(error), printable::line(hint));
        self.write("error", &format!("mpsgate: {error}\nhint: {hint}"));
    }

    fn write(&self, level: &str, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
        if let Some(log) = &self.log {
            let _ = runtime_log::append(log, self.format, level, text, &now());
        }
    }

    /// For the daemon's log and counters. Never waited for.
    fn tell_daemon(
        &self,
        action: NoteAction,
        code: Code,
        sentence: &str,
        hint: Option<String>,
        pod: Option<PodContainer>,
    ) {
        Client::notify(
            Path::new(paths::SOCKET),
            Call::Report(mpsgate_api::Report {
                container_id: self.container.clone(),
                code: code.as_str().to_owned(),
                action: action.into(),
                sentence: sentence.to_owned(),
                hint,
                pod,
            }),
        );
    }
}

fn now() -> String {
    runtime_log::rfc3339(SystemTime::now())
}

/// An error with all its causes in one line, as it may be printed: a cause may quote what it
/// stumbled over.
pub(crate) fn chain(error: &dyn Error) -> String {
    printable::line(&printable::chain(error)).into_owned()
}
