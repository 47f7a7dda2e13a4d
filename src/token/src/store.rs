//! Keys and uses on disk: `keys.json`, and for each key `KEY.uses`.
//!
//! The directory outlives a reboot, because kubelet's checkpoint does. One process writes to it: mpsgated, which
//! holds the ledger's lock. What cannot be read, or could have been read by others, is never overwritten.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::text::{read, write};
use crate::{Bearer, Claims, Id, Key, KeyId, Keys, StoreError, TokenError, TokenId, Uses};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Age at which a key stops signing: 30 days.
pub const ROTATE_AFTER_MS: u64 = 30 * DAY_MS;
/// How long after its key has stopped signing a token may still be used for the first time: 7 days. A pod whose
/// image cannot be pulled waits with a token in its hand.
pub const UNUSED_AFTER_MS: u64 = 7 * DAY_MS;

const KEYS: &str = "keys.json";
const USES: &str = ".uses";
/// Larger is no file of ours: some 400,000 uses of one key.
pub(crate) const SIZE_LIMIT: u64 = 64 << 20;

/// The directory, read.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    keys: Keys,
    uses: BTreeMap<KeyId, Uses>,
}

impl Store {
    /// Reads `directory`, which must exist; where it has no keys yet, makes one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(directory: &Path, now_ms: u64) -> Result<Self, StoreError> {
        let found = directory.symlink_metadata().map_err(io_error("look at", directory))?;
        own(directory, &found, found.is_dir())?;
        let path = directory.join(KEYS);
        let keys = match read_file(&path)? {
            Some(text) => Keys::parse(&text).map_err(|source| StoreError::Keys { path, source })?,
            None => {
                let keys = Keys::new(new_key(directory, now_ms)?);
                write_keys(directory, &keys)?;
                keys
            }
        };
        let mut uses = BTreeMap::new();
        for key in keys.all() {
            let path = uses_path(directory, key.id);
            let text = read_file(&path)?.unwrap_or_default();
            let read = Uses::parse(&text).map_err(|source| StoreError::Uses { path, source })?;
            uses.insert(key.id, read);
        }
        Ok(Self { directory: directory.to_owned(), keys, uses })
    }

    /// A token for a container that may have `memory_mib` of GPU memory, given out as `resource`, of devices of
    /// `card`.
    ///
    /// # Errors
    /// Where there are no random bytes.
    pub fn sign(
        &self,
        memory_mib: u64,
        resource: Option<String>,
        card: Option<String>,
    ) -> Result<String, StoreError> {
        let id = TokenId::from_bytes(random(&self.directory)?);
        write(self.keys.newest(), &Claims { id, memory_mib, resource, card })
            .ok_or(StoreError::Token(TokenError::Claims))
    }

    /// What a token says, where `bearer` may bring it: then it is, or has become, his alone, and that is on disk.
    ///
    /// # Errors
    /// For what is no token of this node, for another's, and where its first use cannot be recorded.
    pub fn confirm(&mut self, token: &str, bearer: &Bearer) -> Result<Claims, StoreError> {
        let (key, claims) = read(&self.keys, token)?;
        let uses = self.uses.entry(key).or_default();
        match uses.bearer(claims.id) {
            Some(known) if known == bearer => Ok(claims),
            Some(Bearer { pod, container }) => {
                Err(StoreError::Bound { container: container.clone(), pod: pod.clone() })
            }
            None => {
                let path = uses_path(&self.directory, key);
                append(&path, uses, claims.id, bearer).map_err(io_error("write", &path))?;
                Ok(claims)
            }
        }
    }

    /// Makes a key that signs from now on, where the present one is old enough.
    ///
    /// # Errors
    /// Where it cannot be written: the old one then goes on signing.
    pub fn rotate(&mut self, now_ms: u64) -> Result<Option<KeyId>, StoreError> {
        if now_ms.saturating_sub(self.keys.newest().made_ms) < ROTATE_AFTER_MS {
            return Ok(None);
        }
        let key = new_key(&self.directory, now_ms)?;
        let id = key.id;
        let keys = self.keys.rotated(key);
        write_keys(&self.directory, &keys)?;
        self.keys = keys;
        Ok(Some(id))
    }

    /// Forgets keys that sign no more, and of whose tokens no bearer's pod lives; `lives` is asked for a pod's uid.
    ///
    /// # Errors
    /// Where the keys cannot be written: then all stay.
    pub fn retire(
        &mut self,
        lives: impl Fn(&str) -> bool,
        now_ms: u64,
    ) -> Result<BTreeSet<KeyId>, StoreError> {
        let is_used = |id: &KeyId| {
            self.uses.get(id).is_some_and(|uses| uses.bearers().any(|b| lives(&b.pod)))
        };
        let gone: BTreeSet<KeyId> = self
            .keys
            .replaced()
            .filter(|(_, at_ms)| now_ms.saturating_sub(*at_ms) >= UNUSED_AFTER_MS)
            .map(|(key, _)| key.id)
            .filter(|id| !is_used(id))
            .collect();
        if gone.is_empty() {
            return Ok(gone);
        }
        let keys = self.keys.without(&gone);
        write_keys(&self.directory, &keys)?;
        self.keys = keys;
        for id in &gone {
            self.uses.remove(id);
            // Without its key it means nothing, so one that stays does no harm.
            let _ = std::fs::remove_file(uses_path(&self.directory, *id));
        }
        Ok(gone)
    }
}

fn uses_path(directory: &Path, key: KeyId) -> PathBuf {
    directory.join(format!("{key}{USES}"))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { action, path, source }
}

/// Random bytes of the kernel's; `directory` stands in the error.
fn random<const N: usize>(directory: &Path) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        // Up to 256 bytes come whole (getrandom(2)).
        Ok(length) if length == N => Ok(bytes),
        Ok(_) => {
            Err(io_error("get random bytes for", directory)(io::ErrorKind::Interrupted.into()))
        }
        Err(errno) => Err(io_error("get random bytes for", directory)(errno.into())),
    }
}

fn new_key(directory: &Path, now_ms: u64) -> Result<Key, StoreError> {
    Ok(Key::new(Id::from_bytes(random(directory)?), random(directory)?, now_ms))
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Whether nobody but us can have read or written it.
fn own(path: &Path, found: &std::fs::Metadata, right_kind: bool) -> Result<(), StoreError> {
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

fn read_file(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match open_options().read(true).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error("open", path)(e)),
    };
    let found = file.metadata().map_err(io_error("look at", path))?;
    own(path, &found, found.is_file())?;
    if found.len() > SIZE_LIMIT {
        return Err(StoreError::TooLarge { path: path.to_owned(), bytes: found.len() });
    }
    let mut text = Vec::new();
    file.take(SIZE_LIMIT).read_to_end(&mut text).map_err(io_error("read", path))?;
    Ok(Some(text))
}

/// Replaces the list of keys: a reader sees the old one or the new one.
fn write_keys(directory: &Path, keys: &Keys) -> Result<(), StoreError> {
    let path = directory.join(KEYS);
    let temporary = directory.join(format!(".{KEYS}.new"));
    let written = || -> io::Result<()> {
        let text = keys.to_text()?;
        // One that was left behind may have another mode.
        match std::fs::remove_file(&temporary) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = open_options().write(true).create_new(true).open(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        File::open(directory)?.sync_all()
    };
    written().map_err(|source| {
        // A full disk leaves a stump.
        let _ = std::fs::remove_file(&temporary);
        io_error("write", &path)(source)
    })
}

/// Puts a use on disk, then takes note of it. What a failed one left behind is written over by the next.
fn append(path: &Path, uses: &mut Uses, id: TokenId, bearer: &Bearer) -> io::Result<()> {
    let line = Uses::line(id, bearer)?;
    let file = open_options().write(true).create(true).truncate(false).open(path)?;
    file.write_all_at(&line, uses.length())?;
    file.sync_all()?;
    if uses.length() == 0
        && let Some(directory) = path.parent()
    {
        File::open(directory)?.sync_all()?;
    }
    uses.written(id, bearer.clone(), line.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn directory() -> tempfile::TempDir {
        let made = tempfile::tempdir().unwrap();
        std::fs::set_permissions(made.path(), PermissionsExt::from_mode(0o700)).unwrap();
        made
    }

    fn bearer(pod: &str, container: &str) -> Bearer {
        Bearer { pod: pod.to_owned(), container: container.to_owned() }
    }

    fn claimed(store: &mut Store, token: &str, bearer: &Bearer) -> Result<u64, String> {
        let confirmed = store.confirm(token, bearer).map_err(|error| error.to_string());
        confirmed.map(|claims| claims.memory_mib)
    }

    #[test]
    fn a_token_is_its_first_bearers_over_restarts_of_everything() {
        let dir = directory();
        let mut store = Store::open(dir.path(), 0).unwrap();
        let token = store.sign(7168, None, None).unwrap();
        let (main, side) = (bearer("p1", "main"), bearer("p1", "side"));
        for _ in 0..3 {
            assert_eq!(claimed(&mut store, &token, &main), Ok(7168));
            for other in [&side, &bearer("p2", "main")] {
                let error = claimed(&mut store, &token, other).unwrap_err();
                assert_eq!(
                    error,
                    "it was first brought by container main of pod p1, and is nobody else's"
                );
            }
            store = Store::open(dir.path(), 1).unwrap();
        }
        let another = store.sign(1024, None, None).unwrap();
        assert_ne!(another, token);
        assert_eq!(claimed(&mut store, &another, &side), Ok(1024));
    }

    #[test]
    fn another_nodes_token_is_none_here() {
        let (here, there) = (directory(), directory());
        let token = Store::open(there.path(), 0).unwrap().sign(7168, None, None).unwrap();
        let mut store = Store::open(here.path(), 0).unwrap();
        let error = store.confirm(&token, &bearer("p", "c")).unwrap_err();
        assert!(matches!(error, StoreError::Token(TokenError::Key { .. })), "{error}");
    }

    #[test]
    fn an_old_key_lasts_as_long_as_a_pod_that_used_it() {
        let dir = directory();
        let mut store = Store::open(dir.path(), 0).unwrap();
        let (used, unused) =
            (store.sign(1024, None, None).unwrap(), store.sign(1024, None, None).unwrap());
        let pod = bearer("p", "c");
        store.confirm(&used, &pod).unwrap();
        assert_eq!(store.rotate(ROTATE_AFTER_MS - 1).unwrap(), None);
        // A clock that was set back is no reason.
        assert_eq!(Store::open(dir.path(), 5).unwrap().rotate(0).unwrap(), None);
        let now = ROTATE_AFTER_MS;
        let second = store.rotate(now).unwrap().unwrap();
        assert_eq!(store.keys.newest().id, second);
        let fresh = store.sign(1024, None, None).unwrap();
        assert!(fresh.contains(&second.to_string()));

        // A week for what was not used yet, whoever lives.
        assert!(store.retire(|_| false, now + UNUSED_AFTER_MS - 1).unwrap().is_empty());
        let mut store = Store::open(dir.path(), now).unwrap();
        for token in [&used, &fresh] {
            let mut again = Store::open(dir.path(), now).unwrap();
            again.confirm(token, &pod).unwrap();
        }
        // And for ever where its pod lives.
        let later = now + 100 * UNUSED_AFTER_MS;
        assert!(store.retire(|uid| uid == "p", later).unwrap().is_empty());
        let first = store.keys.all().next().unwrap().id;
        assert_eq!(store.retire(|_| false, later).unwrap(), [first].into());
        assert!(!uses_path(dir.path(), first).exists());
        let mut store = Store::open(dir.path(), later).unwrap();
        for token in [&used, &unused] {
            let error = store.confirm(token, &pod).unwrap_err();
            assert!(matches!(error, StoreError::Token(TokenError::Key { .. })), "{error}");
        }
        store.confirm(&fresh, &pod).unwrap();
        // The key that signs stays, however old and unused.
        assert!(store.retire(|_| false, u64::MAX).unwrap().is_empty());
    }

    #[test]
    fn what_others_could_have_read_is_not_used_and_not_touched() {
        let dir = directory();
        let mut store = Store::open(dir.path(), 0).unwrap();
        let token = store.sign(1024, None, None).unwrap();
        store.confirm(&token, &bearer("p", "c")).unwrap();
        let keys = dir.path().join(KEYS);
        let uses = uses_path(dir.path(), store.keys.newest().id);
        for path in [&keys, &uses] {
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
        }
        for (path, mode, right) in
            [(keys.as_path(), 0o640, 0o600), (&uses, 0o602, 0o600), (dir.path(), 0o711, 0o700)]
        {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
            let error = Store::open(dir.path(), 0).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{} is of mode {mode:04o}: others than mpsgated may know the keys in it",
                    path.display()
                )
            );
            std::fs::set_permissions(path, PermissionsExt::from_mode(right)).unwrap();
        }
        Store::open(dir.path(), 0).unwrap().confirm(&token, &bearer("p", "c")).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        std::fs::rename(&keys, &elsewhere).unwrap();
        symlink(&elsewhere, &keys).unwrap();
        assert!(matches!(Store::open(dir.path(), 0), Err(StoreError::Io { .. })));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_kept() {
        let dir = directory();
        let mut store = Store::open(dir.path(), 0).unwrap();
        let token = store.sign(1024, None, None).unwrap();
        store.confirm(&token, &bearer("p", "c")).unwrap();
        for path in [dir.path().join(KEYS), uses_path(dir.path(), store.keys.newest().id)] {
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, "x\n").unwrap();
            let error = Store::open(dir.path(), 0).unwrap_err();
            assert_eq!(error.to_string(), format!("{} cannot be read", path.display()));
            assert_eq!(std::fs::read(&path).unwrap(), b"x\n");
            std::fs::write(&path, whole).unwrap();
        }
    }

    #[test]
    fn a_use_that_was_cut_off_never_happened_and_is_written_over() {
        let dir = directory();
        let mut store = Store::open(dir.path(), 0).unwrap();
        let (one, two) =
            (store.sign(1024, None, None).unwrap(), store.sign(1024, None, None).unwrap());
        store.confirm(&one, &bearer("p", "a-long-name-of-a-container")).unwrap();
        let path = uses_path(dir.path(), store.keys.newest().id);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, whole.get(..length).unwrap()).unwrap();
            let mut store = Store::open(dir.path(), 0).unwrap();
            store.confirm(&two, &bearer("q", "c")).unwrap();
            store.confirm(&one, &bearer("r", "c")).unwrap();
            let mut store = Store::open(dir.path(), 0).unwrap();
            store.confirm(&two, &bearer("q", "c")).unwrap();
            store.confirm(&one, &bearer("r", "c")).unwrap();
        }
    }
}
