//! The remedies for errors of MPS.

use super::{MpsError, list};

impl MpsError {
    /// The remedy: a command to run or a setting to change.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Run { program, .. } if program.ends_with("mpsgate-gate") => {
                format!("install all of mpsgate's programs; looked for {}", program.display())
            }
            Self::Run { program, .. } => format!(
                "install the MPS programs of the NVIDIA driver, or set mps.control; looked for {}",
                program.display()
            ),
            Self::NotPlainPath { .. } | Self::SocketPathTooLong { .. } => {
                "use a short absolute path such as /run/mpsgate/mps".into()
            }
            Self::Lost { path, .. } => format!(
                "find out who took it away: ls -l {}; only a new control daemon makes it again: \
                 mpsgate mps restart GPU",
                path.display()
            ),
            Self::Planted { path, .. }
            | Self::ForeignOwner { path, .. }
            | Self::WritableByOthers { path, .. } => {
                format!("find out who made it, then move it away: ls -ld {}", path.display())
            }
            Self::LeftBehind { .. } => "remove the named paths after looking at them".into(),
            Self::NotRunning { .. } => {
                "mpsgate doctor; mpsgated starts the control daemon again by itself".into()
            }
            Self::Wedged { .. } => "mpsgate status says why, where that can be seen".into(),
            Self::ChannelBusy { lock, .. } => {
                format!("see who holds it: fuser -v {}", lock.display())
            }
            Self::ChannelBroken { .. } | Self::EmptyAnswer { .. } => {
                "another front-end may be talking to the same control daemon; try again".into()
            }
            Self::UnknownCommand { .. } => "a newer NVIDIA driver knows this command".into(),
            Self::NotPermitted { .. } => "run as root".into(),
            Self::LimitNotApplied { .. } => {
                "mpsgate mps restart re-applies it; grants are refused until it reads back".into()
            }
            Self::StartFailed { .. } => "look at the log lines above and at nvidia-smi".into(),
            Self::Stranger { pid, .. } => format!("look at it: ps -fp {pid}"),
            Self::Unlocked { uuid, .. } => {
                let gpu = if uuid.is_empty() { "GPU" } else { uuid };
                format!(
                    "end the containers that have this GPU (mpsgate status), then: mpsgate mps restart {gpu} --yes"
                )
            }
            Self::Orphans { pids, .. } => {
                format!(
                    "end the containers that were on this card, or the server itself: kill {}; \
                     mps.orphan = \"kill\" does that by itself",
                    list(pids, " ")
                )
            }
            Self::StillRunning { pid } => {
                format!("it hangs in the driver: cat /proc/{pid}/stack; only a reboot may help")
            }
            Self::Hold(error) => error.hint(),
            Self::Systemctl { .. } => "systemctl status 'mpsgate-mps@*' mpsgate-hold".into(),
            Self::ServerOfOtherUid { serves, .. } => format!(
                "run the container as uid {serves}, choose another card, or use a driver with multi-user MPS"
            ),
            Self::ServerDied { .. } | Self::ServerNotReady { .. } => {
                "check that the GPU works and is not in use: nvidia-smi; then mpsgate doctor".into()
            }
            Self::LeaseCorrupt { path, .. } => format!(
                "set the compute mode by hand (nvidia-smi -c DEFAULT), then remove {}",
                path.display()
            ),
            Self::LeaseNewer { path, .. } => format!(
                "install the mpsgate that wrote it; or set the compute mode by hand (nvidia-smi -c DEFAULT), then remove {}",
                path.display()
            ),
            Self::BadUuid { .. } => "nvidia-smi -L prints the UUIDs".into(),
            Self::Fs { .. }
            | Self::AnswerTooLong { .. }
            | Self::ServerNotFound { .. }
            | Self::Unparsable { .. } => return None,
        };
        Some(hint)
    }
}
