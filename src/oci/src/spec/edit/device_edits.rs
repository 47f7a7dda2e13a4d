//! Edits of `linux.devices` and of the rules in `linux.resources.devices`.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::lists::{list, put, retain};
use super::{Edit, EditError};
use crate::spec::device::{DeviceRule, device, device_rule};

/// The end of character majors: `CHRDEV_MAJOR_MAX` of Linux is 512.
const CHARACTER_MAJORS: u32 = 512;
/// The most rules without a major that are replaced. Engines write one; each becomes some 500.
pub const REPLACED_MAX: usize = 64;
const RULES: [&str; 3] = ["linux", "resources", "devices"];

pub(super) fn apply(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    nodes(document, edits)?;
    rules(document, edits)
}

fn nodes(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    let mut rest = edits
        .iter()
        .filter(|edit| matches!(edit, Edit::AddDevice { .. } | Edit::RemoveDevice { .. }))
        .peekable();
    while let Some(edit) = rest.next() {
        if let Edit::RemoveDevice { major, minor } = edit {
            let mut gone = HashSet::from([(*major, *minor)]);
            while let Some(Edit::RemoveDevice { major, minor }) = rest.peek() {
                gone.insert((*major, *minor));
                rest.next();
            }
            retain(document, &["linux", "devices"], |d| {
                device(d).is_none_or(|d| !d.is_character() || !gone.contains(&(d.major, d.minor)))
            });
            continue;
        }
        let mut added = Vec::new();
        let mut next = Some(edit);
        while let Some(Edit::AddDevice { path, major, minor, uid }) = next {
            let node = json!({
                "path": path, "type": "c", "major": major, "minor": minor,
                "fileMode": 0o666, "uid": uid, "gid": 0
            });
            added.push((path.as_str(), node));
            next = rest.next_if(|edit| matches!(edit, Edit::AddDevice { .. }));
        }
        put(list(document, &["linux", "devices"])?, "path", added);
    }
    Ok(())
}

fn rules(document: &mut Value, edits: &[Edit]) -> Result<(), EditError> {
    let mut rest = edits.iter().peekable();
    while let Some(edit) = rest.next() {
        match edit {
            Edit::RemoveRules { major, minor } => {
                let mut gone = Removed::default();
                gone.insert(*major, *minor);
                while let Some(Edit::RemoveRules { major, minor }) = rest.peek() {
                    gone.insert(*major, *minor);
                    rest.next();
                }
                retain(document, &RULES, |rule| device_rule(rule).is_none_or(|r| !gone.has(&r)));
            }
            Edit::CloseAllowAll { except } => close(document, except),
            Edit::OpenAllBut { except } => open_all_but(list(document, &RULES)?, except),
            Edit::AddDevice { major, minor, .. } => {
                let rule = json!({
                    "allow": true, "type": "c", "major": major, "minor": minor, "access": "rw"
                });
                let rules = list(document, &RULES)?;
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a run of [`Edit::RemoveRules`] removes, by major: every rule, or those that open one of
/// some minors.
#[derive(Default)]
struct Removed(HashMap<u32, (bool, HashSet<u32>)>);

impl Removed {
    fn insert(&mut self, major: u32, minor: Option<u32>) {
        let (every, some) = self.0.entry(major).or_default();
        match minor {
            Some(minor) => {
                some.insert(minor);
            }
            None => *every = true,
        }
    }

    fn has(&self, rule: &DeviceRule<'_>) -> bool {
        let Some((major, (every, some))) = rule.major.and_then(|m| self.0.get_key_value(&m)) else {
            return false;
        };
        rule.allow
            && rule.covers(*major, None)
            && (*every || rule.minor.is_none_or(|minor| some.contains(&minor)))
    }
}

fn close(document: &mut Value, except: &[u32]) {
    let found = RULES.iter().try_fold(document, |value, key| value.get_mut(key));
    let Some(rules) = found.and_then(Value::as_array_mut) else { return };
    let opens = |rule: &Value| device_rule(rule).is_some_and(|rule| rule.opens_every_major());
    let count = rules.iter().filter(|rule| opens(rule)).take(REPLACED_MAX + 1).count();
    if count == 0 || count > REPLACED_MAX {
        return;
    }
    let mut seen: Vec<Value> = Vec::new();
    let replaced = std::mem::take(rules).into_iter().flat_map(|rule| {
        let Some(found) = device_rule(&rule).filter(DeviceRule::opens_every_major) else {
            seen.clear();
            return vec![rule];
        };
        // Consecutive rules with the same effect become one.
        let wanted = enumerated(&found, except);
        let again = seen == wanted;
        seen.clone_from(&wanted);
        if again { Vec::new() } else { wanted }
    });
    *rules = replaced.collect();
}

/// Turns a rule for every major into one rule for each remaining major, and one for block devices
/// if it applied to these too.
fn enumerated(rule: &DeviceRule<'_>, except: &[u32]) -> Vec<Value> {
    let named = rule.major.map_or(0..CHARACTER_MAJORS, |major| major..major.saturating_add(1));
    let of = |kind: &str, major: Option<u32>| {
        let mut new = Map::new();
        new.insert("allow".to_owned(), json!(true));
        new.insert("type".to_owned(), json!(kind));
        for (key, number) in [("major", major), ("minor", rule.minor)] {
            new.extend(number.map(|number| (key.to_owned(), json!(number))));
        }
        let access = if rule.access.is_empty() { "rwm" } else { rule.access };
        new.insert("access".to_owned(), json!(access));
        Value::Object(new)
    };
    let block = (rule.kind != "c").then(|| of("b", rule.major));
    let kept = named.filter(|major| !except.contains(major)).map(|major| of("c", Some(major)));
    kept.chain(block).collect()
}

fn open_all_but(rules: &mut Vec<Value>, except: &[u32]) {
    let denies_all = |rule: &Value| device_rule(rule).is_some_and(|rule| rule.denies_all());
    if rules.first().is_some_and(denies_all) {
        return;
    }
    let everything = DeviceRule { allow: true, kind: "a", major: None, minor: None, access: "rwm" };
    let deny = json!({ "allow": false, "access": "rwm" });
    let front = std::iter::once(deny).chain(enumerated(&everything, except));
    rules.splice(0..0, front);
}
