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

mod command_line;
pub mod containerd;
pub mod crio;
pub mod disk;
pub mod docker;
mod error;
mod json;
mod line_ends;
mod options;
mod overlay;
pub mod podman;
mod source;
mod toml;

use std::path::PathBuf;

pub use disk::Disk;
pub use error::ConfigureError;
pub use options::{Before, Options, Version};
pub use source::Source;

pub(crate) use options::base;

/// Annotations that reach the runtime only where containerd is told so. `path.Match`, by which it
/// compares, lets no `*` cross a `/`; these name whose they are, so no foreign annotation is passed
/// on.
pub const ANNOTATIONS: [&str; 2] = ["mpsgate.io/*", "aliyun.com/*"];

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
