//! Opaque parameters: the part of a claim or a DeviceClass, beside amounts, that the driver reads.
//!
//! ```yaml
//! opaque:
//!   driver: mpsgate.io
//!   parameters: {apiVersion: mpsgate.io/v1alpha1, kind: Grant, priority: low, computePercent: 30}
//! ```
//!
//! The API server accepts any JSON object here, so only this file finds a mistake. Unknown fields
//! are refused: a setting that is ignored is a promise that is not kept.

use mpsgate_model::{ComputeShare, Priority, printable};
use serde::Deserialize;

/// The version of parameters that is read.
pub const API_VERSION: &str = "mpsgate.io/v1alpha1";
/// The one kind of parameters.
pub const KIND: &str = "Grant";
/// The most bytes of parameters that the API server takes (`OpaqueParametersMaxLength` of
/// k8s.io/api resource/v1, "smaller or equal to 10 Ki").
pub const PARAMETERS_MAX: usize = 10 * 1024;

/// Why parameters are refused. Quoted text is printable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParametersError {
    /// More than the API server accepts.
    #[error("they have {0} bytes, of {PARAMETERS_MAX} that Kubernetes takes")]
    TooLong(usize),
    /// No JSON object, an unknown field, a duplicate field, or a value of another type.
    #[error("{0}")]
    Unreadable(String),
    /// Another version, or none.
    #[error("their apiVersion is \"{0}\", and this driver reads {API_VERSION}")]
    Version(String),
    /// Another kind, or none.
    #[error("their kind is \"{0}\", and this driver reads {KIND}")]
    Kind(String),
    /// The priority is neither word.
    #[error("priority is \"{0}\", which is neither normal nor low")]
    Priority(String),
    /// The share of compute is out of range.
    #[error("computePercent is {0}, which is not 1 to 100")]
    Compute(i64),
}

/// What parameters set for a grant. A field that they do not set is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Grant {
    /// Scheduling priority.
    pub priority: Option<Priority>,
    /// The most of the card's compute, in percent: a smaller consumed share counts.
    pub compute: Option<ComputeShare>,
}

/// The smaller of two ceilings. `None` is no ceiling.
pub(crate) fn smaller(
    one: Option<ComputeShare>,
    other: Option<ComputeShare>,
) -> Option<ComputeShare> {
    match (one, other) {
        (Some(one), Some(other)) => Some(ComputeShare(one.0.min(other.0))),
        (one, other) => one.or(other),
    }
}

/// Read before the rest: in another version the fields may have another meaning.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    // Not the enumeration, because serde would accept `{low: null}` for it, too.
    #[serde(default)]
    priority: Option<String>,
    #[serde(default)]
    compute_percent: Option<i64>,
}

impl Grant {
    /// Reads parameters from their JSON.
    ///
    /// A duplicate field is found only in the original text. In a claim that was decoded before,
    /// only the last of the two is left, as with any JSON.
    ///
    /// # Errors
    /// See [`ParametersError`].
    pub fn parse(text: &str) -> Result<Self, ParametersError> {
        if text.len() > PARAMETERS_MAX {
            return Err(ParametersError::TooLong(text.len()));
        }
        // serde's error quotes the text.
        let unreadable = |error: serde_json::Error| {
            ParametersError::Unreadable(printable::value(&error.to_string()).into_owned())
        };
        let quoted = |text: &str| printable::value(text).into_owned();
        // serde would accept a list of the fields' values, too.
        if !text.trim_ascii_start().starts_with('{') {
            return Err(ParametersError::Unreadable("they are no JSON object".to_owned()));
        }
        let header: Header = serde_json::from_str(text).map_err(unreadable)?;
        if header.api_version != API_VERSION {
            return Err(ParametersError::Version(quoted(&header.api_version)));
        }
        if header.kind != KIND {
            return Err(ParametersError::Kind(quoted(&header.kind)));
        }
        let wire: Wire = serde_json::from_str(text).map_err(unreadable)?;
        let percent = |value: i64| match u8::try_from(value) {
            Ok(share @ 1..=100) => Ok(ComputeShare(share)),
            _ => Err(ParametersError::Compute(value)),
        };
        let compute = wire.compute_percent.map(percent).transpose()?;
        let level = |text: String| match text.as_str() {
            "normal" => Ok(Priority::Normal),
            "low" => Ok(Priority::Low),
            other => Err(ParametersError::Priority(quoted(other))),
        };
        let priority = wire.priority.map(level).transpose()?;
        Ok(Self { priority, compute })
    }

    /// Merges parameters of one author, field by field: `later` wins.
    #[must_use]
    pub fn merge(self, later: Self) -> Self {
        Self { priority: later.priority.or(self.priority), compute: later.compute.or(self.compute) }
    }

    /// Merges parameters of two authors, field by field: the lower priority and the smaller share
    /// win. So a claim cannot exceed what a DeviceClass sets.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        let priority = match (self.priority, other.priority) {
            (Some(Priority::Low), _) | (_, Some(Priority::Low)) => Some(Priority::Low),
            (one, other) => one.or(other),
        };
        Self { priority, compute: smaller(self.compute, other.compute) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    const HEAD: &str = r#""apiVersion":"mpsgate.io/v1alpha1","kind":"Grant""#;

    fn parse(fields: &str) -> Result<Grant, ParametersError> {
        Grant::parse(&format!("{{{HEAD}{fields}}}"))
    }

    #[test]
    fn reads_what_is_written_and_nothing_more() {
        let grant =
            |priority, compute: Option<u8>| Grant { priority, compute: compute.map(ComputeShare) };
        for (fields, expected) in [
            ("", grant(None, None)),
            (r#","priority":"low""#, grant(Some(Priority::Low), None)),
            (r#","priority":"normal""#, grant(Some(Priority::Normal), None)),
            (r#","priority":null"#, grant(None, None)),
            (r#","computePercent":1"#, grant(None, Some(1))),
            (r#","computePercent":100,"priority":"low""#, grant(Some(Priority::Low), Some(100))),
        ] {
            assert_eq!(parse(fields), Ok(expected), "{fields}");
        }
    }

    #[test]
    fn refuses_what_it_would_have_to_pass_over() {
        for (fields, part) in [
            (r#","memory":"7Gi""#, "unknown field `memory`"),
            (r#","ComputePercent":30"#, "unknown field `ComputePercent`"),
            (r#","priority":"low","priority":"low""#, "duplicate field `priority`"),
            (r#","kind":"Grant""#, "duplicate field `kind`"),
            (r#","priority":"high""#, "priority is \"high\", which is neither"),
            (r#","priority":"Low""#, "priority is \"Low\""),
            (r#","priority":{"low":null}"#, "invalid type"),
            (r#","priority":1"#, "invalid type"),
            (r#","computePercent":0"#, "computePercent is 0, which is not 1 to 100"),
            (r#","computePercent":101"#, "computePercent is 101"),
            (r#","computePercent":-1"#, "computePercent is -1"),
            (r#","computePercent":256"#, "computePercent is 256"),
            (r#","computePercent":99999999999999999999"#, "invalid type"),
            (r#","computePercent":30.5"#, "invalid type"),
            (r#","computePercent":"30""#, "invalid type"),
            (r#","a\u001b[2J":1"#, "unknown field"),
        ] {
            let text = parse(fields).unwrap_err().to_string();
            assert!(text.contains(part), "{fields}: {text}");
            assert!(!text.contains(char::is_control), "{fields}: {text:?}");
        }
    }

    #[test]
    fn names_another_version_before_its_fields() {
        for (text, part) in [
            (r#"{"apiVersion":"mpsgate.io/v2","kind":"Grant","new":1}"#, "\"mpsgate.io/v2\""),
            (r#"{"apiVersion":"mpsgate.io/v1alpha1","kind":"GpuConfig"}"#, "kind is \"GpuConfig\""),
            (r#"{"kind":"Grant"}"#, "apiVersion is \"\""),
            (r#"{"apiVersion":"mpsgate.io/v1alpha1"}"#, "kind is \"\""),
            (r#"{"apiVersion":"\n","kind":"Grant"}"#, "apiVersion is \"\\n\""),
            ("null", "no JSON object"),
            (r#"["mpsgate.io/v1alpha1","Grant"]"#, "no JSON object"),
            ("7", "no JSON object"),
            ("", "no JSON object"),
            ("{", "EOF"),
        ] {
            let error = Grant::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = format!("{{{HEAD}}}{}", " ".repeat(PARAMETERS_MAX));
        assert_eq!(Grant::parse(&long), Err(ParametersError::TooLong(long.len())));
    }

    #[test]
    fn later_words_count_field_by_field() {
        let class = Grant { priority: Some(Priority::Low), compute: Some(ComputeShare(30)) };
        let claim = Grant { priority: None, compute: Some(ComputeShare(50)) };
        let both = Grant { priority: Some(Priority::Low), compute: Some(ComputeShare(50)) };
        assert_eq!(class.merge(claim), both);
        assert_eq!(both.merge(Grant::default()), both);
    }

    #[test]
    fn of_two_authors_the_stricter_counts_field_by_field() {
        let grant =
            |priority, compute: Option<u8>| Grant { priority, compute: compute.map(ComputeShare) };
        let (low, normal) = (Some(Priority::Low), Some(Priority::Normal));
        for (one, other, expected) in [
            (grant(None, None), grant(None, None), grant(None, None)),
            (grant(low, Some(10)), grant(normal, Some(100)), grant(low, Some(10))),
            (grant(low, Some(100)), grant(normal, Some(10)), grant(low, Some(10))),
            (grant(low, None), grant(None, Some(30)), grant(low, Some(30))),
            (grant(normal, Some(30)), grant(None, None), grant(normal, Some(30))),
            (grant(normal, None), grant(normal, None), grant(normal, None)),
            (grant(low, Some(1)), grant(low, Some(1)), grant(low, Some(1))),
        ] {
            assert_eq!(one.stricter(other), expected, "{one:?} and {other:?}");
            assert_eq!(other.stricter(one), expected, "whoever says what");
        }
    }
}
