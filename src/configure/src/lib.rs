//! What has to change in an engine's settings so that its containers pass mpsgate: text in, text
//! out.
//!
//! ```text
//! Source ──► plan  ──► Plan: files as they were and as they should be, notes, how to restart
//!        └─► check ──► Report: which handlers reach mpsgate, which bypass it
//! ```
//!
//! Comments, order, foreign keys, line ends and indentation stay. Nothing is written here, no
//! program is started, no clock or environment is asked; `mpsgate configure` does that. Every plan
//! is verified before it is returned: what would be written parses, and leads the handlers where it
//! should.

pub mod containerd;
pub mod crio;
pub mod disk;
pub mod docker;
mod error;
mod json;
mod overlay;
pub mod podman;
mod text;
mod toml;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

pub use disk::Disk;
pub use error::ConfigureError;

/// Annotations that reach the runtime only where containerd is told so. `path.Match`, by which it
/// compares, lets no `*` cross a `/`; these name whose they are, so no foreign annotation is passed
/// on.
pub const ANNOTATIONS: [&str; 2] = ["mpsgate.io/*", "aliyun.com/*"];

/// Where settings are read from. The real one is the file system; tests have a map.
pub trait Source {
    /// A file's text; `None` where there is no file.
    ///
    /// # Errors
    /// What the system said, also for a file that is not UTF-8.
    fn read(&self, path: &Path) -> io::Result<Option<String>>;
    /// The files of a directory, by name; none where there is no directory.
    fn list(&self, directory: &Path) -> Vec<PathBuf>;
    /// All files below a directory, whatever their names, in the order of Go's `filepath.Walk`: by
    /// name, folder by folder, no link followed. None where there is no directory.
    ///
    /// # Errors
    /// A folder that cannot be read, or what stands in a file's place and is none.
    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError>;
    /// Whether a program is there: by its whole path, or by its name where runtimes are looked for.
    fn has_program(&self, program: &str) -> bool;
}

/// What the operator wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// Name of our handler (containerd, CRI-O) or runtime (Docker, Podman).
    pub name: String,
    /// The program that engines shall call.
    pub shim: String,
    /// The real runtime, `runtime.path` of mpsgate's settings: all that passes mpsgate is run by
    /// it.
    pub runtime: String,
    /// Only add our handler; default and other handlers stay.
    pub keep_default: bool,
    /// Lead those handlers through mpsgate too whose program is not the real runtime.
    pub all_handlers: bool,
    /// The engine's version, where it is known.
    pub engine: Option<Version>,
    /// What the handlers ran before mpsgate wrote anything here, where that is known.
    pub before: Option<Before>,
}

/// An engine's handlers as they were before mpsgate led any of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Before {
    /// The default handler's name.
    pub default: String,
    /// The program of each handler that the settings name.
    pub programs: BTreeMap<String, String>,
}

/// Major and minor of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// The first `N.N` in what a program says of its version, as
    /// `containerd github.com/… v2.1.4 …`.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let word = word.trim_start_matches('v');
            let mut parts = word.splitn(3, '.');
            let major = parts.next()?.parse().ok()?;
            let digits = |s: &str| s.chars().take_while(char::is_ascii_digit).collect::<String>();
            Some(Self(major, digits(parts.next()?).parse().ok()?))
        })
    }
}

/// A file as it is and as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The file, as it was named.
    pub path: PathBuf,
    /// Its text; `None` where there is no file.
    pub before: Option<String>,
    /// Its text to be.
    pub after: String,
}

impl Change {
    /// The change as a unified diff.
    #[must_use]
    pub fn diff(&self) -> String {
        let path = self.path.display();
        let old = if self.before.is_some() { path.to_string() } else { "/dev/null".to_owned() };
        // A carriage return would be printed as one.
        let (before, after) = (self.before.as_deref().unwrap_or(""), &self.after);
        let mut options = diffy::DiffOptions::new();
        options.set_original_filename(old).set_modified_filename(path.to_string());
        options.create_patch(before, after).to_string()
    }
}

/// What is to be done.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    /// Files that change, in the order in which they should be written.
    pub changes: Vec<Change>,
    /// What the operator should know.
    pub notes: Vec<String>,
    /// How the engine takes it.
    pub restart: String,
}

/// How one handler, or runtime, of an engine stands to mpsgate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its name.
    pub handler: String,
    /// How it stands.
    pub way: Way,
    /// The same in a sentence.
    pub sentence: String,
}

/// Where a handler leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Through mpsgate.
    Through,
    /// Bypasses it, and the settings can change that.
    Bypass,
    /// Bypasses it, and no setting of this engine can change that.
    Beyond,
}

/// How an engine stands to mpsgate.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The default handler first.
    pub findings: Vec<Finding>,
    /// The files that say so, and the directories in which more of them may appear: a daemon that
    /// runs since before one of them was changed may have read something else.
    pub files: Vec<PathBuf>,
}

impl Report {
    /// Whether nothing that settings can change bypasses mpsgate.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        !self.findings.is_empty() && self.findings.iter().all(|f| f.way != Way::Bypass)
    }

    fn add(&mut self, handler: &str, way: Way, sentence: impl Into<String>) {
        self.findings.push(Finding { handler: handler.to_owned(), way, sentence: sentence.into() });
    }
}

/// `before` with what somebody changed since `after` was written, for an undo that keeps their
/// edit. `None` where both changed the same lines.
#[must_use]
pub fn merge_later_edit(before: &str, after: &str, now: &str) -> Option<String> {
    diffy::merge(after, before, now).ok()
}

/// Whether the text still is what its kind of file holds: TOML or JSON, by the name. Templates are
/// neither.
#[must_use]
pub fn parses(path: &Path, body: &str) -> bool {
    match path.extension().and_then(|e| e.to_str()) {
        Some("json") => body.trim().is_empty() || json::Object::of(path, body).is_ok(),
        Some("tmpl") => true,
        _ => toml::open(path, body).is_ok(),
    }
}

/// The last part of a program's path.
fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

impl Options {
    /// For reading files where nothing is decided.
    fn reading() -> Self {
        Self {
            name: String::new(),
            shim: String::new(),
            runtime: String::new(),
            keep_default: true,
            all_handlers: false,
            engine: None,
            before: None,
        }
    }

    /// The program of a handler that was led through mpsgate and may not be any more:
    /// `runtime.path` was changed, and containers would lose what that program does.
    fn lost(&self, handler: &str) -> Option<&str> {
        let program = self.before.as_ref()?.programs.get(handler)?;
        (!self.is_shim(program) && !self.may_lead(program)).then_some(program)
    }

    /// Whether a handler that runs `program` may run the real runtime through mpsgate instead
    /// without that anybody asked: it is the same, or plain runc, whose place every real runtime
    /// can take.
    fn may_lead(&self, program: &str) -> bool {
        self.all_handlers || matches!(base(program), "" | "runc") || self.is_real(program)
    }

    fn is_real(&self, program: &str) -> bool {
        base(program) == base(&self.runtime)
    }

    fn is_shim(&self, program: &str) -> bool {
        program == self.shim || base(program) == base(&self.shim)
    }

    /// What is said of a handler that does not run mpsgate.
    fn bypasses(&self, handler: &str, program: &str) -> String {
        if self.may_lead(program) {
            format!("{handler}: runs {program} and bypasses mpsgate")
        } else {
            self.stays(handler, program)
        }
    }

    /// What to say of a handler that stays as it is because its program is another.
    fn stays(&self, handler: &str, program: &str) -> String {
        format!(
            "{handler} runs {program} and bypasses mpsgate. To change that: path = \"{program}\" below [runtime] in \
             /etc/mpsgate/config.toml (all containers then run through it), or --all-handlers (this one then runs {})",
            self.runtime
        )
    }
}
