//! Turns the front-end's output into a typed answer or a typed rejection.

use std::num::NonZeroU32;

use super::Command;

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Success of a command that prints nothing.
    Done,
    /// Pids of servers or clients, possibly none.
    Pids(Vec<i32>),
    /// The state of a server.
    Status(ServerStatus),
    /// A memory limit as printed (`6G`, `900M`); `None` if none is set.
    Limit(Option<String>),
    /// A share of the multiprocessors as printed (`30.0`).
    Percentage(String),
    /// Lines for people (`ps`, `terminate_client`).
    Lines(Vec<String>),
}

/// Why a command failed, although the exit status was 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// `Unknown command "…"`.
    UnknownCommand,
    /// `Server N not found`.
    ServerNotFound,
    /// The daemon refused it through the containers' socket, or for this uid; the daemon's text.
    NotPermitted(String),
    /// None of the known forms.
    Unparsable(String),
}

/// State of an MPS server. The words are from NVIDIA's documentation; `ACTIVE` and `FAULT` were
/// seen on an H200 (580.159.04).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerStatus {
    /// It is making contexts.
    Initializing,
    /// It takes clients.
    Active,
    /// A fatal fault: it refuses clients until those affected are gone.
    Fault,
    /// The daemon (535) cannot report it.
    Unreported,
    /// A word that this version does not have.
    Other(String),
}

/// Removes the answer to [`super::SENTINEL`] from the end; `None` if it is missing, which means
/// that the answer was cut off or never came.
#[must_use]
pub fn split_sentinel(stdout: &str) -> Option<&str> {
    let body = stdout.trim_end();
    let (rest, last) = body.rsplit_once('\n').unwrap_or(("", body));
    is_percentage(last.trim()).then_some(rest)
}

fn is_percentage(text: &str) -> bool {
    text.contains('.') && text.parse::<f64>().is_ok_and(|value| (0.0..=100.0).contains(&value))
}

/// Whether the limit that was read back is the one that was set: exact below 1024 MiB, cut to whole
/// GiB from there on (measured: 7000M reads `6G`, 1025M reads `1G`).
#[must_use]
pub fn limit_matches(mib: NonZeroU32, answer: &str) -> bool {
    let mib = mib.get();
    let expected = if mib < 1024 { format!("{mib}M") } else { format!("{}G", mib / 1024) };
    answer.trim() == expected
}

impl Answer {
    /// Parses the output of `command`, without the sentinel's line.
    ///
    /// # Errors
    /// A [`Rejection`] for each refusal that the control daemon can print, and for unknown text.
    pub fn parse(command: &Command, printed: &str) -> Result<Self, Rejection> {
        let lines: Vec<&str> =
            printed.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        if let Some(rejection) = rejection(command, &lines) {
            return Err(rejection);
        }
        let unparsable = || Rejection::Unparsable(printed.trim().to_owned());
        match command {
            Command::GetServerList | Command::GetClientList(_) => lines
                .iter()
                .map(|line| line.parse().ok().filter(|pid| *pid > 0))
                .collect::<Option<_>>()
                .map(Self::Pids)
                .ok_or_else(unparsable),
            Command::GetServerStatus(_) => match lines.as_slice() {
                [word] => Ok(Self::Status(ServerStatus::parse(word))),
                _ => Err(unparsable()),
            },
            Command::GetDefaultPinnedMemLimit { .. } | Command::GetPinnedMemLimit { .. } => {
                match lines.as_slice() {
                    [] => Ok(Self::Limit(None)),
                    [limit] if is_limit(limit) => Ok(Self::Limit(Some((*limit).to_owned()))),
                    _ => Err(unparsable()),
                }
            }
            Command::GetDefaultActiveThreadPercentage => match lines.as_slice() {
                [share] if is_percentage(share) => Ok(Self::Percentage((*share).to_owned())),
                _ => Err(unparsable()),
            },
            Command::Ps | Command::TerminateClient { .. } | Command::ShutdownServer { .. } => {
                Ok(Self::Lines(lines.iter().map(|&line| line.to_owned()).collect()))
            }
            Command::StartServer { .. }
            | Command::SetDefaultPinnedMemLimit { .. }
            | Command::SetPinnedMemLimit { .. }
            | Command::Quit { .. } => {
                if lines.is_empty() {
                    Ok(Self::Done)
                } else {
                    Err(unparsable())
                }
            }
        }
    }
}

fn rejection(command: &Command, lines: &[&str]) -> Option<Rejection> {
    lines.iter().find_map(|line| {
        if line.starts_with("Unknown command ") {
            Some(Rejection::UnknownCommand)
        } else if line.starts_with("Insufficient privileges for UID")
            || line.starts_with("Not enough privilege")
            || line.starts_with("Only the root user may")
        {
            Some(Rejection::NotPermitted((*line).to_owned()))
        } else if line.starts_with("Server ") && line.trim_end_matches('!').ends_with(" not found")
        {
            // `ps` without any server prints `Server not found`: that is an empty list.
            (*command != Command::Ps).then_some(Rejection::ServerNotFound)
        } else {
            None
        }
    })
}

fn is_limit(text: &str) -> bool {
    let digits = text.trim_end_matches(['G', 'M']);
    digits.len() + 1 == text.len() && digits.parse::<u64>().is_ok()
}

impl ServerStatus {
    fn parse(word: &str) -> Self {
        match word {
            "INITIALIZING" => Self::Initializing,
            "ACTIVE" => Self::Active,
            "FAULT" => Self::Fault,
            other => Self::Other(other.to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn mib(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).unwrap()
    }

    #[test]
    fn recognises_every_refusal_that_comes_with_exit_status_0() {
        let unknown =
            Answer::parse(&Command::GetServerStatus(1), "Unknown command \"get_server_status\"\n");
        assert_eq!(unknown, Err(Rejection::UnknownCommand));
        let missing = Answer::parse(&Command::GetClientList(77), "Server 77 not found\n");
        assert_eq!(missing, Err(Rejection::ServerNotFound));
        let terminate = Command::TerminateClient { server: 3, client: 4 };
        let missing = Answer::parse(&terminate, "Server 3 not found\nServer 3 not found!\n1\n");
        assert_eq!(missing, Err(Rejection::ServerNotFound));
        for text in [
            "Insufficient privileges for UID 0. Control deamon settings can only be modified by the user started it or by the root user.\n",
            "Insufficient privileges for UID 65534\n",
            "Not enough privilege to execute quit command\n",
        ] {
            let refused = Answer::parse(&Command::Quit { timeout_s: 1 }, text);
            assert_eq!(refused, Err(Rejection::NotPermitted(text.trim().to_owned())));
        }
    }

    #[test]
    fn reads_lists_statuses_and_limits() {
        let list = Answer::parse(&Command::GetServerList, "12\n13\n").unwrap();
        assert_eq!(list, Answer::Pids(vec![12, 13]));
        assert_eq!(Answer::parse(&Command::GetServerList, "").unwrap(), Answer::Pids(vec![]));
        assert!(Answer::parse(&Command::GetServerList, "-4\n").is_err());
        let status = Answer::parse(&Command::GetServerStatus(1), "FAULT\n").unwrap();
        assert_eq!(status, Answer::Status(ServerStatus::Fault));
        let get = Command::GetDefaultPinnedMemLimit { device: 0 };
        assert_eq!(Answer::parse(&get, "6G\n").unwrap(), Answer::Limit(Some("6G".into())));
        assert_eq!(Answer::parse(&get, "").unwrap(), Answer::Limit(None));
        assert!(Answer::parse(&get, "6GM\n").is_err() && Answer::parse(&get, "G\n").is_err());
        assert_eq!(
            Answer::parse(&Command::Ps, "Server not found\n").unwrap(),
            Answer::Lines(vec!["Server not found".into()])
        );
    }

    #[test]
    fn text_after_a_silent_command_is_not_success() {
        let set = Command::SetDefaultPinnedMemLimit { device: 0, mib: mib(1) };
        assert_eq!(Answer::parse(&set, ""), Ok(Answer::Done));
        assert!(matches!(Answer::parse(&set, "oops\n"), Err(Rejection::Unparsable(_))));
    }

    #[test]
    fn the_sentinel_tells_an_empty_answer_from_none() {
        assert_eq!(split_sentinel("100.0\n"), Some(""));
        assert_eq!(split_sentinel("6G\n30.0\n"), Some("6G"));
        for cut in ["", "6G\n", "100\n", "-1.0\n", "1e3.\n"] {
            assert_eq!(split_sentinel(cut), None, "{cut:?}");
        }
    }

    #[test]
    fn limits_are_compared_exactly_below_one_gibibyte_and_truncated_above() {
        for (set, read) in [
            (1, "1M"),
            (1023, "1023M"),
            (1024, "1G"),
            (1025, "1G"),
            (7000, "6G"),
            (141_000, "137G"),
        ] {
            assert!(limit_matches(mib(set), read), "{set} {read}");
        }
        for (set, read) in [(7000, "7G"), (7000, "7000M"), (512, "513M"), (1023, "0G"), (512, "")] {
            assert!(!limit_matches(mib(set), read), "{set} {read}");
        }
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_foreign_bytes(text in "\\PC{0,80}") {
            let _ = split_sentinel(&text);
            for command in [Command::GetServerList, Command::Ps, Command::GetServerStatus(1)] {
                let _ = Answer::parse(&command, &text);
            }
        }
    }
}
