//! The bundle's `config.json`: read once, replaced whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mpsgate_oci::argv::Invocation;
use mpsgate_oci::spec::Document;
use mpsgate_policy::{Code, Refusal};

use crate::replace::{remove_leftovers, replace};
use crate::report::chain;

/// Largest document that is parsed. runc's own tests stay below 100 KiB; a Kubernetes pod's annotations
/// add 256 KiB at most.
pub(crate) const SIZE_LIMIT: u64 = 16 << 20;

/// A `config.json` and its content.
pub(crate) struct Bundle {
    path: PathBuf,
    /// The content, or `None` where it is larger than [`SIZE_LIMIT`].
    pub(crate) bytes: Option<Vec<u8>>,
    size: u64,
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Bundle {
    /// Where an invocation's document is: crun's `--config`, else `config.json` in the bundle.
    pub(crate) fn path_of(invocation: &Invocation) -> PathBuf {
        let bundle = invocation.bundle.as_deref().unwrap_or_else(|| Path::new("."));
        bundle.join(invocation.config.as_deref().unwrap_or_else(|| Path::new("config.json")))
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
        // Not to hang on a FIFO: the runtime would, but then with its own name on it.
        let mut file = OpenOptions::new()
            .read(true)
            .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
            .open(path)
            .map_err(refuse)?;
        let meta = file.metadata().map_err(refuse)?;
        if !meta.is_file() {
            return Err(refuse(io::Error::other("it is not a regular file")));
        }
        let bytes = if meta.len() > SIZE_LIMIT {
            None
        } else {
            let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default() + 1);
            (&mut file).take(SIZE_LIMIT + 1).read_to_end(&mut bytes).map_err(refuse)?;
            Some(bytes)
        };
        Ok(Self {
            path: path.to_owned(),
            bytes,
            size: meta.len(),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
        })
    }

    /// A document that cannot be judged, for a reason that is not the runtime's.
    pub(crate) fn unreadable(&self, why: &str) -> Refusal {
        Refusal::new(
            Code::Bundle,
            format!("{} cannot be judged: {why}", self.path.display()),
            "recreate the container; if an engine wrote this file, report it to the engine's maintainers",
        )
    }

    /// Says how large a document is that is not read.
    pub(crate) fn too_large(&self) -> String {
        format!("it has {} bytes, {SIZE_LIMIT} are the most", self.size)
    }

    /// Whether the document names anything of NVIDIA's or ours: asked where it cannot be parsed.
    pub(crate) fn mentions_gpus(&self) -> Result<bool, io::Error> {
        mentions_gpus(File::open(&self.path)?)
    }

    /// Replaces the document: beside, then rename; owner and mode stay.
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

/// Whether a text holds one of the words of NVIDIA's or ours, in any case; piece by piece, because it may
/// be of any size.
pub(crate) fn mentions_gpus(mut text: impl Read) -> io::Result<bool> {
    const WORDS: [&[u8]; 4] = [b"nvidia", b"gpu", b"cuda", b"mpsgate"];
    let longest = 7;
    let mut window = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let n = text.read(&mut chunk)?;
        if n == 0 {
            return Ok(false);
        }
        window.extend(chunk.iter().take(n).map(u8::to_ascii_lowercase));
        if WORDS.iter().any(|word| window.windows(word.len()).any(|w| w == *word)) {
            return Ok(true);
        }
        window.drain(..window.len().saturating_sub(longest));
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
    fn a_word_is_found_wherever_it_lies_in_the_file() {
        // Around the edges of the chunks that are read.
        for at in [0, 1, (1 << 16) - 7, (1 << 16) - 1, 1 << 16, (1 << 17) - 3, 200_000] {
            for word in ["nvidia", "CUDA", "gpu", "MpsGate"] {
                let mut content = vec![b'x'; at];
                content.extend(word.bytes());
                content.extend(vec![b'y'; 100]);
                assert!(bundle(&content).1.mentions_gpus().unwrap(), "{word} at {at}");
            }
        }
        assert!(!bundle(&vec![b'x'; 300_000]).1.mentions_gpus().unwrap());
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
        // The temporary name is taken by a directory.
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
