#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
#![allow(clippy::disallowed_types, reason = "the tests start processes to look at")]
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use mpsgate_testing::{Spawned, need, root, skip, wait_for};

use super::*;

const NODE: &str = "/";
const USER: u32 = 65534;

fn namespaces(of: u32) -> Namespaces {
    Namespaces::of(Path::new(NODE), of).unwrap()
}

/// This test's namespaces take the place of the node's: in a container the first process may be
/// hidden.
fn own() -> Namespaces {
    namespaces(std::process::id())
}

/// Programs that are copies of the shell, under the names of engines.
struct Programs(tempfile::TempDir);

impl Programs {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn copy(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        if !path.exists() {
            fs::copy("/bin/sh", &path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        path
    }

    /// Starts one that waits for its end, with the arguments of an engine.
    fn start(&self, name: &str) -> Spawned {
        started(waiting(&self.copy(name)), name)
    }
}

fn waiting(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["-c", "read x", "--config", "/c.toml"]);
    command
}

/// Starts a process and waits until it runs that program.
fn started(mut command: Command, name: &str) -> Spawned {
    let child = Spawned(command.stdin(Stdio::piped()).spawn().unwrap());
    wait_for("the program", || called(child.pid(), name));
    child
}

fn called(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

/// The child of a process, once it has that name.
fn child_of(pid: u32, name: &str) -> u32 {
    let mut found = None;
    wait_for("a child", || {
        let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let mut pids = list.split_ascii_whitespace().filter_map(|word| word.parse().ok());
        found = pids.find(|child| called(*child, name));
        found.is_some()
    });
    found.unwrap()
}

fn looked(pid: u32) -> Result<Engine, Stranger> {
    look(Path::new(NODE), &own(), pid)
}

#[track_caller]
fn refused(pid: u32) -> String {
    looked(pid).unwrap_err().to_string()
}

#[test]
fn an_engine_is_roots_by_all_its_users_in_the_nodes_namespaces() {
    let named = |mount: &str, ids: &str, user: &str| {
        let link = |kind: &str, number: &str| format!("{kind}:[{number}]").into();
        Namespaces([link("mnt", mount), link("pid", ids), link("user", user)])
    };
    let node = named("1", "2", "3");
    for (uids, namespaces, expected) in [
        ([0; 4], named("1", "2", "3"), None),
        ([1001; 4], named("1", "2", "3"), Some("belongs to the users [1001, 1001, 1001, 1001]")),
        // A set-user-ID program, before and after it drops its rights for a while.
        ([1001, 0, 0, 0], named("1", "2", "3"), Some("belongs to the users [1001, 0, 0, 0]")),
        ([0, 0, 1001, 0], named("1", "2", "3"), Some("belongs to the users [0, 0, 1001, 0]")),
        ([0, 0, 0, 1001], named("1", "2", "3"), Some("belongs to the users [0, 0, 0, 1001]")),
        ([0; 4], named("9", "9", "3"), Some("another mount namespace")),
        ([0; 4], named("1", "9", "3"), Some("another PID namespace")),
        ([0; 4], named("1", "2", "9"), Some("another user namespace")),
    ] {
        let facts = Facts { start_time: 1, uids, namespaces };
        let seen = facts.evaluate(7, &node).map_err(|stranger| stranger.to_string());
        match expected {
            None => assert!(seen.is_ok(), "{facts:?}: {seen:?}"),
            Some(why) => assert!(seen.clone().unwrap_err().contains(why), "{facts:?}: {seen:?}"),
        }
    }
}

#[test]
fn an_engines_program_is_a_file_that_root_alone_writes_and_that_gives_nobody_rights() {
    for (uid, mode, expected) in [
        (0, 0o100_755, Ok(())),
        (0, 0o100_700, Ok(())),
        (1001, 0o100_755, Err("it belongs to the user 1001, not to root")),
        (0, 0o100_775, Err("it can be written by others than root (mode 0775)")),
        (0, 0o100_757, Err("it can be written by others than root (mode 0757)")),
        (0, 0o104_755, Err("every user can start it as root: it is set-user-ID or set-group-ID")),
        (0, 0o102_755, Err("every user can start it as root: it is set-user-ID or set-group-ID")),
        (0, 0o040_755, Err("it is no file")),
        (0, 0o010_755, Err("it is no file")),
    ] {
        let expected = expected.map_err(str::to_owned);
        assert_eq!(evaluate_program(uid, mode), expected, "{uid} {mode:o}");
    }
}

#[test]
fn roots_own_engine_is_named_and_started_by_what_it_runs_whatever_its_path_leads_to_by_now() {
    need!(root());
    let programs = Programs::new();
    let process = programs.start("containerd");
    let engine = looked(process.pid()).unwrap();
    let path = programs.copy("containerd");
    assert_eq!((engine.kind, engine.process.pid), (Kind::Containerd, process.pid()));
    assert_eq!(engine.program.path(), path);
    let line = engine.command_line.join(" ");
    assert_eq!(line, format!("{} -c read x --config /c.toml", path.display()));
    assert!(engine.environment.iter().any(|pair| pair.starts_with("PATH=")));
    assert_eq!(engine.describe(), format!("pid {}, {}: {line}", process.pid(), path.display()));
    // Another program is in its place, and the process has ended.
    fs::remove_file(&path).unwrap();
    symlink("/bin/false", &path).unwrap();
    drop(process);
    let out = Command::new(engine.program.start_path())
        .arg0(engine.kind.program())
        .args(["-c", "tr '\\0' ' ' </proc/$$/cmdline"])
        .output()
        .unwrap();
    let seen = String::from_utf8(out.stdout).unwrap();
    assert!(seen.starts_with("containerd -c "), "{seen} {}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn an_engine_that_was_updated_and_not_restarted_is_one() {
    need!(root());
    let programs = Programs::new();
    let process = programs.start("crio");
    fs::remove_file(programs.copy("crio")).unwrap();
    let engine = looked(process.pid()).unwrap();
    assert!(engine.program.path().to_string_lossy().ends_with("/crio (deleted)"));
    assert!(
        Command::new(engine.program.start_path()).args(["-c", ":"]).status().unwrap().success()
    );
}

#[test]
fn a_users_process_of_any_name_and_a_set_user_id_program_are_none() {
    need!(root());
    let programs = Programs::new();
    for name in ["containerd", "crio", "dockerd"] {
        let mut command = waiting(&programs.copy(name));
        let process = started(
            {
                command.uid(USER);
                command
            },
            name,
        );
        assert!(refused(process.pid()).contains("belongs to the users [65534, 65534,"));
    }
    let other = programs.start("engine");
    assert!(refused(other.pid()).ends_with("is called \"engine\", and no engine is"));
    // The same as `ln -s /usr/bin/su containerd`, without a password prompt.
    let path = programs.0.path().join("sets/containerd");
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::copy("/bin/sleep", &path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
    let sleep = |uid: u32| {
        let mut command = Command::new(&path);
        command.arg("1000").uid(uid);
        started(command, "containerd")
    };
    let by_user = sleep(USER);
    let seen = refused(by_user.pid());
    assert!(seen.contains("belongs to the users [65534, "), "{seen}");
    let by_root = sleep(0);
    let seen = refused(by_root.pid());
    assert!(seen.contains("is set-user-ID or set-group-ID"), "{seen}");
}

#[test]
fn a_process_in_a_container_is_none() {
    need!(root());
    let programs = Programs::new();
    let path = programs.copy("containerd");
    for (option, namespace) in [("--mount", "mount"), ("--user", "user")] {
        let mut command = Command::new("unshare");
        command.args([option, "--"]).arg(&path).args(["-c", "read x"]);
        let process = started(command, "containerd");
        assert!(refused(process.pid()).contains(&format!("another {namespace} namespace")));
    }
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--"]).arg(&path).args(["-c", "read x"]);
    let outer = started(command, "unshare");
    let inner = child_of(outer.pid(), "containerd");
    assert!(refused(inner).contains("another PID namespace"));
}

#[test]
fn a_program_that_another_user_can_change_or_replace_is_none() {
    need!(root());
    let programs = Programs::new();
    let path = programs.copy("crio");
    let process = programs.start("crio");
    let pid = process.pid();
    assert!(looked(pid).is_ok());
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    mode(&path, 0o777).unwrap();
    assert!(refused(pid).contains("it can be written by others than root"));
    mode(&path, 0o755).unwrap();
    chown(&path, Some(USER), None).unwrap();
    assert!(refused(pid).contains("it belongs to the user 65534"));
    chown(&path, Some(0), None).unwrap();
    chown(programs.0.path(), Some(USER), None).unwrap();
    assert!(refused(pid).contains("another user than root can put something else in its place"));
    let doubted = running_in(Path::new(NODE), &own()).doubted;
    let names_it =
        |stranger: &Stranger| stranger.to_string().starts_with(&format!("pid {pid} runs"));
    assert!(doubted.iter().any(names_it), "{doubted:?}");
    chown(programs.0.path(), Some(0), None).unwrap();
    assert!(looked(pid).is_ok());
}

#[test]
fn a_pid_that_is_used_again_between_the_looks_is_none() {
    need!(root());
    let last = Path::new("/proc/sys/kernel/ns_last_pid");
    if !last.exists() {
        skip!("this kernel lets nobody choose the next pid");
    }
    let programs = Programs::new();
    let path = programs.copy("containerd");
    for uid in [0, USER] {
        let first = programs.start("containerd");
        let pid = first.pid();
        let mut second = None;
        let seen = prove(Path::new(NODE), &own(), pid, || {
            drop(first);
            // One tick of start times.
            std::thread::sleep(std::time::Duration::from_millis(20));
            wait_for("a process with the same pid", || {
                fs::write(last, (pid - 1).to_string()).unwrap();
                let mut command = waiting(&path);
                let process = started(
                    {
                        command.uid(uid);
                        command
                    },
                    "containerd",
                );
                second = Some(process).filter(|process| process.pid() == pid);
                second.is_some()
            });
        });
        assert!(matches!(seen, Err(Stranger::Changed { .. })), "{uid}: {seen:?}");
        assert_eq!(second.unwrap().pid(), pid);
    }
}

#[test]
fn two_engines_are_two_and_what_one_of_them_started_for_itself_is_none() {
    need!(root());
    let programs = Programs::new();
    let crio = [programs.start("crio"), programs.start("crio")];
    let k3s = programs.start("containerd");
    let script = format!(
        "{} -c 'read x' --config /x/containerd.toml; :",
        programs.copy("containerd").display()
    );
    let mut command = Command::new(programs.copy("dockerd"));
    command.args(["-c", &script]);
    let docker = started(command, "dockerd");
    let dockers = child_of(docker.pid(), "containerd");
    assert_eq!(
        refused(dockers),
        format!("pid {dockers} was started by the engine with pid {} for itself", docker.pid())
    );
    let mine = [crio[0].pid(), crio[1].pid(), k3s.pid(), docker.pid(), dockers];
    let found = running_in(Path::new(NODE), &own()).engines;
    let found: Vec<_> = found.iter().map(|e| (e.kind, e.process.pid)).collect();
    let mut expected = vec![
        (Kind::Containerd, k3s.pid()),
        (Kind::Crio, crio[0].pid()),
        (Kind::Crio, crio[1].pid()),
        (Kind::Dockerd, docker.pid()),
    ];
    expected.sort_unstable();
    let found: Vec<_> = found.into_iter().filter(|(_, pid)| mine.contains(pid)).collect();
    assert_eq!(found, expected);
}

#[test]
fn without_the_nodes_first_process_nothing_is_known() {
    let dir = tempfile::tempdir().unwrap();
    for error in [running(dir.path()).unwrap_err(), of(dir.path(), 7).unwrap_err()] {
        assert_eq!(error.to_string(), "cannot look at pid 1");
    }
}
