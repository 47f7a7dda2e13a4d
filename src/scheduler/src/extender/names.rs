//! What a name of Kubernetes looks like. Whatever comes from outside is held against this before it
//! goes into a path, a log or an answer.

/// The longest name of a pod or a node.
const SUBDOMAIN: usize = 253;
/// The longest name of a namespace.
const LABEL: usize = 63;
/// More than any uid: API servers make 36 characters, kubelets 32.
const UID: usize = 64;

/// Whether it may be the name of a pod or a node (RFC 1123, a subdomain).
pub(crate) fn is_name(text: &str) -> bool {
    text.len() <= SUBDOMAIN && text.split('.').all(is_part)
}

/// Whether it may be the name of a namespace (RFC 1123, a label).
pub(crate) fn is_namespace(text: &str) -> bool {
    text.len() <= LABEL && is_part(text)
}

/// Whether it may be a uid. Kubernetes says nothing of how they look; these letters mean nothing
/// anywhere else.
pub(crate) fn is_uid(text: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_');
    (1..=UID).contains(&text.len()) && text.bytes().all(plain)
}

fn is_part(text: &str) -> bool {
    let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inside = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    edge(text.bytes().next()) && edge(text.bytes().last()) && text.bytes().all(inside)
}

/// Foreign text for an error: on one line, without what steers a terminal, and short.
pub(crate) fn shown(text: &str) -> String {
    const LONGEST: usize = 120;
    let mut shown: String = text.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths_queries_and_what_no_name_can_be() {
        let long = "a".repeat(253);
        for name in ["a", "web-0", "1", "n1.example.com", "a--b", "0.0", &long] {
            assert!(is_name(name), "{name}");
        }
        let longer = "a".repeat(254);
        for none in [
            "",
            ".",
            "..",
            "../../nodes/n1?",
            "a/b",
            "p/log?tailLines=5",
            "a?x=",
            "a#",
            "a%2e",
            "A",
            "-a",
            "a-",
            "a..b",
            ".a",
            "a.",
            "a b",
            "a\n",
            "a\0",
            "ä",
            "a_b",
            "a:b",
            "\u{202e}a",
            &longer,
        ] {
            assert!(!is_name(none), "{none:?}");
            assert!(!is_namespace(none), "{none:?}");
        }
        assert!(is_namespace("kube-system") && is_namespace(&"a".repeat(63)));
        assert!(!is_namespace("a.b") && !is_namespace(&"a".repeat(64)));
        for uid in
            ["f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "d41d8cd98f00b204e9800998ecf8427e", "u_1"]
        {
            assert!(is_uid(uid), "{uid}");
        }
        for none in ["", "a/b", "a b", "a.b", "ü", "a\n", &"a".repeat(65)] {
            assert!(!is_uid(none), "{none:?}");
        }
    }

    #[test]
    fn foreign_text_is_shown_on_one_line_and_cut() {
        assert_eq!(shown("plain"), "plain");
        assert_eq!(shown("\u{1b}]0;x\u{7}\n\u{202e}\""), "\\u{1b}]0;x\\u{7}\\n\\u{202e}\\\"");
        assert_eq!(shown(&"x".repeat(3_000_000)).chars().count(), 121);
    }
}
