//! Every crash point, in the order in which a container and then a card passes them.

/// All names. `tests/faults` kills a process at each of them.
pub const POINTS: &[&str] = &[
    // The shim: from the request to the runtime.
    "shim.before_reserve",
    "shim.reserved",
    "shim.recorded",
    "shim.edited",
    "shim.before_exec",
    // A file that the shim replaces: record, config.json, process document.
    "shim.file.created",
    "shim.file.written",
    "shim.file.renamed",
    "shim.process_edited",
    "shim.kill.asked",
    // The hook.
    "hook.started",
    "hook.before_probe",
    "hook.node_made",
    "hook.probe_joined",
    "hook.probed",
    "hook.activated",
    "hook.before_release",
    "hook.released",
    // The daemon's answers.
    "daemon.reserve.changed",
    "daemon.reserve.stored",
    "daemon.run.reserved",
    "daemon.run.confined",
    "daemon.activate.changed",
    "daemon.activate.stored",
    "daemon.release.changed",
    "daemon.expire.before",
    "daemon.expire.changed",
    "daemon.end.before",
    "daemon.end.changed",
    "daemon.terminate.found",
    "daemon.record.before_remove",
    "daemon.record.removed",
    // The operator enlarges a container's grant.
    "daemon.resize.grown",
    "daemon.record.before_renew",
    "daemon.resize.limited",
    "daemon.resize.stored",
    // The ledger's file.
    "ledger.created",
    "ledger.written",
    "ledger.renamed",
    // Start and end of the daemon.
    "daemon.start.locked",
    "daemon.socket.bound",
    "daemon.socket.named",
    "daemon.gate_socket.bound",
    "daemon.gate_socket.named",
    "daemon.start.settled",
    "daemon.start.stored",
    "daemon.link.made",
    "daemon.link.renamed",
    "daemon.snapshot.before",
    "daemon.snapshot.after",
    "daemon.stop.stored",
    "daemon.stop.unlinked",
    // A small file of the daemon: snapshot, list of handed-over cards.
    "daemon.file.created",
    "daemon.file.written",
    "daemon.file.renamed",
    // A card that is handed over and taken back.
    "enable.recorded",
    "enable.published",
    "enable.ready",
    "disable.fenced",
    "disable.stopped",
    "disable.published",
    "disable.forgotten",
    // Its MPS, stopped and restarted by the operator, or dead with grants on it.
    "mps_stop.recorded",
    "mps_stop.ended",
    "mps_start.recorded",
    "mps_restart.ended",
    "grants.before_breaking",
    "grants.broken",
    // Its compute mode.
    "lease.created",
    "lease.written",
    "lease.renamed",
    "lease.taken",
    "compute_mode.set",
    "compute_mode.restored",
    "lease.removed",
    // Its control daemon.
    "mps.directories_made",
    "launch.locked",
    "launch.parted",
    "launch.mounted",
    "hold.control_started",
    "mps.spawned",
    "mps.answers",
    "mps.capped",
    "hold.gate_started",
    "mps.gate_started",
    "mps.door.made",
    "mps.door.written",
    "mps.door.file_removed",
    "mps.door.removed",
    "mps.daemon_ended",
    "mps.directories_removed",
];

/// Whether a name is in [`POINTS`]; usable at compile time.
#[must_use]
pub const fn is_listed(name: &str) -> bool {
    let mut at = 0;
    while at < POINTS.len() {
        if same(POINTS[at].as_bytes(), name.as_bytes()) {
            return true;
        }
        at += 1;
    }
    false
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
