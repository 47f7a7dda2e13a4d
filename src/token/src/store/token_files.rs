//! The store's files: the keys, and for each key the bearers of its tokens.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mpsgate_host::file::{self, Durability, New};
use rustix::fs::OFlags;

use crate::error::SIZE_LIMIT;
use crate::{Bearer, Id, Key, KeyId, Keys, StoreError, TokenId, Uses};

pub(super) const KEYS: &str = "keys.json";
const USES: &str = ".uses";
/// The suffix of a damaged record's copy.
const DAMAGED: &str = ".damaged";

pub(super) fn uses_path(directory: &Path, key: KeyId) -> PathBuf {
    directory.join(format!("{key}{USES}"))
}

pub(super) fn damaged_path(uses: &Path) -> PathBuf {
    let mut path = uses.as_os_str().to_owned();
    path.push(DAMAGED);
    path.into()
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

/// Random bytes of the kernel; `directory` is named in the error.
pub(super) fn random<const N: usize>(directory: &Path) -> Result<[u8; N], StoreError> {
    mpsgate_host::random::bytes().map_err(io_error("get random bytes for", directory))
}

pub(super) fn new_key(directory: &Path, now_ms: u64) -> Result<Key, StoreError> {
    Ok(Key::new(Id::from_bytes(random(directory)?), random(directory)?, now_ms))
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Checks that only this user can have read or written it.
pub(super) fn own(
    path: &Path,
    found: &std::fs::Metadata,
    right_kind: bool,
) -> Result<(), StoreError> {
    let exposed = |found: String| Err(StoreError::Exposed { path: path.to_owned(), found });
    if !right_kind {
        return exposed("a link, or of another kind than mpsgated makes".to_owned());
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return exposed(format!("of uid {}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return exposed(format!("of mode {:04o}", found.mode() & 0o7777));
    }
    Ok(())
}

/// Opens a file of the store, if it is there.
fn open_own(path: &Path) -> Result<Option<(File, u64)>, StoreError> {
    let file = match open_options().read(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error("open", path)(e)),
    };
    let found = file.metadata().map_err(io_error("look at", path))?;
    own(path, &found, found.is_file())?;
    Ok(Some((file, found.len())))
}

pub(super) fn read_file(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let Some((file, bytes)) = open_own(path)? else { return Ok(None) };
    if bytes > SIZE_LIMIT {
        return Err(StoreError::TooLarge { path: path.to_owned(), bytes });
    }
    let mut text = Vec::new();
    file.take(SIZE_LIMIT).read_to_end(&mut text).map_err(io_error("read", path))?;
    Ok(Some(text))
}

pub(super) fn read_uses(path: &Path) -> Result<Uses, StoreError> {
    let Some((file, _)) = open_own(path)? else { return Ok(Uses::default()) };
    Uses::read(BufReader::new(file)).map_err(io_error("read", path))
}

/// Replaces the list of keys: a reader sees the old one or the new one.
pub(super) fn write_keys(directory: &Path, keys: &Keys) -> Result<(), StoreError> {
    let path = directory.join(KEYS);
    let text = keys.to_text().map_err(io::Error::from);
    text.and_then(|text| file::replace(&path, &text, &New::of(0o600, Durability::Synced)))
        .map_err(io_error("write", &path))
}

/// Puts a use on disk, then records it in memory. The next write overwrites what a failed one left.
pub(super) fn append(path: &Path, uses: &mut Uses, id: TokenId, bearer: &Bearer) -> io::Result<()> {
    let line = Uses::line(id, bearer)?;
    let file = open_options().write(true).create(true).truncate(false).open(path)?;
    file.write_all_at(&line, uses.length())?;
    file.sync_all()?;
    if uses.length() == 0
        && let Some(directory) = path.parent()
    {
        file::sync_directory(directory)?;
    }
    uses.written(id, bearer.clone(), line.len());
    Ok(())
}
