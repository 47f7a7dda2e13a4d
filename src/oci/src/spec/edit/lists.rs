//! Objects and lists of a document that edits change. They are made if they are absent.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::EditError;

pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// Puts each new item in the place of the first item with the same name under `key`, drops the
/// others of that name, and appends the rest. Of two new items with one name the later counts.
pub(super) fn put(items: &mut Vec<Value>, key: &str, new: Vec<(&str, Value)>) {
    let mut slots: Vec<Option<Value>> = Vec::with_capacity(new.len());
    let mut of_name: HashMap<&str, usize> = HashMap::new();
    for (name, item) in new {
        let at = *of_name.entry(name).or_insert(slots.len());
        match slots.get_mut(at) {
            Some(slot) => *slot = Some(item),
            None => slots.push(Some(item)),
        }
    }
    items.retain_mut(|old| {
        let slot =
            text(old, key).and_then(|name| of_name.get(name)).and_then(|at| slots.get_mut(*at));
        // The slot of a name is empty once its item was put.
        slot.is_none_or(|slot| slot.take().map(|new| *old = new).is_some())
    });
    items.extend(slots.into_iter().flatten());
}

/// Keeps items of a list. An absent list stays absent.
pub(super) fn retain(document: &mut Value, path: &[&str], keep: impl Fn(&Value) -> bool) {
    let found = path.iter().try_fold(document, |value, key| value.get_mut(key));
    if let Some(items) = found.and_then(Value::as_array_mut) {
        items.retain(keep);
    }
}

/// The object member `key`, made if it is absent or null.
pub(super) fn child<'a>(
    parent: &'a mut Value,
    key: &str,
    path: &str,
) -> Result<&'a mut Value, EditError> {
    let found = crate::json_type(parent);
    let object = parent.as_object_mut().ok_or_else(|| EditError::Type {
        path: path.rsplit_once('.').map_or("config.json", |(parent, _)| parent).to_owned(),
        found,
        expected: "an object",
    })?;
    let value = object.entry(key).or_insert(Value::Null);
    if value.is_null() {
        *value = Value::Object(Map::new());
    }
    Ok(value)
}

/// The list at a path, made with its parents if they are absent or null.
pub(super) fn list<'a>(
    document: &'a mut Value,
    path: &[&str],
) -> Result<&'a mut Vec<Value>, EditError> {
    let mut value = document;
    let mut dotted = String::new();
    for (i, key) in path.iter().enumerate() {
        if i > 0 {
            dotted.push('.');
        }
        dotted.push_str(key);
        let last = i + 1 == path.len();
        value = child(value, key, &dotted)?;
        if last && value.as_object().is_some_and(Map::is_empty) {
            *value = Value::Array(Vec::new());
        }
    }
    let found = crate::json_type(value);
    value.as_array_mut().ok_or(EditError::Type { path: dotted, found, expected: "a list" })
}
