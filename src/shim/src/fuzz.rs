//! Doors for `tests/fuzz`: the parsers of this crate that read what others wrote, one by one. The
//! programs themselves go through [`crate::runtime`] and [`crate::hook`].

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;

use mpsgate_allocation::DeviceNode;

use crate::hook::Arguments;
use crate::hook::devices::Rules;

/// Root and instance of the hook's command line.
#[must_use]
pub fn hook_arguments(argv: &[OsString]) -> Option<(String, String)> {
    Arguments::parse(argv).map(|found| (found.root, found.instance))
}

/// The directory that controls devices, from the text of `/proc/<pid>/cgroup`.
#[must_use]
pub fn device_cgroup(text: &str, unified: bool) -> Option<PathBuf> {
    crate::hook::cgroup::directory(text, unified)
}

/// Whether the text of `devices.list` leaves a node as open as it should be.
#[must_use]
pub fn rules_agree(list: &str, node: &DeviceNode, open: bool) -> bool {
    Rules(list.to_owned()).agree(node, open)
}

/// Whether a document that cannot be parsed names anything of NVIDIA's or ours.
///
/// # Errors
/// What reading gives.
pub fn mentions_gpus(text: impl Read) -> io::Result<bool> {
    crate::bundle::mentions_gpus(text)
}
