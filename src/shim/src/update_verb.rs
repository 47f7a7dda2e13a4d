//! `update`: keeps device rules from a runtime that would apply them.
//!
//! runc leaves devices alone in an update. crun applies the document's rules, and containerd's CRI
//! plugin passes the container's resources as it was asked for them, with rules for devices. That
//! would undo the changes of a grant or of `policy.privileged = "close"`. So device rules are left
//! out for every container, and its rules stay as they were made.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::path::Path;

use mpsgate_config::runs_as_root;
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::argv::{Invocation, with_value};
use mpsgate_oci::spec::{SpecError, parse_resources};
use mpsgate_policy::{DOCUMENT_MAX, Unruled};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::engine_log::{Refused, chain};
use crate::evaluate::{settings, unruled};
use crate::{descriptors, exec, facts};

/// Replaces the file that `--resources` names by one without device rules. Returns changed
/// arguments if there are such resources, the runtime would apply device rules, and the node has
/// cards of mpsgate.
pub(crate) fn prepare(
    args: &[OsString],
    invocation: &Invocation,
) -> Result<Option<Vec<OsString>>, Refused> {
    let Some((at, named)) = invocation.resources_at.zip(invocation.resources.as_deref()) else {
        return Ok(None);
    };
    if !runs_as_root()
        || unruled(exec::runtime_path().as_deref()) == Unruled::Closed
        || facts::node(&settings().0).0.manages_nothing()
    {
        return Ok(None);
    }
    let refuse = |why: &str| {
        let sentence = format!("the resources {} cannot be evaluated: {why}", named.display());
        let hint = "name a file with the resources of config.json's linux.resources, each key once";
        Refused::from(Refusal::new(Code::Bundle, sentence, hint))
    };
    descriptors::ensure_standard_descriptors();
    // The runtime refuses a file that cannot be opened.
    let Ok(from) = open(named) else { return Ok(None) };
    let bytes = read(from).map_err(|error| refuse(&error.to_string()))?;
    let left = without_devices(bytes).map_err(|error| refuse(&chain(&error)))?;
    // Also if nothing was left out, because a pipe can be read only once.
    let path = handed_on(&left).map_err(|error| refuse(&error.to_string()))?;
    Ok(with_value(args, at, Path::new(&path)))
}

fn open(named: &Path) -> io::Result<File> {
    File::open(if named == Path::new("-") { Path::new("/dev/stdin") } else { named })
}

fn read(from: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(DOCUMENT_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > DOCUMENT_MAX {
        return Err(io::Error::other(format!("they are longer than {DOCUMENT_MAX} bytes")));
    }
    Ok(bytes)
}

fn without_devices(bytes: Vec<u8>) -> Result<Vec<u8>, SpecError> {
    let mut document = parse_resources(&bytes)?;
    let resources = document.value_mut().as_object_mut();
    if resources.is_none_or(|resources| resources.remove("devices").is_none()) {
        return Ok(bytes);
    }
    document.to_vec().map_err(SpecError::NotJson)
}

/// A file in memory that the runtime finds by this path.
fn handed_on(bytes: &[u8]) -> io::Result<String> {
    let mut file = File::from(memfd_create(c"resources.json", MFdFlags::empty())?);
    file.write_all(bytes)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // It stays open until the runtime has it.
    let _ = file.into_raw_fd();
    Ok(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn an_update_brings_no_device_rules_and_nothing_else_is_changed() {
        let left = |text: &str| {
            let left = without_devices(text.as_bytes().to_vec());
            left.map(|bytes| String::from_utf8(bytes).unwrap())
        };
        let rule = r#"{"allow":true,"access":"rwm"}"#;
        let whole = format!(r#"{{"cpu":{{"shares":18446744073709551615}},"devices":[{rule}]}}"#);
        assert_eq!(left(&whole).unwrap(), r#"{"cpu":{"shares":18446744073709551615}}"#);
        assert_eq!(left(r#"{"devices":null}"#).unwrap(), "{}");
        for same in [r#"{ "memory" : {"limit": 1} }"#, "{}", r#"{"unified":{"devices":"x"}}"#] {
            assert_eq!(left(same).unwrap(), same, "byte for byte");
        }
        for text in [
            format!(r#"{{"devices":[],"devices":[{rule}]}}"#),
            format!(r#"{{"devices\u0000":[{rule}]}}"#),
            format!(r#"{{"Devices":[{rule}]}}"#),
            "[]".to_owned(),
            String::new(),
        ] {
            assert!(left(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_handed_on_is_read_from_its_beginning() {
        let path = handed_on(b"{}").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"{}");
        assert_eq!(std::fs::read(&path).unwrap(), b"{}");
    }
}
