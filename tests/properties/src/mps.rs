//! What the MPS control daemon prints: answers on its channel, and its logs.

use std::num::NonZeroU32;

use mpsgate_mps::protocol::{
    Answer, Command, Event, LogLine, Rejection, limit_matches, parse_log, split_sentinel,
};

use crate::text;

fn commands() -> Vec<Command> {
    let mib = NonZeroU32::new(7168).unwrap();
    vec![
        Command::GetServerList,
        Command::GetServerStatus(7),
        Command::StartServer { uid: 0 },
        Command::ShutdownServer { server: 7, force: true },
        Command::GetClientList(7),
        Command::SetDefaultPinnedMemLimit { device: 0, mib },
        Command::GetDefaultPinnedMemLimit { device: 0 },
        Command::SetPinnedMemLimit { server: 7, device: 0, mib },
        Command::GetPinnedMemLimit { server: 7, device: 0 },
        Command::GetDefaultActiveThreadPercentage,
        Command::TerminateClient { server: 7, client: 8 },
        Command::Ps,
        Command::Quit { timeout_s: 5 },
    ]
}

/// No text is taken for success by a command that is silent when it succeeds, pids are positive, a
/// refusal's words survive, and an answer is cut off exactly where its sentinel is missing.
pub(crate) fn answer(data: &[u8]) {
    let printed = String::from_utf8_lossy(data);
    if let Some(rest) = split_sentinel(&printed) {
        assert!(printed.starts_with(rest));
        let whole = format!("{rest}\n100.0\n");
        assert_eq!(split_sentinel(&whole), Some(rest));
    }
    for command in commands() {
        match Answer::parse(&command, &printed) {
            Ok(Answer::Done) => assert!(printed.trim().is_empty(), "{command} took {printed:?}"),
            Ok(Answer::Pids(pids)) => assert!(pids.iter().all(|pid| *pid > 0)),
            Ok(Answer::Limit(Some(limit))) => assert_eq!(printed.trim(), limit),
            Ok(Answer::Percentage(share)) => {
                assert!((0.0..=100.0).contains(&share.parse::<f64>().unwrap()));
            }
            Err(Rejection::NotPermitted(words)) => assert!(printed.contains(&words)),
            Err(Rejection::Unparsable(words)) => assert_eq!(words, printed.trim()),
            _ => {}
        }
    }
    limits(printed.trim());
}

/// A limit that was read back belongs to a whole range of limits, and to none outside it.
fn limits(printed: &str) {
    let matches = |mib: u32| limit_matches(NonZeroU32::new(mib).unwrap(), printed);
    let (digits, unit) =
        printed.split_at_checked(printed.len().saturating_sub(1)).unwrap_or_default();
    let Ok(number) = digits.parse::<u32>() else { return };
    if number == 0 || number > 1 << 20 || digits != number.to_string() {
        return;
    }
    match unit {
        "M" => assert_eq!(matches(number), number < 1024),
        "G" => {
            assert!(matches(number * 1024) && matches(number * 1024 + 1023));
            assert!(!matches(number * 1024 - 1) && !matches((number + 1) * 1024));
        }
        _ => assert!(!matches(number)),
    }
}

/// A log says the same whole or line by line, and every event is of a line.
pub(crate) fn log(data: &[u8]) {
    let Some(log) = text(data) else { return };
    let whole: Vec<Event> = parse_log(log).collect();
    let by_line: Vec<Event> = log.lines().flat_map(parse_log).collect();
    assert_eq!(whole, by_line);
    let twice: Vec<Event> = parse_log(&format!("{log}\n{log}")).collect();
    assert_eq!(twice.len(), 2 * whole.len());
    for line in log.lines() {
        if let Some(read) = LogLine::parse(line) {
            assert!(line.ends_with(read.text) || line.trim_end().ends_with(read.text));
        }
    }
}
