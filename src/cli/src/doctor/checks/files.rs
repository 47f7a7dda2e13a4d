//! The files between mpsgate's programs, and the clock that stamps them.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use mpsgate_api::NodeSnapshot;
use mpsgate_config::{Manage, paths};

use super::{Check, Finding, LOGS, RESTART, Told, fail, failed, ok, skip, warn};
use crate::doctor::node::{self, Node};
use crate::doctor::root::{Known, Root, Trouble, read, there};

/// The ledger's file, below [`paths::LEDGER_DIR`].
pub(in crate::doctor) const LEDGER_FILE: &str = "ledger.json";
/// The token keys' directory, below [`paths::STATE_DIR`], and their file. Only who they belong to
/// is looked at.
const TOKENS_DIR: &str = "tokens";
const KEYS: &str = "keys.json";
/// No clock that is right shows a time before this was written: 2025-01-01.
const CLOCK_FLOOR: u64 = 1_735_689_600;
/// What a clock may be set back by without harm.
const CLOCK_SLACK_S: u64 = 60;
/// `sockaddr_un.sun_path` without its final zero (unix(7)).
const SUN_PATH_MAX: usize = 107;
/// Largest number of a card's directory: what the longest socket path is computed with.
const LARGEST_CARD: u32 = 999;

/// Ages of keys and of uses of tokens are told by the clock.
pub(super) const CLOCK: Check<Clock> = Check {
    name: "clock",
    gather: |root, _| Ok(clock(root)),
    judge: |clock, _| vec![judge_clock(clock)],
    otherwise: "",
};

pub(super) struct Clock {
    /// Seconds since 1970.
    now: u64,
    /// The latest file of ours, and when it was written.
    newest: Option<(PathBuf, u64)>,
}

fn clock(root: Root<'_>) -> Clock {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let state = root.below(paths::STATE_DIR);
    let files = [
        root.below(paths::LEDGER_DIR).join(LEDGER_FILE),
        root.below(paths::NODE_SNAPSHOT),
        state.join(node::ENABLED),
        state.join(TOKENS_DIR).join(KEYS),
    ];
    let written = |path: PathBuf| {
        let time = std::fs::metadata(&path).ok()?.modified().ok()?;
        Some((path, seconds(time)))
    };
    Clock {
        now: seconds(SystemTime::now()),
        newest: files.into_iter().filter_map(written).max_by_key(|(_, time)| *time),
    }
}

fn judge_clock(clock: &Clock) -> Finding {
    const SET: &str = "let the clock be kept: timedatectl set-ntp true, or chronyc makestep; then look: timedatectl";
    if clock.now < CLOCK_FLOOR {
        return warn(
            format!("it stands at {} s since 1970, before this program was made", clock.now),
            SET,
        );
    }
    match &clock.newest {
        Some((path, written)) if *written > clock.now + CLOCK_SLACK_S => warn(
            format!(
                "it went back: {} was written {} s from now. Ages of keys and tokens, and times in logs, are wrong",
                path.display(),
                written - clock.now
            ),
            SET,
        ),
        _ => ok("not before what mpsgate last wrote"),
    }
}

/// Every socket that we or MPS bind, at its longest.
pub(super) const SOCKET_PATHS: Check<[PathBuf; 2]> = Check {
    name: "socket-paths",
    gather: |root, _| {
        let card = root.below(paths::MPS_DIR).join(LARGEST_CARD.to_string());
        Ok([root.below(paths::SOCKET), card.join("pipe/control_privileged")])
    },
    judge: |sockets, _| {
        sockets.iter().max_by_key(|path| length(path)).map(socket_path).into_iter().collect()
    },
    otherwise: "",
};

fn length(path: &PathBuf) -> usize {
    path.as_os_str().len()
}

fn socket_path(longest: &PathBuf) -> Finding {
    let evidence = format!("the longest, {}, has {} bytes", longest.display(), length(longest));
    if length(longest) > SUN_PATH_MAX {
        return fail(
            format!("{evidence}, a socket's path at most {SUN_PATH_MAX}"),
            "the MPS control daemon exits without a word there: use a shorter directory",
        );
    }
    ok(format!("{evidence} of at most {SUN_PATH_MAX}"))
}

/// How many entries it has.
pub(super) const LEDGER: Check<Option<usize>> = Check {
    name: "ledger",
    gather: ledger,
    judge: |entries, _| {
        vec![match entries {
            Some(entries) => ok(format!("{entries} entries")),
            None => ok("none yet: nothing was granted since boot"),
        }]
    },
    otherwise: LOGS,
};

fn ledger(root: Root<'_>, _: &Node) -> Known<Option<usize>> {
    let path = root.below(paths::LEDGER_DIR).join(LEDGER_FILE);
    let Some(text) = read(&path)? else { return Ok(None) };
    mpsgate_model::ledger_file::parse(text.as_bytes(), &path)
        .map(|(_, ledger)| Some(ledger.entries().len()))
        .map_err(|error| Trouble::of(&error, error.hint()))
}

/// Who may read the keys may give himself GPU memory. Directory and file are looked at, and are
/// empty where there are no keys yet.
pub(super) const TOKENS: Check<Vec<KeyFile>> = Check {
    name: "tokens",
    gather: tokens,
    judge: |files, _| vec![judge_tokens(files)],
    otherwise: LOGS,
};

pub(super) struct KeyFile {
    path: PathBuf,
    uid: u32,
    /// Permission bits.
    mode: u32,
    /// The bits that it may have.
    allowed: u32,
}

/// Never the contents.
fn tokens(root: Root<'_>, _: &Node) -> Known<Vec<KeyFile>> {
    let directory = root.below(paths::STATE_DIR).join(TOKENS_DIR);
    let file = directory.join(KEYS);
    let mut found = Vec::new();
    for (path, allowed) in [(directory, 0o700), (file, 0o600)] {
        let metadata = there(std::fs::symlink_metadata(&path));
        if let Some(metadata) = metadata.map_err(|error| Trouble::io("look at", &path, &error))? {
            let mode = metadata.mode() & 0o7777;
            found.push(KeyFile { path, uid: metadata.uid(), mode, allowed });
        }
    }
    Ok(found)
}

fn judge_tokens(files: &[KeyFile]) -> Finding {
    if files.is_empty() {
        return ok("no keys yet: mpsgated makes them");
    }
    let open = files.iter().find(|file| file.uid != 0 || file.mode & !file.allowed != 0);
    match open {
        Some(file) => {
            let path = file.path.display();
            fail(
                format!(
                    "{path} (uid {}, mode {:04o}): others than root may read the keys, and give themselves GPU memory",
                    file.uid, file.mode
                ),
                format!(
                    "chown root: {path}; chmod {:o} {path}; if somebody may have read them, drain the node, remove \
                     the directory tokens and run: {RESTART}",
                    file.allowed
                ),
            )
        }
        None => ok("only root may read the keys"),
    }
}

/// Whether a card was enabled or configured, or might have been.
fn handed_over(node: &Node) -> bool {
    let enabled = node.enabled.as_ref().map_or(true, |cards| !cards.is_empty());
    let configured = node.config.as_ref().is_ok_and(
        |(config, _)| !matches!(&config.gpus.manage, Manage::Uuids(uuids) if uuids.is_empty()),
    );
    enabled || configured
}

pub(super) const SNAPSHOT: Told = Told { name: "snapshot", judge: |node| vec![snapshot(node)] };

fn snapshot(node: &Node) -> Finding {
    let snapshot = match &node.snapshot {
        Ok(Some(snapshot)) => snapshot,
        Ok(None) if node.daemon.is_ok() => {
            return fail("mpsgated runs and has written none", format!("{RESTART}; {LOGS}"));
        }
        // As the shim's `facts::without_daemon` has it.
        Ok(None) if !handed_over(node) => {
            return skip("none yet; no card was ever handed over, so nothing is refused");
        }
        Ok(None) => {
            return warn(
                "none: mpsgate-runtime takes every card for managed",
                "systemctl start mpsgated",
            );
        }
        Err(trouble) => return failed(trouble, RESTART),
    };
    let noted: CardSet =
        snapshot.cards.iter().map(|c| (c.uuid.to_string(), c.minor, c.managed)).collect();
    let now = cards_now(node, snapshot);
    match now {
        Some((whose, cards)) if cards != noted => fail(
            format!("it differs from {whose}: mpsgate-runtime decides by it"),
            format!("{RESTART}; {LOGS}"),
        ),
        Some((whose, _)) => ok(format!("{} cards, as {whose}", noted.len())),
        None => skip(format!("{} cards; nobody to compare with", noted.len())),
    }
}

/// UUID, minor, and whether it is managed.
type CardSet = BTreeSet<(String, u32, bool)>;

/// The cards as the daemon, or else NVML, has them now. NVML does not know which are managed.
fn cards_now(node: &Node, snapshot: &NodeSnapshot) -> Option<(&'static str, CardSet)> {
    if let Ok(status) = &node.daemon {
        let cards = status.cards.iter().map(|c| (c.uuid.clone(), c.minor, c.managed));
        return Some(("mpsgated says", cards.collect()));
    }
    node.nvml.as_ref().ok()?.cards.as_ref().ok()?;
    let noted = |uuid: &str| {
        snapshot.cards.iter().find(|c| c.uuid.as_str() == uuid).is_some_and(|c| c.managed)
    };
    let cards = node.cards().map(|c| (c.uuid.clone(), c.minor, noted(&c.uuid)));
    Some(("NVML says", cards.collect()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::doctor::checks::tests::{FAIL, WARN, assert_calm, nothing_managed, trouble};

    fn clock() -> Clock {
        Clock { now: 1_800_000_000, newest: Some(("/l".into(), 1_800_000_030)) }
    }

    fn keys() -> Vec<KeyFile> {
        vec![KeyFile { path: "/t".into(), uid: 0, mode: 0o700, allowed: 0o700 }]
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        CLOCK.turns_red(clock, "", &[
            (|f, _| f.now = 86_400, WARN, "86400 s since 1970", "timedatectl"),
            (|f, _| f.newest = Some(("/run/l".into(), 1_800_000_100)), WARN, "/run/l was written 100 s from now", "chronyc makestep"),
        ]);
        SOCKET_PATHS.turns_red(|| ["/run/mpsgate/mpsgated.sock", "/m"].map(PathBuf::from), "", &[
            (|[_, mps], _| *mps = format!("/{}", "x".repeat(107)).into(), FAIL, "has 108 bytes, a socket's path at most 107", "shorter"),
        ]);
        LEDGER.turns_red(|| Some(0), "journalctl", &[]);
        TOKENS.turns_red(keys, "journalctl", &[
            (|f, _| f.get_mut(0).unwrap().mode = 0o750, FAIL, "/t (uid 0, mode 0750)", "chmod 700 /t"),
            (|f, _| f.get_mut(0).unwrap().uid = 7, FAIL, "uid 7", "chown root: /t"),
        ]);
        SNAPSHOT.turns_red(&[
            (|n| n.snapshot = Ok(None), FAIL, "written none", "systemctl restart mpsgated"),
            (|n| { n.snapshot = Ok(None); n.daemon = trouble("down"); }, WARN, "every card for managed", "systemctl start mpsgated"),
            (|n| n.snapshot = trouble("node.json is no node snapshot"), FAIL, "no node snapshot", "systemctl restart mpsgated"),
            (|n| n.said().cards.clear(), FAIL, "differs from mpsgated says", "systemctl restart mpsgated"),
            (|n| { n.daemon = trouble("down"); n.with_card(|c| c.minor = 4); }, FAIL, "differs from NVML says", "systemctl restart mpsgated"),
        ]);
    }

    #[test]
    fn a_snapshot_without_a_managed_card_is_no_failure() {
        assert_calm(&[snapshot(&nothing_managed())]);
    }
}
