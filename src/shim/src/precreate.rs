//! `mpsgate-runtime precreate`: Podman's hook of that name. The whole `config.json` comes on
//! standard input and goes, changed or not, to standard output; an empty answer would be an error.
//!
//! It makes the same decision as in front of a runtime, without being one. So `exec` gets no env of
//! the grant, `kill` ends no GPU work first, and `restore` is not seen (a restored container's
//! hooks are those of its checkpoint). Podman passes neither the container's id nor its runtime:
//! the id is in the document.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::path::Path;

use mpsgate_config::runs_as_root;
use mpsgate_model::{Code, Refusal};
use mpsgate_oci::spec::View;
use mpsgate_policy::{Action, Bytes, Caller, Reading, Verdict};

use crate::ask_grant::{Starting, obtain};
use crate::engine_log::{Refused, Report, chain};
use crate::evaluate::{self, Evaluation, may_start, rootless};
use crate::hook::veto;
use crate::{descriptors, facts};

/// The verb on the command line. No runtime has it.
const VERB: &str = "precreate";
/// The file that Podman mounts into every container, from a directory named after it.
const CONTAINERENV: &str = "/run/.containerenv";

/// Whether the command line has this verb.
pub(crate) fn is_meant(args: &[OsString]) -> bool {
    matches!(args, [only] if only == VERB)
}

/// Runs the hook; returns its exit code.
pub(crate) fn main() -> i32 {
    descriptors::ensure_standard_descriptors();
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().read_to_end(&mut bytes);
    let mut report = Report::of_hook();
    let decided = match read {
        Ok(_) => decide(&bytes, &mut report),
        Err(error) => Err(unreadable(&error.to_string()).into()),
    };
    match decided {
        Ok(changed) => {
            let written = std::io::stdout().write_all(changed.as_deref().unwrap_or(&bytes));
            // Podman has gone, so no process reads the answer.
            i32::from(written.is_err())
        }
        Err(refused) => {
            veto::say_to_parent(&report.told(&refused));
            1
        }
    }
}

/// The changed document; `None` where it stays as it is.
fn decide(bytes: &[u8], report: &mut Report) -> Result<Option<Vec<u8>>, Refused> {
    // Podman writes no relative source.
    let bundle = Path::new("/");
    let read = evaluate::read(Bytes::Whole(bytes), bundle, false);
    if !runs_as_root() {
        return Ok(read.as_ref().map_or(Ok(()), rootless).map(|()| None)?);
    }
    let document = match read.map_err(|error| unreadable(&chain(&error)))? {
        Reading::Nothing => return Ok(None),
        Reading::Clean(document) => document,
        Reading::Unclean(unclean) => return may_start(&unclean, report).map(|()| None),
    };
    let mut document = ManuallyDrop::new(document);
    let view = document.view();
    let id = container_id(view).map(str::to_owned);
    report.name(id.as_deref().unwrap_or_default());
    let evaluation = Evaluation::of(view, bundle, has_no_cgroup(view));
    let decision = evaluation.decide(&document, bundle, Caller::Podman, Action::Create);
    decision.notes.iter().for_each(|note| report.noted(note, None));
    let edits = match decision.verdict {
        Verdict::Pass => return Ok(None),
        Verdict::Refuse(refusal) => return Err(refusal.into()),
        Verdict::Edit(edits) => edits,
        Verdict::Reserve(wanted) => {
            let container = id.as_deref().ok_or_else(no_id)?;
            let starting = Starting {
                container,
                runtime_root: facts::default_root(evaluation.runtime.as_deref()),
                caller: Caller::Podman,
                for_parent: true,
            };
            obtain(starting, &evaluation, view, &wanted)?
        }
    };
    evaluation.settle(&mut document, &edits, decision.held, unreadable)?;
    Ok(Some(document.to_vec().map_err(|error| unreadable(&error.to_string()))?))
}

/// Podman's id of the container: from the directory of its `/run/.containerenv`, or from its cgroup
/// (`…/libpod-ID`, `slice:libpod:ID`); captured from 4.3 and 5.4.
fn container_id(view: View<'_>) -> Option<&str> {
    let is_id = |id: &&str| id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    let mount = view.mounts().find(|mount| mount.destination == CONTAINERENV);
    let of_mount = mount.and_then(|mount| mount.source.rsplit('/').nth(2));
    let of_cgroup = view.cgroup_path().and_then(|path| path.rsplit(['-', ':']).next());
    of_mount.filter(is_id).or_else(|| of_cgroup.filter(is_id))
}

/// `podman run --cgroups=disabled`: its document names no cgroup, while all others of Podman do.
fn has_no_cgroup(view: View<'_>) -> bool {
    view.cgroup_path().is_none_or(str::is_empty)
}

fn no_id() -> Refusal {
    Refusal::new(
        Code::Spec,
        "it asks for GPU memory, but its id is neither in the source of its /run/.containerenv nor in its \
         cgroup's path",
        "use mpsgate-runtime as Podman's runtime instead of the precreate hook: mpsgate configure podman",
    )
}

fn unreadable(why: &str) -> Refusal {
    Refusal::new(
        Code::Bundle,
        format!("the document on standard input cannot be evaluated: {why}"),
        "Podman starts this as a precreate hook; by hand: mpsgate-runtime precreate <config.json",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use serde_json::json;

    use super::*;

    #[test]
    fn podmans_id_is_in_its_document() {
        let id = "58ea55b8b5956a92e7c6cf0824f351f52e350d8563a8900c8dcd321fb232b3c7";
        let of = |source: &str, cgroup: &str| {
            let spec = json!({
                "mounts": [{ "destination": CONTAINERENV, "source": source, "options": ["bind"] }],
                "linux": { "cgroupsPath": cgroup }
            });
            container_id(View::new(&spec)).map(str::to_owned)
        };
        let env = format!("/run/containers/storage/vfs-containers/{id}/userdata/.containerenv");
        for (source, cgroup) in [
            (env.as_str(), ""),
            ("/x", &format!("/libpod_parent/libpod-{id}")),
            ("/x", &format!("machine.slice:libpod:{id}")),
        ] {
            assert_eq!(of(source, cgroup).as_deref(), Some(id), "{source} {cgroup}");
        }
        assert_eq!(of("/a/../userdata/.containerenv", "/libpod-short"), None);
        assert_eq!(container_id(View::new(&json!({}))), None);
    }

    #[test]
    fn the_word_stands_alone() {
        let meant =
            |line: &str| is_meant(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert!(meant("precreate"));
        for line in ["", "create precreate", "precreate x", "--root /r precreate"] {
            assert!(!meant(line), "{line}");
        }
    }
}
