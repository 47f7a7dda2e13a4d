//! The answer to a review.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mpsgate_cluster::admission::Said;
use mpsgate_model::{Code, Refusal, printable};
use serde_json::{Value, json};

use super::Unreadable;
use super::review_wire::Request;

/// The API server cuts a warning that is longer (`k8s.io/api/admission/v1`,
/// `AdmissionResponse.Warnings`).
const LONGEST_WARNING: usize = 256;
/// It shows no more of them than 4,096 characters.
const MOST_WARNINGS: usize = 16;
/// Containers whose refusals are told. The others are counted: who mends these sees the next.
const TOLD: usize = 4;
/// Bytes of a refusal. Controllers copy it into a condition and an event, and `kubectl` prints it.
const LONGEST_REFUSAL: usize = 4096;

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
        if self.warnings.len() >= MOST_WARNINGS {
            return self;
        }
        self.add(&format!("mpsgate: container {container:?}: {refusal}"));
        self.add(&format!("mpsgate: hint: {}", refusal.hint));
        self
    }

    /// What a node would say of the first containers, and how many others there are. What is the
    /// whole pod's, the first of them is told.
    pub(super) fn refuse(mut self, refused: &[Said]) -> Self {
        let mut texts: Vec<String> = Vec::new();
        let (mut told, mut others) = (Vec::new(), BTreeSet::new());
        let mut of_pod: Option<&Refusal> = None;
        for (container, refusal) in refused {
            if refusal.code == Code::Handler && of_pod == Some(refusal) {
                continue;
            }
            if !told.contains(&container) {
                if told.len() == TOLD {
                    others.insert(container);
                    continue;
                }
                told.push(container);
            }
            if refusal.code == Code::Handler {
                of_pod = Some(refusal);
            }
            texts.push(refusal.render(container));
        }
        if texts.is_empty() {
            return self;
        }
        let more = match others.len() {
            0 => String::new(),
            more => format!("\nmpsgate: and {more} more containers are refused"),
        };
        let most = LONGEST_REFUSAL.saturating_sub(more.len());
        self.refused = Some(printable::cut_bytes(texts.join("\n"), most) + &more);
        self
    }

    pub(super) fn patch(mut self, patch: Option<Value>) -> Self {
        self.patch = patch;
        self
    }

    /// Once, as a header of HTTP takes it, on one line, and as a terminal shows it: a node's words
    /// are in it.
    fn add(&mut self, text: &str) {
        let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = printable::cut(&printable::plain(&line), LONGEST_WARNING).into_owned();
        if self.warnings.len() < MOST_WARNINGS && !self.warnings.contains(&line) {
            self.warnings.push(line);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;

    #[test]
    fn a_warning_is_one_line_that_is_read_as_it_is_written() {
        let request: Request<'_> = serde_json::from_str(r#"{"uid":"u"}"#).unwrap();
        let refusal = Refusal::new(Code::Handler, "a node\u{202e}x", "do\nthis\u{2066}\u{2029}");
        let reply = Reply::to(&request).unwrap().warn("gpu-\u{202e}1\n2").warn_of("c", &refusal);
        let answer: Value = serde_json::from_slice(&reply.render()).unwrap();
        let said: Vec<&str> = answer["response"]["warnings"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        assert_eq!(said.first(), Some(&"mpsgate: gpu-\u{fffd}1 2"));
        assert_eq!(said.last(), Some(&"mpsgate: hint: do this\u{fffd}\u{fffd}"));
        assert_eq!(said.len(), 3);
        assert!(said.iter().all(|line| *line == printable::plain(line)), "{said:?}");
    }
}
