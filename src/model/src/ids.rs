//! Names of things: GPUs, containers, grants.

use std::fmt;

use mpsgate_host::door_place::Kind;
use serde::{Deserialize, Serialize};

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// Not a GPU UUID as NVML prints it.
    #[error("{0:?} is not a GPU UUID")]
    GpuUuid(String),
    /// Empty, too long, or with characters that no runtime accepts.
    #[error("{0:?} is not a container id")]
    Container(String),
    /// Not 32 hexadecimal digits.
    #[error("{0:?} is not a grant instance")]
    Instance(String),
}

/// A GPU's UUID as NVML prints it, `GPU-` and 32 hexadecimal digits in the usual groups.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(String);

impl GpuUuid {
    /// Checks the form `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` and keeps it in lower case
    /// after the prefix, as NVML does.
    ///
    /// # Errors
    /// Any other text, quoted.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let bad = || IdError::GpuUuid(text.to_owned());
        let rest = text.strip_prefix("GPU-").ok_or_else(bad)?;
        let groups: Vec<&str> = rest.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|g| g.len()).collect();
        if lengths != [8, 4, 4, 4, 12]
            || !groups.iter().all(|g| g.bytes().all(|b| b.is_ascii_hexdigit()))
        {
            return Err(bad());
        }
        Ok(Self(format!("GPU-{}", rest.to_ascii_lowercase())))
    }
}

/// Card number `n` of a test.
#[cfg(any(test, feature = "testing"))]
#[must_use]
pub fn example_gpu(n: impl fmt::LowerHex) -> GpuUuid {
    GpuUuid(format!("GPU-{n:08x}-0000-0000-0000-000000000000"))
}

/// A container's id as the engine passes it to the runtime.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ContainerId(String);

impl ContainerId {
    /// Accepts what runc accepts (`^[\w+\-.]+$`, not `.` or `..`), up to 1024 bytes.
    ///
    /// # Errors
    /// Any other text, quoted.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let fine = !text.is_empty()
            && text.len() <= 1024
            && text != "."
            && text != ".."
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+-.".contains(&b));
        if fine { Ok(Self(text.to_owned())) } else { Err(IdError::Container(text.to_owned())) }
    }
}

/// One instance of a container: 128 random bits, made by the shim at `create`.
///
/// Docker and Podman restart a container under the same id and cgroup path, so the id alone cannot
/// tell a previous instance's late `poststop` from the new instance's grant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Instance(String);

impl Instance {
    /// From random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes.iter().map(|b| format!("{b:02x}")).collect())
    }

    /// From its text form, 32 lower-case hexadecimal digits.
    ///
    /// # Errors
    /// Any other text, quoted.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        let fine = text.len() == 32
            && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if fine { Ok(Self(text.to_owned())) } else { Err(IdError::Instance(text.to_owned())) }
    }

    /// The part of it that anybody may read, as in the name of a cgroup: the first 16 digits. The
    /// whole text is the name of the grant's door, and whoever knows that can keep its clients
    /// waiting.
    #[must_use]
    pub fn public(&self) -> &str {
        self.0.get(..16).unwrap_or_default()
    }
}

/// The common part of identifiers: each is parsed from its text and prints it again.
macro_rules! text_form {
    ($($id:ident)*) => {$(
        impl $id {
            /// As text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $id {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::parse(&text)
            }
        }

        impl From<$id> for String {
            fn from(id: $id) -> Self {
                id.0
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

text_form!(GpuUuid ContainerId Instance);

/// A grant's key: which instance of which container of which runtime root.
///
/// The root belongs to it because two roots may hold the same id at the same time (measured, runc
/// 1.1.5).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GrantKey {
    /// The runtime's `--root`, as the engine passed it or as the runtime defaults it.
    pub runtime_root: String,
    /// The container's id.
    pub container_id: ContainerId,
    /// The instance of it.
    pub instance: Instance,
}

/// In the place of a runtime's root, for plain processes. Runtimes' roots are paths, so it equals
/// none.
const RUN: &str = "mpsgate run";
const SLURM: &str = "slurm";
/// The owner of processes that root has started, whatever their uid.
const ROOT: &str = "root";
/// The longest user name that is shown, in characters.
const LONGEST_USER: usize = 64;

/// How a user is shown: by name from the user database. By uid where the database has no name, or
/// one that could be taken for a uid, a path or a control sequence.
#[must_use]
pub fn user_shown(uid: u32, name: Option<&str>) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_.-$@+\\".contains(c);
    let fits = |name: &&str| {
        name.chars().count() <= LONGEST_USER
            && name.chars().all(is_plain)
            && !name.bytes().all(|byte| byte.is_ascii_digit())
    };
    name.filter(fits).map_or_else(|| uid.to_string(), str::to_owned)
}

/// Longest name of an exec record: `NAME_MAX` less room for a temporary suffix.
const RECORD_NAME_MAX: usize = 240;

impl GrantKey {
    /// The text in the place of a runtime's root for the plain processes of this user, or of root.
    /// Users name their own processes, so each user has a root of its own.
    #[must_use]
    pub fn run_of(user: Option<u32>) -> String {
        user.map_or_else(|| RUN.to_owned(), |uid| format!("{RUN}/{uid}"))
    }

    /// Whether the key belongs to a plain process, not to a container.
    #[must_use]
    pub fn is_run(&self) -> bool {
        let rest = self.runtime_root.strip_prefix(RUN);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The text in the place of a runtime's root for Slurm's jobs.
    #[must_use]
    pub fn jobs() -> String {
        SLURM.to_owned()
    }

    /// Whether the key belongs to a job of Slurm.
    #[must_use]
    pub fn is_job(&self) -> bool {
        self.runtime_root == SLURM
    }

    /// Whether the key belongs to a container, not to a plain process or job.
    #[must_use]
    pub fn is_container(&self) -> bool {
        !self.is_run() && !self.is_job()
    }

    /// The name by which people see and type it: the id of a container, the user and the name of a
    /// plain process. `user` is the user's name, as found when the process started.
    #[must_use]
    pub fn name(&self, user: Option<&str>) -> String {
        let Some(uid) = self.runtime_root.strip_prefix(RUN).filter(|_| self.is_run()) else {
            return self.container_id.to_string();
        };
        let uid = uid.strip_prefix('/').unwrap_or(ROOT);
        format!("{}/{}", user.unwrap_or(uid), self.container_id)
    }

    /// Its unique full name: with the runtime's root, or the text in its place.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.runtime_root, self.container_id)
    }

    /// The kind of door that its grant gets.
    #[must_use]
    pub fn door(&self) -> Kind {
        if self.is_container() { Kind::Container } else { Kind::Process }
    }

    /// Whether both keys belong to the same container.
    #[must_use]
    pub fn same_container(&self, other: &Self) -> bool {
        self.runtime_root == other.runtime_root && self.container_id == other.container_id
    }

    /// File name of the record that `exec` looks up: lossless, so that no two containers share
    /// one, or `None` where it would not fit a directory entry.
    #[must_use]
    pub fn record_name(runtime_root: &str, container_id: &str) -> Option<String> {
        let mut name = String::with_capacity(runtime_root.len() + container_id.len() + 8);
        let escape = |text: &str, name: &mut String| {
            for byte in text.bytes() {
                if byte.is_ascii_alphanumeric() || b"_-.".contains(&byte) {
                    name.push(char::from(byte));
                } else {
                    for nibble in [byte >> 4, byte & 0xf] {
                        name.push('%');
                        let digit = char::from_digit(u32::from(nibble), 16);
                        name.push(digit.unwrap_or('0'));
                    }
                }
            }
        };
        escape(runtime_root, &mut name);
        name.push('@');
        escape(container_id, &mut name);
        (name.len() <= RECORD_NAME_MAX).then_some(name)
    }
}

impl fmt::Display for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.runtime_root, self.container_id, self.instance.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn accepts_only_nvmls_form_of_a_uuid() {
        let uuid = "GPU-00000000-AAAA-bbbb-cccc-0123456789ab";
        assert_eq!(
            GpuUuid::parse(uuid).unwrap().as_str(),
            uuid.to_ascii_lowercase().replacen("gpu", "GPU", 1)
        );
        for bad in ["", "0", "MIG-00000000-aaaa-bbbb-cccc-0123456789ab", "GPU-1", "GPU-../../etc"] {
            assert!(GpuUuid::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn plain_processes_containers_and_users_differ() {
        let key = |runtime_root: String| GrantKey {
            runtime_root,
            container_id: ContainerId::parse("train").unwrap(),
            instance: Instance::from_bytes([0; 16]),
        };
        let [root, alice, bob] = [None, Some(1000), Some(1001)].map(GrantKey::run_of).map(key);
        assert!(root.is_run() && alice.is_run());
        let job = key(GrantKey::jobs());
        assert!(job.is_job() && !job.is_run() && !alice.is_job());
        assert!(!job.is_container() && !root.is_container());
        assert_eq!([job.door(), root.door()], [Kind::Process; 2]);
        assert!(!root.same_container(&alice) && !alice.same_container(&bob));
        assert_eq!(root.name(None), "root/train");
        assert_eq!(alice.name(None), "1000/train");
        assert_eq!(alice.name(Some("alice")), "alice/train");
        assert_eq!(job.name(None), "train");
        assert_eq!(
            [root.full_name(), bob.full_name()],
            ["mpsgate run/train", "mpsgate run/1001/train"]
        );
        for container in ["/run/runc", "mpsgate runs", ""] {
            assert!(key(container.to_owned()).is_container(), "{container}");
            assert_eq!(key(container.to_owned()).door(), Kind::Container);
            assert_eq!(key(container.to_owned()).name(None), "train");
        }
    }

    #[test]
    fn a_user_is_shown_by_a_name_that_can_be_nothing_else() {
        for name in ["alice", "jürgen", "CORP\\alice", "alice@corp.example", "a1", "svc$"] {
            assert_eq!(user_shown(1000, Some(name)), name);
        }
        let long = "a".repeat(65);
        for name in ["", "1001", "a/b", "../etc", "a b", "a\u{1b}[2J", "a\n", &long] {
            assert_eq!(user_shown(1000, Some(name)), "1000", "{name:?}");
        }
        assert_eq!(user_shown(1000, None), "1000");
    }

    #[test]
    fn accepts_runcs_container_ids_only() {
        for good in ["create", "a", "web.1_x+y-z", "0f3c"] {
            assert!(ContainerId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "a b", "ü", "a\0"] {
            assert!(ContainerId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn record_names_differ_wherever_root_or_id_differ() {
        let name = |r, i| GrantKey::record_name(r, i).unwrap();
        let all = [
            name("/run/runc", "a"),
            name("/run/runc/a", ""),
            name("/run/runc%2f", "a"),
            name("/run/runc@", "a"),
            name("/run", "runc@a"),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(!one.contains('/'));
            assert!(all.iter().skip(i + 1).all(|two| one != two), "{one}");
        }
        assert_eq!(GrantKey::record_name(&"/x".repeat(200), "a"), None);
    }
}
