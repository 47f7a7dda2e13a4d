//! Doors for `tests/fuzz`: the parsers of this crate that read what others wrote, one by one. The
//! programs themselves go through [`crate::runtime`] and [`crate::hook`].

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use mpsgate_config::Config;
use mpsgate_model::DeviceNode;
use mpsgate_policy::{Action, Bytes, Caller, Decision, Node, Reading};

use crate::evaluate::{self, Evaluation};
use crate::hook::devices::Rules;
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

/// How many lines of a `/proc/PID/mountinfo` say what is mounted where.
#[must_use]
pub fn mounts(text: &str) -> usize {
    text.lines().filter_map(crate::mounts::info::Line::parse).count()
}

/// Whether the text of `devices.list` leaves a node as open as it should be.
#[must_use]
pub fn rules_agree(list: &str, node: &DeviceNode, open: bool) -> bool {
    Rules(list.to_owned()).agree(node, open)
}

/// What the runtime decides about a document on a node, by its settings; `None` where no runtime
/// makes a container of it.
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
