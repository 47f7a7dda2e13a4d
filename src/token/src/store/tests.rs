//! The store over restarts, damage and crowds.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests fail by panicking"
)]
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

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
    // A clock that was set back is no reason to rotate.
    assert_eq!(Store::open(dir.path(), 5).unwrap().rotate(0).unwrap(), None);
    let now = ROTATE_AFTER_MS;
    let second = store.rotate(now).unwrap().unwrap();
    assert_eq!(store.keys.newest().id, second);
    let fresh = store.sign(1024, None, None).unwrap();
    assert!(fresh.contains(&second.to_string()));

    // A key stays a week for tokens that were not used yet, whether or not a pod lives.
    assert!(store.retire(|_| false, now + UNUSED_AFTER_MS - 1).unwrap().is_empty());
    let mut store = Store::open(dir.path(), now).unwrap();
    for token in [&used, &fresh] {
        let mut again = Store::open(dir.path(), now).unwrap();
        again.confirm(token, &pod).unwrap();
    }
    // A key stays for ever while its pod lives.
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
fn a_damaged_record_keeps_known_containers_and_lets_no_token_be_used_twice() {
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

/// A thousandth of the usual sizes.
const SMALL: Sizes =
    Sizes { rotate: SIZES.rotate >> 10, tidy: SIZES.tidy >> 10, close: SIZES.close >> 10 };

fn small(directory: &Path, now_ms: u64) -> Result<Store, StoreError> {
    Store::open_with(directory, now_ms, SMALL)
}

/// Adds uses of the newest key by pods `old-N`, as an earlier version wrote them.
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
    // All of these pods live, as far as is known.
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
    // Some lines less than the limit.
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
    // A directory takes the temporary file's place.
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
    let (one, two) = (store.sign(1024, None, None).unwrap(), store.sign(1024, None, None).unwrap());
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

#[test]
fn a_shares_token_is_its_pods_and_no_containers() {
    let dir = directory();
    let mut store = Store::open(dir.path(), 0).unwrap();
    let share = Share { claim: "c1".to_owned(), request: "gpu".to_owned(), pod: "p1".to_owned() };
    let token = store.sign_share(7168, "GPU-1".to_owned(), share.clone()).unwrap();
    for container in ["init", "main", "init"] {
        let claims = store.confirm(&token, &bearer("p1", container)).unwrap();
        assert_eq!((claims.memory_mib, claims.share.as_ref()), (7168, Some(&share)));
    }
    let error = store.confirm(&token, &bearer("p2", "main")).unwrap_err();
    assert!(matches!(error, StoreError::OtherPod), "{error}");
    assert!(error.hint().contains("ResourceClaimTemplate"), "{}", error.hint());
    let records = std::fs::read_dir(dir.path()).unwrap().flatten();
    assert!(records.count() <= 1, "nothing is recorded of it");
}
