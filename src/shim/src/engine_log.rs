//! Messages for people: on standard error, and in the log file that the engine passed, because
//! `docker run` and `kubectl describe pod` show that file.

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

/// A refusal, and whether the daemon made it: then the daemon has counted it already.
pub(crate) struct Refused {
    pub(crate) refusal: Refusal,
    pub(crate) by_daemon: bool,
    /// The pod and container, if a kubelet's engine names them.
    pub(crate) pod: Option<Box<PodContainer>>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, by_daemon: false, pod: None }
    }
}

/// Where to report, and the container.
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

    /// For a hook, which is passed no log, and learns its container later.
    pub(crate) fn of_hook() -> Self {
        Self { log: None, format: LogFormat::Text, container: String::new() }
    }

    pub(crate) fn name(&mut self, container: &str) {
        container.clone_into(&mut self.container);
    }

    /// Reports to the daemon that the container is not started. Returns the text for its user.
    pub(crate) fn told(&self, Refused { refusal, by_daemon, pod }: &Refused) -> String {
        if !by_daemon {
            let pod = pod.as_deref().cloned();
            let hint = Some(refusal.hint.to_string());
            let sentence = printable::line(&refusal.sentence);
            self.tell_daemon(NoteAction::Refused, refusal.code, &sentence, hint, pod);
        }
        refusal.render(&self.container)
    }

    /// Reports that the container is not started.
    pub(crate) fn refused(&self, refused: &Refused) {
        self.write("error", &refused.refusal.render(&self.container));
        self.told(refused);
    }

    /// Reports a finding about a container that is started. `pod`: its author is notified, too.
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

    /// Warns that something was done less well than it could be. This goes to the engine's log
    /// alone, and not to standard error, which belongs to the runtime.
    pub(crate) fn warned(&self, what: &str) {
        if let Some(log) = &self.log {
            let what = printable::line(what);
            let text = format!("mpsgate: container {:?} {what}", self.container);
            let _ = runtime_log::append(log, self.format, "warning", &text, &now());
        }
    }

    /// Reports that the real runtime did not start.
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

    /// Sends a report for the daemon's log and counters, without waiting.
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

/// An error with all its causes in one line, made printable: a cause may quote text from outside.
pub(crate) fn chain(error: &dyn Error) -> String {
    printable::line(&printable::chain(error)).into_owned()
}
