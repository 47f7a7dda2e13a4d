//! The two units that a systemd before 240 starts, too. It reads past what it does not know, with a
//! line in its log: so nothing that they cannot do without may be newer than the oldest one.
//!
//! The versions are those of systemd's NEWS and manual pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Alibaba Cloud Linux 2 has it (docs/install.md).
const OLDEST: u32 = 219;

const UNITS: [&str; 2] = ["mpsgate-hold.service", "mpsgated.service"];

/// What the units say, and the first systemd that knows it; 183 is that one or an older one. A row
/// with a value is for this value alone: another one may have come later.
const SINCE: [(&str, u32); 40] = [
    ("After", 183),
    ("AssertPathExists", 218),
    ("Before", 183),
    ("CapabilityBoundingSet", 183),
    ("Description", 183),
    ("Documentation", 183),
    ("EnvironmentFile", 183),
    ("ExecReload", 183),
    ("ExecStart", 183),
    ("KeyringMode=private", 235),
    ("KillMode=process", 183),
    ("LimitNOFILE", 183),
    ("LockPersonality", 235),
    ("NoNewPrivileges", 187),
    ("NotifyAccess=main", 183),
    ("OOMScoreAdjust", 183),
    ("ProtectHome=read-only", 214),
    ("ProtectKernelLogs", 244),
    ("ProtectSystem=full", 214),
    ("Restart=always", 183),
    ("Restart=on-failure", 183),
    ("RestartPreventExitStatus", 189),
    ("RestartSec", 183),
    ("RestrictAddressFamilies", 211),
    ("RestrictNamespaces", 233),
    ("RestrictRealtime", 231),
    ("RestrictSUIDSGID", 242),
    ("StartLimitInterval", 183),
    ("StartLimitIntervalSec", 230),
    ("StateDirectory", 235),
    ("StateDirectoryMode", 235),
    ("SystemCallArchitectures", 209),
    ("SystemCallErrorNumber", 209),
    // Its groups came with 231: of a deny-list an older one keeps nothing, which denies nothing.
    ("SystemCallFilter", 187),
    ("TimeoutStartSec", 188),
    ("TimeoutStopSec", 188),
    ("Type=notify", 183),
    ("WantedBy", 183),
    ("Wants", 183),
    ("WatchdogSec", 183),
];

/// What they cannot do without, and why. What else is newer is hardening beside mpsgate's own
/// checks, or done by mpsgated as well: it makes its directories, with their modes.
const LOAD_BEARING: [(&str, &str); 10] = [
    ("EnvironmentFile", "the holder has its programs' paths from there"),
    ("ExecStart", "the program"),
    ("KillMode=process", "control daemons and gates outlive who has started them"),
    ("LimitNOFILE", "MPS servers need 16384, and mpsgated has one for each container"),
    ("NotifyAccess=main", "mpsgated's words are heard"),
    ("Restart=always", "without mpsgated no container gets a GPU"),
    ("Restart=on-failure", "the gates' sockets are kept by the holder"),
    ("StartLimitInterval", "mpsgated is started for ever; StartLimitIntervalSec is 230's"),
    ("Type=notify", "engines and kubelet start when the cards are ready"),
    ("WatchdogSec", "an mpsgated that stands is ended"),
];

/// The lines that say something.
fn lines(unit: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd").join(unit);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{unit}: {error}"));
    let says = |line: &&str| !line.is_empty() && !line.starts_with(['#', ';', '[']);
    text.lines().filter(says).map(str::to_owned).collect()
}

fn row(line: &str) -> Option<(&'static str, u32)> {
    let (name, _) = line.split_once('=')?;
    let of = |wanted: &str| SINCE.iter().copied().find(|(known, _)| *known == wanted);
    of(line).or_else(|| of(name))
}

#[test]
fn nothing_that_the_units_cannot_do_without_is_newer_than_the_oldest_systemd() {
    let mut used = BTreeSet::new();
    for unit in UNITS {
        for line in lines(unit) {
            let (said, since) = row(&line).unwrap_or_else(|| {
                panic!("{unit}: since which systemd is there {line}? That belongs in SINCE")
            });
            used.insert(said);
            if let Some((_, why)) = LOAD_BEARING.iter().find(|(needed, _)| *needed == said) {
                assert!(since <= OLDEST, "{unit}: {said} is of systemd {since}, and: {why}");
            }
        }
    }
    let known: BTreeSet<_> = SINCE.iter().map(|(row, _)| *row).collect();
    assert_eq!(used, known, "SINCE has what no unit says");
    for (needed, why) in LOAD_BEARING {
        assert!(used.contains(needed), "no unit says {needed} any more: {why}");
    }
}
