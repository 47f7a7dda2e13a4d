//! One supervisor with children in place of control daemons and gates. A program of its own, with
//! one test, because the supervisor waits for every child of its process.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(clippy::disallowed_methods, reason = "tests make what they look at")]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use mpsgate_mps::supervisor::{Answer, HoldError, Options, Request, Start, ask, serve, socket};
use mpsgate_testing::wait_for;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::pthread::{Pthread, pthread_kill, pthread_self};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// `tail -f` keeps running, as a control daemon does; as a front-end it prints and ends.
const PROGRAM: &str = "/usr/bin/tail";

fn start(options: &Options) -> Start {
    let base = options.mps.join("0");
    let path = |part: &str| base.join(part).display().to_string();
    Start {
        card: 0,
        uuid: "GPU-0".into(),
        program: options.control.clone(),
        log: base.join("log/control.log"),
        arguments: vec!["-f".into()],
        variables: vec![
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("CUDA_VISIBLE_DEVICES".into(), "GPU-0".into()),
            ("CUDA_MPS_PIPE_DIRECTORY".into(), path("pipe")),
            ("CUDA_MPS_LOG_DIRECTORY".into(), path("log")),
        ],
    }
}

/// A supervisor that answers. It and its children end with the test.
struct Serving {
    thread: Pthread,
    serving: Option<JoinHandle<Result<(), HoldError>>>,
}

impl Serving {
    fn end(&mut self) -> Option<Result<(), HoldError>> {
        let serving = self.serving.take()?;
        let _ = pthread_kill(self.thread, Signal::SIGTERM);
        serving.join().ok()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

fn refused(dir: &Path, request: &Request) -> String {
    match ask(dir, request).unwrap_err() {
        HoldError::Refused { why } => why,
        other => panic!("{other:?}"),
    }
}

/// The descriptors of a child; a shell closes its own with its exec.
fn descriptors(pid: i32) -> Vec<String> {
    let names = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn it_starts_one_for_a_card_says_no_to_a_second_and_starts_anew_after_an_end() {
    let root = tempfile::tempdir().unwrap();
    let (dir, mps) = (root.path().join("hold"), root.path().join("mps"));
    // `launch --card 0 --mps DIR -- PROGRAM …`: runs the program.
    let launcher = root.path().join("launcher");
    fs::write(&launcher, "#!/bin/sh\nshift 6\nexec env -u PWD \"$@\"\n").unwrap();
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).unwrap();
    // It ignores a gate's arguments, prints them, and keeps running.
    let gate = root.path().join("gate");
    fs::write(&gate, "#!/bin/sh\necho \"$@\"\nexec sleep 1000\n").unwrap();
    fs::set_permissions(&gate, fs::Permissions::from_mode(0o755)).unwrap();
    let options = Options { dir, mps, control: PROGRAM.into(), gate: Some(gate), launcher };
    fs::create_dir_all(options.mps.join("0/log")).unwrap();
    // A descriptor that the starter of a holder may have left open.
    let inherited = File::open("/dev/zero").unwrap();
    fcntl(&inherited, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let (sender, thread) = mpsc::channel();
    let serving = thread::spawn({
        let options = options.clone();
        move || {
            sender.send(pthread_self()).unwrap();
            serve(&options)
        }
    });
    let dir = &options.dir;
    wait_for("the supervisor answers", || {
        ask(dir, &Request::Check).is_ok_and(|answer| answer == Answer::Ready(0))
    });
    // Not earlier: before it handles signals, one would end this process.
    let mut serving = Serving { thread: thread.recv().unwrap(), serving: Some(serving) };
    let wanted = start(&options);
    let request = Request::Start(wanted.clone());
    let Answer::Started(first) = ask(dir, &request).unwrap() else { panic!() };
    let environment = || fs::read_to_string(format!("/proc/{first}/environ")).unwrap();
    let is = |name: &str| {
        fs::read_link(format!("/proc/{first}/exe")).is_ok_and(|exe| exe.ends_with(name))
    };
    wait_for("exec is over", || is("tail") && !environment().is_empty());
    let environment = environment();
    let mut found: Vec<&str> = environment.split_terminator('\0').collect();
    let wished: Vec<String> = wanted.variables.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let mut wished: Vec<&str> = wished.iter().map(String::as_str).collect();
    found.sort_unstable();
    wished.sort_unstable();
    assert_eq!(found, wished);
    let status = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    // Root's children have the rest of the bounding set.
    if nix::unistd::geteuid().is_root() {
        let left = caps::read(Some(first), caps::CapSet::Permitted).unwrap();
        assert!(!left.contains(&caps::Capability::CAP_SYS_TIME), "{left:?}");
    }
    assert_eq!(descriptors(first), ["0", "1", "2"]);
    assert!(status.contains("\nSigBlk:\t0000000000000000\n"), "{status}");
    assert!(refused(dir, &request).contains(&format!("lives, pid {first}")));
    assert_eq!(ask(dir, &Request::Check).unwrap(), Answer::Ready(1));

    // A message that is not understood is reported, and ends only its own connection.
    let newer = r#"{"format":7,"message":"check"}"#;
    for (text, why) in [("", ""), ("GET / HTTP/1.1\r\n\r\n", ""), (newer, "has format 7")] {
        let mut stream = UnixStream::connect(socket(dir)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("refused") && answer.contains(why), "{text:?}: {answer:?}");
    }
    let Answer::Started(gate) = ask(dir, &Request::StartGate(0)).unwrap() else { panic!() };
    assert!(refused(dir, &Request::StartGate(0)).contains(&format!("lives, pid {gate}")));
    let log = || fs::read_to_string(options.mps.join("0/log/gate.log")).unwrap();
    wait_for("the gate runs", || log() == format!("--card 0 --mps {}\n", options.mps.display()));
    // Its shell has one more until it execs.
    wait_for("what the gate has", || descriptors(gate) == ["0", "1", "2"]);

    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    let mut second = None;
    wait_for("another is started", || {
        if let Ok(Answer::Started(pid)) = ask(dir, &request) {
            second = Some(pid);
        }
        second.is_some()
    });
    let second = second.unwrap();
    assert_ne!(first, second);

    serving.end().unwrap().unwrap();
    assert!(!Path::new(&format!("/proc/{second}")).exists());
    wait_for("the gate is told to end", || !Path::new(&format!("/proc/{gate}")).exists());
    assert!(matches!(ask(dir, &Request::Check), Err(HoldError::Away { .. })));
}
