//! The answer to a review.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mpsgate_cluster::admission::Said;
use mpsgate_model::Refusal;
use serde_json::{Value, json};

use super::Unreadable;
use super::wire::Request;

/// The API server cuts a warning that is longer (`k8s.io/api/admission/v1`,
/// `AdmissionResponse.Warnings`).
const LONGEST_WARNING: usize = 256;
/// It shows no more of them than 4,096 characters.
const MOST_WARNINGS: usize = 16;

/// Allowed, until somebody refuses it.
pub(super) struct Reply {
    uid: String,
    refused: Option<String>,
    patch: Option<Value>,
    warnings: Vec<String>,
}

impl Reply {
    pub(super) fn to(request: &Request<'_>) -> Result<Self, Unreadable> {
        let uid = request.uid.0.clone().filter(|uid| !uid.is_empty()).ok_or(Unreadable::NoUid)?;
        Ok(Self { uid, refused: None, patch: None, warnings: Vec::new() })
    }

    pub(super) fn warn(mut self, text: &str) -> Self {
        self.add(&format!("mpsgate: {text}"));
        self
    }

    /// What a node would say, and what to do, a warning each: both would be cut.
    pub(super) fn warn_of(mut self, container: &str, refusal: &Refusal) -> Self {
        self.add(&format!("mpsgate: container {container:?}: {refusal}"));
        self.add(&format!("mpsgate: hint: {}", refusal.hint));
        self
    }

    pub(super) fn refuse(mut self, refused: &[Said]) -> Self {
        let texts: Vec<String> =
            refused.iter().map(|(container, refusal)| refusal.render(container)).collect();
        self.refused = (!texts.is_empty()).then(|| texts.join("\n"));
        self
    }

    pub(super) fn patch(mut self, patch: Option<Value>) -> Self {
        self.patch = patch;
        self
    }

    /// Once, and as a header of HTTP takes it: on one line.
    fn add(&mut self, text: &str) {
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let cut: String = if line.chars().count() > LONGEST_WARNING {
            line.chars().take(LONGEST_WARNING - 1).chain(['…']).collect()
        } else {
            line
        };
        if self.warnings.len() < MOST_WARNINGS && !self.warnings.contains(&cut) {
            self.warnings.push(cut);
        }
    }

    pub(super) fn render(self) -> Vec<u8> {
        let mut response = json!({"uid": self.uid, "allowed": self.refused.is_none()});
        let mut set = |key: &str, value: Value| {
            if let Some(fields) = response.as_object_mut() {
                fields.insert(key.to_owned(), value);
            }
        };
        if let Some(message) = self.refused {
            set("status", json!({"code": 403, "reason": "Forbidden", "message": message}));
        }
        if let Some(patch) = self.patch {
            set("patchType", json!("JSONPatch"));
            set("patch", json!(STANDARD.encode(patch.to_string())));
        }
        if !self.warnings.is_empty() {
            set("warnings", json!(self.warnings));
        }
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
            .to_string()
            .into_bytes()
    }
}
