//! Entries for `tests/fuzz`: this crate's parsers of text from others, one by one. The programs
//! themselves go through [`crate::runtime`] and [`crate::hook`].

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use mpsgate_config::Config;
use mpsgate_model::DeviceNode;
use mpsgate_policy::{Action, Bytes, Caller, Decision, Node, Reading};

use crate::evaluate::{self, Evaluation};
use crate::hook::device_proof::Rules;
use crate::marks::Arguments;

/// Root and instance of the hook's command line.
#[must_use]
pub fn hook_arguments(argv: &[OsString]) -> Option<(String, String)> {
    Arguments::parse(argv).map(|found| (found.root, found.instance))
}

/// The directory that controls devices, from the text of `/proc/<pid>/cgroup`.
#[must_use]
pub fn device_cgroup(text: &str, unified: bool) -> Option<PathBuf> {
    mpsgate_host::cgroup::of_devices(text, unified)
}

/// How many lines of a `/proc/PID/mountinfo` are mounts.
#[must_use]
pub fn mounts(text: &str) -> usize {
    text.lines().filter_map(crate::mounts::info::Line::parse).count()
}

/// Whether the text of `devices.list` leaves a node open or closed as required.
#[must_use]
pub fn rules_agree(list: &str, node: &DeviceNode, open: bool) -> bool {
    Rules(list.to_owned()).agree(node, open)
}

/// The runtime's decision about a document on a node, by its settings; `None` if no runtime makes a
/// container of it.
#[must_use]
pub fn decided(bytes: Bytes<'_>, node: Node, settings: Config) -> Option<Decision> {
    let evaluation = Evaluation::on(node, settings);
    Some(match evaluate::read(bytes, Path::new("/"), false).ok()? {
        Reading::Nothing => Decision::pass(),
        Reading::Clean(document) => {
            evaluation.decide(&document, Path::new("/"), Caller::Unknown, Action::Create)
        }
        Reading::Unclean(unclean) => evaluation.decide_unclean(&unclean),
    })
}
