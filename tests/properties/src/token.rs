//! The device plugin's tokens, and the files behind them.

use std::sync::OnceLock;

use mpsgate_token::{Bearer, Keys, Owner, Store, StoreError, Uses};

use crate::text;

const GENUINE: u64 = 7168;

/// A node, and a token of it.
fn node() -> &'static (tempfile::TempDir, String) {
    static NODE: OnceLock<(tempfile::TempDir, String)> = OnceLock::new();
    NODE.get_or_init(|| {
        let directory = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .tempdir()
            .unwrap();
        let token = Store::open(directory.path(), 0).unwrap().sign(GENUINE, None, None).unwrap();
        (directory, token)
    })
}

/// No text is a token but one that the node has signed: what differs from it in any place does not
/// count. The input is the text; beginning with `@N ` it is what to put in place of the rest of a
/// genuine token's from byte N on.
pub(crate) fn token(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (directory, genuine) = node();
    let patch = text.strip_prefix('@').and_then(|rest| rest.split_once(' '));
    let tried = match patch.and_then(|(at, end)| Some((genuine.get(..at.parse().ok()?)?, end))) {
        Some((start, end)) => format!("{start}{end}"),
        None => text.to_owned(),
    };
    let mut store = Store::open(directory.path(), 0).unwrap();
    let bearer = Bearer { pod: "p".to_owned(), container: "c".to_owned() };
    match store.confirm(&tried, &bearer) {
        Ok(claims) => assert_eq!((&tried, claims.memory_mib), (genuine, GENUINE)),
        Err(StoreError::Token(error)) => {
            assert_ne!(&tried, genuine);
            assert!(!error.to_string().is_empty() && !StoreError::Token(error).hint().is_empty());
        }
        Err(error) => panic!("{error}"),
    }
}

/// Keys that are read are written and read again the same, and an error does not repeat the file.
pub(crate) fn token_keys(data: &[u8]) {
    match Keys::parse(data) {
        Ok(keys) => {
            assert_eq!(Keys::parse(&keys.to_text().unwrap()).unwrap(), keys);
            assert!(keys.all().all(|key| keys.get(key.id) == Some(key)));
            assert_eq!(keys.replaced().count() + 1, keys.all().count());
        }
        Err(error) => assert!((1..100).contains(&error.to_string().len()), "{error}"),
    }
}

/// Uses are read from any bytes, are not longer than the file, and one more line is read with them;
/// a line that is none leaves no token free.
pub(crate) fn token_uses(data: &[u8]) {
    let uses = Uses::read(data).unwrap();
    let whole = usize::try_from(uses.length()).unwrap();
    assert!(whole == 0 || data[whole - 1] == b'\n');
    assert!(!data[whole..].contains(&b'\n'), "a whole line was passed over");
    let id = mpsgate_token::TokenId::from_bytes([7; 16]);
    if uses.owner(id) == Owner::Unused {
        let bearer = Bearer { pod: "p\n".to_owned(), container: String::new() };
        let text = [&data[..whole], &Uses::line(id, &bearer).unwrap()].concat();
        let more = Uses::read(text.as_slice()).unwrap();
        assert_eq!(more.owner(id), Owner::Bearer(&bearer));
        assert_eq!(more.bearers().count(), uses.bearers().count() + 1);
        let text = [&data[..whole], b"x\n"].concat();
        assert_eq!(Uses::read(text.as_slice()).unwrap().owner(id), Owner::Spent);
    }
}
