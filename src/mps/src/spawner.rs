//! Ways to start a control daemon that outlives mpsgated: as a systemd unit, or by the holder
//! ([`HoldSpawner`](crate::HoldSpawner)). Both start the launcher, which becomes the daemon, in the
//! foreground (`-f`): so the process started *is* the daemon.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mpsgate_host::file::{self, Durability, New};
use mpsgate_host::process::Signal;

use crate::error::MpsError;
use crate::instance::MpsInstance;
use crate::mps_process::Process;
use crate::subprocess::{Failure, run};

/// The first systemd with `StandardOutput=append:`.
const APPEND_SINCE: u32 = 240;
/// The holder's unit.
const HOLD_UNIT: &str = "mpsgate-hold.service";
/// `systemctl` waits for the unit; a unit of `Type=exec` is up as soon as it runs.
const SYSTEMCTL_LIMIT: Duration = Duration::from_secs(30);
/// After SIGKILL a process is gone at once, unless it hangs in the driver.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Starts control daemons and finds out whether one ended. Blocking.
pub trait Spawner: fmt::Debug + Send + Sync {
    /// Starts the card's daemon; returns before it answers.
    ///
    /// # Errors
    /// If it could not even be executed.
    fn start(&self, mps: &MpsInstance) -> Result<Started, MpsError>;

    /// Whether the started daemon has ended already.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn has_ended(&self, _mps: &MpsInstance, started: &Started) -> Result<bool, MpsError> {
        Ok(!matches!(started, Started::Process(Some(process)) if process.is_alive()))
    }

    /// Ends a daemon that never answered.
    ///
    /// # Errors
    /// If it is still there afterwards.
    fn abort(&self, _mps: &MpsInstance, started: &Started) -> Result<(), MpsError> {
        let Started::Process(Some(process)) = started else { return Ok(()) };
        let sent = process.signal(Signal::KILL);
        if sent.is_ok() && process.wait_gone(KILL_LIMIT) {
            return Ok(());
        }
        Err(MpsError::StillRunning { pid: process.pid() })
    }

    /// `stop` calls this once the daemon is gone.
    ///
    /// # Errors
    /// If the supervisor could not be notified.
    fn after_stop(&self, _mps: &MpsInstance) -> Result<(), MpsError> {
        Ok(())
    }

    /// Reaps processes that it has started and that have ended. To be called now and then.
    fn tend(&self) {}

    /// Starts the card's gate; returns before it serves.
    ///
    /// # Errors
    /// If it could not even be executed.
    fn start_gate(&self, mps: &MpsInstance) -> Result<(), MpsError>;

    /// Ends the gate if the supervisor would start it again, and gives up its sockets.
    ///
    /// # Errors
    /// If the supervisor could not be notified.
    fn stop_gate(&self, _mps: &MpsInstance) -> Result<(), MpsError> {
        Ok(())
    }
}

/// The result of a start.
#[derive(Debug)]
pub enum Started {
    /// A process; `None` if it ended before it could be looked at.
    Process(Option<Process>),
    /// A unit: only the supervisor has its process.
    Unit,
}

impl Started {
    /// Whether the daemon with that pid is the started one, and not one that another process
    /// started first.
    pub(crate) fn is(&self, daemon: i32) -> bool {
        match self {
            Self::Process(process) => {
                process.as_ref().is_some_and(|process| process.pid() == daemon)
            }
            Self::Unit => true,
        }
    }
}

/// Runs the daemon as `mpsgate-mps@<n>.service`. The unit must not restart by itself
/// (`Restart=no`: a restart without limits would serve clients without limits) and needs
/// `EnvironmentFile=<environment_dir>/mps-%i.env`, an `ExecStart=` of
/// `mpsgated launch --card %i -- $MPSGATE_MPS_CONTROL -f $MPSGATE_MPS_FLAGS` and
/// `StandardOutput=append:<log directory>/control.log`: `packaging/systemd/mpsgate-mps@.service`.
#[derive(Debug, Clone)]
pub struct UnitSpawner {
    systemctl: PathBuf,
    environment_dir: PathBuf,
}

impl UnitSpawner {
    /// Uses `systemctl`, and leaves the units' environment in `environment_dir`.
    #[must_use]
    pub fn new(systemctl: impl Into<PathBuf>, environment_dir: impl Into<PathBuf>) -> Self {
        Self { systemctl: systemctl.into(), environment_dir: environment_dir.into() }
    }

    /// Whether this machine runs systemd.
    #[must_use]
    pub fn has_systemd() -> bool {
        Path::new("/run/systemd/system").is_dir()
    }

    /// Whether this machine runs a systemd that fits mpsgate's unit, and has the unit.
    #[must_use]
    pub fn is_available(&self) -> bool {
        Self::has_systemd()
            && self.has_a_log()
            && self.systemctl(&["cat", "mpsgate-mps@.service"]).is_ok()
    }

    /// Whether this systemd writes a service's output to a file, which makes control.log: `append:`
    /// exists since 240 (systemd.exec(5)). An older one ignores the line.
    fn has_a_log(&self) -> bool {
        let asked = run(&self.systemctl, &["--version"], &[], "", SYSTEMCTL_LIMIT);
        let version = asked.ok().and_then(|finished| systemd_version(&finished.stdout));
        version.is_some_and(|version| version >= APPEND_SINCE)
    }

    fn environment_file(&self, mps: &MpsInstance) -> PathBuf {
        self.environment_dir.join(format!("mps-{}.env", mps.card()))
    }

    fn systemctl(&self, arguments: &[&str]) -> Result<(), MpsError> {
        let failed = |detail| MpsError::Systemctl { arguments: arguments.join(" "), detail };
        match run(&self.systemctl, arguments, &[], "", SYSTEMCTL_LIMIT) {
            Ok(finished) if finished.status.success() => Ok(()),
            Ok(finished) => Err(failed(finished.detail())),
            Err(Failure::Io(source)) => {
                Err(MpsError::Run { program: self.systemctl.clone(), source })
            }
            Err(Failure::TimedOut) => {
                Err(failed(format!("no answer within {} s", SYSTEMCTL_LIMIT.as_secs())))
            }
            Err(Failure::TooLong) => Err(failed("its output has no end".into())),
        }
    }

    /// Whether the holder's unit file exists.
    pub(crate) fn has_holder(&self) -> bool {
        self.systemctl(&["cat", HOLD_UNIT]).is_ok()
    }

    /// Starts `mpsgate-hold.service`: a holder where systemd is too old for a unit for each card.
    pub(crate) fn start_holder(&self, control: &Path, gate: &Path) -> Result<(), MpsError> {
        let variables = [
            ("MPSGATE_MPS_CONTROL", control.as_os_str().to_owned()),
            ("MPSGATE_GATE", gate.as_os_str().to_owned()),
        ];
        write_environment(&self.environment_dir.join("hold.env"), variables)?;
        self.systemctl(&["start", HOLD_UNIT])
    }

    fn write_environment(&self, mps: &MpsInstance) -> Result<(), MpsError> {
        let flags = mps.arguments()[1..].join(" ");
        let unit = [
            ("MPSGATE_MPS_CONTROL", mps.binary().as_os_str().to_owned()),
            ("MPSGATE_MPS_FLAGS", flags.into()),
        ];
        write_environment(&self.environment_file(mps), mps.environment().into_iter().chain(unit))
    }
}

/// systemd's quoting: every value in double quotes, with its four special characters escaped.
fn write_environment(
    path: &Path,
    variables: impl IntoIterator<Item = (&'static str, OsString)>,
) -> Result<(), MpsError> {
    let mut text = String::new();
    for (name, value) in variables {
        let mut quoted = String::new();
        for character in value.to_string_lossy().chars() {
            if matches!(character, '"' | '\\' | '$' | '`') {
                quoted.push('\\');
            }
            quoted.push(character);
        }
        text.push_str(&format!("{name}=\"{quoted}\"\n"));
    }
    file::replace(path, text.as_bytes(), &New::of(0o600, Durability::Atomic))
        .map_err(|source| MpsError::fs("write", path, source))
}

fn unit(mps: &MpsInstance) -> String {
    format!("mpsgate-mps@{}.service", mps.card())
}

fn gate_unit(mps: &MpsInstance) -> String {
    format!("mpsgate-gate@{}.service", mps.card())
}

impl Spawner for UnitSpawner {
    fn start(&self, mps: &MpsInstance) -> Result<Started, MpsError> {
        self.write_environment(mps)?;
        self.systemctl(&["start", &unit(mps)])?;
        Ok(Started::Unit)
    }

    fn has_ended(&self, mps: &MpsInstance, _started: &Started) -> Result<bool, MpsError> {
        match self.systemctl(&["is-active", "--quiet", &unit(mps)]) {
            Ok(()) => Ok(false),
            Err(MpsError::Systemctl { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    fn abort(&self, mps: &MpsInstance, _started: &Started) -> Result<(), MpsError> {
        self.systemctl(&["stop", &unit(mps)])
    }

    fn after_stop(&self, mps: &MpsInstance) -> Result<(), MpsError> {
        self.systemctl(&["stop", &unit(mps)])?;
        // It counts as failed if a server had ended badly before: the daemon exits with 1 then. An
        // error here means that there is nothing to reset.
        let _ = self.systemctl(&["reset-failed", &unit(mps)]);
        let path = self.environment_file(mps);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(MpsError::fs("remove", path, error))
            }
            _ => Ok(()),
        }
    }

    fn start_gate(&self, mps: &MpsInstance) -> Result<(), MpsError> {
        self.systemctl(&["start", &gate_unit(mps)])
    }

    fn stop_gate(&self, mps: &MpsInstance) -> Result<(), MpsError> {
        match self.systemctl(&["stop", &gate_unit(mps)]) {
            // There is no such unit: a package without it, or a card that never had a gate.
            Err(MpsError::Systemctl { detail, .. }) if detail.contains("not loaded") => Ok(()),
            other => other,
        }
    }
}

/// `systemd 252 (252.39-1~deb12u1)` and a line of its features.
fn systemd_version(text: &str) -> Option<u32> {
    let number = text.strip_prefix("systemd ")?.split(|c: char| !c.is_ascii_digit()).next()?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemds_version_is_the_number_that_distributions_append_to() {
        for (text, version) in [
            ("systemd 252 (252.39-1~deb12u1)\n+PAM +AUDIT\n", Some(252)),
            ("systemd 239 (239-82.el8_10.5)\n+PAM\n", Some(239)),
            ("systemd 219\n+PAM\n", Some(219)),
            ("systemd v260~rc1\n", None),
            ("", None),
            ("System has not been booted with systemd as init system (PID 1).\n", None),
        ] {
            assert_eq!(systemd_version(text), version, "{text}");
        }
    }
}
