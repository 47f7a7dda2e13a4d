//! The store of the device plugin's tokens, as the daemon holds it: opened when it is needed, and
//! what it tells is logged.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use mpsgate_model::{ClaimShare, Code, Mib, Refusal};
use mpsgate_token::{Bearer, Claims, News, Share, Store, StoreError};

use crate::error::chain;
use mpsgate_host::clock::now_ms;

/// The store, once it could be opened. A file that was repaired is read with the next call.
#[derive(Debug)]
pub(crate) struct Tokens {
    directory: PathBuf,
    store: Mutex<Option<Store>>,
}

impl Tokens {
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self { directory, store: Mutex::default() }
    }

    fn with<T>(
        &self,
        work: impl FnOnce(&mut Store) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        // A panic ends the process (`panic = "abort"`), so nobody can have left it half changed.
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let open = match store.take() {
            Some(open) => open,
            None => Store::open(&self.directory, now_ms())?,
        };
        let open = store.insert(open);
        let done = work(open);
        // Else one record would grow for a month.
        if open.is_full()
            && let Ok(Some(key)) = open.rotate(now_ms())
        {
            log::info!(key:% = key; "new key for tokens: the record of the last one is large");
        }
        open.news().iter().for_each(tell);
        done
    }

    /// A token for so much memory, given out as `resource`, of devices of `card`.
    pub(crate) fn sign(
        &self,
        memory: Mib,
        resource: String,
        card: Option<String>,
    ) -> Result<String, StoreError> {
        self.with(|store| store.sign(memory.0, Some(resource), card))
    }

    /// A token for what a share of a claim gives, for that pod alone.
    pub(crate) fn sign_share(
        &self,
        share: &ClaimShare,
        claim: Share,
    ) -> Result<String, StoreError> {
        self.with(|store| store.sign_share(share.memory.0, share.card.to_string(), claim))
    }

    /// What a token says that counts for its bearer.
    pub(crate) fn confirm(&self, token: &str, bearer: &Bearer) -> Result<Claims, StoreError> {
        self.with(|store| store.confirm(token, bearer))
    }

    /// Makes a key where the present one is old, and forgets those of which no pod is left. Which
    /// pods there are is told by kubelet's own directory; where that cannot be read, all keys stay.
    /// It is asked while no token is confirmed: else a pod that came in between would be taken for
    /// gone.
    pub(crate) fn tend(
        &self,
        pods: impl FnOnce() -> Option<BTreeSet<String>>,
        now_ms: u64,
    ) -> Result<(), StoreError> {
        self.with(|store| {
            let pods = pods();
            if let Some(key) = store.rotate(now_ms)? {
                log::info!(key:% = key; "new key for tokens");
            }
            if let Some(pods) = &pods {
                for key in store.retire(|uid| pods.contains(uid), now_ms)? {
                    log::info!(key:% = key; "key for tokens forgotten: no pod is left that used it");
                }
                store.tidy(|uid| pods.contains(uid));
            }
            Ok(())
        })
    }
}

fn tell(news: &News) {
    match news {
        News::Damaged { path, line } => log::error!(
            path:% = path.display(), line;
            "a line of a record of tokens is damaged: tokens that are not in it count no more, pods that wait with one \
             have to be created anew; a copy is kept beside it"
        ),
        News::Closed { key } => log::warn!(
            key:% = key;
            "the records of tokens are too large: tokens of the oldest key that nobody has used count no more"
        ),
        News::Unwritten { error } => log::error!(
            reason = error.as_str(); "a record of tokens cannot be made short; it is tried again"
        ),
        _ => {}
    }
}

/// Why a token does not count.
pub(crate) fn refusal(error: &StoreError) -> Refusal {
    let sentence = match error {
        StoreError::Token(_)
        | StoreError::Bound { .. }
        | StoreError::Spent
        | StoreError::OtherPod
        | StoreError::Closed { .. } => {
            format!("its token (mpsgate.io/grant) does not count: {error}")
        }
        _ => format!("its token (mpsgate.io/grant) cannot be checked: {}", chain(error)),
    };
    Refusal::new(Code::Unconfirmed, sentence, error.hint())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::PermissionsExt;

    use mpsgate_token::{ROTATE_AFTER_MS, UNUSED_AFTER_MS};

    use super::*;

    fn tokens() -> (tempfile::TempDir, Tokens) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let tokens = Tokens::new(dir.path().to_owned());
        (dir, tokens)
    }

    #[test]
    fn keys_are_forgotten_with_their_pods_and_never_without_kubelets_word() {
        let (_dir, tokens) = tokens();
        let token = tokens.with(|store| store.sign(1024, None, None)).unwrap();
        let bearer = Bearer { pod: "p".to_owned(), container: "c".to_owned() };
        let counts = || tokens.with(|store| store.confirm(&token, &bearer)).is_ok();
        assert!(counts());
        let later = now_ms() + 2 * ROTATE_AFTER_MS;
        tokens.tend(|| None, later).unwrap();
        let much_later = later + 2 * UNUSED_AFTER_MS;
        tokens.tend(|| None, much_later).unwrap();
        assert!(counts());
        tokens.tend(|| Some(["p".to_owned()].into()), much_later).unwrap();
        assert!(counts());
        tokens.tend(|| Some(BTreeSet::new()), much_later).unwrap();
        assert!(!counts());
    }

    #[test]
    fn a_record_of_uses_that_is_large_or_damaged_ends_nothing() {
        let (dir, tokens) = tokens();
        let token = tokens.with(|store| store.sign(1024, None, None)).unwrap();
        let bearer = |pod: &str| Bearer { pod: pod.to_owned(), container: "c".to_owned() };
        let confirmed =
            |token: &str, pod: &str| tokens.with(|store| store.confirm(token, &bearer(pod)));
        confirmed(&token, "p").unwrap();
        let is_record = |path: &PathBuf| path.extension().is_some_and(|word| word == "uses");
        let mut files = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
        let path = files.find(is_record).unwrap();
        let mut text = std::fs::read(&path).unwrap();
        text.extend(vec![b'x'; 70 << 20]);
        text.push(b'\n');
        std::fs::write(&path, text).unwrap();
        // As after a restart.
        *tokens.store.lock().unwrap() = None;
        let fresh = tokens.sign(Mib(1024), "aliyun.com/gpu-mem".to_owned(), None).unwrap();
        confirmed(&fresh, "q").unwrap();
        confirmed(&token, "p").unwrap();
        let error = refusal(&confirmed(&token, "q").unwrap_err());
        assert!(error.sentence.contains("does not count"), "{error}");
        assert!(path.metadata().unwrap().len() < 1000, "{:?}", path.metadata());
    }

    #[test]
    fn a_store_that_was_repaired_is_read_again() {
        let (dir, tokens) = tokens();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let error = tokens.with(|store| store.sign(1, None, None)).unwrap_err();
        let told = refusal(&error);
        assert_eq!(told.code, Code::Unconfirmed);
        assert!(
            told.sentence.contains("cannot be checked: ") && told.hint.contains("chmod go="),
            "{told}"
        );
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        tokens.with(|store| store.sign(1, None, None)).unwrap();
    }
}
