//! The time of day, as the API server reads it.

use k8s_openapi::jiff::Timestamp;

/// RFC 3339, of milliseconds since 1970. A time that no calendar has is the last one.
pub(crate) fn text_of(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

/// Milliseconds since 1970, of RFC 3339.
pub(crate) fn ms_of(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_millisecond()).ok()
}

/// RFC 3339 in whole seconds: `2026-01-31T12:00:00Z`.
#[must_use]
pub fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
