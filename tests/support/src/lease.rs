//! Leases on files (fcntl(2), `F_SETLEASE` is 1024, `F_WRLCK` 1), by perl: neither std nor nix has
//! them.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::Spawned;

/// SIGIO comes where somebody opens the file, and would end it.
const TRY: &str = "$SIG{IO} = 'IGNORE'; open my $file, '<', $ARGV[0] or exit 3; \
    exit 0 if fcntl($file, 1024, 1); exit($!{EAGAIN} ? 1 : 4);";
const HOLD: &str = "$SIG{IO} = 'IGNORE'; open my $file, '<', $ARGV[0] or exit 3; \
    fcntl($file, 1024, 1) or exit 4; print \"held\\n\"; close STDOUT; sleep $ARGV[1];";

/// Whether a process of our uid gets a lease that keeps readers waiting; it has it for a moment.
///
/// # Panics
/// Without perl, or where the file cannot be read or has no leases at all.
#[track_caller]
pub fn can_be_leased(file: &Path) -> bool {
    let status = Command::new("perl").args(["-e", TRY]).arg(file).status().expect("perl");
    match status.code() {
        Some(0) => true,
        Some(1) => false,
        _ => panic!("no lease on {}: {status}", file.display()),
    }
}

/// A process that has such a lease for so many seconds, whoever waits.
///
/// # Panics
/// Where it does not get it.
#[track_caller]
pub fn leased(file: &Path, seconds: u32) -> Spawned {
    let mut command = Command::new("perl");
    command.args(["-e", HOLD]).arg(file).arg(seconds.to_string()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("perl");
    let mut said = String::new();
    child.stdout.as_mut().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(said, "held\n");
    Spawned(child)
}
