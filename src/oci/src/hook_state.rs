//! The container's state, as the runtime writes it to a hook's standard input.
//!
//! At createRuntime, runc's status is `creating`; crun's is `created`, with `root` besides. At
//! poststop runc leaves `pid` out, and crun writes 0. Unused fields are ignored, whatever their
//! type.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;

use serde_json::Value;

/// The longest state that is read: annotations of Kubernetes alone may take 256 KiB.
pub const MAX_BYTES: usize = 1 << 20;

/// The state of a hook's container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookState {
    /// The container's id; never empty.
    pub id: String,
    /// The container's init as the runtime sees it. `None` if there is none, or no longer one.
    pub pid: Option<i32>,
    /// The bundle. crun before 1.27 may name another directory at createRuntime: fall back to the
    /// working directory, which is the bundle there.
    pub bundle: Option<PathBuf>,
    /// `creating`, `created`, `stopped`, …; never compare it for equality between runtimes.
    pub status: Option<String>,
    /// crun only: `root.path` of `config.json`, which may be relative to the bundle.
    pub root: Option<PathBuf>,
    /// The annotations of `config.json`. Entries that are not text are left out.
    pub annotations: BTreeMap<String, String>,
}

/// Why a state cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookStateError {
    /// Standard input was closed or empty.
    #[error("the container state on standard input is empty")]
    Empty,
    /// More than [`MAX_BYTES`].
    #[error("the container state on standard input is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// Reading failed.
    #[error("cannot read the container state from standard input")]
    Read {
        /// The kernel's error.
        #[source]
        source: std::io::Error,
    },
    /// Not JSON, not UTF-8, cut off, or nested too deeply.
    #[error("the container state on standard input is not JSON")]
    NotJson {
        /// Where and why parsing stopped.
        #[source]
        source: serde_json::Error,
    },
    /// JSON, but not an object.
    #[error("the container state on standard input is {found}, not an object")]
    NotAnObject {
        /// The JSON type found.
        found: &'static str,
    },
    /// `id` is missing, empty or not text.
    #[error("the container state on standard input has no `id`")]
    NoId,
}

impl HookStateError {
    /// What a person can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "an OCI runtime starts this program as a hook and writes the state to it; by hand: \
         runc state ID | mpsgate-hook createRuntime"
    }
}

impl HookState {
    /// Reads a state to its end, but never more than [`MAX_BYTES`].
    ///
    /// # Errors
    /// Any [`HookStateError`].
    pub fn read(from: impl Read) -> Result<Self, HookStateError> {
        let mut bytes = Vec::with_capacity(4096);
        // One byte more than the limit shows that the input is too long.
        from.take(MAX_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .map_err(|source| HookStateError::Read { source })?;
        Self::parse(&bytes)
    }

    /// Reads a state from bytes.
    ///
    /// # Errors
    /// Any [`HookStateError`] but `Read`.
    pub fn parse(bytes: &[u8]) -> Result<Self, HookStateError> {
        if bytes.len() > MAX_BYTES {
            return Err(HookStateError::TooLong);
        }
        if bytes.trim_ascii().is_empty() {
            return Err(HookStateError::Empty);
        }
        let state: Value =
            serde_json::from_slice(bytes).map_err(|source| HookStateError::NotJson { source })?;
        if !state.is_object() {
            return Err(HookStateError::NotAnObject { found: crate::json_type(&state) });
        }
        let text = |key: &str| state.get(key).and_then(Value::as_str);
        let path = |key: &str| text(key).filter(|path| !path.is_empty()).map(PathBuf::from);
        let id = text("id").filter(|id| !id.is_empty()).ok_or(HookStateError::NoId)?;
        let pid = state.get("pid").and_then(Value::as_i64).and_then(|pid| i32::try_from(pid).ok());
        Ok(Self {
            id: id.to_owned(),
            pid: pid.filter(|pid| *pid > 0),
            bundle: path("bundle"),
            status: text("status").map(str::to_owned),
            root: path("root"),
            annotations: texts(state.get("annotations")),
        })
    }
}

fn texts(map: Option<&Value>) -> BTreeMap<String, String> {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test is to panic")]
    use super::*;

    /// runc 1.1.5 (Debian 12), `runc create` with a createRuntime hook that copies its input.
    const RUNC_CREATE_RUNTIME: &str = r#"{"ociVersion":"1.0.2-dev","id":"capt","status":"creating","pid":28125,"bundle":"/tmp/b","annotations":{"mpsgate.io/gpu-mem":"7Gi","org.example.note":"a \"quoted\" ü"}}"#;
    /// The same container's poststop.
    const RUNC_POSTSTOP: &str = r#"{"ociVersion":"1.0.2-dev","id":"capt","status":"stopped","bundle":"/tmp/b","annotations":{"mpsgate.io/gpu-mem":"7Gi","org.example.note":"a \"quoted\" ü"}}"#;
    /// crun 1.21 (Debian 13), the same way; captured.
    const CRUN_CREATE_RUNTIME: &str = r#"{"ociVersion":"1.0","id":"capt","pid":565,"root":"rootfs","bundle":"/b","status":"created","annotations":{"mpsgate.io/gpu-mem":"7Gi","org.example.note":"a \"quoted\" ü"}}"#;
    /// The same container's poststop; captured.
    const CRUN_POSTSTOP: &str = r#"{"ociVersion":"1.0","id":"capt","pid":0,"root":"rootfs","bundle":"/b","status":"stopped","annotations":{"mpsgate.io/gpu-mem":"7Gi","org.example.note":"a \"quoted\" ü"}}"#;
    /// podman 5.4.2 runs poststop hooks from its hooks directory by itself; captured.
    const PODMAN_POSTSTOP: &str = r#"{"ociVersion":"1.2.0","id":"0627c1529e686ba8","status":"stopped","bundle":"/c/userdata","annotations":{"mpsgate.io/gpu-mem":"7Gi"}}"#;

    #[test]
    fn reads_what_runc_writes_at_create_runtime() {
        let state = HookState::parse(RUNC_CREATE_RUNTIME.as_bytes()).unwrap();
        assert_eq!(state.id, "capt");
        assert_eq!(state.pid, Some(28125));
        assert_eq!(state.bundle, Some(PathBuf::from("/tmp/b")));
        assert_eq!(state.status.as_deref(), Some("creating"));
        assert_eq!(state.root, None);
        assert_eq!(state.annotations.len(), 2);
        assert_eq!(state.annotations["mpsgate.io/gpu-mem"], "7Gi");
        assert_eq!(state.annotations["org.example.note"], "a \"quoted\" ü");
    }

    #[test]
    fn a_poststop_state_has_no_pid() {
        for text in [RUNC_POSTSTOP, CRUN_POSTSTOP, PODMAN_POSTSTOP] {
            let state = HookState::parse(text.as_bytes()).unwrap();
            assert_eq!((state.pid, state.status.as_deref()), (None, Some("stopped")), "{text}");
        }
    }

    #[test]
    fn reads_what_crun_writes_at_create_runtime() {
        let state = HookState::read(CRUN_CREATE_RUNTIME.as_bytes()).unwrap();
        assert_eq!(state.pid, Some(565));
        assert_eq!(state.annotations["org.example.note"], "a \"quoted\" ü");
        assert_eq!(state.status.as_deref(), Some("created"));
        assert_eq!(state.root, Some(PathBuf::from("rootfs")));
    }

    #[test]
    fn unknown_fields_and_odd_types_of_optional_fields_do_no_harm() {
        let text = r#"{"id":"a","pid":"7","bundle":[],"status":3,"new":{"x":[1]},
                      "annotations":{"keep":"me","n":1,"null":null}}"#;
        let state = HookState::parse(text.as_bytes()).unwrap();
        assert_eq!((state.pid, state.bundle, state.status), (None, None, None));
        assert_eq!(
            state.annotations.into_iter().collect::<Vec<_>>(),
            [("keep".to_owned(), "me".to_owned())]
        );
    }

    #[test]
    fn a_pid_that_no_process_can_have_is_none() {
        for pid in ["0", "-1", "2147483648", "1.5", "null"] {
            let text = format!(r#"{{"id":"a","pid":{pid}}}"#);
            assert_eq!(HookState::parse(text.as_bytes()).unwrap().pid, None, "{pid}");
        }
    }

    #[test]
    fn each_bad_input_has_its_own_error() {
        let error = |bytes: &[u8]| HookState::read(bytes).unwrap_err();
        assert!(matches!(error(b""), HookStateError::Empty));
        assert!(matches!(error(b" \n\t"), HookStateError::Empty));
        assert!(matches!(error(b"hello"), HookStateError::NotJson { .. }));
        assert!(matches!(error(br#"{"id":"a""#), HookStateError::NotJson { .. }));
        assert!(matches!(error(b"{\"id\":\"\xff\"}"), HookStateError::NotJson { .. }));
        assert!(matches!(error("[".repeat(100_000).as_bytes()), HookStateError::NotJson { .. }));
        assert!(matches!(error(b"[]"), HookStateError::NotAnObject { found: "a list" }));
        for text in ["{}", r#"{"id":""}"#, r#"{"id":7}"#, r#"{"id":null}"#] {
            assert!(matches!(error(text.as_bytes()), HookStateError::NoId), "{text}");
        }
    }

    #[test]
    fn a_state_may_be_as_long_as_the_limit_and_not_a_byte_longer() {
        let mut bytes = br#"{"id":"a"}"#.to_vec();
        bytes.resize(MAX_BYTES, b' ');
        assert_eq!(HookState::read(&*bytes).unwrap().id, "a");
        bytes.push(b' ');
        assert!(matches!(HookState::read(&*bytes), Err(HookStateError::TooLong)));
    }

    #[test]
    fn an_endless_input_is_given_up() {
        assert!(matches!(HookState::read(std::io::repeat(b' ')), Err(HookStateError::TooLong)));
    }
}
