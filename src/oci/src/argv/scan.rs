//! One walk over argv by one table of flags, without allocating.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::ValueAt;
use super::flag_table::{ARGP, Arguments, Flag, Meaning, Table, Takes, VERBS};

/// An item of argv. Flags that no table has are left out.
#[derive(Debug, Clone, Copy)]
pub(super) enum Item {
    /// A known flag. `on` is false for Go's `--flag=false`.
    Flag { meaning: Meaning, value: Option<ValueAt>, on: bool },
    /// The argument at this index is not a flag.
    Positional(usize),
}

/// Walks from `start` and passes each item to `found`. Returns the index at which flags ended: of
/// `--`, of the argument that ends them, or the number of args.
pub(super) fn scan(
    args: &[OsString],
    start: usize,
    table: Table,
    mut found: impl FnMut(Item),
) -> usize {
    let mut index = start;
    while let Some(arg) = args.get(index) {
        let bytes = arg.as_bytes();
        if bytes == b"--" {
            for rest in index + 1..args.len() {
                found(Item::Positional(rest));
                if table.arguments == Arguments::Verb {
                    break;
                }
            }
            return index;
        }
        if bytes.len() < 2 || !bytes.starts_with(b"-") {
            match table.arguments {
                Arguments::AmongFlags => {
                    found(Item::Positional(index));
                    index += 1;
                }
                Arguments::Verb => {
                    found(Item::Positional(index));
                    return index;
                }
                Arguments::EndFlags => {
                    (index..args.len()).for_each(|rest| found(Item::Positional(rest)));
                    return index;
                }
            }
            continue;
        }
        index = match read_flag(bytes, index, table, &mut found) {
            Next::SameArgument => index + 1,
            Next::ValueFollows => index + 2,
            Next::Unknown => index + 1 + usize::from(is_value_of_unknown(args, index, table)),
        };
    }
    args.len()
}

/// How far a flag reaches.
enum Next {
    SameArgument,
    ValueFollows,
    Unknown,
}

fn read_flag(arg: &[u8], index: usize, table: Table, found: &mut impl FnMut(Item)) -> Next {
    let dashes = if arg.starts_with(b"--") { 2 } else { 1 };
    let body = arg.get(dashes..).unwrap_or_default();
    let (name, attached) = match body.iter().position(|byte| *byte == b'=') {
        Some(at) => (body.get(..at).unwrap_or_default(), Some(dashes + at + 1)),
        None => (body, None),
    };
    let Some(flag) = lookup(name, dashes, table) else {
        // argp's clusters have one dash: `-dt`, `-bDIR`, `-eNAME=VALUE`.
        return if dashes == 1 {
            read_cluster(body, index, table.flags, found)
        } else {
            Next::Unknown
        };
    };
    let meaning = flag.meaning;
    let attached_value = attached.map(|prefix| ValueAt { index, prefix });
    match flag.takes {
        Takes::Nothing => {
            let word = attached.and_then(|at| arg.get(at..)).unwrap_or(b"true");
            found(Item::Flag { meaning, value: None, on: !is_go_false(word) });
            Next::SameArgument
        }
        Takes::Value if attached.is_none() => {
            found(Item::Flag {
                meaning,
                value: Some(ValueAt { index: index + 1, prefix: 0 }),
                on: true,
            });
            Next::ValueFollows
        }
        Takes::Value | Takes::Attached => {
            found(Item::Flag { meaning, value: attached_value, on: true });
            Next::SameArgument
        }
    }
}

/// Finds a flag by its full name, by an abbreviation that fits no other flag of crun's (two dashes
/// only, as in getopt), or by its letter, which Go accepts with two dashes as well. Any other text,
/// as crun's `--log-l`, may abbreviate a name that is the only one to fit.
pub(super) fn lookup(name: &[u8], dashes: usize, table: Table) -> Option<&'static Flag> {
    if name.is_empty() {
        return None;
    }
    let flags = table.flags.iter();
    let only = |names: &mut dyn Iterator<Item = &'static str>| {
        let mut fitting = names.filter(|long| long.as_bytes().starts_with(name));
        fitting.next().filter(|_| dashes == 2 && fitting.next().is_none())
    };
    let named = |long: &str| flags.clone().find(|flag| flag.long == long);
    let exact = flags.clone().find(|flag| flag.long.as_bytes() == name);
    exact
        .or_else(|| named(only(&mut table.crun.iter().chain(&ARGP).copied())?))
        .or_else(|| flags.clone().find(|flag| [flag.short] == *name))
        .or_else(|| named(only(&mut flags.clone().map(|flag| flag.long))?))
}

/// Reads letters up to the first that takes a value. One unknown letter makes the whole cluster
/// unknown.
fn read_cluster(body: &[u8], index: usize, flags: &[Flag], found: &mut impl FnMut(Item)) -> Next {
    let by_letter = |letter: &u8| flags.iter().find(|flag| flag.short == *letter && *letter != 0);
    let is_plain = |letter| by_letter(letter).is_some_and(|flag| flag.takes == Takes::Nothing);
    let plain_letters = body.iter().take_while(|letter| is_plain(letter)).count();
    let last = match body.get(plain_letters).map(by_letter) {
        None => None,
        Some(Some(flag)) => Some(flag),
        Some(None) => return Next::Unknown,
    };
    for flag in body.iter().take(plain_letters).filter_map(by_letter) {
        found(Item::Flag { meaning: flag.meaning, value: None, on: true });
    }
    let Some(last) = last else { return Next::SameArgument };
    let has_rest = plain_letters + 1 < body.len();
    let (value, next) = match (has_rest, last.takes) {
        // One dash, the letters, and the letter that takes the rest.
        (true, _) => (Some(ValueAt { index, prefix: plain_letters + 2 }), Next::SameArgument),
        (false, Takes::Value) => {
            (Some(ValueAt { index: index + 1, prefix: 0 }), Next::ValueFollows)
        }
        (false, _) => (None, Next::SameArgument),
    };
    found(Item::Flag { meaning: last.meaning, value, on: true });
    next
}

/// Whether the argument after an unknown global flag is its value rather than the verb.
///
/// A runtime that is newer than these tables may have such flags. Taking the value for a verb would
/// let the container pass undecided, so only a word that is a verb counts as one here.
fn is_value_of_unknown(args: &[OsString], index: usize, table: Table) -> bool {
    let joined = args.get(index).is_some_and(|flag| flag.as_bytes().contains(&b'='));
    table.arguments == Arguments::Verb
        && !joined
        && args
            .get(index + 1)
            .is_some_and(|next| !next.as_bytes().starts_with(b"-") && !is_verb(next.as_bytes()))
}

fn is_verb(word: &[u8]) -> bool {
    VERBS.iter().any(|verb| verb.as_bytes() == word)
}

/// Whether Go's `strconv.ParseBool` reads `word` as false.
fn is_go_false(word: &[u8]) -> bool {
    matches!(word, b"0" | b"f" | b"F" | b"false" | b"FALSE" | b"False")
}
