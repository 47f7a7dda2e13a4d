//! The effect of a point in a build for tests.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;

use rustix::process::{Signal, getpid, kill_process};

use super::{ARMED, DIED};

/// Dies here if this point is armed for this passing.
///
/// Several processes may pass at once: the file's lock makes one of them the one that counts or
/// dies. A wrong file (not root's, not understood) disarms the point: a test then sees that its
/// point was never reached.
pub fn pass(name: &str) {
    let Ok(mut file) = OpenOptions::new().read(true).write(true).open(ARMED) else { return };
    if file.lock().is_err() || !is_roots_and_there(&file) {
        return;
    }
    let mut text = String::new();
    if file.read_to_string(&mut text).is_err() {
        return;
    }
    let mut words = text.split_whitespace();
    if words.next() != Some(name) {
        return;
    }
    let passings: u32 = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    if passings > 1 {
        let left = format!("{name} {}\n", passings - 1);
        let _ = file
            .rewind()
            .and_then(|()| file.set_len(0))
            .and_then(|()| file.write_all(left.as_bytes()));
        return;
    }
    // Written first: a reader that sees the point disarmed may ask who died.
    let _ = std::fs::write(DIED, format!("{name} {}\n", std::process::id()));
    let _ = std::fs::remove_file(ARMED);
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Another process may have removed the file while this one waited for its lock.
fn is_roots_and_there(file: &File) -> bool {
    file.metadata()
        .is_ok_and(|meta| meta.uid() == 0 && meta.mode() & 0o022 == 0 && meta.nlink() > 0)
}
