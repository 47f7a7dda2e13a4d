//! A cgroup that mpsgated makes by itself, below the one that a process is in: in v1's hierarchy of
//! devices, or in v2's where no systemd is.
//!
//! What bounds the one above bounds it, too, as the devices of another program's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use mpsgate_host::cgroup::{self, CgroupId};
use mpsgate_model::DeviceNode;

use super::{bpf, device_rules};

/// Makes it, and puts the process there once it opens nothing but these devices and what any
/// process may.
///
/// # Errors
/// What cannot be done, as a sentence. Nothing is left then, or `name` with the process in it.
pub(super) fn make(
    cgroups: &Path,
    name: &str,
    granted: &[DeviceNode],
    pid: u32,
) -> Result<CgroupId, String> {
    let unified = cgroup::is_unified();
    let text = cgroup::text_of(pid).ok_or("the process has ended")?;
    let above = cgroup::of_devices(&text, unified).ok_or("this kernel controls no devices")?;
    let above = cgroup::below(cgroups, &above);
    keeps_its_processes(cgroups, &above)?;
    let directory = above.join(name);
    fs::create_dir(&directory)
        .map_err(|error| said(&format!("make {}", directory.display()), &error))?;
    let made = CgroupId::of(&directory).ok_or("it is gone at once")?;
    let close = if unified { close_v2 } else { close_v1 };
    let done = close(&directory, granted)
        .and_then(|()| write(&directory, "cgroup.procs", &pid.to_string()));
    match done {
        Ok(()) => Ok(made),
        Err(why) => {
            // Where the process is in it after all, it is removed with the process.
            let _ = fs::remove_dir(&directory);
            Err(why)
        }
    }
}

fn close_v1(directory: &Path, granted: &[DeviceNode]) -> Result<(), String> {
    write(directory, "devices.deny", "a")?;
    for rule in device_rules::rules(granted) {
        write(directory, "devices.allow", &rule)?;
    }
    // Whatever the kernel has made of it.
    let list = fs::read_to_string(directory.join("devices.list"));
    let list = list.map_err(|error| said("read devices.list", &error))?;
    if list.lines().any(|line| line.starts_with('a')) {
        return Err("the kernel closes no device to it".to_owned());
    }
    Ok(())
}

fn close_v2(directory: &Path, granted: &[DeviceNode]) -> Result<(), String> {
    let program = device_rules::program(granted)?;
    bpf::attach(directory, &program).map_err(|error| {
        said("attach a program for its devices (CONFIG_CGROUP_BPF, CAP_BPF)", &error)
    })
}

/// Whoever may write to a cgroup above takes processes out of it again (cgroups(7)): a user to whom
/// one has been given.
fn keeps_its_processes(cgroups: &Path, above: &Path) -> Result<(), String> {
    for directory in above.ancestors().take_while(|directory| directory.starts_with(cgroups)) {
        // On v1 each of the two files takes processes, and each may have been given away alone.
        let (procs, tasks) = (directory.join("cgroup.procs"), directory.join("tasks"));
        let theirs = [directory, &procs, &tasks]
            .into_iter()
            .find(|path| path.metadata().is_ok_and(|found| is_anothers(found.uid(), found.mode())));
        if let Some(path) = theirs {
            return Err(format!(
                "{} is not root's alone, so the process could leave; start it from a cgroup that is",
                path.display()
            ));
        }
    }
    Ok(())
}

/// Whether a file may be written to by somebody who is not root.
fn is_anothers(uid: u32, mode: u32) -> bool {
    uid != 0 || mode & 0o022 != 0
}

/// To a file that is there.
fn write(directory: &Path, file: &str, text: &str) -> Result<(), String> {
    use std::io::Write as _;
    let opened = fs::OpenOptions::new().write(true).open(directory.join(file));
    opened
        .and_then(|mut opened| opened.write_all(text.as_bytes()))
        .map_err(|error| said(&format!("write {text:?} to {file}"), &error))
}

fn said(what: &str, error: &io::Error) -> String {
    format!("cannot {what}: {error}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn a_file_is_roots_alone_when_nobody_else_may_write_to_it() {
        for (uid, mode, anothers) in [
            (0, 0o100_644, false),
            (0, 0o040_755, false),
            (0, 0o100_664, true),
            (0, 0o100_646, true),
            (1000, 0o100_644, true),
        ] {
            assert_eq!(is_anothers(uid, mode), anothers, "{uid} {mode:o}");
        }
    }

    #[test]
    fn every_cgroup_above_is_looked_at_and_nothing_elsewhere() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let cgroups = root.path().join("cgroups");
        let above = cgroups.join("a/b");
        fs::create_dir_all(&above).unwrap();
        let all = [cgroups.clone(), cgroups.join("a"), above.clone()];
        for directory in &all {
            fs::write(directory.join("cgroup.procs"), "").unwrap();
            fs::write(directory.join("tasks"), "").unwrap();
        }
        let allow = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        // Root's, but where the tests are not root's.
        let is_root = root.path().metadata().unwrap().uid() == 0;
        allow(root.path(), 0o777);
        assert_eq!(keeps_its_processes(&cgroups, &above).is_ok(), is_root);
        for directory in &all {
            for (path, open, closed) in [
                (directory.clone(), 0o777, 0o755),
                (directory.join("cgroup.procs"), 0o646, 0o644),
                (directory.join("tasks"), 0o664, 0o644),
            ] {
                allow(&path, open);
                let why = keeps_its_processes(&cgroups, &above).unwrap_err();
                assert!(!is_root || why.starts_with(&path.display().to_string()), "{why}");
                allow(&path, closed);
            }
        }
    }
}
