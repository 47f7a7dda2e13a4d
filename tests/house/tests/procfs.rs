//! A process chooses its name, and a container names of cgroups, which need not be text: a reader
//! of `/proc` that gives up there does not see the process.
//!
//! What a call reads is not to be seen in its line: the path may be on the next one, or in a
//! variable. So each call in the product is known here, with what it reads.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Files below `src` that read text which has to be some, how often, and what: none of it is below
/// `/proc`.
const READERS: [(&str, usize, &str); 13] = [
    ("cli/src/node_install/node_runtime.rs", 1, "the toolkit's settings"),
    ("configure/src/disk.rs", 1, "an engine's settings"),
    ("daemon/src/node_cdi.rs", 1, "a CDI specification"),
    ("daemon/src/container_cgroup.rs", 1, "cgroup.events: numbers"),
    (
        "daemon/src/container_cgroup/dmem.rs",
        3,
        "files of controllers, which the kernel names; pids",
    ),
    ("daemon/src/container_cgroup/kill.rs", 1, "freezer.state: a word"),
    ("daemon/src/container_cgroup/tree.rs", 1, "cgroup.procs: pids"),
    ("daemon/src/other_nodes.rs", 1, "a device's number in /sys"),
    ("daemon/src/runs/run_cgroup.rs", 1, "devices.list: numbers"),
    ("daemon/src/snapshot.rs", 1, "the toolkit's settings"),
    ("host/src/crash/armed.rs", 1, "a file of the tests'"),
    ("mps/src/root.rs", 1, "what the holder wrote: numbers"),
    ("shim/src/hook/device_proof.rs", 1, "devices.list: numbers"),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("src can be listed").flatten() {
        let path = entry.path();
        // Tests may read what they made.
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// How often a file reads text that has to be some, its own tests aside.
fn strict(source: &str) -> usize {
    let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code = product.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.map(|line| line.matches("read_to_string").count()).sum()
}

#[test]
fn proc_is_read_as_bytes() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 100, "{} files found", files.len());
    let mut found = BTreeMap::new();
    for file in files {
        let source = fs::read_to_string(&file).expect("it is a source file");
        let name = file.strip_prefix(&src).expect("it is below src").display().to_string();
        let reads = strict(&source);
        if reads > 0 {
            found.insert(name, reads);
        }
    }
    let known: BTreeMap<_, _> =
        READERS.iter().map(|(file, reads, _)| ((*file).to_owned(), *reads)).collect();
    assert_eq!(
        found, known,
        "of a file of /proc take mpsgate_host::procfs::text; a reader of another belongs here"
    );
}

#[test]
fn a_strict_read_is_found_however_it_is_written_and_a_tests_own_is_not() {
    for one in [
        "fs::read_to_string(format!(\"/proc/{pid}/stat\"))",
        "fs::read_to_string(\n    Path::new(\"/proc\")\n        .join(pid),\n)",
        "let file = thread.join(\"stat\");\nlet text = fs::read_to_string(file)?;",
        "paths.map(fs::read_to_string)",
        "File::open(file)?\n    .read_to_string(&mut text)?",
        "#[cfg(test)]\nmod tests;\nio::read_to_string(file)",
    ] {
        let of_tests = "#[cfg(test)]\nmod tests {\nfs::read_to_string(path)\n}";
        let source = format!("// read_to_string\n{one}\nprocfs::text(file)\n{of_tests}");
        assert_eq!(strict(&source), 1, "{one}");
    }
}
