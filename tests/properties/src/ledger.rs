//! The ledger's file.

use std::path::Path;

use mpsgate_model::ledger::{Capacity, Ledger, ProcessId, State};
use mpsgate_model::{Mib, ledger_file};

/// Any bytes are an error that names the file, or a ledger whose sums hold: it is written and read
/// back the same, no container stands in it twice, and no card can be given more than it has,
/// whatever the file says is on it already.
pub(crate) fn ledger(data: &[u8]) {
    let path = Path::new("/run/mpsgate/ledger/ledger.json");
    let mut ledger = match ledger_file::parse(data, path) {
        Ok((_, ledger)) => ledger,
        Err(error) => {
            assert!(error.to_string().contains("ledger.json"), "{error} names no file");
            assert!(!error.hint().is_empty());
            return;
        }
    };
    let written = serde_json::json!({
        "format": 1, "generation": 1, "entries": ledger.entries(), "promises": ledger.promises()
    });
    let (_, again) = ledger_file::parse(written.to_string().as_bytes(), path).unwrap();
    assert_eq!(again, ledger);
    operations(&mut ledger);
}

fn operations(ledger: &mut Ledger) {
    let capacity = Capacity { memory: Mib(16 << 10), max_clients: 48 };
    for entry in ledger.entries().to_vec() {
        let key = &entry.grant.key;
        assert_eq!(ledger.get(key), Some(&entry), "a key stands twice");
        assert!(ledger.of_container(key).is_some());
        for card in &entry.grant.cards {
            let granted = ledger.granted(&card.uuid);
            assert!(granted >= entry.grant.memory, "less is granted than one entry holds");
        }
        // Its container once more, under another name: what does not fit is refused.
        let mut more = entry.grant.clone();
        more.key.runtime_root.push_str("/other");
        let holder = ProcessId { pid: 1, start_time: 1 };
        let before = ledger.clone();
        if ledger
            .reserve(more.clone(), holder, &vec![capacity.clone(); more.cards.len()], 0)
            .is_ok()
        {
            for card in &more.cards {
                assert!(ledger.granted(&card.uuid) <= capacity.memory, "a card is overcommitted");
                assert!(ledger.on_card(&card.uuid).count() <= 48);
            }
            assert!(ledger.release(&more.key).is_some());
        }
        assert_eq!(*ledger, before, "a refused or undone reservation left something");
        let was_active = matches!(entry.state, State::Active { .. });
        assert_eq!(ledger.expire(key).is_none(), was_active);
        assert_eq!(ledger.release(key).is_some(), was_active);
    }
    assert!(ledger.entries().is_empty());
}
