//! `mpsgate run`: a command with a grant, without a container.
//!
//! mpsgated puts this process into a cgroup of its own and answers with the grant; then this
//! process becomes the command. So there is nothing in between: signals, the terminal and the exit
//! status are the command's, and mpsgated sees its end.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use mpsgate_api::{ApiError, Call, Reply, Run};
use mpsgate_config::paths;
use mpsgate_edge::ExitCode;
use mpsgate_host::process::Stat;
use mpsgate_host::procfs;
use mpsgate_model::{ComputeShare, ContainerId, DeviceNode, Grant, Priority, Request};
use mpsgate_policy::run_env;
use nix::unistd::{Uid, User, geteuid, initgroups, setgid, setuid};

use crate::args::{PriorityWord, RunArgs};
use crate::error::RunError;
use crate::{CliError, daemon_call};

/// Digits of a name that is made up.
const DIGITS: usize = 4;

pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, CliError> {
    let user = args.user.as_deref().map(user).transpose()?;
    let request = Request {
        memory: Some(args.gpu_mem),
        cards: NonZeroU32::MIN,
        gpu: args.gpu.clone(),
        compute: args.compute.map(ComputeShare),
        priority: match args.priority {
            PriorityWord::Normal => Priority::Normal,
            PriorityWord::Low => Priority::Low,
        },
        uid: None,
        token: None,
    };
    if let Some(user) = user.as_ref().filter(|user| !user.uid.is_root() && may_be_typed_into()) {
        return Err(RunError::Terminal(user.name.clone()).into());
    }
    let uid = user.as_ref().map_or_else(geteuid, |user| user.uid).as_raw();
    let name = args.name.clone().map_or_else(made_up, Ok)?;
    let call = Run { name, request, uid };
    let grant = ask(args, call).map_err(|error| RunError::NotGranted(Box::new(error)))?;
    if let Some(path) = open_beside(&grant.devices) {
        return Err(RunError::Open(path).into());
    }
    let mut command = command(&args.command, &grant);
    if let Some(user) = &user {
        become_user(user, &mut command)
            .map_err(|source| RunError::User { user: user.name.clone(), source })?;
    }
    let source = command.exec();
    let command = args.command.first().cloned().unwrap_or_default();
    Err(RunError::Execute { command, source }.into())
}

fn ask(args: &RunArgs, call: Run) -> Result<Grant, CliError> {
    let own = if geteuid().is_root() { paths::SOCKET } else { paths::RUN_SOCKET };
    let socket = args.socket.as_deref().unwrap_or_else(|| Path::new(own));
    match daemon_call::ask(socket, Call::Run(Box::new(call)))? {
        Reply::Reserved { grant, .. } => Ok(*grant),
        _ => Err(ApiError::Unexpected.into()),
    }
}

fn made_up() -> Result<ContainerId, RunError> {
    let bytes: [u8; DIGITS] = mpsgate_host::random::bytes().map_err(RunError::Random)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    ContainerId::parse(&format!("run-{digits}"))
        .map_err(|error| RunError::Random(io::Error::other(error)))
}

fn user(named: &str) -> Result<User, RunError> {
    let found = match named.parse() {
        Ok(uid) => User::from_uid(Uid::from_raw(uid)),
        Err(_) => User::from_name(named),
    };
    let user = || named.to_owned();
    let found = found.map_err(|errno| RunError::User { user: user(), source: errno.into() })?;
    found.ok_or_else(|| RunError::NoUser(user()))
}

/// With all that this process was for, in its place.
fn command(words: &[OsString], grant: &Grant) -> Command {
    let (name, arguments) = words.split_first().map_or((None, words), |(n, rest)| (Some(n), rest));
    let mut command = Command::new(name.cloned().unwrap_or_default());
    command.args(arguments);
    let (drop, set) = run_env(grant);
    for name in drop {
        command.env_remove(name);
    }
    command.envs(set);
    command
}

/// Whether this process has a terminal into which whoever shares it can type, as if it were its
/// owner (TIOCSTI, tty_ioctl(4)). Since Linux 6.2 `dev.tty.legacy_tiocsti` forbids it, but on a
/// virtual console not until 6.7: its selection can be pasted (TIOCLINUX).
fn may_be_typed_into() -> bool {
    let stat = procfs::text("/proc/self/stat").ok().and_then(|text| Stat::parse(&text));
    let is_console = stat.is_none_or(|stat| is_virtual_console(stat.terminal));
    let sysctl = procfs::text("/proc/sys/dev/tty/legacy_tiocsti");
    let forbidden = sysctl.is_ok_and(|text| text.trim() == "0");
    // Fails where there is no controlling terminal (tty(4)).
    let has_terminal = OpenOptions::new().read(true).open("/dev/tty").is_ok();
    has_terminal && (is_console || !forbidden)
}

/// Whether a terminal is a virtual console: major 4 and a minor of 1 to 63. Those from 64 on are
/// serial lines.
fn is_virtual_console(terminal: i32) -> bool {
    (0x401..=0x43f).contains(&terminal)
}

fn become_user(user: &User, command: &mut Command) -> io::Result<()> {
    let name = std::ffi::CString::new(user.name.as_str())?;
    initgroups(&name, user.gid)?;
    setgid(user.gid)?;
    setuid(user.uid)?;
    command.env("HOME", &user.dir).env("SHELL", &user.shell);
    command.env("USER", &user.name).env("LOGNAME", &user.name);
    Ok(())
}

/// A GPU's node that can be opened though it is none of the grant's.
pub(crate) fn open_beside(granted: &[DeviceNode]) -> Option<PathBuf> {
    let found = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let is_card = |name: &str| {
        let minor = name.strip_prefix("nvidia").unwrap_or_default();
        !minor.is_empty() && minor.bytes().all(|byte| byte.is_ascii_digit())
    };
    let names = found.filter_map(|entry| entry.file_name().into_string().ok());
    let others = names.filter(|name| is_card(name)).map(|name| Path::new("/dev").join(name));
    let mut others =
        others.filter(|path| granted.iter().all(|node| Path::new(&node.path) != path.as_path()));
    others.find(|path| {
        let flags = nix::libc::O_NONBLOCK;
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sysctl_keeps_nobody_from_typing_into_a_virtual_console() {
        let device = |major: i32, minor: i32| (major << 8) | minor;
        for minor in [1, 2, 63] {
            assert!(is_virtual_console(device(4, minor)), "tty{minor}");
        }
        // None, tty0, serial lines, a pseudo-terminal, and /dev/tty itself.
        for (major, minor) in [(0, 0), (4, 0), (4, 64), (4, 255), (136, 1), (5, 0)] {
            assert!(!is_virtual_console(device(major, minor)), "{major}:{minor}");
        }
    }
}
