//! TOML documents that are edited: parsing with file, line and column, reading as plain values, and
//! inserting keys and tables in the manner of their neighbours.

use std::path::Path;

use serde_json::{Map, Value};
use toml_edit::{Array, DocumentMut, Item, Table, TableLike, value};

use crate::ConfigureError;
use crate::line_ends::{Frame, place};

/// A document, and how its file was framed.
pub(crate) fn open(path: &Path, text: &str) -> Result<(Frame, DocumentMut), ConfigureError> {
    let (frame, body) = Frame::take_off(path, text)?;
    let document: DocumentMut = body.parse().map_err(|error: toml_edit::TomlError| {
        let (line, column) = place(&body, error.span().map_or(0, |span| span.start));
        let what = error.message().lines().collect::<Vec<_>>().join(", ");
        ConfigureError::Syntax { path: path.to_owned(), line, column, what }
    })?;
    // What the parser cannot give back as it was would change lines that are not ours.
    if document.to_string() != body {
        let what = "it does not come back as it was read".to_owned();
        return Err(ConfigureError::Unsafe { path: path.to_owned(), what });
    }
    Ok((frame, document))
}

/// What an engine printed as its settings. `command` is what was run.
pub(crate) fn open_dump(command: &'static str, text: &str) -> Result<DocumentMut, ConfigureError> {
    let failed = |what: String| ConfigureError::Dump { command, what };
    match open(Path::new(command), text) {
        Ok((_, document)) if document.is_empty() => Err(failed("nothing is set in it".to_owned())),
        Ok((_, document)) => Ok(document),
        Err(ConfigureError::Syntax { line, what, .. }) => {
            Err(failed(format!("no TOML, line {line}: {what}")))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The comments of a document that has nothing else, taken out of it: they belong above what is
/// added.
pub(crate) fn lift_comments(document: &mut DocumentMut) -> String {
    if !document.is_empty() {
        return String::new();
    }
    let comments = document.trailing().as_str().unwrap_or("").to_owned();
    document.set_trailing("");
    comments
}

/// The place behind all tables of a document.
pub(crate) fn end(table: &Table) -> isize {
    let below = table.iter().flat_map(|(_, item)| match item {
        Item::Table(table) => vec![end(table)],
        Item::ArrayOfTables(tables) => tables.iter().map(end).collect(),
        _ => Vec::new(),
    });
    below.chain(table.position().map(|position| position + 1)).max().unwrap_or(0)
}

/// An item as a plain value. Dates become text: no setting that is read here is one.
pub(crate) fn plain(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => plain_value(value),
        Item::Table(table) => plain_table(table),
        Item::ArrayOfTables(tables) => tables.iter().map(|table| plain_table(table)).collect(),
    }
}

pub(crate) fn plain_table(table: &dyn TableLike) -> Value {
    let pairs = table.iter().map(|(key, item)| (key.to_owned(), plain(item)));
    Value::Object(pairs.collect::<Map<_, _>>())
}

fn plain_value(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => Value::from(text.value().as_str()),
        toml_edit::Value::Integer(number) => Value::from(*number.value()),
        toml_edit::Value::Float(number) => Value::from(*number.value()),
        toml_edit::Value::Boolean(truth) => Value::from(*truth.value()),
        toml_edit::Value::Datetime(time) => Value::from(time.value().to_string()),
        toml_edit::Value::Array(array) => array.iter().map(plain_value).collect(),
        toml_edit::Value::InlineTable(table) => plain_table(table),
    }
}

/// A plain value as a TOML value; tables inside become inline ones.
pub(crate) fn from_plain(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(truth) => (*truth).into(),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => integer.into(),
            None => number.as_f64()?.into(),
        },
        Value::String(text) => text.as_str().into(),
        Value::Array(list) => list.iter().filter_map(from_plain).collect::<Array>().into(),
        Value::Object(pairs) => {
            let mut table = toml_edit::InlineTable::new();
            for (key, value) in pairs {
                if let Some(value) = from_plain(value) {
                    table.insert(key, value);
                }
            }
            table.into()
        }
    })
}

/// The space before a line, from what a parser kept before it.
fn indent(prefix: Option<&str>) -> String {
    let last = prefix.unwrap_or("").rsplit('\n').next().unwrap_or("");
    last.chars().take_while(|c| *c == ' ' || *c == '\t').collect()
}

/// How far the keys of a table are indented.
fn key_indent(table: &Table) -> String {
    let first = table.iter().find(|(_, item)| item.is_value()).and_then(|(key, _)| table.key(key));
    match first {
        Some(key) => indent(key.leaf_decor().prefix().and_then(|raw| raw.as_str())),
        None => {
            let own = header_indent(table);
            let step = if own.contains('\t') { "\t" } else { "  " };
            if own.is_empty() { own } else { own + step }
        }
    }
}

fn header_indent(table: &Table) -> String {
    indent(table.decor().prefix().and_then(|raw| raw.as_str()))
}

/// Sets a key, and keeps what stands around a value that is there.
pub(crate) fn set(table: &mut dyn TableLike, key: &str, new: toml_edit::Value) {
    if let Some(old) = table.get_mut(key).and_then(Item::as_value_mut) {
        let decor = old.decor().clone();
        *old = new;
        *old.decor_mut() = decor;
        return;
    }
    table.insert(key, value(new));
}

/// Like [`set`], with a new key indented as its neighbours are.
pub(crate) fn set_in(item: &mut Item, key: &str, new: toml_edit::Value) {
    if let Item::Table(table) = item {
        let (indent, is_new) = (key_indent(table), !table.contains_key(key));
        set(table, key, new);
        if is_new
            && !table.is_dotted()
            && let Some(mut key) = table.key_mut(key)
        {
            key.leaf_decor_mut().set_prefix(indent);
        }
    } else if let Some(table) = item.as_table_like_mut() {
        set(table, key, new);
    }
}

/// The table `key`, made behind its siblings where it is not there.
pub(crate) fn table_in<'a>(
    item: &'a mut Item,
    key: &str,
    like: Option<&str>,
) -> Option<&'a mut Item> {
    let is_new = !item.as_table_like()?.contains_key(key);
    if is_new {
        match item {
            Item::Table(parent) => {
                let mut table = Table::new();
                let indent = match like {
                    Some(indent) => indent.to_owned(),
                    None => key_indent(parent),
                };
                table.decor_mut().set_prefix(format!("\n{indent}"));
                parent.insert(key, Item::Table(table));
            }
            _ => {
                item.as_table_like_mut()?.insert(key, value(toml_edit::InlineTable::new()));
            }
        }
    }
    item.as_table_like_mut()?.get_mut(key)
}

/// A copy of a table to stand behind its siblings: same keys, same indentation, without the
/// comments, which speak of the original.
pub(crate) fn copy(item: &Item) -> Item {
    let mut item = item.clone();
    strip(&mut item);
    item
}

fn strip(item: &mut Item) {
    let Item::Table(table) = item else { return };
    table.set_position(None);
    let prefix = format!("\n{}", header_indent(table));
    table.decor_mut().set_prefix(prefix);
    table.decor_mut().set_suffix("");
    for (mut key, item) in table.iter_mut() {
        let prefix = indent(key.leaf_decor().prefix().and_then(|raw| raw.as_str()));
        if item.is_value() {
            key.leaf_decor_mut().set_prefix(prefix);
        }
        if let Some(value) = item.as_value_mut() {
            value.decor_mut().set_suffix("");
        }
        strip(item);
    }
}

/// Appends to a list of texts what it lacks; the list as it should be.
pub(crate) fn with_all(old: &Value, wanted: &[&str]) -> Vec<String> {
    let mut list: Vec<String> =
        old.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    for text in wanted {
        if !list.iter().any(|have| have == text) {
            list.push((*text).to_owned());
        }
    }
    list
}

/// A list of texts.
pub(crate) fn list(texts: &[String]) -> toml_edit::Value {
    texts.iter().map(String::as_str).collect::<Array>().into()
}
