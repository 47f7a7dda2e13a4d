//! Paths inside a container by their text alone: nothing here looks at a file system.

use std::borrow::Cow;

/// The shortest path that means the same lexically, as Go's `filepath.Clean` makes it: NVIDIA's
/// toolkit and runc compare paths in this form, and engines hand them over as they were written.
#[must_use]
pub fn clean(path: &str) -> Cow<'_, str> {
    let rooted = path.starts_with('/');
    let inner = path.strip_prefix('/').unwrap_or(path);
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    if inner.split('/').all(is_name) || path == "/" {
        return Cow::Borrowed(path);
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in inner.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| is_name(last)) => {
                parts.pop();
            }
            // Nothing lies above the root.
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    Cow::Owned(match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    })
}

/// Where a mount's destination lies in its container: a relative one lies below the root (runc's
/// `createLibcontainerMount`).
#[must_use]
pub fn inside(destination: &str) -> Cow<'_, str> {
    if destination.starts_with('/') {
        return clean(destination);
    }
    Cow::Owned(clean(&format!("/{destination}")).into_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_is_cleaned_as_go_does() {
        for (path, cleaned) in [
            ("/var/run/x", "/var/run/x"),
            ("/", "/"),
            ("//", "/"),
            ("/var/run//x", "/var/run/x"),
            ("//var/./run/x/.", "/var/run/x"),
            ("/var/run/x/", "/var/run/x"),
            ("/tmp/../var/run/x", "/var/run/x"),
            ("/../../var/run", "/var/run"),
            ("/var/run/a/../../x", "/var/x"),
            ("/..", "/"),
            ("", "."),
            (".", "."),
            ("a/..", "."),
            ("a/../..", ".."),
            ("../../a", "../../a"),
            ("./a//b/", "a/b"),
            ("/a/...", "/a/..."),
        ] {
            assert_eq!(clean(path), cleaned, "{path:?}");
        }
    }

    #[test]
    fn a_relative_destination_lies_below_the_root() {
        for (path, place) in
            [("run//x", "/run/x"), ("../x", "/x"), ("/run/./x", "/run/x"), ("", "/")]
        {
            assert_eq!(inside(path), place, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn cleaned_twice_is_cleaned_once(path in "[a./]{0,12}") {
            let once = clean(&path).into_owned();
            prop_assert_eq!(clean(&once).into_owned(), once.clone());
            prop_assert_eq!(once.starts_with('/'), path.starts_with('/'));
        }
    }
}
