//! The file by which mpsgated tells the gate of a container: `<name>.json` beside the container's
//! directory `<name>`, which is outside what the container sees. It is replaced by a rename, so
//! that a reader sees all of one state.

use mpsgate_host::cgroup::CgroupId;
use mpsgate_host::format::{self, FormatError};
use serde::{Deserialize, Serialize};

/// The format that this version writes and reads.
pub(crate) const FORMAT: u32 = 1;
/// Bytes of a file, at most: a path of a cgroup, twice, and room.
pub(crate) const LONGEST: u64 = 16 * 1024;

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
    /// Whether its clients may be debugged (`mps.debug`).
    #[serde(default)]
    pub debug: bool,
    /// Its cgroup; none while it is a reservation. Until then its clients wait.
    pub cgroup: Option<CgroupId>,
}

#[derive(Serialize, Deserialize)]
struct File {
    format: u32,
    container: Container,
}

impl Container {
    /// Of a file's bytes.
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

/// The name of a container's directory and file: its instance, 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(String);

impl Name {
    /// `None` for anything else.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (name.len() == 32 && name.bytes().all(digit)).then(|| Self(name.to_owned()))
    }

    /// Of the file that tells of it.
    pub(crate) fn of_file(file: &str) -> Option<Self> {
        Self::of(file.strip_suffix(".json")?)
    }

    /// Its directory's name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Its file's name.
    pub(crate) fn file(&self) -> String {
        format!("{}.json", self.0)
    }
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

    #[test]
    fn only_an_instance_names_a_container() {
        let name = "0123456789abcdef0123456789abcdef";
        assert_eq!(Name::of_file(&format!("{name}.json")).unwrap().as_str(), name);
        assert_eq!(Name::of(name).unwrap().file(), format!("{name}.json"));
        for other in ["", "..", "0123", &name.to_uppercase(), &format!("../{}", &name[3..])] {
            assert_eq!(Name::of(other), None, "{other}");
        }
        for other in [name, ".json", &format!(".{name}.json.new")] {
            assert_eq!(Name::of_file(other), None, "{other}");
        }
    }
}
