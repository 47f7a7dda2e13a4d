//! The host's uid of a container's process: MPS servers are told apart by it.

use std::borrow::Cow;

use mpsgate_oci::spec::{IdRange, Namespace, View};

use mpsgate_model::{Code, Refusal};

/// What is known of the user namespace that a spec joins by its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    /// Nothing beyond the spec, which mostly names none.
    OfSpec,
    /// Its map, as the kernel has it.
    Joined(Vec<IdRange>),
    /// Why its map cannot be read.
    Unreadable(String),
}

/// The host's uid of `inside`.
pub(crate) fn host_uid(view: View<'_>, users: &Users, inside: u32) -> Result<u32, Refusal> {
    let Some(ranges) = map(view, users)? else { return Ok(inside) };
    ranges.iter().find_map(|range| range.outside_of(inside)).ok_or_else(|| {
        refusal(format!(
            "its uid {inside} is not mapped to a uid of the host by its user namespace"
        ))
    })
}

/// Whether a process of it may be the host's root, whatever its uid inside is. A map that is not
/// known, or that the runtime makes up, may have it.
pub(crate) fn may_be_root(view: View<'_>, users: &Users) -> bool {
    match map(view, users) {
        Ok(Some(ranges)) if !ranges.is_empty() => ranges.iter().any(|range| range.outside == 0),
        _ => true,
    }
}

/// The map of its user namespace; `None` where that is the caller's.
fn map<'a>(view: View<'_>, users: &'a Users) -> Result<Option<Cow<'a, [IdRange]>>, Refusal> {
    let path = match view.user_namespace() {
        Namespace::Callers => return Ok(None),
        Namespace::New => None,
        Namespace::At(path) => Some(path),
    };
    let spec: Vec<IdRange> = view.uid_mappings().collect();
    Ok(Some(match (users, path) {
        (Users::Joined(ranges), Some(_)) => Cow::Borrowed(ranges.as_slice()),
        // With a path, runc from 1.2 on takes mappings only where they are the namespace's own.
        (_, None) => Cow::Owned(spec),
        _ if !spec.is_empty() => Cow::Owned(spec),
        (users, Some(path)) => {
            let why = match users {
                Users::Unreadable(why) => why.as_str(),
                _ => "its map is not known",
            };
            return Err(refusal(format!(
                "the host's uid of its process cannot be told: it joins the user namespace {path}, and {why}"
            )));
        }
    }))
}

fn refusal(sentence: String) -> Refusal {
    Refusal::new(
        Code::Uid,
        sentence,
        "run it as a mapped uid, set mpsgate.io/gpu-uid to the uid that its program drops to, or do \
         without the user namespace (docker run --userns=host, hostUsers: true in the pod spec)",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hosts_root_is_whoever_is_mapped_to_it() {
        let range = |inside, outside, size| IdRange { inside, outside, size };
        let spec = json!({ "linux": { "namespaces": [{ "type": "user", "path": "/x" }] } });
        for (users, may_be) in [
            (Users::Joined(vec![range(0, 100_000, 65536)]), false),
            (Users::Joined(vec![range(0, 0, 65536)]), true),
            (Users::Joined(vec![range(0, 100_000, 1000), range(1000, 0, 1)]), true),
            (Users::Joined(Vec::new()), true),
            (Users::Unreadable("gone".to_owned()), true),
            (Users::OfSpec, true),
        ] {
            assert_eq!(may_be_root(View::new(&spec), &users), may_be, "{users:?}");
        }
        assert!(may_be_root(View::new(&json!({})), &Users::OfSpec), "the host's namespace");
    }
}
