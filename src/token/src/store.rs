//! Keys and uses on disk: `keys.json`, and for each key `KEY.uses`.
//!
//! The directory outlives a reboot, because kubelet's checkpoint does. One process writes to it:
//! mpsgated, which holds the ledger's lock. Keys that cannot be read, and what could have been read
//! by others, are never overwritten.
//!
//! ```text
//!  .uses ─┬─ 16 MiB ────► a new key signs                    (rotate)
//!         ├─ 1 MiB ─────► of pods that are gone the ids stay  (tidy)
//!         ├─ 64 MiB in all ─► the oldest key is closed        (tidy)
//!         └─ a bad line ──► a copy is kept, the key is closed  (open)
//! ```
//! A closed key confirms what is in its record and nothing else, so no token is ever used by two
//! containers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mpsgate_host::file::{self, Durability, New};
use rustix::fs::OFlags;

use crate::text::{read, write};
use crate::{Bearer, Claims, Id, Key, KeyId, Keys, Owner, StoreError, TokenError, TokenId, Uses};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Age at which a key stops signing: 30 days.
pub const ROTATE_AFTER_MS: u64 = 30 * DAY_MS;
/// How long after its key has stopped signing a token may still be used for the first time: 7 days.
/// A pod whose image cannot be pulled waits with a token in its hand.
pub const UNUSED_AFTER_MS: u64 = 7 * DAY_MS;

const KEYS: &str = "keys.json";
const USES: &str = ".uses";
/// Added to a record that has a line that is none.
const DAMAGED: &str = ".damaged";
/// A larger list of keys is none of ours: it is some hundred bytes for each.
pub(crate) const SIZE_LIMIT: u64 = 64 << 20;
/// A record of this size gets no more of new tokens: some 100,000 containers.
pub const ROTATE_FROM: u64 = 16 << 20;
const SIZES: Sizes = Sizes { rotate: ROTATE_FROM, tidy: 1 << 20, close: 64 << 20 };

/// From which size on what is done with records.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rotate: u64,
    /// Made short.
    tidy: u64,
    /// Of all in sum: the oldest are closed.
    close: u64,
}

/// The directory, read.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    keys: Keys,
    uses: BTreeMap<KeyId, Uses>,
    sizes: Sizes,
    /// A record was replaced, and the directory may not be on disk yet.
    unsynced: bool,
    news: Vec<News>,
}

/// What happened to a record, to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// A line is no use of a token: the key is closed, and a copy of the file is kept beside it.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first such line, counted from 1.
        line: u64,
    },
    /// All records together are too large: a token of this key that is not in its record counts no
    /// more.
    Closed {
        /// The key.
        key: KeyId,
    },
    /// It could not be made short or closed; it is tried again.
    Unwritten {
        /// What went wrong.
        error: String,
    },
}

impl Store {
    /// Reads `directory`, which must exist; where it has no keys yet, makes one.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn open(directory: &Path, now_ms: u64) -> Result<Self, StoreError> {
        Self::open_with(directory, now_ms, SIZES)
    }

    fn open_with(directory: &Path, now_ms: u64, sizes: Sizes) -> Result<Self, StoreError> {
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
            uses.insert(key.id, read_uses(&uses_path(directory, key.id))?);
        }
        let directory = directory.to_owned();
        let mut store = Self { directory, keys, uses, sizes, unsynced: false, news: Vec::new() };
        store.close_damaged();
        if store.is_full()
            && let Err(error) = store.rotate(now_ms)
        {
            // One that is only large signs on where no new one can be written.
            if store.newest_uses().is_some_and(Uses::is_closed) {
                return Err(error);
            }
        }
        Ok(store)
    }

    /// What happened to records since this was last asked.
    pub fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// A token for a container that may have `memory_mib` of GPU memory, given out as `resource`,
    /// of devices of `card`.
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

    /// What a token says, where `bearer` may bring it: then it is, or has become, his alone, and
    /// that is on disk.
    ///
    /// # Errors
    /// For what is no token of this node, for another's, and where its first use cannot be
    /// recorded.
    pub fn confirm(&mut self, token: &str, bearer: &Bearer) -> Result<Claims, StoreError> {
        let (key, claims) = read(&self.keys, token)?;
        self.sync()?;
        let uses = self.uses.entry(key).or_default();
        match uses.owner(claims.id) {
            Owner::Bearer(known) if known == bearer => Ok(claims),
            Owner::Bearer(Bearer { pod, container }) => {
                Err(StoreError::Bound { container: container.clone(), pod: pod.clone() })
            }
            Owner::Spent if uses.is_closed() => Err(StoreError::Closed { key }),
            Owner::Spent => Err(StoreError::Spent),
            Owner::Nobody => {
                let path = uses_path(&self.directory, key);
                append(&path, uses, claims.id, bearer).map_err(io_error("write", &path))?;
                Ok(claims)
            }
        }
    }

    /// Whether [`Self::rotate`] is due whatever the time.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.newest_uses()
            .is_some_and(|uses| uses.is_closed() || uses.length() >= self.sizes.rotate)
    }

    /// Makes a key that signs from now on, where the present one is old enough, or its record large
    /// or closed.
    ///
    /// # Errors
    /// Where it cannot be written: the old one then goes on signing.
    pub fn rotate(&mut self, now_ms: u64) -> Result<Option<KeyId>, StoreError> {
        if now_ms.saturating_sub(self.keys.newest().made_ms) < ROTATE_AFTER_MS && !self.is_full() {
            return Ok(None);
        }
        let key = new_key(&self.directory, now_ms)?;
        let id = key.id;
        let keys = self.keys.rotated(key);
        write_keys(&self.directory, &keys)?;
        self.keys = keys;
        Ok(Some(id))
    }

    /// Forgets keys that sign no more, and of whose tokens no bearer's pod lives; `lives` is asked
    /// for a pod's uid.
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
            .filter(|(key, at_ms)| {
                now_ms.saturating_sub(*at_ms) >= UNUSED_AFTER_MS
                    || self.uses.get(&key.id).is_some_and(Uses::is_closed)
            })
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
            let path = uses_path(&self.directory, *id);
            let _ = std::fs::remove_file(damaged_path(&path));
            let _ = std::fs::remove_file(file::beside(&path));
            let _ = std::fs::remove_file(path);
        }
        Ok(gone)
    }

    /// Makes records short: of pods that are gone the ids stay, and where all are too large
    /// together the oldest keys are closed. `lives` is asked for a pod's uid. What cannot be done
    /// now is told by [`Self::news`].
    pub fn tidy(&mut self, lives: impl Fn(&str) -> bool) {
        self.close_damaged();
        let large: Vec<KeyId> = self
            .lengths()
            .filter(|(_, bytes)| *bytes >= self.sizes.tidy)
            .map(|(id, _)| id)
            .collect();
        for id in large {
            let Some(mut uses) = self.uses.get(&id).cloned() else { continue };
            let before = uses.length();
            // A quarter less at least, or it is written for little.
            let worth =
                |text: &[u8]| (text.len() as u64).saturating_mul(4) <= before.saturating_mul(3);
            if uses.forget(&lives) && uses.text().is_ok_and(|text| worth(&text)) {
                let done = self.rewrite(id, uses);
                self.tell(done);
            }
        }
        let older: Vec<KeyId> = self.keys.replaced().map(|(key, _)| key.id).collect();
        for id in older {
            if self.lengths().map(|(_, bytes)| bytes).sum::<u64>() <= self.sizes.close {
                return;
            }
            let Some(mut uses) = self.uses.get(&id).cloned() else { continue };
            if uses.is_closed() {
                continue;
            }
            uses.forget(&lives);
            uses.close();
            let done = self.rewrite(id, uses);
            if done.is_ok() {
                self.news.push(News::Closed { key: id });
            }
            self.tell(done);
        }
    }

    fn lengths(&self) -> impl Iterator<Item = (KeyId, u64)> {
        self.uses.iter().map(|(id, uses)| (*id, uses.length()))
    }

    fn newest_uses(&self) -> Option<&Uses> {
        self.uses.get(&self.keys.newest().id)
    }

    /// Closes on disk what was found damaged. Until that is done, it is closed here.
    fn close_damaged(&mut self) {
        let damaged: Vec<(KeyId, u64)> =
            self.uses.iter().filter_map(|(id, uses)| Some((*id, uses.damaged()?))).collect();
        for (id, line) in damaged {
            let path = uses_path(&self.directory, id);
            // Where there is a copy already, or none can be made, the key is closed all the same.
            let _ = std::fs::hard_link(&path, damaged_path(&path));
            let Some(mut uses) = self.uses.get(&id).cloned() else { continue };
            uses.close();
            let done = self.rewrite(id, uses);
            self.tell(done);
            self.news.push(News::Damaged { path, line });
        }
    }

    fn tell(&mut self, done: Result<(), StoreError>) {
        if let Err(error) = done {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
            let error = format!("{error}{}", cause.unwrap_or_default());
            self.news.push(News::Unwritten { error });
        }
    }

    /// Replaces a record: a reader sees the old one or the new one.
    fn rewrite(&mut self, id: KeyId, mut uses: Uses) -> Result<(), StoreError> {
        let path = uses_path(&self.directory, id);
        let length = uses
            .text()
            .map_err(io::Error::from)
            .and_then(|text| {
                // Its name is on disk with the directory: see `sync`.
                file::replace(&path, &text, &New::of(0o600, Durability::Whole)).map(|()| text.len())
            })
            .map_err(io_error("write", &path))?;
        uses.replaced(length);
        self.uses.insert(id, uses);
        self.unsynced = true;
        self.sync()
    }

    /// What is appended to a record whose name is not on disk yet could be lost with it.
    fn sync(&mut self) -> Result<(), StoreError> {
        if self.unsynced {
            let synced = file::sync_directory(&self.directory);
            synced.map_err(io_error("write", &self.directory))?;
            self.unsynced = false;
        }
        Ok(())
    }
}

fn uses_path(directory: &Path, key: KeyId) -> PathBuf {
    directory.join(format!("{key}{USES}"))
}

fn damaged_path(uses: &Path) -> PathBuf {
    let mut path = uses.as_os_str().to_owned();
    path.push(DAMAGED);
    path.into()
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

/// A file of ours, where it is there.
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

fn read_file(path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let Some((file, bytes)) = open_own(path)? else { return Ok(None) };
    if bytes > SIZE_LIMIT {
        return Err(StoreError::TooLarge { path: path.to_owned(), bytes });
    }
    let mut text = Vec::new();
    file.take(SIZE_LIMIT).read_to_end(&mut text).map_err(io_error("read", path))?;
    Ok(Some(text))
}

fn read_uses(path: &Path) -> Result<Uses, StoreError> {
    let Some((file, _)) = open_own(path)? else { return Ok(Uses::default()) };
    Uses::read(BufReader::new(file)).map_err(io_error("read", path))
}

/// Replaces the list of keys: a reader sees the old one or the new one.
fn write_keys(directory: &Path, keys: &Keys) -> Result<(), StoreError> {
    let path = directory.join(KEYS);
    let text = keys.to_text().map_err(io::Error::from);
    text.and_then(|text| file::replace(&path, &text, &New::of(0o600, Durability::Synced)))
        .map_err(io_error("write", &path))
}

/// Puts a use on disk, then takes note of it. What a failed one left behind is written over by the
/// next.
fn append(path: &Path, uses: &mut Uses, id: TokenId, bearer: &Bearer) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::panic,
        reason = "tests fail by panicking"
    )]
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
    fn a_list_of_keys_that_cannot_be_read_is_kept() {
        let dir = directory();
        Store::open(dir.path(), 0).unwrap();
        let path = dir.path().join(KEYS);
        std::fs::write(&path, "x\n").unwrap();
        let error = Store::open(dir.path(), 0).unwrap_err();
        assert_eq!(error.to_string(), format!("{} cannot be read", path.display()));
        assert_eq!(std::fs::read(&path).unwrap(), b"x\n");
    }

    #[test]
    fn a_damaged_record_lets_known_containers_go_on_and_nobody_take_a_token_twice() {
        let dir = directory();
        let mut store = Store::open(dir.path(), 0).unwrap();
        let tokens: Vec<String> = (0..3).map(|_| store.sign(1024, None, None).unwrap()).collect();
        let [known, lost, unused] = tokens.as_slice() else { panic!("three tokens") };
        let path = uses_path(dir.path(), store.keys.newest().id);
        store.confirm(lost, &bearer("lost", "c")).unwrap();
        let line = std::fs::read(&path).unwrap();
        store.confirm(known, &bearer("p", "c")).unwrap();
        // The line of `lost` is zeros, as after a disk's error.
        let mut text = std::fs::read(&path).unwrap();
        text[..line.len() - 1].fill(0);
        std::fs::write(&path, &text).unwrap();
        for at in 1..3 {
            let mut store = Store::open(dir.path(), at).unwrap();
            let news = store.news();
            let damaged = News::Damaged { path: path.clone(), line: 1 };
            assert_eq!(news, if at == 1 { vec![damaged] } else { vec![] });
            store.confirm(known, &bearer("p", "c")).unwrap();
            for token in [lost, unused] {
                let error = store.confirm(token, &bearer("thief", "c")).unwrap_err();
                assert!(matches!(error, StoreError::Closed { .. }), "{error}");
                assert!(error.hint().contains("create the pod anew"));
            }
            let fresh = store.sign(1024, None, None).unwrap();
            store.confirm(&fresh, &bearer("new", &at.to_string())).unwrap();
        }
        assert_eq!(std::fs::read(damaged_path(&path)).unwrap(), text, "what it was is kept");
        let mut store = Store::open(dir.path(), 3).unwrap();
        let first = store.keys.all().next().unwrap().id;
        assert!(store.retire(|uid| uid == "p", 4).unwrap().is_empty());
        assert_eq!(store.retire(|_| false, 4).unwrap(), [first].into());
        assert!(!path.exists() && !damaged_path(&path).exists());
    }

    /// A thousandth of what is taken for large.
    const SMALL: Sizes =
        Sizes { rotate: SIZES.rotate >> 10, tidy: SIZES.tidy >> 10, close: SIZES.close >> 10 };

    fn small(directory: &Path, now_ms: u64) -> Result<Store, StoreError> {
        Store::open_with(directory, now_ms, SMALL)
    }

    /// So many uses of the newest key, by pods `old-N`, as an earlier version wrote them.
    fn fill(store: &Store, bytes: u64) -> PathBuf {
        let path = uses_path(&store.directory, store.keys.newest().id);
        let mut text = std::fs::read(&path).unwrap_or_default();
        for n in 0_u128.. {
            if text.len() as u64 >= bytes {
                break;
            }
            let id = TokenId::from_bytes((n << 64 | 1).to_be_bytes());
            text.extend(Uses::line(id, &bearer(&format!("old-{n:032}"), &"c".repeat(63))).unwrap());
        }
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        path
    }

    #[test]
    fn a_record_of_any_size_is_read_and_made_short_and_tokens_go_on() {
        let dir = directory();
        let mut store = small(dir.path(), 0).unwrap();
        let tokens: Vec<String> = (0..3).map(|_| store.sign(1024, None, None).unwrap()).collect();
        let [living, dead, unused] = tokens.as_slice() else { panic!("three tokens") };
        store.confirm(living, &bearer("lives", "c")).unwrap();
        store.confirm(dead, &bearer("gone", "c")).unwrap();
        let path = fill(&store, SMALL.close + 1);
        let mut store = small(dir.path(), 1).unwrap();
        assert_eq!(store.keys.all().count(), 2, "the next one signs");
        let fresh = store.sign(1024, None, None).unwrap();
        store.confirm(&fresh, &bearer("lives", "fresh")).unwrap();
        store.confirm(living, &bearer("lives", "c")).unwrap();

        store.tidy(|uid| uid == "lives");
        assert_eq!(store.news(), []);
        assert!(path.metadata().unwrap().len() < SMALL.close / 2, "{:?}", path.metadata());
        for again in 0..2 {
            store.confirm(living, &bearer("lives", "c")).unwrap();
            assert!(matches!(store.confirm(dead, &bearer("thief", "c")), Err(StoreError::Spent)));
            assert!(store.confirm(living, &bearer("thief", "c")).is_err());
            let first = if again == 0 { "waited" } else { "thief" };
            let waited = store.confirm(unused, &bearer(first, "c"));
            assert_eq!(waited.is_ok(), again == 0, "a token that waited is its first bearer's");
            store = small(dir.path(), 2).unwrap();
        }
    }

    #[test]
    fn what_is_too_large_in_sum_closes_the_oldest_keys() {
        let dir = directory();
        let mut store = small(dir.path(), 0).unwrap();
        let (living, unused) =
            (store.sign(1024, None, None).unwrap(), store.sign(1024, None, None).unwrap());
        store.confirm(&living, &bearer("lives", "c")).unwrap();
        let first = store.keys.newest().id;
        let path = fill(&store, SMALL.close + 1);
        let mut store = small(dir.path(), 1).unwrap();
        // All of these pods live, as far as anybody knows.
        store.tidy(|uid| uid == "lives" || uid.starts_with("old-"));
        assert_eq!(store.news(), [News::Closed { key: first }]);
        let mut store = small(dir.path(), 2).unwrap();
        store.confirm(&living, &bearer("lives", "c")).unwrap();
        let error = store.confirm(&unused, &bearer("late", "c")).unwrap_err();
        assert!(matches!(error, StoreError::Closed { key } if key == first), "{error}");
        store.tidy(|uid| uid == "lives");
        assert!(path.metadata().unwrap().len() < 1000, "only the living is left");
        store.confirm(&living, &bearer("lives", "c")).unwrap();
    }

    #[test]
    fn a_record_that_grows_large_while_it_is_open_is_rotated() {
        let dir = directory();
        let store = small(dir.path(), 0).unwrap();
        fill(&store, SMALL.rotate - 1000);
        // Some lines less than what is too much.
        let mut store = small(dir.path(), 0).unwrap();
        while !store.is_full() {
            let token = store.sign(1024, None, None).unwrap();
            store.confirm(&token, &bearer("p", "c")).unwrap();
        }
        let token = store.sign(1024, None, None).unwrap();
        store.confirm(&token, &bearer("p", "c")).unwrap();
        assert!(store.rotate(1).unwrap().is_some());
        assert!(!store.is_full());
        assert_eq!(store.rotate(1).unwrap(), None);
        store.confirm(&token, &bearer("p", "c")).unwrap();
    }

    #[test]
    fn a_directory_that_takes_no_file_stops_nothing_that_needs_none() {
        let dir = directory();
        let mut store = small(dir.path(), 0).unwrap();
        let token = store.sign(1024, None, None).unwrap();
        store.confirm(&token, &bearer("lives", "c")).unwrap();
        let path = fill(&store, 2 * SMALL.tidy);
        let before = std::fs::read(&path).unwrap();
        let mut store = small(dir.path(), 0).unwrap();
        // In the temporary file's place.
        std::fs::create_dir(file::beside(&path)).unwrap();
        store.tidy(|uid| uid == "lives");
        assert!(matches!(store.news().as_slice(), [News::Unwritten { .. }]));
        assert_eq!(std::fs::read(&path).unwrap(), before);
        store.confirm(&token, &bearer("lives", "c")).unwrap();
        let fresh = store.sign(1024, None, None).unwrap();
        store.confirm(&fresh, &bearer("q", "c")).unwrap();
        let mut store = small(dir.path(), 0).unwrap();
        assert!(store.confirm(&fresh, &bearer("thief", "c")).is_err());
    }

    #[test]
    fn a_use_that_was_cut_off_never_happened_and_is_written_over() {
        let dir = directory();
        let mut store = small(dir.path(), 0).unwrap();
        let (one, two) =
            (store.sign(1024, None, None).unwrap(), store.sign(1024, None, None).unwrap());
        store.confirm(&one, &bearer("p", "a-long-name-of-a-container")).unwrap();
        let path = uses_path(dir.path(), store.keys.newest().id);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, whole.get(..length).unwrap()).unwrap();
            let mut store = small(dir.path(), 0).unwrap();
            store.confirm(&two, &bearer("q", "c")).unwrap();
            store.confirm(&one, &bearer("r", "c")).unwrap();
            let mut store = small(dir.path(), 0).unwrap();
            store.confirm(&two, &bearer("q", "c")).unwrap();
            store.confirm(&one, &bearer("r", "c")).unwrap();
        }
    }
}
