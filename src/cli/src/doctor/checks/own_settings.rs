//! Who runs the doctor, mpsgate's settings, and which cards it was given.

use mpsgate_config::{Manage, Origin};

use super::{Found, LOGS, ok, or, warn};
use crate::doctor::doctor_node::Node;

pub(super) fn root(node: &Node) -> Found {
    Ok(vec![match node.euid {
        0 => ok("run as root"),
        uid => warn(
            format!("run as uid {uid}: what only root may see looks broken"),
            "sudo mpsgate doctor",
        ),
    }])
}

pub(super) fn config(node: &Node) -> Found {
    let (config, origin) = or(node.config.as_ref(), "compare it with the shipped file")?;
    let manage = match &config.gpus.manage {
        Manage::All => "all".to_owned(),
        Manage::Uuids(uuids) => uuids.len().to_string(),
    };
    let file = match origin {
        Origin::Defaults => "no file, all defaults".to_owned(),
        Origin::File(path) => path.display().to_string(),
    };
    Ok(vec![ok(format!("{file}; cards in gpus.manage: {manage}"))])
}

/// The list that `mpsgate enable` keeps across reboots.
pub(super) fn enabled(node: &Node) -> Found {
    let cards = or(node.enabled.as_ref(), LOGS)?;
    let cards: Vec<&str> = cards.iter().map(String::as_str).collect();
    Ok(vec![match cards.as_slice() {
        [] => ok("no card was handed over by mpsgate enable"),
        cards => ok(format!("handed over by mpsgate enable: {}", cards.join(", "))),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::checks::tests::{FAIL, WARN, trouble, turns_red};

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("root", |(), n| root(n), || (), &[
            (|(), n| n.euid = 1000, WARN, "uid 1000", "sudo mpsgate doctor"),
        ]);
        turns_red("config", |(), n| config(n), || (), &[
            (|(), n| n.config = trouble("unknown key `gpu`"), FAIL, "unknown key `gpu`", "compare it"),
        ]);
        turns_red("enabled", |(), n| enabled(n), || (), &[
            (|(), n| n.enabled = trouble("managed.json is no list"), FAIL, "no list", "journalctl"),
        ]);
    }
}
