//! Who runs the doctor, mpsgate's settings, and which cards it was given.

use mpsgate_config::{Manage, Origin};

use super::{Finding, LOGS, Told, failed, ok, warn};
use crate::doctor::node::Node;

pub(super) const ROOT: Told = Told { name: "root", judge: |node| vec![root(node.euid)] };

fn root(euid: u32) -> Finding {
    if euid == 0 {
        return ok("run as root");
    }
    warn(format!("run as uid {euid}: what only root may see looks broken"), "sudo mpsgate doctor")
}

pub(super) const CONFIG: Told = Told { name: "config", judge: |node| vec![config(node)] };

fn config(node: &Node) -> Finding {
    let (config, origin) = match &node.config {
        Ok(loaded) => loaded,
        Err(trouble) => return failed(trouble, "compare it with the shipped file"),
    };
    let manage = match &config.gpus.manage {
        Manage::All => "all".to_owned(),
        Manage::Uuids(uuids) => uuids.len().to_string(),
    };
    let file = match origin {
        Origin::Defaults => "no file, all defaults".to_owned(),
        Origin::File(path) => path.display().to_string(),
    };
    ok(format!("{file}; cards in gpus.manage: {manage}"))
}

/// The list that `mpsgate enable` keeps across reboots.
pub(super) const ENABLED: Told = Told { name: "enabled", judge: enabled };

fn enabled(node: &Node) -> Vec<Finding> {
    vec![match &node.enabled {
        Ok(cards) if cards.is_empty() => ok("no card was handed over by mpsgate enable"),
        Ok(cards) => {
            let cards: Vec<&str> = cards.iter().map(String::as_str).collect();
            ok(format!("handed over by mpsgate enable: {}", cards.join(", ")))
        }
        Err(trouble) => failed(trouble, LOGS),
    }]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::tests::{FAIL, WARN, trouble};

    #[test]
    fn each_check_turns_red_for_what_it_is_about() {
        ROOT.turns_red(&[(|n| n.euid = 1000, WARN, "uid 1000", "sudo mpsgate doctor")]);
        CONFIG.turns_red(&[(
            |n| n.config = trouble("unknown key `gpu`"),
            FAIL,
            "unknown key `gpu`",
            "compare it",
        )]);
        ENABLED.turns_red(&[(
            |n| n.enabled = trouble("managed.json is no list"),
            FAIL,
            "no list",
            "journalctl",
        )]);
    }
}
