//! A handler of containerd.

use serde_json::Value;

use super::RUNC_TYPE;
use crate::ANNOTATIONS;

/// Its program, below `options`.
pub(super) const BINARY: &str = "BinaryName";
/// Which annotations reach its containers.
pub(super) const LISTS: [&str; 2] = ["pod_annotations", "container_annotations"];

/// A handler.
#[derive(Debug, Clone)]
pub(super) struct Handler {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) program: String,
    pub(super) table: Value,
}

impl Handler {
    pub(super) fn built_in() -> Self {
        Self::of("runc", &serde_json::json!({ "runtime_type": RUNC_TYPE }))
    }

    pub(super) fn of(name: &str, table: &Value) -> Self {
        let text = |pointer: &str| {
            table.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty())
        };
        Self {
            name: name.to_owned(),
            // containerd 2 fills in the built-in handler's type.
            kind: text("/runtime_type").unwrap_or(RUNC_TYPE).to_owned(),
            program: text("/options/BinaryName").unwrap_or("runc").to_owned(),
            table: table.clone(),
        }
    }

    pub(super) fn is_runc_type(&self) -> bool {
        self.kind == RUNC_TYPE || self.kind == "io.containerd.runc.v1"
    }

    pub(super) fn has_annotations(&self) -> bool {
        LISTS.iter().all(|key| {
            let list = self.table.get(key).and_then(Value::as_array);
            ANNOTATIONS
                .iter()
                .all(|wanted| list.is_some_and(|list| list.iter().any(|have| have == wanted)))
        })
    }
}
