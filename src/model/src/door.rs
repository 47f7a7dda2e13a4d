//! A container's door to MPS, as mpsgated tells the gate of it: the file `<instance>.json` beside
//! the container's directory `<instance>`, which is all that the container sees. It is replaced by
//! a rename, so that a reader sees all of one state.

use mpsgate_host::cgroup::CgroupId;
use mpsgate_host::format::{self, FormatError};
use serde::{Deserialize, Serialize};

use crate::Instance;

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

/// The name of a container's file.
#[must_use]
pub fn file_name(instance: &Instance) -> String {
    format!("{}.json", instance.as_str())
}

/// Whose file it is; `None` for any other name.
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
