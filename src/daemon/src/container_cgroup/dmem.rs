//! The kernel's `dmem` controller, by which drivers from r615 on count a cgroup's GPU memory
//! (kernel 6.14; without it the driver counts by itself).
//!
//! A directory has the controller's files only where every directory above it names `dmem` in its
//! `cgroup.subtree_control`. runc enables all controllers that there are; crun knows a list of its
//! own, without this one (1.21), and systemd leaves alone what it does not know.

use std::io;
use std::path::{Path, PathBuf};

use crate::process_end;

const NAME: &str = "dmem";

/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;

/// A directory whose children cannot have the controller.
#[derive(Debug, thiserror::Error)]
#[error("cannot enable the dmem controller below {}{}", directory.display(), holders(processes))]
pub(crate) struct DmemError {
    directory: PathBuf,
    /// Of its own. A cgroup other than the root has processes or gives controllers to its children,
    /// never both (the kernel's cgroup-v2.rst, "no internal process constraint").
    processes: Vec<u32>,
    #[source]
    source: io::Error,
}

impl DmemError {
    pub(crate) fn hint(&self) -> String {
        let directory = self.directory.display();
        if self.processes.is_empty() {
            format!("echo +dmem > {directory}/cgroup.subtree_control")
        } else {
            format!("move them into a cgroup of their own: cat {directory}/cgroup.procs")
        }
    }
}

fn holders(pids: &[u32]) -> String {
    let named: Vec<String> = pids.iter().take(3).map(|pid| process_end::describe(*pid)).collect();
    if named.is_empty() {
        String::new()
    } else {
        format!(", which has processes of its own ({})", named.join(", "))
    }
}

/// Whether `root` is the one tree of cgroup v2, and not a v2 tree beside v1's.
pub(crate) fn is_v2(root: &Path) -> bool {
    rustix::fs::statfs(root).is_ok_and(|filesystem| filesystem.f_type == CGROUP2)
}

/// Whether the kernel counts some device's memory by cgroup. Then a limit counts what was there
/// before it, ends with its directory, and is never above that of a directory above it. Whether it
/// is the GPU driver that counts so cannot be told from the regions' names, which are not
/// documented; without any region it is not.
pub(crate) fn counts(root: &Path) -> bool {
    let regions = std::fs::read_to_string(root.join("dmem.capacity")).unwrap_or_default();
    names(&root.join("cgroup.controllers")).unwrap_or(false) && !regions.trim().is_empty()
}

/// Gives `cgroup`, which is below `root`, the controller's files, where the kernel has the
/// controller: from the top down, and only where it is missing. Returns the directories that were
/// changed. Their other children have the files then, too; that limits nobody.
///
/// # Errors
/// Names the directory. Those above it keep the controller.
pub(crate) fn enable(root: &Path, cgroup: &Path) -> Result<Vec<PathBuf>, DmemError> {
    if !names(&root.join("cgroup.controllers")).unwrap_or(false) {
        return Ok(Vec::new());
    }
    let mut above: Vec<&Path> =
        cgroup.ancestors().skip(1).take_while(|directory| directory.starts_with(root)).collect();
    above.reverse();
    let mut changed = Vec::new();
    for directory in above {
        let control = directory.join("cgroup.subtree_control");
        let enabled = names(&control).and_then(|there| {
            if there { Ok(false) } else { std::fs::write(&control, "+dmem").map(|()| true) }
        });
        match enabled {
            Ok(true) => changed.push(directory.to_owned()),
            Ok(false) => {}
            Err(source) => {
                let processes = if directory == root { Vec::new() } else { processes(directory) };
                return Err(DmemError { directory: directory.to_owned(), processes, source });
            }
        }
    }
    Ok(changed)
}

fn names(file: &Path) -> io::Result<bool> {
    Ok(std::fs::read_to_string(file)?.split_ascii_whitespace().any(|name| name == NAME))
}

fn processes(directory: &Path) -> Vec<u32> {
    let text = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::fs;

    use super::*;

    /// Directories with the files of cgroup v2, on a filesystem of ours:
    /// `(below, subtree_control)`.
    fn tree(root_has: &str, directories: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (below, enabled) in directories {
            let directory = root.path().join(below);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.subtree_control"), enabled).unwrap();
            fs::write(directory.join("cgroup.procs"), "").unwrap();
        }
        fs::write(root.path().join("cgroup.controllers"), root_has).unwrap();
        root
    }

    fn written(root: &tempfile::TempDir, below: &str) -> String {
        fs::read_to_string(root.path().join(below).join("cgroup.subtree_control")).unwrap()
    }

    #[test]
    fn it_is_enabled_on_each_directory_above_that_lacks_it_and_on_no_other() {
        // As crun leaves them, with the init in a child of its scope.
        let all = "cpu io memory pids";
        let root = tree(
            "cpu io memory pids dmem",
            &[
                ("", "cpu memory dmem\n"),
                ("machine.slice", all),
                ("machine.slice/a.scope", all),
                ("machine.slice/a.scope/container", ""),
                ("machine.slice/other.scope", all),
            ],
        );
        let cgroup = root.path().join("machine.slice/a.scope/container");
        let changed = enable(root.path(), &cgroup).unwrap();
        let expected = ["machine.slice", "machine.slice/a.scope"];
        assert_eq!(changed, expected.map(|below| root.path().join(below)));
        for (below, text) in [
            ("", "cpu memory dmem\n"),
            ("machine.slice", "+dmem"),
            ("machine.slice/a.scope", "+dmem"),
            ("machine.slice/a.scope/container", ""),
            ("machine.slice/other.scope", all),
        ] {
            assert_eq!(written(&root, below), text, "{below}");
        }
    }

    #[test]
    fn a_kernel_without_the_controller_is_left_alone() {
        let root = tree("cpu memory dmemory", &[("", "cpu"), ("a", "")]);
        let changed = enable(root.path(), &root.path().join("a")).unwrap();
        assert_eq!(changed, Vec::<PathBuf>::new());
        assert_eq!(written(&root, ""), "cpu");
    }

    #[test]
    fn a_directory_that_refuses_is_named_with_its_own_processes() {
        let root = tree("dmem", &[("", "dmem"), ("a", "dmem"), ("a/b", ""), ("a/b/c", "")]);
        let b = root.path().join("a/b");
        let own = std::process::id();
        fs::write(b.join("cgroup.procs"), format!("{own}\n")).unwrap();
        // A directory in the file's place refuses for root, too.
        fs::remove_file(b.join("cgroup.subtree_control")).unwrap();
        fs::create_dir(b.join("cgroup.subtree_control")).unwrap();
        let error = enable(root.path(), &b.join("c")).unwrap_err();
        let (b, expected) = (b.display(), format!("processes of its own (pid {own}"));
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("cannot enable the dmem controller below {b}")),
            "{text}"
        );
        assert!(text.contains(&expected), "{text}");
        assert_eq!(
            error.hint(),
            format!("move them into a cgroup of their own: cat {b}/cgroup.procs")
        );
    }

    #[test]
    fn a_directory_of_another_filesystem_is_no_tree_of_v2() {
        let root = tree("dmem", &[("", "")]);
        assert!(!is_v2(root.path()));
        assert!(!is_v2(&root.path().join("missing")));
    }
}
