//! The command lines of engines: they are Go programs, whose flags have one dash or two.

use std::path::PathBuf;

/// Every value of a flag: `--name VALUE`, `--name=VALUE`, and the same with one dash.
pub(crate) fn values(line: &[String], names: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = line.iter().skip(1);
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            continue;
        };
        match flag.split_once('=') {
            Some((name, value)) if names.contains(&name) => found.push(value.to_owned()),
            None if names.contains(&flag) => found.extend(words.next().cloned()),
            _ => {}
        }
    }
    found
}

/// The file that a flag names, the last time that it is there.
pub(crate) fn file(line: &[String], names: &[&str]) -> Option<PathBuf> {
    values(line, names).pop().filter(|path| !path.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{containerd, docker};

    #[test]
    fn settings_are_where_the_command_line_says() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        for (line, expected) in [
            ("/usr/bin/containerd", None),
            ("containerd -c /a/b.toml --root /x", Some("/a/b.toml")),
            ("containerd --config=/c.toml", Some("/c.toml")),
            ("containerd -config /c.toml --config /d.toml", Some("/d.toml")),
            ("containerd --config", None),
            ("containerd --config=", None),
            // k3s and MicroK8s.
            (
                "containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml",
                Some("/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
            ),
        ] {
            let found = containerd::settings(&words(line));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{line}");
        }
        for (line, expected) in [
            ("/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock", None),
            ("dockerd --config-file /x.json", Some("/x.json")),
            ("dockerd --config-file=/x.json --debug", Some("/x.json")),
        ] {
            let found = docker::settings(&words(line));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{line}");
        }
    }
}
