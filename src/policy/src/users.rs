//! The host's uid of a container's process: MPS servers are told apart by it.

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
    let spec: Vec<IdRange> = view.uid_mappings().collect();
    let path = match view.user_namespace() {
        Namespace::Callers => return Ok(inside),
        Namespace::New => None,
        Namespace::At(path) => Some(path),
    };
    let ranges = match (users, path) {
        (Users::Joined(ranges), Some(_)) => ranges,
        // With a path, runc from 1.2 on takes mappings only where they are the namespace's own.
        (_, None) => &spec,
        _ if !spec.is_empty() => &spec,
        (users, Some(path)) => {
            let why = match users {
                Users::Unreadable(why) => why.as_str(),
                _ => "its map is not known",
            };
            return Err(refusal(format!(
                "the host's uid of its process cannot be told: it joins the user namespace {path}, and {why}"
            )));
        }
    };
    ranges.iter().find_map(|range| range.outside_of(inside)).ok_or_else(|| {
        refusal(format!(
            "its uid {inside} is not mapped to a uid of the host by its user namespace"
        ))
    })
}

fn refusal(sentence: String) -> Refusal {
    Refusal::new(
        Code::Uid,
        sentence,
        "run it as a mapped uid, set mpsgate.io/gpu-uid to the uid that its program drops to, or do \
         without the user namespace (docker run --userns=host, hostUsers: true in the pod spec)",
    )
}
