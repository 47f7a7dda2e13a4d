//! The time of day, as the API server reads it.

use k8s_openapi::jiff::Timestamp;

/// RFC 3339 in whole seconds: `2026-01-31T12:00:00Z`.
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
