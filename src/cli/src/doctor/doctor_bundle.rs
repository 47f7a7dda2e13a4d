//! `mpsgate doctor --bundle FILE`: what somebody who helps needs to see, in one archive, without
//! secrets.
//!
//! ```text
//! sources (the list of what goes in) ─► redact (what of it stays out) ─► archive (beside, then renamed)
//! ```
//!
//! No symbolic link is followed, nothing that exists is replaced, and only its owner may read the
//! result. `manifest.json` in it lists what is there, what was left out and why.

mod archive;
mod redact;
mod sources;

use mpsgate_edge::{EdgeError, print};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::CliError;
use crate::error::BundleError;

/// Version of the manifest. Raised when a field goes or changes its meaning, not when one comes.
const SCHEMA: u32 = 1;

/// What never is in a bundle, whatever there is on the node.
const NEVER: [&str; 7] = [
    "the keys of tokens (/var/lib/mpsgate/tokens), and tokens",
    "user names and passwords in addresses",
    "environments of processes and containers; values of variables that NVIDIA, CUDA or mpsgate do not know",
    "records of grants for exec (/run/mpsgate/grants): they hold containers' environments",
    "engines' settings and what configure keeps of them: registries' passwords may be in them",
    "comments in the settings of mpsgate",
    "of units, settings that may hold a secret, arguments of programs, comments; mounts of the node; command lines of processes",
];

/// One file of the archive.
#[derive(Debug)]
struct Part {
    /// Below the archive's one directory.
    name: String,
    /// The file or the command that it is from.
    from: String,
    text: String,
    /// Only its end is there.
    cut: bool,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    what: String,
    why: String,
}

/// What was collected.
#[derive(Debug, Default)]
struct Collected {
    parts: Vec<Part>,
    left_out: Vec<LeftOut>,
}

/// Whether the name is free, before anything is gathered.
pub(super) fn check_target(target: &Path) -> Result<(), BundleError> {
    match std::fs::symlink_metadata(target) {
        Ok(_) => Err(BundleError::Exists { path: target.to_owned() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(BundleError::Write { path: target.to_owned(), source }),
    }
}

/// Writes `target`. `report` is the doctor's own document.
pub(super) fn write(
    root: &Path,
    target: &Path,
    report: &str,
    now_ms: u64,
) -> Result<String, CliError> {
    let mut collected = sources::collect(root, report);
    let manifest = Part {
        name: "manifest.json".to_owned(),
        from: "mpsgate doctor --bundle".to_owned(),
        text: manifest(&collected, now_ms)?,
        cut: false,
    };
    collected.parts.insert(0, manifest);
    let bytes = archive::write(target, &collected.parts, now_ms / 1000)?;
    Ok(format!(
        "{}: {} files, {} bytes, readable by its owner alone; manifest.json in it says what was left out\n",
        target.display(),
        collected.parts.len(),
        bytes
    ))
}

fn manifest(collected: &Collected, now_ms: u64) -> Result<String, EdgeError> {
    #[derive(Serialize)]
    struct Included<'a> {
        name: &'a str,
        from: &'a str,
        bytes: usize,
        cut: bool,
    }
    #[derive(Serialize)]
    struct Manifest<'a> {
        schema: u32,
        version: &'static str,
        made_ms: u64,
        included: Vec<Included<'a>>,
        left_out: &'a [LeftOut],
        never_included: [&'static str; NEVER.len()],
    }
    let included = collected.parts.iter().map(|part| Included {
        name: &part.name,
        from: &part.from,
        bytes: part.text.len(),
        cut: part.cut,
    });
    print::json(&Manifest {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        made_ms: now_ms,
        included: included.collect(),
        left_out: &collected.left_out,
        never_included: NEVER,
    })
}

impl Collected {
    fn leave_out(&mut self, what: impl Into<PathBuf>, why: impl Into<String>) {
        let what = what.into().to_string_lossy().into_owned();
        self.left_out.push(LeftOut { what, why: why.into() });
    }
}
