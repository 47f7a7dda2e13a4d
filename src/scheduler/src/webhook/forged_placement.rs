//! Where a scheduler put a pod stands in annotations of the pod. A scheduler writes them as it
//! binds; from anybody else they are forged.

use mpsgate_kubernetes::{PLACEMENT, WRITTEN};
use mpsgate_model::{Code, GPU_COUNT, Refusal};

use super::review_wire::{Metadata, User};

/// Whether the request is `account`'s: `system:serviceaccount:NAMESPACE:NAME`.
pub(super) fn is_by(user: Option<&User>, account: Option<&str>) -> bool {
    let name = user.map_or("", |user| user.username.as_str());
    !name.is_empty() && account == Some(name)
}

/// A new pod that says where it was put. The other systems' words are theirs where the pod asks for
/// nothing of ours.
pub(super) fn brought(metadata: &Metadata, asks: bool) -> Option<Refusal> {
    let forged = WRITTEN
        .into_iter()
        .find(|name| metadata.annotations.has(name) && (asks || *name == PLACEMENT))?;
    let found = format!(
        "its pod brings the annotation {forged}, which a scheduler alone writes when it has placed a pod"
    );
    Some(Refusal::new(Code::Unconfirmed, found, format!("remove the annotation {forged}")))
}

/// An update that says something else about where a pod was put, or on how many cards its memory
/// was counted there. Words of the other systems are their schedulers' to write, on pods that
/// mpsgate's has not placed.
pub(super) fn changed(now: &Metadata, then: &Metadata, counted: bool) -> Option<Refusal> {
    let ours = now.annotations.has(PLACEMENT) || then.annotations.has(PLACEMENT);
    let differs = |name: &str| now.annotations.known.get(name) != then.annotations.known.get(name);
    if let Some(forged) =
        WRITTEN.into_iter().find(|name| differs(name) && (ours || *name == PLACEMENT))
    {
        let found = format!(
            "the annotation {forged} says where its pod was placed, and a scheduler alone writes it"
        );
        let hint = format!("leave {forged} as it is; a pod that shall be elsewhere is made anew");
        return Some(Refusal::new(Code::Unconfirmed, found, hint));
    }
    (counted && now.labels.text(GPU_COUNT) != then.labels.text(GPU_COUNT)).then(|| {
        let found = format!(
            "its pod has its node, and by the label {GPU_COUNT} its memory is counted there"
        );
        Refusal::new(Code::Request, found, "make the pod anew with another number of cards")
    })
}

#[cfg(test)]
mod tests {
    use super::WRITTEN;

    #[test]
    fn the_charts_conditions_name_what_a_scheduler_writes() {
        let helpers = include_str!("../../../../packaging/kubernetes/chart/templates/_helpers.tpl");
        let list = WRITTEN.map(|name| format!("'{name}'")).join(", ");
        assert!(helpers.contains(&format!("[{list}]")), "{list}");
    }
}
