//! Looks at the node's files where mpsgated is a pod, whose `/` is its image.
//!
//! A program that engines start, or NVIDIA's settings for it, are the node's; what the image has
//! under the same path says nothing. Paths are not followed through `/proc/1/root`: absolute links
//! in there lead back into the image.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sched::{CloneFlags, setns, unshare};

/// What `look` sees on the node. An error where that is another root directory and it cannot be
/// entered.
pub(crate) fn look<T: Send>(look: impl FnOnce() -> T + Send) -> io::Result<T> {
    if is_ours(Path::new("/proc/1/root/")) {
        return Ok(look());
    }
    // A thread of its own, because only that one changes its root; joined before this returns.
    let looked = std::thread::scope(|scope| {
        scope.spawn(|| enter(Path::new("/proc/1/ns/mnt")).map(|()| look())).join()
    });
    looked.unwrap_or_else(|_| Err(io::Error::other("the look at the node's files has panicked")))
}

/// Also where it is not shown: then this is no pod with the node's pids, and knows no other root.
fn is_ours(root: &Path) -> bool {
    let place = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (place(root), place(Path::new("/"))) {
        (Ok(node), Ok(own)) => node == own,
        _ => true,
    }
}

fn enter(mounts: &Path) -> io::Result<()> {
    let mounts = File::open(mounts)?;
    // The kernel moves nobody who shares root and working directory with other threads.
    unshare(CloneFlags::CLONE_FS)?;
    Ok(setns(mounts, CloneFlags::CLONE_NEWNS)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn another_root_directory_is_told_from_ours_and_from_one_that_is_not_shown() {
        let other = tempfile::tempdir().unwrap();
        assert!(!is_ours(other.path()));
        assert!(is_ours(Path::new("/proc/self/root/")));
        assert!(is_ours(&other.path().join("missing")));
    }

    #[test]
    fn on_the_node_itself_nothing_is_entered() {
        let thread = std::thread::current().id();
        assert_eq!(look(|| std::thread::current().id()).unwrap(), thread);
    }
}
