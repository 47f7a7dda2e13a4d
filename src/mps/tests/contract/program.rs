//! The program alone, run by hand.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Bench, Kind, NOBODY, feed, listing, need, on_a_gpu, root, wait_for};

/// Starts the daemon by hand on card 0's directories and waits until it answers.
fn daemon(bench: &Bench) -> (PathBuf, u32) {
    let dirs = bench.dirs(0);
    dirs.create().unwrap();
    let mut command = bench.command(&dirs.pipe_dir());
    let stdout = fs::File::create(dirs.log_file().path()).unwrap();
    command.arg("-f").stdin(Stdio::null()).stdout(stdout).stderr(Stdio::null());
    let pid = bench.keep(command);
    let pipe = dirs.pipe_dir();
    wait_for("the daemon answers", || bench.ask(&pipe, None, "get_server_list\n").0 == Some(0));
    (pipe, pid)
}

pub(crate) fn makes_its_files_with_known_modes_and_locks_one(bench: &Bench) {
    let (pipe, pid) = daemon(bench);
    let mut expected = vec![
        ("control", "s0666"),
        ("control_lock", "-0666"),
        ("control_privileged", "s0755"),
        ("log", "p0777"),
    ];
    // 535 writes none.
    if bench.version > 535 {
        expected.push(("nvidia-cuda-mps-control.pid", "-0666"));
    }
    let expected =
        expected.into_iter().map(|(name, mode)| (name.to_owned(), mode.to_owned())).collect();
    assert_eq!(listing(&pipe), expected);
    let locks = fs::read_to_string("/proc/locks").unwrap();
    assert!(
        locks.lines().any(|line| line.contains("POSIX") && line.contains(&format!("WRITE {pid} "))),
        "{locks}"
    );
}

pub(crate) fn refuses_a_second_daemon(bench: &Bench) {
    let (pipe, _) = daemon(bench);
    for mode in ["-f", "-d"] {
        let mut command = bench.command(&pipe);
        command.arg(mode);
        let output = feed(command, "");
        assert_eq!(output.status.code(), Some(1));
        let words = [output.stdout, output.stderr].concat();
        assert!(
            String::from_utf8_lossy(&words)
                .contains("An instance of this daemon is already running")
        );
    }
}

pub(crate) fn refusals_come_with_exit_status_0(bench: &Bench) {
    let (pipe, _) = daemon(bench);
    let status = if bench.version > 535 {
        "Server 7 not found"
    } else {
        "Unknown command \"get_server_status\""
    };
    for (command, answer) in [
        ("get_server_list", ""),
        ("get_server_status 7", status),
        ("get_client_list 7", "Server 7 not found"),
        ("ps", "Server not found"),
        ("terminate_client 7 8", "Server 7 not found\nServer 7 not found!\n1"),
        ("shutdown_server 7", "Server 7 not found"),
        ("set_device_pinned_mem_limit 7 0 1M", "Server 7 not found"),
        ("get_device_pinned_mem_limit 7 0", "Server 7 not found"),
        ("zork", "Unknown command \"zork\""),
        ("get_default_active_thread_percentage", "100.0"),
    ] {
        let (status, printed) = bench.ask(&pipe, None, &format!("{command}\n"));
        assert_eq!((status, printed.trim_end()), (Some(0), answer), "{command}");
    }
}

pub(crate) fn reads_values_leniently(bench: &Bench) {
    let (pipe, _) = daemon(bench);
    for (value, read) in [
        ("7G", "7G"),
        ("7g", "7G"),
        ("7GB", "7G"),
        ("1000MB", "1000M"),
        ("512", "512M"),
        ("7.5G", "7M"),
        ("1T", "1M"),
        ("1K", "1M"),
        ("1 G", "1M"),
        ("7000M", "6G"),
        ("1073741824", "1048576G"),
        ("0", ""),
        ("0G", ""),
        ("abc", ""),
    ] {
        let commands = format!(
            "set_default_device_pinned_mem_limit 0 3M\nset_default_device_pinned_mem_limit 0 {value}\n\
             get_default_device_pinned_mem_limit 0\n"
        );
        let (status, printed) = bench.ask(&pipe, None, &commands);
        assert_eq!((status, printed.trim_end()), (Some(0), read), "{value}");
    }
    for value in ["0", "150", "abc"] {
        let commands = format!(
            "set_default_active_thread_percentage {value}\nget_default_active_thread_percentage\n"
        );
        let (_, printed) = bench.ask(&pipe, None, &commands);
        assert!(printed.ends_with("100.0\n"), "{value}: {printed}");
    }
}

/// The settings that `asker` may change: they are open in 535, and closed from 550 on.
fn assert_tenant(bench: &Bench, pipe: &std::path::Path, uid: Option<u32>) {
    let settings = bench.version == 535;
    for (set, get, before, after) in [
        (
            "set_default_device_pinned_mem_limit 0 99M",
            "get_default_device_pinned_mem_limit 0",
            "",
            "99M",
        ),
        (
            "set_default_active_thread_percentage 10",
            "get_default_active_thread_percentage",
            "100.0",
            "10.0",
        ),
    ] {
        let (status, printed) = bench.ask(pipe, uid, &format!("{set}\n"));
        assert_eq!(status, Some(0));
        assert_eq!(
            printed.contains("Insufficient privileges for UID"),
            !settings,
            "{set}: {printed}"
        );
        let (_, read) = bench.ask(pipe, uid, &format!("{get}\n"));
        assert_eq!(read.trim_end(), if settings { after } else { before }, "{get}");
    }
    let (status, printed) = bench.ask(pipe, uid, "quit\n");
    assert_eq!(
        (status, printed.as_str()),
        (Some(0), "Not enough privilege to execute quit command\n")
    );
    assert_eq!(bench.ask(pipe, uid, "get_server_list\n"), (Some(0), String::new()));
}

pub(crate) fn what_control_alone_lets_root_do(bench: &Bench) {
    let (pipe, _) = daemon(bench);
    assert_tenant(bench, &bench.alone(&pipe.join("control")), None);
}

pub(crate) fn what_another_uid_may_do(bench: &Bench) {
    need!(root());
    let (pipe, _) = daemon(bench);
    // The mode of the launcher's tmpfs, which only the daemon and its servers reach.
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o711)).unwrap();
    assert_tenant(bench, &pipe, Some(NOBODY));
    let (status, printed) = bench.ask(&pipe, Some(NOBODY), "start_server -uid 0\n");
    assert_eq!(status, Some(0));
    assert!(printed.starts_with("Insufficient privileges for UID 65534"), "{printed}");
}

pub(crate) fn quit_leaves_three_files_and_sigterm_leaves_all(bench: &Bench) {
    let (pipe, pid) = daemon(bench);
    let all = listing(&pipe);
    assert_eq!(bench.ask(&pipe, None, "quit -t 1\n").1, "");
    assert_eq!(bench.status_of(pid), Some(0));
    let left: Vec<_> = listing(&pipe).into_keys().collect();
    assert_eq!(left, ["control", "control_lock", "control_privileged"]);
    // A stale directory does no harm.
    let (pipe, pid) = daemon(bench);
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(bench.status_of(pid), None);
    assert_eq!(listing(&pipe), all);
    assert_eq!(bench.ask(&pipe, None, "get_server_list\n").0, Some(1));
}

pub(crate) fn writes_its_log_to_stdout_only(bench: &Bench) {
    let (pipe, pid) = daemon(bench);
    let log = bench.dirs(0).log_file();
    bench.ask(&pipe, None, "zork\n");
    wait_for("the command is logged", || {
        log.since(0).unwrap().contains(&format!("Control {pid:5}] Cmd:zork\n"))
    });
    assert_eq!(listing(&bench.dirs(0).log_dir()).len(), 1);
}

pub(crate) fn unknown_options_look_like_a_missing_daemon(bench: &Bench) {
    if bench.kind == Kind::Real && on_a_gpu() {
        return; // 580 knows all of these, and starts a daemon or prints its version
    }
    let dirs = bench.dirs(0);
    dirs.create().unwrap();
    for options in [vec!["-multiuser-server"], vec!["-f", "-multiuser-server"], vec!["-v"], vec![]]
    {
        let mut command = bench.command(&dirs.pipe_dir());
        command.args(&options);
        let output = feed(command, "get_server_list\n");
        assert_eq!(output.status.code(), Some(1), "{options:?}");
        assert_eq!(
            String::from_utf8_lossy(&output.stderr),
            "Cannot find MPS control daemon process\n"
        );
        assert!(output.stdout.is_empty());
    }
}

pub(crate) fn ends_without_a_word_when_a_socket_path_is_too_long(bench: &Bench) {
    let deep = bench.dir.path().join("d".repeat(100));
    fs::create_dir(&deep).unwrap();
    let mut command = bench.command(&deep);
    command.arg("-f").stdin(Stdio::null()).process_group(0);
    let output = feed(command, "");
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Garbage in the log FIFO ends the daemon's logging and then blocks the daemon. Only the real
/// program reads that FIFO.
pub(crate) fn garbage_in_the_log_fifo_blocks_a_real_daemon_until_drained(bench: &Bench) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let card = bench.impatient_card();
    let (daemon, _) = card.ensure_running(&bench.spawner(), crate::harness::LIMIT).unwrap();
    let fifo = bench.pipe_of(&daemon).join("log");
    let mut fifo =
        fs::File::options().write(true).custom_flags(nix::libc::O_NONBLOCK).open(fifo).unwrap();
    // The first write ends the reader; the later ones fill the FIFO.
    wait_for("the FIFO is full", || fifo.write(&[0; 512]).is_err());
    wait_for("the daemon blocks", || {
        matches!(
            card.state().unwrap(),
            mpsgate_mps::MpsState::Wedged { cause: mpsgate_mps::WedgeCause::LogBlocked, .. }
        )
    });
    card.drain_log().unwrap();
    wait_for("it answers again", || card.channel().server_list().is_ok());
    card.stop(&bench.spawner(), std::time::Duration::ZERO).unwrap();
}

/// The script that fetches the real program names its path, and that it is NVIDIA's.
#[test]
fn the_fetching_script_explains_wrong_usage() {
    let script =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/env/nvidia-cuda-mps.sh");
    let output = Command::new("sh").arg(script).arg("999").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: "));
}
