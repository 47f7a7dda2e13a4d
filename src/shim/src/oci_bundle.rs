//! The bundle's `config.json`: it is read once and replaced whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mpsgate_host::file::remove_leftovers;
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::argv::Invocation;
use mpsgate_oci::spec::Document;
use mpsgate_policy::{Bytes, DOCUMENT_MAX, Reading};

use crate::engine_log::chain;
use crate::evaluate;
use crate::replace::replace;

/// A `config.json` with its content.
pub(crate) struct Bundle {
    path: PathBuf,
    content: Content,
    mode: u32,
    uid: u32,
    gid: u32,
}

enum Content {
    Whole(Vec<u8>),
    /// A file that is too large to be parsed: it is read in pieces, as the runtime will.
    Large(File),
}

impl Bundle {
    /// The path of an invocation's document: crun's `--config`, else `config.json` in the bundle.
    pub(crate) fn path_of(invocation: &Invocation) -> PathBuf {
        let bundle = invocation.bundle.as_deref().unwrap_or_else(|| Path::new("."));
        bundle.join(invocation.config.as_deref().unwrap_or_else(|| Path::new("config.json")))
    }

    /// The directory, without links, from which relative paths of the document begin.
    pub(crate) fn directory_of(invocation: &Invocation) -> PathBuf {
        let bundle = invocation.bundle.as_deref().unwrap_or_else(|| Path::new("."));
        std::fs::canonicalize(bundle).unwrap_or_else(|_| bundle.to_owned())
    }

    /// Reads the document.
    pub(crate) fn load(path: &Path) -> Result<Self, Refusal> {
        let refuse = |error: io::Error| {
            let sentence = if error.kind() == io::ErrorKind::NotFound {
                match path.parent() {
                    Some(bundle) if !bundle.as_os_str().is_empty() && !bundle.exists() => {
                        format!("there is no bundle {}", bundle.display())
                    }
                    _ => format!("there is no {}", path.display()),
                }
            } else {
                format!("{} cannot be read: {error}", path.display())
            };
            let hint = "name the directory that holds config.json with --bundle, or make one with: runc spec";
            Refusal::new(Code::Bundle, sentence, hint)
        };
        // A FIFO must not block: the runtime would, but then with its own name on it.
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(refuse)?;
        let meta = file.metadata().map_err(refuse)?;
        if !meta.is_file() {
            return Err(refuse(io::Error::other("it is not a regular file")));
        }
        let content = if meta.len() > DOCUMENT_MAX {
            Content::Large(file)
        } else {
            let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default() + 1);
            (&mut file).take(DOCUMENT_MAX + 1).read_to_end(&mut bytes).map_err(refuse)?;
            Content::Whole(bytes)
        };
        Ok(Self {
            path: path.to_owned(),
            content,
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
        })
    }

    /// Reads the document for its meaning to mpsgate, once and from its beginning. Relative paths
    /// begin at `directory`.
    pub(crate) fn read(&mut self, directory: &Path, no_cgroup: bool) -> Result<Reading, Refusal> {
        let read = match &mut self.content {
            Content::Whole(bytes) => evaluate::read(Bytes::Whole(bytes), directory, no_cgroup),
            Content::Large(file) => evaluate::read(Bytes::Pieces(file), directory, no_cgroup),
        };
        read.map_err(|error| self.unreadable(&chain(&error)))
    }

    /// The refusal of a document that mpsgate cannot evaluate, though the runtime might.
    pub(crate) fn unreadable(&self, why: &str) -> Refusal {
        Refusal::new(
            Code::Bundle,
            format!("{} cannot be evaluated: {why}", self.path.display()),
            "recreate the container; if an engine wrote this file, report it to the engine's maintainers",
        )
    }

    /// Replaces the document by a rename; owner and mode stay.
    pub(crate) fn store(&self, document: &Document) -> Result<(), Refusal> {
        if let Some(directory) = self.path.parent() {
            remove_leftovers(directory);
        }
        let written = document
            .to_vec()
            .map_err(io::Error::from)
            .and_then(|text| replace(&self.path, &text, self.mode, (self.uid, self.gid)));
        written.map_err(|error| {
            Refusal::new(
                Code::Write,
                format!("{} cannot be replaced: {}", self.path.display(), chain(&error)),
                "make room on its file system: df -h; the file itself is unchanged",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn bundle(content: &[u8]) -> (tempfile::TempDir, Bundle) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        std::fs::write(&path, content).unwrap();
        let bundle = Bundle::load(&path).unwrap();
        (dir, bundle)
    }

    fn document() -> Document {
        mpsgate_oci::spec::parse(b"{\"a\":1}").unwrap()
    }

    #[test]
    fn a_document_is_read_whatever_its_size() {
        let rule = r#""linux":{"resources":{"devices":[{"allow":true,"type":"c","major":195}]}}"#;
        let long = "x".repeat(17 << 20);
        for (content, unclean, nothing) in [
            (format!("{{{rule}}}"), false, false),
            ("{}".to_owned(), false, true),
            (format!(r#"{{{rule},"x":1,"x":2}}"#), true, false),
            (r#"{"x":1,"x":2}"#.to_owned(), false, true),
            (format!(r#"{{"annotations":{{"x":"{long}"}},{rule}}}"#), true, false),
            (format!(r#"{{"annotations":{{"x":"{long}"}}}}"#), false, true),
        ] {
            let reading = bundle(content.as_bytes()).1.read(Path::new("/"), false).unwrap();
            assert_eq!(matches!(reading, Reading::Unclean(_)), unclean, "{content:.60}");
            assert_eq!(matches!(reading, Reading::Nothing), nothing, "{content:.60}");
        }
        for broken in [format!(r#"{{"x":"{long}"#), "[]".to_owned(), String::new()] {
            let refusal = bundle(broken.as_bytes()).1.read(Path::new("/"), false).unwrap_err();
            assert!(refusal.sentence.contains("cannot be evaluated"), "{refusal:?}");
        }
    }

    #[test]
    fn a_stored_document_keeps_mode_and_leaves_nothing_beside() {
        let (dir, bundle) = bundle(b"{}");
        std::fs::set_permissions(&bundle.path, std::os::unix::fs::PermissionsExt::from_mode(0o640))
            .unwrap();
        let bundle = Bundle::load(&bundle.path).unwrap();
        bundle.store(&document()).unwrap();
        assert_eq!(std::fs::read(&bundle.path).unwrap(), b"{\"a\":1}");
        assert_eq!(std::fs::metadata(&bundle.path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_document_that_cannot_be_replaced_stays() {
        let (dir, bundle) = bundle(b"{}");
        // A directory has the temporary name.
        let taken = format!(".config.json.mpsgate-{}", std::process::id());
        std::fs::create_dir(dir.path().join(taken)).unwrap();
        let refusal = bundle.store(&document()).unwrap_err();
        assert_eq!(refusal.code, Code::Write);
        assert_eq!(std::fs::read(&bundle.path).unwrap(), b"{}");
    }

    #[test]
    fn what_is_no_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let load = |path: PathBuf| Bundle::load(&path).err().unwrap().sentence;
        let missing = dir.path().join("none/config.json");
        assert!(load(missing).starts_with("there is no bundle "));
        let missing = dir.path().join("config.json");
        assert!(load(missing.clone()).starts_with("there is no "));
        std::fs::create_dir(&missing).unwrap();
        assert!(load(missing).contains("it is not a regular file"));
    }
}
