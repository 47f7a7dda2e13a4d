//! Files of `/proc`, as text. Not all of it is text: a process chooses its name, a container the
//! names of its cgroups, and the kernel writes them as they are. A reader that stops there does not
//! see the process. So no code reads such a file with `read_to_string`
//! (`tests/house/tests/procfs.rs`); code that needs the bytes reads bytes.

use std::io;
use std::path::Path;

/// The content of a file of `/proc`. Bytes that are not text become U+FFFD. A name or path with one
/// is ambiguous, and identifies no process.
///
/// # Errors
/// The kernel's error.
pub fn text(file: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
}

/// Whether the error means that there is no such file: its process has ended, or is just ending.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    let ended = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ended)
}
