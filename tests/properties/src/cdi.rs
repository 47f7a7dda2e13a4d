//! The node's CDI specifications.

use std::cell::RefCell;
use std::path::PathBuf;

use mpsgate_daemon::fuzz::{KIND, Specifications};

thread_local! {
    // In memory, and removed with its thread. One directory for all inputs: each is a new file.
    static DIRECTORY: RefCell<Option<tempfile::TempDir>> = const { RefCell::new(None) };
}

/// Runs `with` on a file of these bytes.
pub(crate) fn as_file<T>(name: &str, data: &[u8], with: impl FnOnce(PathBuf) -> T) -> T {
    DIRECTORY.with_borrow_mut(|directory| {
        let directory = directory.get_or_insert_with(|| {
            tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
        });
        let path = directory.path().join(name);
        std::fs::write(&path, data).unwrap();
        with(path)
    })
}

/// A specification is an error that names the file, or edits that are whole: variables have names,
/// nodes have paths. One that cannot be read leaves every device unnamed or is told; it is never
/// half used.
pub(crate) fn cdi(data: &[u8]) {
    as_file("nvidia.yaml", data, |path| {
        let directory = path.parent().unwrap();
        for device in ["0", "all", "GPU-00000000-0000-4000-8000-000000000000"] {
            // Each its own cache: a cached error must be the same as a fresh one.
            let mut cache = Specifications::new([directory]);
            let found = cache.resolve(device);
            match (&found, cache.resolve(device)) {
                (Ok(a), Ok(b)) => assert_eq!(*a, b),
                (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
                (a, b) => panic!("{a:?}, then {b:?}"),
            }
            match found {
                Ok(None) => {}
                Ok(Some(edits)) => {
                    assert!(String::from_utf8_lossy(data).contains("gpu"));
                    assert!(edits.env.iter().all(|(name, _)| !name.contains('=')));
                }
                Err(error) => {
                    let message = error.to_string();
                    assert!(message.contains(KIND) && message.contains("nvidia.yaml"), "{message}");
                    assert!(!message.contains('\n'), "{message:?} breaks its line");
                }
            }
        }
    });
}
