//! mpsgate's marks in a document: hooks that the runtime, or Podman's `precreate`, has added with a
//! grant, and their arguments. Anybody who writes a document can write them, so they count only
//! with the record of that grant, which only root writes.

use std::ffi::OsString;

use mpsgate_config::paths;
use mpsgate_model::{Code, ContainerId, GrantKey, IdError, Instance, Refusal};
use mpsgate_oci::spec::{Edit, View};

use crate::grant_record::{self, Found};

/// Marks a hook that was not added by the runtime.
const BY_PRECREATE: &str = "--by=precreate";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    CreateRuntime,
    Poststop,
}

pub(crate) struct Arguments {
    pub(crate) stage: Stage,
    pub(crate) root: String,
    pub(crate) instance: String,
    by_precreate: bool,
}

impl Arguments {
    pub(crate) fn parse(argv: &[OsString]) -> Option<Self> {
        let words: Option<Vec<&str>> = argv.iter().map(|word| word.to_str()).collect();
        Self::of(&words?)
    }

    /// The arguments of a createRuntime hook in a document, if it would check a container.
    fn of_hook(words: &[&str]) -> Option<Self> {
        Self::of(words).filter(|found| found.stage == Stage::CreateRuntime)
    }

    fn of(words: &[&str]) -> Option<Self> {
        let mut words = words.iter().skip(1);
        let stage = match *words.next()? {
            "createRuntime" => Stage::CreateRuntime,
            "poststop" => Stage::Poststop,
            _ => return None,
        };
        let (mut root, mut instance, mut by_precreate) = (None, None, false);
        for word in words {
            if let Some(value) = word.strip_prefix("--root=") {
                root = Some(value.to_owned());
            } else if *word == BY_PRECREATE {
                by_precreate = true;
            } else {
                instance = Some(word.strip_prefix("--instance=")?.to_owned());
            }
        }
        Some(Self { stage, root: root?, instance: instance?, by_precreate })
    }

    pub(crate) fn key(&self, container: &str) -> Result<GrantKey, Refusal> {
        let bad = |error: IdError| {
            Refusal::new(Code::HookState, error.to_string(), "recreate the container")
        };
        Ok(GrantKey {
            runtime_root: self.root.clone(),
            container_id: ContainerId::parse(container).map_err(bad)?,
            instance: Instance::parse(&self.instance).map_err(bad)?,
        })
    }
}

/// Marks mpsgate's hooks as added by `precreate`.
pub(crate) fn mark_precreate(edits: &mut [Edit]) {
    for edit in edits {
        if let Edit::AddHook { path, args, .. } = edit
            && path == paths::HOOK
        {
            args.push(BY_PRECREATE.to_owned());
        }
    }
}

/// Whether a document has the grant for this instance of a container; with `by_precreate` only one
/// that `precreate` added.
pub(crate) fn has_grant(view: View<'_>, container: &str, by_precreate: bool) -> bool {
    // A grant adds one hook; more than a few were written by others.
    let mut ours = view
        .hooks()
        .filter(|hook| hook.stage == "createRuntime" && hook.path == paths::HOOK)
        .take(8);
    ours.any(|hook| {
        let Some(arguments) = hook.arguments().and_then(|words| Arguments::of_hook(&words)) else {
            return false;
        };
        if by_precreate && !arguments.by_precreate {
            return false;
        }
        // The record of this instance: the hook will check the container against it.
        let found = grant_record::find(&arguments.root, container);
        matches!(found, Found::Record(record) if record.grant.key.instance.as_str() == arguments.instance)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_command_line_is_taken() {
        let parse = |line: &str| {
            Arguments::parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).is_some()
        };
        assert!(parse("h createRuntime --root=/r --instance=i"));
        assert!(parse("h poststop --instance=i --root=/r"));
        assert!(parse("h createRuntime --root=/r --instance=i --by=precreate"));
        for line in [
            "h",
            "h createRuntime",
            "h createRuntime --root=/r",
            "h prestart --root=/r --instance=i",
            "h poststop --root=/r --instance=i --more=x",
        ] {
            assert!(!parse(line), "{line}");
        }
    }

    #[test]
    fn a_mark_in_a_document_is_a_whole_createruntime_hook() {
        let of = |line: &str| Arguments::of_hook(&line.split(' ').collect::<Vec<_>>());
        let marked = of("h createRuntime --root=/r --instance=i --by=precreate");
        assert!(marked.is_some_and(|found| found.by_precreate && found.instance == "i"));
        assert!(of("h createRuntime --root=/r --instance=i").is_some_and(|f| !f.by_precreate));
        for line in [
            "h x --by=precreate",
            "h --by=precreate",
            "h createRuntime --by=precreate",
            "h createRuntime --instance=i --by=precreate",
            "h poststop --root=/r --instance=i --by=precreate",
            "h createRuntime --root=/r --instance=i --by=precreate --more",
        ] {
            assert!(of(line).is_none(), "{line}");
        }
    }
}
