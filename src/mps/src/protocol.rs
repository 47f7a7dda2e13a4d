//! The text protocol of the MPS control daemon, interface v2: commands out, answers in. Pure.
//!
//! Sources: NVIDIA's MPS documentation (r615, "Legacy MPS v2 interface"), the manual page of 550,
//! and the answers of 535 and 550. Exit status 0 proves only that a daemon was reached: unknown
//! commands, missing servers and refused privileges are text on stdout.

mod answer;
mod log_line;

pub use answer::{Answer, Rejection, ServerStatus, limit_matches, split_sentinel};
pub use log_line::{Event, LogLine, parse_log};

use std::fmt;
use std::num::NonZeroU32;

/// A question after each command: its answer is never empty and always a number, so it proves that
/// the channel carried the whole answer before it.
pub const SENTINEL: &str = "get_default_active_thread_percentage";

/// A command of the control daemon. Limits are whole MiB, because the daemon reads `7.5G` as 7 MiB
/// and `1T` as 1 MiB without a message (measured).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// The pids of the servers.
    GetServerList,
    /// State of one server; 535 does not know it.
    GetServerStatus(i32),
    /// Starts a server for a uid; succeeds even if the server dies at once.
    StartServer {
        /// The uid that it serves.
        uid: u32,
    },
    /// Ends one server once its clients are gone, or at once.
    ShutdownServer {
        /// The server's pid.
        server: i32,
        /// Do not wait for clients.
        force: bool,
    },
    /// The pids of one server's clients.
    GetClientList(i32),
    /// Memory limit for the clients of the *next* server.
    SetDefaultPinnedMemLimit {
        /// Ordinal as the daemon sees it: 0 on a daemon with one card.
        device: u32,
        /// The limit in MiB.
        mib: NonZeroU32,
    },
    /// Reads that limit back; prints nothing if none is set.
    GetDefaultPinnedMemLimit {
        /// Ordinal as the daemon sees it.
        device: u32,
    },
    /// Memory limit for the *future* clients of a running server.
    SetPinnedMemLimit {
        /// The server's pid.
        server: i32,
        /// Ordinal as the daemon sees it.
        device: u32,
        /// The limit in MiB.
        mib: NonZeroU32,
    },
    /// Reads a running server's limit.
    GetPinnedMemLimit {
        /// The server's pid.
        server: i32,
        /// Ordinal as the daemon sees it.
        device: u32,
    },
    /// Reads the share of the multiprocessors for the next server.
    GetDefaultActiveThreadPercentage,
    /// Ends a client's GPU work, so that it can be killed without hurting its neighbours.
    TerminateClient {
        /// The server's pid.
        server: i32,
        /// The client's pid.
        client: i32,
    },
    /// Clients with their servers.
    Ps,
    /// Ends the daemon, its servers and, after the time given, their clients.
    Quit {
        /// Seconds that clients get.
        timeout_s: u32,
    },
}

impl Command {
    /// The names of the read-only commands, as NVIDIA's front-end takes them.
    pub const READING: [&str; 7] = [
        "get_server_list",
        "get_server_status SERVER",
        "get_client_list SERVER",
        "get_default_device_pinned_mem_limit DEVICE",
        "get_device_pinned_mem_limit SERVER DEVICE",
        SENTINEL,
        "ps",
    ];

    /// A read-only command, word by word as NVIDIA's front-end takes it. `None` for every other
    /// command, and for one with further words.
    #[must_use]
    pub fn reading(words: &[&str]) -> Option<Self> {
        Some(match *words {
            ["get_server_list"] => Self::GetServerList,
            ["get_server_status", server] => Self::GetServerStatus(server.parse().ok()?),
            ["get_client_list", server] => Self::GetClientList(server.parse().ok()?),
            ["get_default_device_pinned_mem_limit", device] => {
                Self::GetDefaultPinnedMemLimit { device: device.parse().ok()? }
            }
            ["get_device_pinned_mem_limit", server, device] => Self::GetPinnedMemLimit {
                server: server.parse().ok()?,
                device: device.parse().ok()?,
            },
            [SENTINEL] => Self::GetDefaultActiveThreadPercentage,
            ["ps"] => Self::Ps,
            _ => return None,
        })
    }

    /// Whether sending it twice equals sending it once.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        !matches!(
            self,
            Self::StartServer { .. }
                | Self::ShutdownServer { .. }
                | Self::TerminateClient { .. }
                | Self::Quit { .. }
        )
    }
}

/// Renders the command as one line of the front-end's stdin, without the line break.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GetServerList => f.write_str("get_server_list"),
            Self::GetServerStatus(server) => write!(f, "get_server_status {server}"),
            Self::StartServer { uid } => write!(f, "start_server -uid {uid}"),
            Self::ShutdownServer { server, force: false } => write!(f, "shutdown_server {server}"),
            Self::ShutdownServer { server, force: true } => {
                write!(f, "shutdown_server {server} -f")
            }
            Self::GetClientList(server) => write!(f, "get_client_list {server}"),
            Self::SetDefaultPinnedMemLimit { device, mib } => {
                write!(f, "set_default_device_pinned_mem_limit {device} {mib}M")
            }
            Self::GetDefaultPinnedMemLimit { device } => {
                write!(f, "get_default_device_pinned_mem_limit {device}")
            }
            Self::SetPinnedMemLimit { server, device, mib } => {
                write!(f, "set_device_pinned_mem_limit {server} {device} {mib}M")
            }
            Self::GetPinnedMemLimit { server, device } => {
                write!(f, "get_device_pinned_mem_limit {server} {device}")
            }
            Self::GetDefaultActiveThreadPercentage => f.write_str(SENTINEL),
            Self::TerminateClient { server, client } => {
                write!(f, "terminate_client {server} {client}")
            }
            Self::Ps => f.write_str("ps"),
            Self::Quit { timeout_s } => write!(f, "quit -t {timeout_s}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn renders_limits_as_whole_mebibytes_only() {
        let mib = NonZeroU32::new(7168).unwrap();
        let set = Command::SetDefaultPinnedMemLimit { device: 0, mib };
        assert_eq!(set.to_string(), "set_default_device_pinned_mem_limit 0 7168M");
        let set = Command::SetPinnedMemLimit { server: 41, device: 0, mib };
        assert_eq!(set.to_string(), "set_device_pinned_mem_limit 41 0 7168M");
    }

    #[test]
    fn only_what_reads_is_passed_on_word_by_word() {
        for name in Command::READING {
            let written = name.replace("SERVER", "4711").replace("DEVICE", "0");
            let words: Vec<&str> = written.split(' ').collect();
            assert_eq!(Command::reading(&words).unwrap().to_string(), written);
        }
        for written in [
            "",
            "quit",
            "quit -t 5",
            "ps -p 4711",
            "get_client_list",
            "get_client_list 4711 quit",
            "get_client_list 4711\nquit",
            "get_server_list\nquit",
            "start_server -uid 0",
            "shutdown_server 4711 -f",
            "terminate_client 4711 4712",
            "set_default_device_pinned_mem_limit 0 1G",
            "set_default_active_thread_percentage 1",
        ] {
            let words: Vec<&str> = written.split(' ').collect();
            assert_eq!(Command::reading(&words), None, "{written}");
        }
    }

    #[test]
    fn quit_always_has_a_timeout() {
        assert_eq!(Command::Quit { timeout_s: 5 }.to_string(), "quit -t 5");
    }
}
