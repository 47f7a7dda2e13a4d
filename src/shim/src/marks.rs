//! Marks of ours in a document: hooks that the runtime, or Podman's `precreate`, has added with a
//! grant. Anybody who writes a document can write them, so they count only with the record of that
//! grant, which root alone writes.

use mpsgate_config::paths;
use mpsgate_oci::spec::View;

use crate::hook::Arguments;
use crate::record::{self, Found};

/// Whether a document has been given its grant for this instance of a container, by `precreate`
/// where that is asked.
pub(crate) fn has_grant(view: View<'_>, container: &str, by_precreate: bool) -> bool {
    // A grant adds one; more than a few are somebody else's work.
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
        // The record of this very instance: the hook will check the container against it.
        let found = record::find(&arguments.root, container);
        matches!(found, Found::Record(record) if record.grant.key.instance.as_str() == arguments.instance)
    })
}
