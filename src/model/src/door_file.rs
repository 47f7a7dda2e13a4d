//! A container's door to MPS, as mpsgated describes it to the gate in a file `<instance>.json`. The
//! directory `<instance>` is all that the container sees. A rename replaces the file, so that a
//! reader always sees one whole state.

use std::collections::BTreeMap;

use mpsgate_host::cgroup::CgroupId;
use mpsgate_host::format::{self, FormatError};
use mpsgate_host::process::ProcessId;
use serde::{Deserialize, Serialize};

use crate::Instance;

/// The socket on which the gate asks mpsgated, in the card's directory: one connection for each
/// question, a line each way.
pub const QUESTIONS: &str = "gate.sock";
/// Bytes of such a line with its end, at most.
pub const LONGEST_LINE: usize = 1024;

/// The format that this version writes and reads.
const FORMAT: u32 = 1;
/// Bytes of a file, at most: a path of a cgroup, twice, and room.
pub const LONGEST: u64 = 16 * 1024;
/// The socket in a container's directory: where a CUDA client looks for it.
pub const SOCKET: &str = "control";

/// What the gate knows of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Container {
    /// Its id, for log lines.
    pub id: String,
    /// The uid of its grant, in the node's user namespace.
    pub uid: u32,
    /// Whether the card's server serves every uid.
    #[serde(default)]
    pub any_uid: bool,
    /// Whether its clients may be debugged.
    #[serde(default)]
    pub debug: bool,
    /// Its cgroup; none while it is a reservation. Until then its clients wait.
    pub cgroup: Option<CgroupId>,
}

/// Why the gate ends a client. It never closes a connection before the client's hello: such a
/// client would continue without MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It sent nothing, or only half a message, within its time.
    Silent,
    /// It sent something that CUDA clients do not send.
    Words,
    /// It sent a command that clients may not send.
    Word,
    /// It is under a debugger, and the container may not be debugged.
    Debugger,
    /// Another process than the one that connected sent the message.
    Sender,
    /// It is in another container or in none, which ends it at once. Or it has ended, or the kernel
    /// does not show where it is.
    Elsewhere,
    /// Its uid is not its grant's, and the card's server serves one uid.
    Uid,
    /// Too many of its container are waiting.
    Queue,
    /// It waited as long as a client may.
    Waited,
    /// Its container's other processes use all of the memory (`mps.processes`).
    Full,
    /// It sent more while it waited.
    Talks,
    /// Its container has ended.
    Ended,
}

// As logs, metrics and [`Question::Counts`] have it.
crate::words!(Reason:
    Silent = "silent", Words = "words", Word = "word", Debugger = "debugger",
    Sender = "sender", Elsewhere = "elsewhere", Uid = "uid", Queue = "queue",
    Waited = "waited", Full = "full", Talks = "talks", Ended = "ended"
);

/// Counts of the card's clients since the gate began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Clients that were handed over to their server.
    pub handed_over: u64,
    /// Clients that have sent their request and wait now.
    pub waiting: u64,
    /// Clients that were ended, by reason.
    pub ended: BTreeMap<Reason, u64>,
}

/// A message of the gate to mpsgated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Question {
    /// Asks where the control daemon is: when the gate starts, and when the control daemon that it
    /// knows has ended.
    Daemon,
    /// Announces that the next client to be handed over is this container's. The server's memory
    /// limit has to be the container's by then.
    Prepare {
        /// The container.
        instance: Instance,
        /// The client's process. A gate that was started before an upgrade does not send it, and
        /// one that kept running after a downgrade leaves it out ([`Question::of_before`]).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<ProcessId>,
    },
    /// Reports that no client can be served. It is repeated while that lasts, and not answered.
    Unserved {
        /// What the control daemon did.
        why: String,
    },
    /// Counts for operators, sent every 5 s and not answered.
    Counts(Counts),
}

/// What mpsgated answers to [`Question::Prepare`] and [`Question::Daemon`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prepared {
    /// Hand the client over, before any other question. With this answer comes a descriptor of the
    /// directory in which the control daemon has its sockets. No path leads there, because it is in
    /// the mount namespace of the control daemon.
    Ready,
    /// The client cannot be prepared now.
    Later,
    /// The container's other processes use all of its memory: end this one.
    Full,
}

impl Question {
    /// Parses a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// The same question for an older mpsgated, which does not answer questions that it does not
    /// know. `None` where there is nothing to leave out.
    #[must_use]
    pub fn of_before(&self) -> Option<Self> {
        match self {
            Self::Prepare { instance, client: Some(_) } => {
                Some(Self::Prepare { instance: instance.clone(), client: None })
            }
            _ => None,
        }
    }

    /// Its line, cut to the allowed length.
    #[must_use]
    pub fn line(&self) -> Vec<u8> {
        let longest = LONGEST_LINE / 8;
        let short = match self {
            // Escaped, a character takes six bytes at most, or as many as in UTF-8.
            Self::Unserved { why } => Self::Unserved { why: why.chars().take(longest).collect() },
            other => other.clone(),
        };
        line_of(&short)
    }
}

impl Prepared {
    /// Parses a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// Its line.
    #[must_use]
    pub fn line(self) -> Vec<u8> {
        line_of(&self)
    }
}

/// Values of text and numbers always have a JSON form.
fn line_of(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    container: Container,
}

impl Container {
    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn read(bytes: &[u8]) -> Result<Self, FormatError> {
        format::read::<File>(bytes, FORMAT).map(|file| file.container)
    }

    /// The bytes of its file.
    ///
    /// # Errors
    /// None that is known: everything in it is text or a number.
    pub fn write(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&File { format: FORMAT, container: self.clone() })
    }
}

/// The name of a container's file.
#[must_use]
pub fn file_name(instance: &Instance) -> String {
    format!("{}.json", instance.as_str())
}

/// The instance that a file belongs to; `None` for a name that is not such a file's.
#[must_use]
pub fn instance_of(file: &str) -> Option<Instance> {
    Instance::parse(file.strip_suffix(".json")?).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let cgroup = CgroupId { path: "/sys/fs/cgroup/c".into(), inode: 7 };
        for cgroup in [None, Some(cgroup)] {
            let container =
                Container { id: "c".into(), uid: 1000, any_uid: false, debug: true, cgroup };
            assert_eq!(Container::read(&container.write().unwrap()).unwrap(), container);
        }
        let text = r#"{"format":1,"container":{"id":"c","uid":0,"cgroup":null}}"#;
        assert!(Container::read(text.as_bytes()).is_ok_and(|c| !c.debug && !c.any_uid));
        for wrong in [
            "",
            "{}",
            r#"{"format":2,"container":{"id":"c","uid":0,"cgroup":null}}"#,
            r#"{"format":1,"container":{"id":"c","uid":-1,"cgroup":null}}"#,
            r#"{"format":1,"container":{"id":"c","uid":0,"cgroup":null,"root":true}}"#,
        ] {
            Container::read(wrong.as_bytes()).unwrap_err();
        }
    }

    const ALL: &str = r#"["silent","words","word","debugger","sender","elsewhere","uid","queue","waited","full","talks","ended"]"#;

    #[test]
    fn a_question_and_its_answer_are_lines() {
        let instance = Instance::from_bytes([7; 16]);
        let client = ProcessId { pid: 7, start_time: 70 };
        for (client, field) in
            [(None, ""), (Some(client), ",\"client\":{\"pid\":7,\"start_time\":70}")]
        {
            let prepare = Question::Prepare { instance: instance.clone(), client };
            let line = format!("{{\"prepare\":{{\"instance\":\"{}\"{field}}}}}\n", "07".repeat(16));
            assert_eq!(String::from_utf8(prepare.line()).unwrap(), line);
            assert_eq!(Question::read(&prepare.line()).unwrap(), prepare);
            let before = Question::Prepare { instance: instance.clone(), client: None };
            assert_eq!(prepare.of_before(), client.map(|_| before));
        }
        assert_eq!(Question::Daemon.of_before(), None);
        for character in ["x", "\u{1}", "\u{10ffff}"] {
            let line = Question::Unserved { why: character.repeat(5000) }.line();
            assert!(line.len() <= LONGEST_LINE, "{}", line.len());
            assert!(matches!(Question::read(&line), Ok(Question::Unserved { .. })));
        }
        // Every reason, and numbers as long as they can be.
        let all: Vec<Reason> = serde_json::from_str(ALL).unwrap();
        let ended = all.iter().map(|reason| (*reason, u64::MAX)).collect();
        let counts = Question::Counts(Counts { handed_over: u64::MAX, waiting: u64::MAX, ended });
        assert!(counts.line().len() <= LONGEST_LINE, "{}", counts.line().len());
        assert_eq!(Question::read(&counts.line()).unwrap(), counts);
        let names: Vec<String> =
            all.iter().map(|reason| format!("{:?}", reason.as_str())).collect();
        assert_eq!(format!("[{}]", names.join(",")), ALL, "as serde has them");
        let lines = [
            (Prepared::Ready, "\"ready\"\n"),
            (Prepared::Later, "\"later\"\n"),
            (Prepared::Full, "\"full\"\n"),
        ];
        for (answer, line) in lines {
            assert_eq!(answer.line(), line.as_bytes());
            assert_eq!(Prepared::read(&answer.line()).unwrap(), answer);
        }
        let wrong = [r#"{"prepare":{"instance":"x"}}"#, r#"{"prepare":{}}"#, "\"quit\"", "", "{}"];
        assert!(wrong.iter().all(|line| Question::read(line.as_bytes()).is_err()));
    }

    #[test]
    fn only_an_instance_names_a_container() {
        let name = "0123456789abcdef0123456789abcdef";
        let instance = instance_of(&format!("{name}.json")).unwrap();
        assert_eq!(file_name(&instance), format!("{name}.json"));
        let others = ["", "..", "0123", &name.to_uppercase(), &format!("../{}", &name[3..])];
        let others = others.iter().map(|other| format!("{other}.json"));
        for other in others.chain([name.to_owned(), format!(".{name}.json.new")]) {
            assert_eq!(instance_of(&other), None, "{other}");
        }
    }
}
