//! Brings the ledger's file up to date with the state.

use std::sync::{Mutex, MutexGuard, PoisonError};

use mpsgate_model::ledger_file::LedgerFile;
use mpsgate_model::{Code, Refusal};
use mpsgate_node::Node;

use crate::error::chain;

/// Writes all changes that are not in the file, unless the first `asked` are. Blocks; the state is
/// free meanwhile.
///
/// # Errors
/// A refusal for what asked for memory. The file is then as it was.
pub(crate) fn write(node: &Mutex<Node>, file: &mut LedgerFile, asked: u64) -> Result<(), Refusal> {
    let (changes, text) = {
        let node = lock(node);
        if node.is_written(asked) {
            return Ok(());
        }
        (node.changes(), file.text(node.ledger()))
    };
    let stored = text.and_then(|text| file.put(&text)).map_err(|error| {
        let why = format!("the grant could not be recorded: {}", chain(&error));
        Refusal::new(Code::Ledger, why, error.hint())
    });
    // One line for each episode.
    let is_news = lock(node).note_write(changes, stored.is_ok());
    match (&stored, is_news) {
        (Ok(()), true) => log::info!("ledger written again"),
        (Err(refusal), true) => {
            let (reason, hint) = (refusal.sentence.as_str(), refusal.hint.as_str());
            log::error!(reason, hint; "ledger not written");
        }
        (_, false) => {}
    }
    stored
}

fn lock(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().unwrap_or_else(PoisonError::into_inner)
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
        let node = Mutex::new(node());
        let reserve = |id| {
            let call = call(id, 1);
            let mut node = lock(&node);
            node.reserve(&call, None, HOLDER, &ALL, 0, &mut Vec::new()).unwrap().grant.key
        };
        let write_all = |file: &mut LedgerFile| {
            let changes = lock(&node).changes();
            write(&node, file, changes)
        };
        let is_written = || {
            let node = lock(&node);
            node.is_written(node.changes())
        };
        let old = reserve("old");
        write_all(&mut file).unwrap();
        std::fs::rename(&ledger, &away).unwrap();
        let new = reserve("new");
        let refusal = write_all(&mut file).unwrap_err();
        assert_eq!(refusal.code, Code::Ledger);
        assert!(refusal.sentence.contains("could not be recorded: cannot write"), "{refusal}");
        assert!(refusal.hint.contains("df -h"), "{}", refusal.hint);
        assert!(!is_written());
        // Who asked takes it back; what ends meanwhile counts at once.
        lock(&node).expire(&new, "given up", &mut Vec::new()).unwrap();
        lock(&node).release(&old, "ended", &mut Vec::new()).unwrap();
        assert_eq!(lock(&node).ledger().granted(&uuid(0)), Mib(0));
        std::fs::rename(&away, &ledger).unwrap();
        write_all(&mut file).unwrap();
        assert!(is_written());
        drop(file);
        assert_eq!(LedgerFile::open(&ledger).unwrap().1, Ledger::default());
    }
}
