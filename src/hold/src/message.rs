//! What is said: lines of text, ended by `end`, one question and one answer for each connection.
//!
//! ```text
//! mpsgate-hold 1                                mpsgate-hold 1
//! start                                         started 4711
//! card 0                                        end
//! uuid GPU-…
//! program /usr/bin/nvidia-cuda-mps-control
//! log /run/mpsgate/mps/0/log/control.log
//! argument -f
//! variable CUDA_VISIBLE_DEVICES=GPU-…
//! end
//! ```
//!
//! The order is fixed and nothing unknown is read past: a holder that is older than its mpsgated
//! must not start half of what it was asked for.

use std::fmt::Write;
use std::path::PathBuf;
use std::str::Lines;

use crate::error::HoldError;

/// Of these messages.
pub const VERSION: u32 = 1;
/// Longer than any message.
pub const MAX_BYTES: usize = 8192;
/// More than a control daemon takes.
const MAX_ITEMS: usize = 16;
const NAME: &str = "mpsgate-hold";

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Whether it can hold control daemons.
    Check,
    /// To start one.
    Start(Start),
}

/// A control daemon to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// The card's number: names its directories.
    pub card: u32,
    /// The card's UUID.
    pub uuid: String,
    /// The control program.
    pub program: PathBuf,
    /// Receives what it prints.
    pub log: PathBuf,
    /// Its arguments, without its name.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub variables: Vec<(String, String)>,
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It can, and holds that many.
    Ready(usize),
    /// With this pid.
    Started(i32),
    /// Not done, for this reason.
    Refused(String),
}

impl Request {
    /// As it goes over the socket.
    ///
    /// # Errors
    /// [`HoldError::Message`] for a value that has no place in a line.
    pub fn encode(&self) -> Result<String, HoldError> {
        let mut text = format!("{NAME} {VERSION}\n");
        match self {
            Self::Check => text.push_str("check\n"),
            Self::Start(start) => {
                text.push_str("start\n");
                let path = |path: &PathBuf| {
                    let utf8 = path.to_str().map(str::to_owned);
                    utf8.ok_or_else(|| HoldError::message(format!("{path:?} is not UTF-8")))
                };
                put(&mut text, "card", &start.card.to_string())?;
                put(&mut text, "uuid", &start.uuid)?;
                put(&mut text, "program", &path(&start.program)?)?;
                put(&mut text, "log", &path(&start.log)?)?;
                for argument in &start.arguments {
                    put(&mut text, "argument", argument)?;
                }
                for (name, value) in &start.variables {
                    put(&mut text, "variable", &format!("{name}={value}"))?;
                }
            }
        }
        text.push_str("end\n");
        Ok(text)
    }

    /// Reads what came over the socket.
    ///
    /// # Errors
    /// [`HoldError::Message`] with the line that is not as it has to be.
    pub fn parse(text: &str) -> Result<Self, HoldError> {
        let mut lines = begin(text)?;
        let request = match lines.next() {
            Some("check") => Self::Check,
            Some("start") => Self::Start(Start {
                card: number(take(&mut lines, "card")?)?,
                uuid: take(&mut lines, "uuid")?.to_owned(),
                program: take(&mut lines, "program")?.into(),
                log: take(&mut lines, "log")?.into(),
                arguments: take_all(&mut lines, "argument")?,
                variables: take_all(&mut lines, "variable")?
                    .into_iter()
                    .map(|line| match line.split_once('=') {
                        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
                        None => Err(HoldError::message(format!("variable {line:?} has no value"))),
                    })
                    .collect::<Result<_, _>>()?,
            }),
            other => return Err(unexpected("check or start", other)),
        };
        finish(lines)?;
        Ok(request)
    }
}

impl Answer {
    /// As it goes over the socket. A reason of several lines becomes one.
    #[must_use]
    pub fn encode(&self) -> String {
        let line = match self {
            Self::Ready(held) => format!("ready {held}"),
            Self::Started(pid) => format!("started {pid}"),
            Self::Refused(why) => format!("refused {}", why.replace(['\n', '\r', '\0'], " ")),
        };
        format!("{NAME} {VERSION}\n{line}\nend\n")
    }

    /// Reads what came over the socket.
    ///
    /// # Errors
    /// [`HoldError::Message`].
    pub fn parse(text: &str) -> Result<Self, HoldError> {
        let mut lines = begin(text)?;
        let line = lines.next();
        let answer = match line.and_then(|line| line.split_once(' ')) {
            Some(("ready", held)) => Self::Ready(number(held)?),
            Some(("started", pid)) => match number(pid)? {
                pid if pid > 0 => Self::Started(pid),
                pid => return Err(HoldError::message(format!("{pid} is no pid"))),
            },
            Some(("refused", why)) => Self::Refused(why.to_owned()),
            _ => return Err(unexpected("an answer", line)),
        };
        finish(lines)?;
        Ok(answer)
    }
}

fn put(text: &mut String, key: &str, value: &str) -> Result<(), HoldError> {
    if value.contains(['\n', '\r', '\0']) {
        return Err(HoldError::message(format!("{key} {value:?} has more than one line")));
    }
    // Writing into a String cannot fail.
    let _ = writeln!(text, "{key} {value}");
    Ok(())
}

fn begin(text: &str) -> Result<Lines<'_>, HoldError> {
    if text.len() > MAX_BYTES || !text.ends_with('\n') {
        return Err(HoldError::message("it is cut off, or too long"));
    }
    let mut lines = text.lines();
    let first = lines.next();
    match first.and_then(|line| line.split_once(' ')) {
        Some((NAME, version)) if number::<u32>(version).is_ok_and(|v| v == VERSION) => Ok(lines),
        Some((NAME, version)) => Err(HoldError::message(format!(
            "it is of version {version:?}, this one knows {VERSION}"
        ))),
        _ => Err(unexpected(NAME, first)),
    }
}

fn finish(mut lines: Lines<'_>) -> Result<(), HoldError> {
    match (lines.next(), lines.next()) {
        (Some("end"), None) => Ok(()),
        (Some("end"), more) => Err(unexpected("nothing after the end", more)),
        (other, _) => Err(unexpected("end", other)),
    }
}

fn take<'a>(lines: &mut Lines<'a>, key: &str) -> Result<&'a str, HoldError> {
    let line = lines.next();
    match line.and_then(|line| line.strip_prefix(key)?.strip_prefix(' ')) {
        Some(value) if !value.is_empty() => Ok(value),
        _ => Err(unexpected(key, line)),
    }
}

fn take_all(lines: &mut Lines<'_>, key: &str) -> Result<Vec<String>, HoldError> {
    let mut all = Vec::new();
    while lines.clone().next().is_some_and(|line| line.split(' ').next() == Some(key)) {
        all.push(take(lines, key)?.to_owned());
        if all.len() > MAX_ITEMS {
            return Err(HoldError::message(format!("more than {MAX_ITEMS} times {key}")));
        }
    }
    Ok(all)
}

/// Digits alone, as they are written: neither a sign nor a leading zero.
fn number<T: std::str::FromStr + ToString>(text: &str) -> Result<T, HoldError> {
    match text.parse::<T>() {
        Ok(number) if number.to_string() == text => Ok(number),
        _ => Err(HoldError::message(format!("{text:?} is no number that fits"))),
    }
}

fn unexpected(wanted: &str, found: Option<&str>) -> HoldError {
    let found = found.map_or_else(|| "its end".into(), |line| format!("{line:?}"));
    HoldError::message(format!("{found} where {wanted} belongs"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    fn start() -> Start {
        Start {
            card: 3,
            uuid: "GPU-3".into(),
            program: "/usr/bin/nvidia-cuda-mps-control".into(),
            log: "/run/mpsgate/mps/3/log/control.log".into(),
            arguments: vec!["-f".into(), "-multiuser-server".into()],
            variables: vec![
                ("PATH".into(), "/usr/bin:/bin".into()),
                ("CUDA_VISIBLE_DEVICES".into(), "a=b".into()),
            ],
        }
    }

    #[test]
    fn requests_and_answers_come_back_as_they_were() {
        for request in [Request::Check, Request::Start(start())] {
            assert_eq!(Request::parse(&request.encode().unwrap()).unwrap(), request);
        }
        for answer in [Answer::Ready(0), Answer::Started(4711), Answer::Refused("no room".into())] {
            assert_eq!(Answer::parse(&answer.encode()).unwrap(), answer);
        }
        assert_eq!(
            Answer::parse(&Answer::Refused("two\nlines".into()).encode()).unwrap(),
            Answer::Refused("two lines".into())
        );
    }

    #[test]
    fn a_request_that_is_cut_off_anywhere_is_none() {
        let whole = Request::Start(start()).encode().unwrap();
        for length in 0..whole.len() {
            assert!(Request::parse(&whole[..length]).is_err(), "{:?}", &whole[..length]);
        }
    }

    #[test]
    fn nothing_unknown_doubled_or_out_of_order_is_read_past() {
        let whole = Request::Start(start()).encode().unwrap();
        for (from, to) in [
            ("mpsgate-hold 1", "mpsgate-hold 2"),
            ("mpsgate-hold 1", "mpsgate-hold 01"),
            ("mpsgate-hold", "mpsgated"),
            ("start\n", "stop\n"),
            ("card 3", "card -3"),
            ("card 3", "card 3 "),
            ("card 3", "card 4294967296"),
            ("card 3\n", "card 3\ncard 3\n"),
            ("card 3\nuuid GPU-3\n", "uuid GPU-3\ncard 3\n"),
            ("uuid GPU-3", "uuid "),
            ("argument -f", "colour red"),
            ("variable PATH=/usr/bin:/bin", "variable PATH"),
            ("end\n", "end\nend\n"),
            ("end\n", ""),
        ] {
            let text = whole.replacen(from, to, 1);
            assert_ne!(text, whole);
            assert!(Request::parse(&text).is_err(), "{text}");
        }
        for text in ["ready", "started 0", "started -1", "started", "gone 1", "refused"] {
            let text = format!("mpsgate-hold 1\n{text}\nend\n");
            assert!(Answer::parse(&text).is_err(), "{text}");
        }
        let many = whole.replacen("argument -f\n", &"argument -f\n".repeat(20), 1);
        assert!(Request::parse(&many).unwrap_err().to_string().contains("more than 16"));
    }

    #[test]
    fn a_value_of_several_lines_is_not_sent() {
        let mut start = start();
        start.variables[0].1 = "/bin\ncard 4".into();
        assert!(Request::Start(start).encode().is_err());
    }

    #[test]
    fn another_version_is_named() {
        let error = Request::parse("mpsgate-hold 2\ncheck\nend\n").unwrap_err();
        assert!(error.to_string().contains("version \"2\", this one knows 1"), "{error}");
    }
}
