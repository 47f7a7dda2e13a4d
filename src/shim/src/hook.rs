//! `mpsgate-hook`: `createRuntime` checks the container that was made and turns its reservation
//! into a grant, or vetoes; `poststop` ends the grant.
//!
//! A veto is a non-zero exit with the reason on stderr, which runc puts into its own error; for
//! crun see `veto.rs`. `poststop` never fails: it also runs after a veto (measured, runc 1.1.5),
//! and the daemon notices the end of a container by itself.

mod alone;
pub(crate) mod cgroup_root;
pub(crate) mod device_proof;
mod ipc_checks;
mod mount_checks;
mod process_checks;
pub(crate) mod veto;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use mpsgate_api::{Activate, ApiError, Call, Client, NoStatus, Release, Reply};
use mpsgate_config::paths;
use mpsgate_host::crash_point;
use mpsgate_model::{Code, GrantKey, Refusal};
use mpsgate_oci::hook_state::HookState;
use mpsgate_policy::HOOK_MOUNTS;

use self::mount_checks::Mounts;
use crate::descriptors;
use crate::engine_log::chain;
use crate::grant_record::{self, Found};
use crate::marks::{Arguments, Stage};

/// The longest wait for a daemon that reports progress: it may have to start a server, on a card
/// with a control daemon that died after the reservation or while mpsgated was restarted. It is
/// below the timeout that the shim gives the hook, so that a person reads mpsgate's sentence
/// instead of the runtime's. A silent daemon is waited for as everywhere, twice 2 s.
const DAEMON_LIMIT: Duration = Duration::from_secs(30);

const USAGE: &str = "usage: mpsgate-hook createRuntime [--root=DIR --instance=ID | --mounts] < state.json\n       \
    mpsgate-hook poststop --root=DIR --instance=ID < state.json\n\
    \n\
    Run by an OCI runtime: with root and instance for a container that mpsgate granted GPU memory to,\n\
    without them to veto one that reaches a GPU past mpsgate, with --mounts one whose mounts have come to lead to\n\
    mpsgate's directories.\n";

const EXIT_USAGE: i32 = 64;

/// Runs the program and returns its exit code.
#[must_use]
pub fn main(argv: &[OsString]) -> i32 {
    descriptors::ensure_standard_descriptors();
    let alone = matches!(argv, [_, only] if only == "createRuntime");
    let mounts =
        matches!(argv, [_, stage, only] if stage == "createRuntime" && only == HOOK_MOUNTS);
    let arguments = Arguments::parse(argv);
    if arguments.is_none() && !alone && !mounts {
        let _ = std::io::stderr().write_all(USAGE.as_bytes());
        return EXIT_USAGE;
    }
    let state = HookState::read(std::io::stdin().lock()).map_err(|error| {
        (String::new(), Refusal::new(Code::HookState, chain(&error), error.hint()))
    });
    // The runtime may still be writing: it must not die of a broken pipe.
    let _ = std::io::copy(&mut std::io::stdin().lock().take(64 << 20), &mut std::io::sink());
    let done = state.and_then(|state| {
        let evaluated = match &arguments {
            None if mounts => look_again(&state),
            None => alone::check(&state),
            Some(arguments) => arguments.key(&state.id).and_then(|key| match arguments.stage {
                Stage::CreateRuntime => create_runtime(&state, key),
                Stage::Poststop => poststop(key),
            }),
        };
        evaluated.map_err(|refusal| (state.id, refusal))
    });
    match done {
        Ok(()) => 0,
        Err((container, refusal)) => {
            veto::say(&refusal.render(&container));
            i32::from(arguments.is_none_or(|arguments| arguments.stage == Stage::CreateRuntime))
        }
    }
}

fn create_runtime(state: &HookState, key: GrantKey) -> Result<(), Refusal> {
    let record = match grant_record::find(&key.runtime_root, key.container_id.as_str()) {
        Found::Record(record) if record.grant.key == key => record,
        Found::Unusable(why) => return Err(no_reservation(&why)),
        _ => return Err(no_reservation("its grant is not on record")),
    };
    let Some(pid) = init(state) else {
        return Err(Refusal::new(
            Code::HookState,
            "the container state names no pid",
            "use runc 1.1 or crun 1.8 or newer",
        ));
    };
    check_proc()?;
    // Opened first: from here on another process with this pid is noticed.
    let pidfd = descriptors::pidfd_open(pid);
    crash_point!("hook.started");
    let mounts = Mounts::of_granted(pid)?;
    if record.grant.uses_mps() {
        ipc_checks::check(state, pid, &mounts)?;
    }
    process_checks::check(state, pid, &mounts)?;
    check_uid(pid, record.grant.uid)?;
    mounts.check_granted(state, pid, &record.grant.client_dir)?;
    cgroup_root::check_root(pid)?;
    let cgroup = cgroup_root::of(pid);
    crash_point!("hook.before_probe");
    device_proof::check(cgroup.as_ref(), &record.grant.devices, &record.closed)?;
    crash_point!("hook.probed");
    let call = Call::Activate(Activate {
        key,
        pid,
        cgroup: cgroup.map(|cgroup| cgroup.id),
        grant: Some(Box::new(record.grant)),
    });
    let pidfd = pidfd.as_ref().map(AsFd::as_fd);
    match Client::ask::<NoStatus>(Path::new(paths::SOCKET), &call, pidfd, DAEMON_LIMIT) {
        Ok(Reply::Done { .. }) => {
            crash_point!("hook.activated");
            Ok(())
        }
        Ok(Reply::Refused(refusal)) => Err(refusal.into()),
        Ok(_) => Err(ApiError::Unexpected.refusal()),
        Err(error) => Err(error.refusal()),
    }
}

fn init(state: &HookState) -> Option<u32> {
    state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

/// Checks a container that has no grant but a mount from a path that others can change.
fn look_again(state: &HookState) -> Result<(), Refusal> {
    match init(state) {
        Some(pid) if check_proc().is_ok() => mount_checks::check(pid),
        _ => {
            veto::say(&format!(
                "mpsgate: container {:?}: its mounts are not looked at again",
                state.id
            ));
            Ok(())
        }
    }
}

fn poststop(key: GrantKey) -> Result<(), Refusal> {
    crash_point!("hook.before_release");
    // The hook does not wait: the daemon notices the end of the container by itself.
    let released = Client::connect(Path::new(paths::SOCKET)).and_then(|client| {
        client.call::<NoStatus>(Call::Release(Release { key }), None, DAEMON_LIMIT)
    });
    match released {
        Ok(_) => {
            crash_point!("hook.released");
            Ok(())
        }
        Err(error) => Err(error.refusal()),
    }
}

fn no_reservation(why: &str) -> Refusal {
    Refusal::new(
        Code::NoReservation,
        format!("it has no reservation: {why}"),
        "create the container anew",
    )
}

/// Checks that the state's pid belongs to this pid namespace. If `/proc` shows another one, as
/// after `unshare --pid` without `--mount-proc`, every look at the container would be at a
/// stranger.
fn check_proc() -> Result<(), Refusal> {
    let own = std::process::id().to_string();
    match std::fs::read_link("/proc/self") {
        Ok(shown) if shown.as_os_str() == own.as_str() => Ok(()),
        shown => Err(Refusal::new(
            Code::HookState,
            format!(
                "its runtime's /proc is of another pid namespace: /proc/self is {}, and the hook is pid {own}",
                shown.map_or_else(|error| error.to_string(), |pid| pid.display().to_string())
            ),
            "mount /proc anew in the engine's pid namespace (unshare --pid --mount-proc)",
        )),
    }
}

/// Checks that the container's user namespace maps the uid of the granted MPS server. Otherwise its
/// processes would wait for another server, and block all processes behind them.
fn check_uid(pid: u32, uid: u32) -> Result<(), Refusal> {
    if crate::facts::can_have_uid(pid, uid) {
        return Ok(());
    }
    Err(Refusal::new(
        Code::Uid,
        format!("the uid {uid} of its grant is none that its user namespace has on the host"),
        "let the engine set linux.uidMappings, or do without the user namespace (docker run --userns=host)",
    ))
}
