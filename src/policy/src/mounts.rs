//! What mounts open besides our own directories: the cgroups of the whole node, and paths that
//! somebody can exchange between our look and the runtime's mount.
//!
//! ```text
//!                    writable cgroups of the node        a path that others may exchange
//!  with a request    E_CGROUP                            our hook looks again, as it is there anyway
//!  without           noted; refused under "close"        our hook is added, to look again
//! ```
//! A container with CAP_SYS_ADMIN is not refused without a request: it mounts them by itself, and
//! node agents have it.

use mpsgate_config::{Privileged, Unallocated, paths};
use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::spec::{Edit, HookStage};

use crate::found::{Few, Note};
use crate::grant_edits::{HOOK_ENV, HOOK_TIMEOUT_S};
use crate::input::{Action, Input, MountFact, MountKind, Reach};

/// Argument of our hook where it shall look at mounts alone.
pub const HOOK_MOUNTS: &str = "--mounts";

/// A request with the cgroups of the node in reach.
pub(crate) fn refuses_request(input: &Input<'_>) -> Option<Refusal> {
    let (mount, reach) = cgroups(input.mounts).next()?;
    Some(refusal("it asks for GPU memory and ", mount, reach, ", so that no limit would hold"))
}

/// What is to be said and done about a container that asks for nothing.
///
/// # Errors
/// A refusal, which the settings ask for.
pub(crate) fn without_request(
    input: &Input<'_>,
    notes: &mut Vec<Note>,
) -> Result<Vec<Edit>, Refusal> {
    let close =
        input.policy.privileged == Privileged::Close && !input.view.may_gain("CAP_SYS_ADMIN");
    let mut told = Few::default();
    for (mount, reach) in cgroups(input.mounts) {
        if close && reach != Reach::BelowReadOnly {
            let end = ", past its device rules; policy.privileged = \"close\" refuses that";
            return Err(refusal("it ", mount, reach, end));
        }
        told.add(|| {
            format!("it {}, past its device rules (SECURITY.md, row 33)", found(mount, reach))
        });
    }
    notes.extend(Note::of_few(Code::Cgroup, &told));
    let looks = input.policy.unallocated != Unallocated::Warn
        && input.action == Action::Create
        && input.mounts.iter().any(|mount| mount.kind == MountKind::Exchangeable);
    Ok(if looks { vec![look_again()] } else { Vec::new() })
}

fn cgroups(mounts: &[MountFact]) -> impl Iterator<Item = (&MountFact, Reach)> {
    mounts.iter().filter_map(|mount| match mount.kind {
        MountKind::Cgroups(reach) => Some((mount, reach)),
        _ => None,
    })
}

fn found(mount: &MountFact, reach: Reach) -> String {
    let source = printable::value(&mount.source);
    match reach {
        Reach::Itself => format!("can write the node's cgroups by its mount of {source}"),
        Reach::Below => format!("can write the node's cgroups below its mount of {source}"),
        Reach::BelowReadOnly => format!(
            "can write the node's cgroups below its mount of {source}, which is read-only without them"
        ),
    }
}

fn refusal(begin: &str, mount: &MountFact, reach: Reach, end: &str) -> Refusal {
    let hint = match reach {
        Reach::Itself => {
            "leave the mount out, or make it read-only with all below (the options bind and ro, or rro); a container of \
             systemd needs a cgroup namespace of its own (docker or podman run --cgroupns=private)"
        }
        Reach::Below | Reach::BelowReadOnly => {
            "mount what it needs of it, or do without the mounts below (docker run --mount \
             type=bind,…,bind-recursive=disabled), or make them read-only too (the option rro)"
        }
    };
    Refusal::new(Code::Cgroup, format!("{begin}{}{end}", found(mount, reach)), hint)
}

/// Whether edits do nothing but have the hook look at what was mounted: a container starts without
/// them, too.
#[must_use]
pub fn only_looks_again(edits: &[Edit]) -> bool {
    edits.iter().all(|edit| *edit == look_again())
}

/// The hook that looks at what was mounted.
fn look_again() -> Edit {
    Edit::AddHook {
        stage: HookStage::CreateRuntime,
        path: paths::HOOK.to_owned(),
        args: ["mpsgate-hook", "createRuntime", HOOK_MOUNTS].map(str::to_owned).to_vec(),
        env: vec![HOOK_ENV.to_owned()],
        timeout_s: Some(HOOK_TIMEOUT_S),
    }
}
