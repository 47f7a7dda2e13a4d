//! Reports why the hook vetoes. runc puts a hook's standard error into its own error. crun gives
//! hooks `/dev/null` (crun 1.21, `run_process_child`), and a person would read only `error
//! executing hook`. So under crun the reason goes where the runtime's own messages go, its standard
//! error and its `--log`.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::time::SystemTime;

use mpsgate_oci::argv::{self, LogFormat, Verb};
use mpsgate_oci::runtime_log;
use nix::fcntl::OFlag;

use crate::descriptors;

/// Writes `text` to standard error, or past a runtime that discards that.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
    if !is_heard() {
        past(parent_id(), text);
    }
}

/// Writes `text` to standard error, or to that of the parent if this process has none: Podman gives
/// its `precreate` hooks `/dev/null` (4.3, `pkg/hooks/exec`).
pub(crate) fn say_to_parent(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
    if !is_heard() {
        to_stderr_of(parent_id(), text);
    }
}

fn is_heard() -> bool {
    let device = |path| std::fs::metadata(path).map(|meta| meta.rdev());
    match (device("/proc/self/fd/2"), device("/dev/null")) {
        (Ok(ours), Ok(null)) => ours != null,
        _ => true,
    }
}

fn past(runtime: u32, text: &str) {
    let Ok(cmdline) = std::fs::read(format!("/proc/{runtime}/cmdline")) else { return };
    // The runtime may have ended, and another process may have its pid.
    let Some((log, format)) = log_of(&cmdline) else { return };
    if let Some(log) = log {
        let now = runtime_log::rfc3339(SystemTime::now());
        let _ = runtime_log::append(&log, format, "error", text, &now);
    }
    to_stderr_of(runtime, text);
}

fn to_stderr_of(pid: u32, text: &str) {
    let text = format!("{text}\n");
    // This opens the very descriptor: in a file its owner would overwrite appended text.
    if let Some(stderr) = descriptors::descriptor_of(pid, 2) {
        let _ = File::from(stderr).write_all(text.as_bytes());
        return;
    }
    // Appended, because it may be a file. A socket cannot be opened this way: then only the log has
    // the text.
    let stderr = OpenOptions::new()
        .append(true)
        .custom_flags(OFlag::O_NOCTTY.bits())
        .open(format!("/proc/{pid}/fd/2"));
    if let Ok(mut stderr) = stderr {
        let _ = stderr.write_all(text.as_bytes());
    }
}

/// `--log` and `--log-format` of a runtime that is creating a container, from
/// `/proc/<pid>/cmdline`. A relative path is left out: it is relative to where the runtime was when
/// it started.
fn log_of(cmdline: &[u8]) -> Option<(Option<PathBuf>, LogFormat)> {
    let words = cmdline.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let args: Vec<OsString> =
        words.skip(1).map(|word| OsStr::from_bytes(word).to_owned()).collect();
    let invocation = argv::parse(&args);
    matches!(invocation.verb, Verb::Create | Verb::Run | Verb::Restore)
        .then(|| (invocation.log.filter(|log| log.is_absolute()), invocation.log_format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_runtimes_log_in_its_command_line() {
        let of = |line: &str| log_of(line.replace(' ', "\0").as_bytes());
        assert_eq!(
            of("/usr/bin/crun --log-format=json --log=/run/x/oci-log create --bundle /b c1 "),
            Some((Some(PathBuf::from("/run/x/oci-log")), LogFormat::Json))
        );
        // podman 5.4.2 and conmon 2.1.12, for a runtime whose name they do not know; captured.
        assert_eq!(
            of(
                "/usr/bin/crun --systemd-cgroup create --bundle /c/userdata --pid-file /r/pidfile 0627c152 "
            ),
            Some((None, LogFormat::Text))
        );
        assert_eq!(of("crun --log here run c1 "), Some((None, LogFormat::Text)));
        assert_eq!(of("crun --log /l start c1 "), None);
        assert_eq!(of("/sbin/init "), None);
        assert_eq!(log_of(b""), None);
    }
}
