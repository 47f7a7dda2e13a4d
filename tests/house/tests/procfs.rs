//! A process chooses its name, and a container names of cgroups, which need not be text: a reader
//! of `/proc` that gives up there does not see the process.

use std::fs;
use std::path::{Path, PathBuf};

/// What makes a line one that reads `/proc`, beside `read_to_string`.
const PROC: [&str; 4] = ["/proc", "proc/", "thread.join", "process.join"];

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

/// The lines above a file's own tests that read `/proc` as text that has to be some.
fn strict(source: &str) -> Vec<&str> {
    let product = source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let is_strict = |line: &&str| {
        line.contains("read_to_string(") && PROC.iter().any(|part| line.contains(part))
    };
    product.lines().filter(is_strict).collect()
}

#[test]
fn proc_is_read_as_bytes() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 100, "{} files found", files.len());
    let mut found = String::new();
    for file in files {
        let source = fs::read_to_string(&file).expect("it is a source file");
        for line in strict(&source) {
            found.push_str(&format!("\n{}: {}", file.display(), line.trim()));
        }
    }
    assert!(found.is_empty(), "take mpsgate_host::procfs::text:{found}");
}

#[test]
fn a_strict_read_is_found_and_a_tests_own_is_not() {
    let strict_one = "fs::read_to_string(format!(\"/proc/{pid}/stat\"))";
    let of_a_thread = "fs::read_to_string(thread.join(\"stat\"))";
    let source = format!(
        "{strict_one}\n{of_a_thread}\nprocfs::text(\"/proc/devices\")\n\
         #[cfg(test)]\nmod tests {{\n{strict_one}\n}}"
    );
    assert_eq!(strict(&source), [strict_one, of_a_thread]);
}
