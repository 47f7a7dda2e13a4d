//! Keys and uses on disk: `keys.json`, and for each key `KEY.uses`.
//!
//! The directory outlives a reboot, because kubelet's checkpoint does. One process writes to it:
//! mpsgated, which holds the ledger's lock. Keys that cannot be read, and keys that others could
//! have read, are never overwritten.
//!
//! ```text
//!  .uses ─┬─ 16 MiB ────► a new key signs                    (rotate)
//!         ├─ 1 MiB ─────► of pods that are gone the ids stay  (tidy)
//!         ├─ 64 MiB in all ─► the oldest key is closed        (tidy)
//!         └─ a bad line ──► a copy is kept, the key is closed  (open)
//! ```
//! A closed key confirms only what is in its record, so no token is ever used by two containers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use mpsgate_host::file::{self, Durability, New};

mod token_files;

use self::token_files::{
    KEYS, append, damaged_path, io_error, new_key, own, random, read_file, read_uses, uses_path,
    write_keys,
};
use crate::token_text::{read, write};
use crate::{Bearer, Claims, KeyId, Keys, Owner, Share, StoreError, TokenError, TokenId, Uses};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Age at which a key stops signing: 30 days.
pub const ROTATE_AFTER_MS: u64 = 30 * DAY_MS;
/// How long a token may be used for the first time after its key has stopped signing: 7 days. A pod
/// whose image cannot be pulled waits with a token.
pub const UNUSED_AFTER_MS: u64 = 7 * DAY_MS;

/// From this size on a record gets no new tokens: some 100,000 containers.
pub const ROTATE_FROM: u64 = 16 << 20;
const SIZES: Sizes = Sizes { rotate: ROTATE_FROM, tidy: 1 << 20, close: 64 << 20 };

/// The sizes from which records are shortened or closed.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rotate: u64,
    /// Size from which a record is shortened.
    tidy: u64,
    /// Size of all records from which the oldest are closed.
    close: u64,
}

/// The directory's content.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    keys: Keys,
    uses: BTreeMap<KeyId, Uses>,
    sizes: Sizes,
    /// Whether a record was replaced, so that the directory may not be on disk yet.
    unsynced: bool,
    news: Vec<News>,
}

/// A change of a record, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// A line is not a use of a token: the key is closed, and a copy of the file is kept beside it.
    Damaged {
        /// The file.
        path: PathBuf,
        /// The first such line, counted from 1.
        line: u64,
    },
    /// All records together are too large: a token of this key that is not in its record is no
    /// longer accepted.
    Closed {
        /// The key.
        key: KeyId,
    },
    /// A record could not be shortened or closed; the store tries again.
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
            // A key whose record is only large still signs if no new key can be written.
            if store.newest_uses().is_some_and(Uses::is_closed) {
                return Err(error);
            }
        }
        Ok(store)
    }

    /// The changes of records since the last call.
    pub fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Signs a token for a container that may have `memory_mib` of GPU memory, given out as
    /// `resource`, of devices of `card`.
    ///
    /// # Errors
    /// If there are no random bytes.
    pub fn sign(
        &self,
        memory_mib: u64,
        resource: Option<String>,
        card: Option<String>,
    ) -> Result<String, StoreError> {
        self.write(|id| Claims { id, memory_mib, resource, card, share: None })
    }

    /// Signs a token for a share of a claim: `memory_mib` of `card`.
    ///
    /// # Errors
    /// If there are no random bytes.
    pub fn sign_share(
        &self,
        memory_mib: u64,
        card: String,
        share: Share,
    ) -> Result<String, StoreError> {
        let (card, share) = (Some(card), Some(share));
        self.write(|id| Claims { id, memory_mib, resource: None, card, share })
    }

    fn write(&self, claims: impl FnOnce(TokenId) -> Claims) -> Result<String, StoreError> {
        let id = TokenId::from_bytes(random(&self.directory)?);
        write(self.keys.newest(), &claims(id)).ok_or(StoreError::Token(TokenError::Claims))
    }

    /// Returns the claims of a token that `bearer` may bring. The token then belongs to that bearer
    /// alone, and the disk has recorded it.
    ///
    /// # Errors
    /// If the token is not one of this node's or belongs to another bearer, or its first use cannot
    /// be recorded.
    pub fn confirm(&mut self, token: &str, bearer: &Bearer) -> Result<Claims, StoreError> {
        let (key, claims) = read(&self.keys, token)?;
        if let Some(share) = &claims.share {
            // The ledger decides which container has it; the pod's next container may follow.
            let is_its = share.pod == bearer.pod;
            return is_its.then_some(claims).ok_or(StoreError::OtherPod);
        }
        self.sync()?;
        let uses = self.uses.entry(key).or_default();
        match uses.owner(claims.id) {
            Owner::Bearer(known) if known == bearer => Ok(claims),
            Owner::Bearer(Bearer { pod, container }) => {
                Err(StoreError::Bound { container: container.clone(), pod: pod.clone() })
            }
            Owner::Spent if uses.is_closed() => Err(StoreError::Closed { key }),
            Owner::Spent => Err(StoreError::Spent),
            Owner::Unused => {
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

    /// Makes a key that signs from now on, if the present one is old enough, or its record large or
    /// closed.
    ///
    /// # Errors
    /// If it cannot be written: the old key then continues to sign.
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

    /// Removes keys that no longer sign and whose tokens have no living pod; `lives` is asked for a
    /// pod's uid.
    ///
    /// # Errors
    /// If the keys cannot be written: then all stay.
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
            // A record without its key has no meaning, so a file that stays does no harm.
            let path = uses_path(&self.directory, *id);
            let _ = std::fs::remove_file(damaged_path(&path));
            let _ = std::fs::remove_file(file::beside(&path));
            let _ = std::fs::remove_file(path);
        }
        Ok(gone)
    }

    /// Shortens records: for pods that are gone only the ids stay, and if all records together are
    /// too large the oldest keys are closed. `lives` is asked for a pod's uid. [`Self::news`]
    /// reports what could not be done now.
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
            // A rewrite has to save at least a quarter.
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

    /// Closes damaged records on disk. Until that succeeds they are closed in memory.
    fn close_damaged(&mut self) {
        let damaged: Vec<(KeyId, u64)> =
            self.uses.iter().filter_map(|(id, uses)| Some((*id, uses.damaged()?))).collect();
        for (id, line) in damaged {
            let path = uses_path(&self.directory, id);
            // If there is a copy already, or none can be made, the key is closed all the same.
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
                // The directory brings the name to disk: see `sync`.
                file::replace(&path, &text, &New::of(0o600, Durability::Whole)).map(|()| text.len())
            })
            .map_err(io_error("write", &path))?;
        uses.replaced(length);
        self.uses.insert(id, uses);
        self.unsynced = true;
        self.sync()
    }

    /// Syncs the directory: an entry of a record whose name is not on disk yet could be lost with
    /// it.
    fn sync(&mut self) -> Result<(), StoreError> {
        if self.unsynced {
            let synced = file::sync_directory(&self.directory);
            synced.map_err(io_error("write", &self.directory))?;
            self.unsynced = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
