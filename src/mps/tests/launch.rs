//! The launcher, `mpsgated launch`: the cases in which it starts nothing, and its messages then.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::disallowed_methods, reason = "tests make what they look at")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use mpsgate_mps::MpsDirectories;
use mpsgate_testing::programs::mpsgated;
use mpsgate_testing::{can_be_leased, need, root, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The directories of card 0, in a directory of their own.
struct Stage {
    dir: tempfile::TempDir,
    dirs: MpsDirectories,
}

impl Stage {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let dirs = MpsDirectories::new(&dir.path().join("mps"), 0).unwrap();
        dirs.create().unwrap();
        Self { dir, dirs }
    }

    fn lock(&self) -> PathBuf {
        self.dirs.pipe_dir().with_file_name("daemon.lock")
    }

    /// The launcher for that program, below `around`.
    fn launch(&self, around: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.args(around).arg(mpsgated()).args(["launch", "--card", "0", "--mps"]);
        command.arg(self.dir.path().join("mps")).arg("--").args(program);
        command
    }

    /// The message if it starts nothing.
    fn refused(&self, around: &[&str]) -> String {
        let mark = self.dir.path().join("mark");
        let output = self.launch(around, &["/usr/bin/touch", mark.to_str().unwrap()]).output();
        let output = output.unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(!mark.exists(), "{text}");
        text
    }
}

/// Ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The file with the pid of a process that outlives its program: that process ends with the test,
/// too.
struct LeftBehind(PathBuf);

impl LeftBehind {
    fn pid(&self) -> Option<i32> {
        fs::read_to_string(&self.0).ok()?.trim().parse().ok()
    }
}

impl Drop for LeftBehind {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

#[test]
fn a_second_one_is_turned_away_until_the_first_has_ended() {
    need!(root());
    let stage = Stage::new();
    let first = stage.launch(&[], &["/usr/bin/sleep", "1000"]).stdin(Stdio::null()).spawn();
    let first = Running(first.unwrap());
    wait_for("the first has become its program", || {
        let exe = fs::read_link(format!("/proc/{}/exe", first.0.id()));
        exe.is_ok_and(|exe| exe.ends_with("sleep") || exe.ends_with("coreutils"))
    });
    let text = stage.refused(&[]);
    let why = format!("{}: pid {}", stage.lock().display(), first.0.id());
    assert!(
        text.contains("another control daemon of card 0 has ") && text.contains(&why),
        "{text}"
    );
    drop(first);
    assert!(stage.launch(&[], &["/usr/bin/true"]).status().unwrap().success());
}

#[test]
fn nobody_leases_the_servers_program_while_a_control_daemon_lives() {
    need!(root());
    let stage = Stage::new();
    let bin = stage.dir.path().join("bin");
    let (control, server) = (bin.join("control"), bin.join("nvidia-cuda-mps-server"));
    fs::create_dir(&bin).unwrap();
    symlink("/bin/sh", &control).unwrap();
    fs::write(&server, "").unwrap();
    wait_for("it can be leased", || can_be_leased(&server));
    let program = [control.to_str().unwrap(), "-c", "exec sleep 1000"];
    let first = stage.launch(&[], &program).stdin(Stdio::null()).spawn();
    let first = Running(first.unwrap());
    wait_for("the first has become its program", || {
        let exe = fs::read_link(format!("/proc/{}/exe", first.0.id()));
        exe.is_ok_and(|exe| exe.ends_with("sleep") || exe.ends_with("coreutils"))
    });
    assert!(!can_be_leased(&server));
    drop(first);
    wait_for("it can be leased again", || can_be_leased(&server));
}

#[test]
fn a_lock_that_is_not_roots_own_file_is_named() {
    need!(root());
    type Spoil = fn(&Stage);
    let cases: [(&str, Spoil); 6] = [
        ("is a symbolic link", |s| symlink("/etc/hostname", s.lock()).unwrap()),
        ("is a directory", |s| fs::create_dir(s.lock()).unwrap()),
        ("is no regular file", |s| {
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
            nix::unistd::mkfifo(&s.lock(), mode).unwrap();
        }),
        ("belongs to uid 65534", |s| chown(s.lock(), Some(65_534), None).unwrap()),
        ("with mode 0644", |s| {
            fs::set_permissions(s.lock(), fs::Permissions::from_mode(0o644)).unwrap();
        }),
        ("2 names", |s| fs::hard_link(s.lock(), s.dir.path().join("second")).unwrap()),
    ];
    for (why, spoil) in cases {
        let stage = Stage::new();
        let makes = ["is a ", "is no "].iter().any(|start| why.starts_with(start));
        if !makes {
            assert!(stage.launch(&[], &["/usr/bin/true"]).status().unwrap().success());
        }
        spoil(&stage);
        let text = stage.refused(&[]);
        assert!(text.contains(&stage.lock().display().to_string()) && text.contains(why), "{text}");
        assert!(text.contains("hint: rm "), "{text}");
    }
}

#[test]
fn what_lies_in_the_nodes_directory_is_named() {
    need!(root());
    let stage = Stage::new();
    let file = stage.dirs.pipe_dir().join("control");
    fs::write(&file, "").unwrap();
    let text = stage.refused(&[]);
    assert!(text.contains(&format!("{} lies where nothing may", file.display())), "{text}");
}

#[test]
fn without_a_mount_namespace_of_its_own_nothing_is_started() {
    need!(root());
    let stage = Stage::new();
    let text = stage.refused(&["setpriv", "--bounding-set", "-sys_admin", "--"]);
    assert!(text.contains("cannot leave the node's mount namespace"), "{text}");
    assert!(text.contains("CAP_SYS_ADMIN"), "{text}");
}

#[test]
fn a_program_that_cannot_be_executed_is_named_and_leaves_the_lock_free() {
    need!(root());
    let stage = Stage::new();
    let output = stage.launch(&[], &["/nonexistent"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("cannot run /nonexistent"), "{text}");
    assert!(stage.launch(&[], &["/usr/bin/true"]).status().unwrap().success());
}

/// Its tmpfs is its own: its mounts reach no other process, and its files are nowhere else. It does
/// not keep what its node unmounts. The node is a namespace with a shared mount, as systemd has.
#[test]
fn only_it_sees_its_tmpfs_and_it_keeps_nothing_mounted() {
    need!(root());
    let stage = Stage::new();
    let (dir, pipe) = (stage.dir.path(), stage.dirs.pipe_dir());
    let node = r#"mount --bind "$0" "$0"
        mount --make-shared "$0"
        mkdir "$0/other"
        mount -t tmpfs tmpfs "$0/other"
        "$@"
        exit"#;
    let around = ["unshare", "-m", "sh", "-ec", node, dir.to_str().unwrap()];
    // It counts: the node's other mount, the tmpfs on the node, the other mount after its end.
    let look = format!(
        r#"mounts=/proc/self/mountinfo
        grep ' {pipe} ' $mounts
        touch {pipe}/file
        grep -c ' {dir}/other ' $mounts
        nsenter --mount=/proc/$PPID/ns/mnt sh -c "grep -c ' {pipe} ' $mounts; umount {dir}/other"
        grep -c ' {dir}/other ' $mounts || :"#,
        pipe = pipe.display(),
        dir = dir.display()
    );
    let output = stage.launch(&around, &["/bin/sh", "-ec", &look]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let seen = String::from_utf8(output.stdout).unwrap();
    let (own, counts) = seen.split_once('\n').unwrap_or_default();
    for part in [" - tmpfs mpsgate ", "nosuid", "nodev", "noexec", "size=4096k", "mode=711"] {
        assert!(own.contains(part), "{part}: {seen}");
    }
    assert!(!own.contains(" shared:"), "{seen}");
    assert_eq!(counts, "1\n0\n0\n", "{seen}");
    assert_eq!(fs::read_dir(&pipe).unwrap().count(), 0);
}

/// As if the kernel had no memory for it.
#[test]
fn without_its_tmpfs_nothing_is_started() {
    need!(root());
    // A seccomp filter: ENOMEM for a mount whose flags are MS_NOSUID, MS_NODEV and MS_NOEXEC.
    let filter = r#"my ($prctl, $mount) = `uname -m` =~ /^x86_64/ ? (157, 165) : (167, 40);
        my $program = join '', map { pack 'SCCL', @$_ } [0x20, 0, 0, 0], [0x15, 0, 3, $mount],
            [0x20, 0, 0, 40], [0x15, 0, 1, 14], [0x06, 0, 0, 0x5000c], [0x06, 0, 0, 0x7fff0000];
        syscall($prctl, 22, 2, pack('S x6 P', 6, $program), 0, 0) == 0 or die "no filter: $!";
        exec @ARGV or die "$ARGV[0]: $!""#;
    let stage = Stage::new();
    let text = stage.refused(&["perl", "-e", filter, "--"]);
    let step = format!("cannot mount a tmpfs at {}", stage.dirs.pipe_dir().display());
    assert!(text.contains(&step) && text.contains("os error 12"), "{text}");
    assert!(stage.launch(&[], &["/usr/bin/true"]).status().unwrap().success());
}

/// A busy node: each round binds all existing mounts once more.
#[test]
fn thousands_of_mounts_are_no_hindrance() {
    need!(root());
    let stage = Stage::new();
    let tree = stage.dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let many = r#"mount -t tmpfs tmpfs "$0"
        for n in $(seq 13); do mkdir "$0/$n"; done
        for n in $(seq 13); do mount --rbind "$0" "$0/$n"; done
        exec "$@""#;
    let around = ["unshare", "-m", "sh", "-ec", many, tree.to_str().unwrap()];
    let look = format!(
        "wc -l </proc/self/mountinfo; grep ' {} ' /proc/self/mountinfo",
        stage.dirs.pipe_dir().display()
    );
    let output = stage.launch(&around, &["/bin/sh", "-ec", &look]).output().unwrap();
    let seen = String::from_utf8(output.stdout).unwrap();
    let (mounts, own) = seen.split_once('\n').unwrap_or_default();
    assert!(mounts.parse::<u32>().is_ok_and(|mounts| mounts > 5000), "{seen}");
    assert!(output.status.success() && own.contains(" - tmpfs mpsgate "), "{seen}");
}

/// Its lock ends with it, and a process that it leaves in the node's namespace sees none of its
/// sockets.
#[test]
fn a_child_that_has_left_the_namespace_keeps_no_successor_out() {
    need!(root());
    let stage = Stage::new();
    let child = LeftBehind(stage.dir.path().join("pid"));
    let program = format!(
        "nsenter --mount=/proc/{}/ns/mnt sleep 1000 & echo $! >{}; exec sleep 1000",
        std::process::id(),
        child.0.display()
    );
    let first = stage.launch(&[], &["/bin/sh", "-c", &program]).stdin(Stdio::null()).spawn();
    let first = Running(first.unwrap());
    let own = fs::read_link("/proc/self/ns/mnt").unwrap();
    let left = || {
        let left = child.pid()?;
        let is_there = fs::read_link(format!("/proc/{left}/ns/mnt")).is_ok_and(|its| its == own);
        is_there.then_some(left)
    };
    wait_for("the child has left", || left().is_some());
    let left = left().unwrap();
    drop(first);
    assert!(stage.launch(&[], &["/usr/bin/true"]).status().unwrap().success());
    let seen = fs::read_dir(format!("/proc/{left}/root{}", stage.dirs.pipe_dir().display()));
    assert_eq!(seen.unwrap().count(), 0);
}
