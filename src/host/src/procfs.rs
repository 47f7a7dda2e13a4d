//! Files of `/proc`, as text. Not all of it is text: a process chooses its name, a container the
//! names of its cgroups, and the kernel writes them as they are. A reader that stops there does not
//! see the process, so nobody reads one by `read_to_string` (`tests/house/tests/procfs.rs`); who
//! wants its bytes reads bytes.

use std::io;
use std::path::Path;

/// What stands in a file of `/proc`. Bytes that are no text become U+FFFD: a name or a path that
/// has one may be another's too, and means nobody.
///
/// # Errors
/// What the kernel says.
pub fn text(file: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
}

/// Whether that is because there is no such file: its process has ended, or ends in this moment.
#[must_use]
pub fn is_gone(error: &io::Error) -> bool {
    let ended = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ended)
}
