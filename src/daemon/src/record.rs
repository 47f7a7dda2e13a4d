//! Brings the ledger's file up to date with the state.

use mpsgate_model::ledger_file::LedgerFile;
use mpsgate_model::{Code, Refusal};
use mpsgate_node::Node;

use crate::error::chain;

/// Writes all changes that are not in the file.
///
/// # Errors
/// A refusal for what asked for memory. The file is then as it was.
pub(crate) fn write(node: &mut Node, file: &mut LedgerFile) -> Result<(), Refusal> {
    if node.is_written(node.changes()) {
        return Ok(());
    }
    let stored = file.store(node.ledger()).map_err(|error| {
        let why = format!("the grant could not be recorded: {}", chain(&error));
        Refusal::new(Code::Ledger, why, error.hint())
    });
    // One line for each episode.
    match (&stored, node.note_write(stored.is_ok())) {
        (Ok(()), true) => log::info!("ledger written again"),
        (Err(refusal), true) => {
            let (reason, hint) = (refusal.sentence.as_str(), refusal.hint.as_str());
            log::error!(reason, hint; "ledger not written");
        }
        (_, false) => {}
    }
    stored
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use mpsgate_model::Mib;
    use mpsgate_model::ledger::Ledger;

    use super::*;
    use crate::fixture::{ALL, HOLDER, call, node, uuid};

    #[test]
    fn a_ledger_that_cannot_be_written_is_an_error_until_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let (ledger, away) = (dir.path().join("ledger"), dir.path().join("away"));
        std::fs::create_dir(&ledger).unwrap();
        let (mut file, _) = LedgerFile::open(&ledger).unwrap();
        let mut node = node();
        let reserve = |node: &mut Node, id| {
            let call = call(id, 1);
            node.reserve(&call, None, HOLDER, &ALL, 0, &mut Vec::new()).unwrap().grant.key
        };
        let old = reserve(&mut node, "old");
        write(&mut node, &mut file).unwrap();
        std::fs::rename(&ledger, &away).unwrap();
        let new = reserve(&mut node, "new");
        let refusal = write(&mut node, &mut file).unwrap_err();
        assert_eq!(refusal.code, Code::Ledger);
        assert!(refusal.sentence.contains("could not be recorded: cannot write"), "{refusal}");
        assert!(refusal.hint.contains("df -h"), "{}", refusal.hint);
        assert!(!node.is_written(node.changes()));
        // Who asked takes it back; what ends meanwhile counts at once.
        node.expire(&new, "given up", &mut Vec::new()).unwrap();
        node.release(&old, "ended", &mut Vec::new()).unwrap();
        assert_eq!(node.ledger().granted(&uuid(0)), Mib(0));
        std::fs::rename(&away, &ledger).unwrap();
        write(&mut node, &mut file).unwrap();
        assert!(node.is_written(node.changes()));
        drop(file);
        assert_eq!(LedgerFile::open(&ledger).unwrap().1, Ledger::default());
    }
}
