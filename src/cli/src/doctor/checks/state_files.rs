//! The files between mpsgate's programs, and the clock that stamps them.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use mpsgate_api::NodeSnapshot;
use mpsgate_config::{Manage, paths};

use super::{Found, LOGS, RESTART, fail, ok, or, skip, warn};
use crate::doctor::doctor_node::{self, Node};
use crate::doctor::trouble::{Known, Trouble, read, there};

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

struct Clock {
    /// Seconds since 1970.
    now: u64,
    /// The latest file of ours, and when it was written.
    newest: Option<(PathBuf, u64)>,
}

/// Ages of keys and of uses of tokens are told by the clock.
pub(super) fn clock(node: &Node) -> Found {
    let seconds = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let state = node.below(paths::STATE_DIR);
    let files = [
        node.below(paths::LEDGER_DIR).join(LEDGER_FILE),
        node.below(paths::NODE_SNAPSHOT),
        state.join(doctor_node::ENABLED),
        state.join(TOKENS_DIR).join(KEYS),
    ];
    let written = |path: PathBuf| {
        let time = std::fs::metadata(&path).ok()?.modified().ok()?;
        Some((path, seconds(time)))
    };
    judge_clock(Clock {
        now: seconds(SystemTime::now()),
        newest: files.into_iter().filter_map(written).max_by_key(|(_, time)| *time),
    })
}

fn judge_clock(clock: Clock) -> Found {
    const SET: &str = "let the clock be kept: timedatectl set-ntp true, or chronyc makestep; then look: timedatectl";
    if clock.now < CLOCK_FLOOR {
        return Err(warn(
            format!("it stands at {} s since 1970, before this program was made", clock.now),
            SET,
        ));
    }
    Ok(vec![match &clock.newest {
        Some((path, written)) if *written > clock.now + CLOCK_SLACK_S => warn(
            format!(
                "it went back: {} was written {} s from now. Ages of keys and tokens, and times in logs, are wrong",
                path.display(),
                written - clock.now
            ),
            SET,
        ),
        _ => ok("not before what mpsgate last wrote"),
    }])
}

/// Every socket that we or MPS bind, at its longest.
pub(super) fn socket_paths(node: &Node) -> Found {
    let card = node.below(paths::MPS_DIR).join(LARGEST_CARD.to_string());
    judge_sockets([node.below(paths::SOCKET), card.join("pipe/control_privileged")])
}

fn judge_sockets([one, other]: [PathBuf; 2]) -> Found {
    let length = |path: &PathBuf| path.as_os_str().len();
    let longest = std::cmp::max_by_key(one, other, length);
    let length = length(&longest);
    let evidence = format!("the longest, {}, has {length} bytes", longest.display());
    Ok(vec![if length > SUN_PATH_MAX {
        fail(
            format!("{evidence}, a socket's path at most {SUN_PATH_MAX}"),
            "the MPS control daemon exits without a word there: use a shorter directory",
        )
    } else {
        ok(format!("{evidence} of at most {SUN_PATH_MAX}"))
    }])
}

pub(super) fn ledger(node: &Node) -> Found {
    judge_ledger(ledger_entries(&node.below(paths::LEDGER_DIR).join(LEDGER_FILE)))
}

fn ledger_entries(path: &Path) -> Known<Option<usize>> {
    let Some(text) = read(path)? else { return Ok(None) };
    mpsgate_model::ledger_file::parse(text.as_bytes(), path)
        .map(|(_, ledger)| Some(ledger.entries().len()))
        .map_err(|error| Trouble::of(&error, error.hint()))
}

fn judge_ledger(entries: Known<Option<usize>>) -> Found {
    Ok(vec![match or(entries, LOGS)? {
        Some(entries) => ok(format!("{entries} entries")),
        None => ok("none yet: nothing was granted since boot"),
    }])
}

/// Directory and file of the tokens' keys.
struct KeyFile {
    path: PathBuf,
    uid: u32,
    /// Permission bits.
    mode: u32,
    /// The bits that it may have.
    allowed: u32,
}

/// Who may read the keys may give himself GPU memory.
pub(super) fn tokens(node: &Node) -> Found {
    judge_tokens(keys(node.below(paths::STATE_DIR).join(TOKENS_DIR)))
}

/// Never the contents; empty where there are none yet.
fn keys(directory: PathBuf) -> Known<Vec<KeyFile>> {
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

fn judge_tokens(files: Known<Vec<KeyFile>>) -> Found {
    let files = or(files, LOGS)?;
    let open = files.iter().find(|file| file.uid != 0 || file.mode & !file.allowed != 0);
    Ok(vec![match open {
        None if files.is_empty() => ok("no keys yet: mpsgated makes them"),
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
    }])
}

/// Whether a card was enabled or configured, or might have been.
fn handed_over(node: &Node) -> bool {
    let enabled = node.enabled.as_ref().map_or(true, |cards| !cards.is_empty());
    let configured = node.config.as_ref().is_ok_and(
        |(config, _)| !matches!(&config.gpus.manage, Manage::Uuids(uuids) if uuids.is_empty()),
    );
    enabled || configured
}

pub(super) fn snapshot(node: &Node) -> Found {
    let Some(snapshot) = or(node.snapshot.as_ref(), RESTART)? else {
        return Err(if node.daemon.is_ok() {
            fail("mpsgated runs and has written none", format!("{RESTART}; {LOGS}"))
        } else if handed_over(node) {
            warn("none: mpsgate-runtime takes every card for managed", "systemctl start mpsgated")
        } else {
            // As the shim's `facts::without_daemon` has it.
            skip("none yet; no card was ever handed over, so nothing is refused")
        });
    };
    let noted: CardSet =
        snapshot.cards.iter().map(|c| (c.uuid.to_string(), c.minor, c.managed)).collect();
    Ok(vec![match cards_now(node, snapshot) {
        Some((whose, cards)) if cards != noted => fail(
            format!("it differs from {whose}: mpsgate-runtime decides by it"),
            format!("{RESTART}; {LOGS}"),
        ),
        Some((whose, _)) => ok(format!("{} cards, as {whose}", noted.len())),
        None => skip(format!("{} cards; nobody to compare with", noted.len())),
    }])
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
    use crate::doctor::checks::tests::{
        FAIL, WARN, assert_calm, nothing_managed, trouble, turns_red,
    };

    fn right() -> Clock {
        Clock { now: 1_800_000_000, newest: Some(("/l".into(), 1_800_000_030)) }
    }

    fn files() -> Known<Vec<KeyFile>> {
        Ok(vec![KeyFile { path: "/t".into(), uid: 0, mode: 0o700, allowed: 0o700 }])
    }

    #[test]
    #[rustfmt::skip]
    fn each_check_turns_red_for_what_it_is_about() {
        turns_red("clock", |f, _| judge_clock(f), right, &[
            (|f, _| f.now = 86_400, WARN, "86400 s since 1970", "timedatectl"),
            (|f, _| f.newest = Some(("/run/l".into(), 1_800_000_100)), WARN, "/run/l was written 100 s from now", "chronyc makestep"),
        ]);
        let sockets = || ["/run/mpsgate/mpsgated.sock", "/m"].map(PathBuf::from);
        turns_red("socket-paths", |f, _| judge_sockets(f), sockets, &[
            (|[_, mps], _| *mps = format!("/{}", "x".repeat(107)).into(), FAIL, "has 108 bytes, a socket's path at most 107", "shorter"),
        ]);
        turns_red("ledger", |f, _| judge_ledger(f), || Ok(Some(0)), &[
            (|f, _| *f = trouble("ledger.json is no ledger"), FAIL, "no ledger", "journalctl"),
        ]);
        turns_red("tokens", |f, _| judge_tokens(f), files, &[
            (|f, _| f.as_mut().unwrap().get_mut(0).unwrap().mode = 0o750, FAIL, "/t (uid 0, mode 0750)", "chmod 700 /t"),
            (|f, _| f.as_mut().unwrap().get_mut(0).unwrap().uid = 7, FAIL, "uid 7", "chown root: /t"),
            (|f, _| *f = trouble("denied"), FAIL, "denied", "journalctl"),
        ]);
        turns_red("snapshot", |(), n| snapshot(n), || (), &[
            (|(), n| n.snapshot = Ok(None), FAIL, "written none", "systemctl restart mpsgated"),
            (|(), n| { n.snapshot = Ok(None); n.daemon = trouble("down"); }, WARN, "every card for managed", "systemctl start mpsgated"),
            (|(), n| n.snapshot = trouble("node.json is no node snapshot"), FAIL, "no node snapshot", "systemctl restart mpsgated"),
            (|(), n| n.said().cards.clear(), FAIL, "differs from mpsgated says", "systemctl restart mpsgated"),
            (|(), n| { n.daemon = trouble("down"); n.with_card(|c| c.minor = 4); }, FAIL, "differs from NVML says", "systemctl restart mpsgated"),
        ]);
    }

    #[test]
    fn a_snapshot_without_a_managed_card_is_no_failure() {
        assert_calm(snapshot(&nothing_managed()));
    }
}
