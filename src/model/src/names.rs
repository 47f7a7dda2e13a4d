//! Names and uids of Kubernetes. Text from outside is checked here before it is used in a path, a
//! command, a log or an answer.

/// The longest label.
const LABEL: usize = 63;
/// The longest name.
const NAME: usize = 253;
/// Longer than any uid: API servers make 36 characters, kubelets 32.
const UID: usize = 63;

/// Whether `text` may be the name of a node, a pod or a claim (RFC 1123, a subdomain, whose labels
/// Kubernetes allows to be longer).
#[must_use]
pub fn is_name(text: &str) -> bool {
    text.len() <= NAME && text.split('.').all(is_part)
}

/// Whether `text` may be the name of a namespace, or of a claim's request (RFC 1123, a label).
#[must_use]
pub fn is_label(text: &str) -> bool {
    text.len() <= LABEL && is_part(text)
}

/// Whether `text` may be a uid. Kubernetes makes UUIDs but does not promise them; the characters
/// that are accepted have no meaning in a file's name, a path of the API server or a CDI name.
#[must_use]
pub fn is_uid(text: &str) -> bool {
    text.len() <= UID && is_word(text, |byte| byte.is_ascii_alphanumeric())
}

fn is_part(text: &str) -> bool {
    is_word(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Plain characters, and hyphens between them.
fn is_word(text: &str, plain: impl Fn(u8) -> bool) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && !text.ends_with('-')
        && text.bytes().all(|byte| byte == b'-' || plain(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_queries_and_the_like_are_not_names() {
        let long = "a".repeat(253);
        for name in ["a", "web-0", "1", "n1.example.com", "a--b", "0.0", "0.b-c.d", &long] {
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
            assert!(!is_label(none), "{none:?}");
        }
        assert!(is_label("kube-system") && is_label(&"a".repeat(63)));
        assert!(!is_label("a.b") && !is_label(&"a".repeat(64)));
    }

    #[test]
    fn a_uid_is_a_plain_word() {
        for uid in
            ["f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "d41d8cd98f00b204e9800998ecf8427e", "0f2c-AB"]
        {
            assert!(is_uid(uid), "{uid}");
        }
        for none in ["", ".", "..", "a/b", "a b", "a.b", "a_b", "ü", "a\n", "-a", "a-"] {
            assert!(!is_uid(none), "{none:?}");
        }
        assert!(is_uid(&"a".repeat(63)) && !is_uid(&"a".repeat(64)));
    }
}
