//! The messages: one JSON document each way, which ends with its side of the connection.
//!
//! ```text
//! {"format":2,"message":{"start":{"card":0,"uuid":"GPU-…", …}}}        {"format":2,"message":{"started":4711}}
//! ```
//!
//! Nothing unknown is ignored: a supervisor that is older than its mpsgated must not start half of
//! the request. Another program to start, or a descriptor to keep, needs another variant of
//! [`Request`].

use std::path::PathBuf;

use mpsgate_host::format;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::HoldError;

/// The format of these messages. 2: the launcher starts control daemons, and gates can be
/// requested.
const FORMAT: u32 = 2;
/// Longer than any message.
pub const MAX_BYTES: usize = 8192;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Check whether it can hold control daemons.
    Check,
    /// Start a control daemon.
    Start(Start),
    /// Start the gate of the card with that number.
    StartGate(u32),
}

/// The control daemon to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The card's number, in the names of its directories.
    pub card: u32,
    /// The card's UUID.
    pub uuid: String,
    /// The control program.
    pub program: PathBuf,
    /// The file for its output.
    pub log: PathBuf,
    /// Its arguments, without its name.
    pub arguments: Vec<String>,
    /// Its whole environment.
    pub variables: Vec<(String, String)>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It can hold control daemons, and holds that many.
    Ready(usize),
    /// The daemon or gate was started, with this pid.
    Started(i32),
    /// Another process starts gates, and finds its orders in a directory.
    GatesByOrder,
    /// It refuses, for this reason.
    Refused(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    format: u32,
    message: T,
}

/// A [`Request`] or an [`Answer`] in the form of the socket.
///
/// # Errors
/// [`HoldError::Message`] for a path that is not UTF-8.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, HoldError> {
    serde_json::to_vec(&Envelope { format: FORMAT, message }).map_err(HoldError::message)
}

/// Parses a message from the socket.
///
/// # Errors
/// [`HoldError::Message`]; for another format with the two numbers.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HoldError> {
    if bytes.len() > MAX_BYTES {
        return Err(HoldError::message(format!("it has more than {MAX_BYTES} bytes")));
    }
    let Envelope { message, .. } = format::read(bytes, FORMAT).map_err(HoldError::message)?;
    Ok(message)
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
                ("PATH".into(), "/usr/bin:/bin\ncard 4".into()),
                ("CUDA_VISIBLE_DEVICES".into(), "a=b".into()),
            ],
        }
    }

    #[test]
    fn requests_and_answers_come_back_as_they_were() {
        for request in [Request::Check, Request::Start(start()), Request::StartGate(3)] {
            assert_eq!(decode::<Request>(&encode(&request).unwrap()).unwrap(), request);
        }
        for answer in [
            Answer::Ready(0),
            Answer::Started(4711),
            Answer::GatesByOrder,
            Answer::Refused("no room".into()),
        ] {
            assert_eq!(decode::<Answer>(&encode(&answer).unwrap()).unwrap(), answer);
        }
    }

    #[test]
    fn a_request_that_is_cut_off_anywhere_is_none() {
        let whole = encode(&Request::Start(start())).unwrap();
        for length in 0..whole.len() {
            assert!(decode::<Request>(&whole[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn nothing_unknown_doubled_or_too_long_is_read_past() {
        let whole = String::from_utf8(encode(&Request::Start(start())).unwrap()).unwrap();
        for (from, to) in [
            (r#""format":2,"#, ""),
            (r#""format":2,"#, r#""format":2,"more":1,"#),
            (r#""start":"#, r#""stop":"#),
            (r#""card":3"#, r#""card":-3"#),
            (r#""card":3"#, r#""card":"3""#),
            (r#""card":3"#, r#""card":4294967296"#),
            (r#""card":3,"#, r#""card":3,"card":3,"#),
            (r#""card":3,"#, r#""card":3,"colour":"red","#),
            (r#""card":3,"#, ""),
            (r#"["PATH","#, r#"["PATH","/","#),
            ("}}}", "}}}\nend"),
            ("}}}", &format!("}}}}}}{}", " ".repeat(MAX_BYTES))),
        ] {
            let text = whole.replacen(from, to, 1);
            assert_ne!(text, whole);
            assert!(decode::<Request>(text.as_bytes()).is_err(), "{text}");
        }
        for text in [r#""ready""#, r#"{"started":"1"}"#, r#"{"gone":1}"#, r#"{"refused":null}"#] {
            let text = format!(r#"{{"format":2,"message":{text}}}"#);
            assert!(decode::<Answer>(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn another_format_is_named_whatever_it_says() {
        let error = decode::<Request>(br#"{"format":3,"elsewhere":true}"#).unwrap_err();
        assert!(error.to_string().contains("has format 3, this version knows 2"), "{error}");
    }
}
