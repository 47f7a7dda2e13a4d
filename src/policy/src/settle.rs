//! Edits are made, and what came out is evaluated anew. Whatever an edit misses is refused here:
//! the last word on a changed document, for the runtime and for `explain`.

use mpsgate_model::{Code, Refusal, printable};
use mpsgate_oci::spec::{Device, Document, Edit, EditError, View};

use crate::decision::Held;
use crate::{Node, Unruled, reach};

/// Why an edited document is not used. It may hold some of the edits and must not be written.
#[derive(Debug, thiserror::Error)]
pub enum Unsettled {
    /// An edit cannot be made.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// Something of a managed card is within reach.
    #[error(transparent)]
    Open(#[from] Refusal),
}

/// Makes the edits and looks at what came out.
///
/// # Errors
/// An edit that cannot be made, and a refusal where the edited document does not hold what it must.
pub fn settle(
    document: &mut Document,
    edits: &[Edit],
    held: Held,
    node: &Node,
    unruled: Unruled,
) -> Result<(), Unsettled> {
    document.apply(edits)?;
    if held == Held::Closed && !node.manages_nothing() {
        let added = edits.iter().filter_map(|edit| match edit {
            Edit::AddDevice { major, minor, .. } => Some((*major, *minor)),
            _ => None,
        });
        closed(document.view(), &added.collect::<Vec<_>>(), node, unruled)?;
    }
    Ok(())
}

fn closed(
    view: View<'_>,
    granted: &[(u32, u32)],
    node: &Node,
    unruled: Unruled,
) -> Result<(), Refusal> {
    let is_left = |device: &Device<'_>| {
        reach::managed(node, device).is_some() && !granted.contains(&(device.major, device.minor))
    };
    if let Some(device) = view.devices().find(is_left) {
        let Device { path, major, minor, .. } = device;
        return Err(still_open(
            Code::DeviceNode,
            &format!("the device {} ({major}:{minor}) of a managed GPU", printable::value(path)),
        ));
    }
    if unruled == Unruled::NoCgroup {
        return Err(Refusal::new(
            Code::DeviceRule,
            "no device cgroup keeps GPUs shut in it (--cgroups=disabled), and its rules count for nothing",
            "run it with a cgroup of its own (podman run without --cgroups=disabled)",
        ));
    }
    match reach::opened(view, node, unruled, granted).first() {
        None => Ok(()),
        Some((major, minor)) => {
            let minor = minor.map_or_else(|| "*".to_owned(), |minor| minor.to_string());
            Err(still_open(
                Code::DeviceRule,
                &format!("a device-cgroup rule that opens a managed GPU ({major}:{minor})"),
            ))
        }
    }
}

fn still_open(code: Code, what: &str) -> Refusal {
    Refusal::new(
        code,
        format!("{what} is left when everything is taken away that can be"),
        "name only the devices that it needs (docker run --device, --device-cgroup-rule), each by its major",
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "test code fails by panicking")]
    use mpsgate_oci::spec::parse;
    use serde_json::{Value, json};

    use super::*;
    use crate::node_facts::tests::node;

    /// Minors 4 and 5 are cards, of which the second is managed.
    fn after(rules: &Value, devices: &Value, edits: &[Edit], unruled: Unruled) -> Option<Code> {
        let spec = json!({ "linux": { "devices": devices, "resources": { "devices": rules } } });
        let mut document = parse(spec.to_string().as_bytes()).unwrap();
        let node = node(&[false, true]);
        match settle(&mut document, edits, Held::Closed, &node, unruled) {
            Ok(()) => None,
            Err(Unsettled::Open(refusal)) => Some(refusal.code),
            Err(Unsettled::Edit(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn whatever_the_edits_missed_is_refused() {
        let rule = |major: i64, minor: i64| json!({"allow": true, "type": "c", "major": major, "minor": minor, "access": "rw"});
        let closed = |rules: Value| after(&rules, &json!([]), &[], Unruled::Closed);
        for open in [rule(195, 5), rule(195, -1), rule(-1, 5), rule(-1, -1), rule(236, 7)] {
            assert_eq!(closed(json!([open])), Some(Code::DeviceRule), "{open}");
        }
        for shut in [rule(195, 4), rule(195, 255), rule(507, 0), rule(10, 229)] {
            assert_eq!(closed(json!([shut])), None, "{shut}");
        }
        let node = |minor| json!([{"path": "/x", "type": "c", "major": 195, "minor": minor}]);
        let left = |minor| after(&json!([]), &node(minor), &[], Unruled::Closed);
        assert_eq!((left(5), left(4), left(255)), (Some(Code::DeviceNode), None, None));
    }

    #[test]
    fn what_a_grant_adds_is_its_own() {
        let add = |minor| Edit::AddDevice { path: "/dev/g".to_owned(), major: 195, minor, uid: 0 };
        let none = json!([]);
        assert_eq!(after(&none, &none, &[add(5), add(255)], Unruled::Closed), None);
        let other = json!([{"allow": true, "type": "c", "major": 236}]);
        assert_eq!(after(&other, &none, &[add(5)], Unruled::Closed), Some(Code::DeviceRule));
    }

    #[test]
    fn what_is_open_without_a_rule_needs_one_that_closes_it() {
        let deny = json!([{"allow": false, "access": "rwm"}]);
        let other = json!([{"allow": true, "type": "c", "major": 10, "access": "rwm"}]);
        let none = json!([]);
        for (unruled, rules, open) in [
            (Unruled::Closed, &none, false),
            (Unruled::OpenWithoutRules, &none, true),
            (Unruled::OpenWithoutRules, &other, false),
            (Unruled::Open, &other, true),
            (Unruled::Open, &deny, false),
            (Unruled::NoCgroup, &deny, true),
        ] {
            let code = open.then_some(Code::DeviceRule);
            assert_eq!(after(rules, &none, &[], unruled), code, "{unruled:?} {rules}");
        }
    }
}
