//! One holder with children that stand for control daemons. One test starts children: `waitpid` is
//! the whole process's. The signals are the end-to-end tests'.
#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::ask;
use crate::rules::tests::start;

/// `tail -f` goes on, as a control daemon does; as a front-end it prints and ends.
const PROGRAM: &str = "/usr/bin/tail";

fn options(root: &Path) -> Options {
    Options { dir: root.join("hold"), mps: root.join("mps"), control: PROGRAM.into() }
}

fn refused(dir: &Path, request: &Request) -> String {
    match ask(dir, request).unwrap_err() {
        HoldError::Refused { why } => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_starts_one_for_a_card_says_no_to_a_second_and_starts_anew_after_an_end() {
    let root = tempfile::tempdir().unwrap();
    let options = options(root.path());
    fs::create_dir_all(options.mps.join("0/log")).unwrap();
    let mut holder = Holder::bind(&options).unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let serving = std::thread::spawn(move || {
        serve_until(&mut holder, &reader, |reader| {
            let mut fds = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
        })
        .unwrap();
        holder
    });
    let dir = &options.dir;
    assert_eq!(ask(dir, &Request::Check).unwrap(), Answer::Ready(0));
    let wanted = start(&options.mps, &options.control);
    let request = Request::Start(wanted.clone());
    let Answer::Started(first) = ask(dir, &request).unwrap() else { panic!() };
    // Empty for a moment in the middle of exec.
    let environment = || fs::read_to_string(format!("/proc/{first}/environ")).unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while environment().is_empty() && Instant::now() < until {
        std::thread::yield_now();
    }
    let environment = environment();
    let mut found: Vec<&str> = environment.split_terminator('\0').collect();
    let wished: Vec<String> = wanted.variables.iter().map(|(n, v)| format!("{n}={v}")).collect();
    let mut wished: Vec<&str> = wished.iter().map(String::as_str).collect();
    found.sort_unstable();
    wished.sort_unstable();
    assert_eq!(found, wished);
    assert!(refused(dir, &request).contains(&format!("lives, pid {first}")));
    assert_eq!(ask(dir, &Request::Check).unwrap(), Answer::Ready(1));

    // What is not understood is said, and is the end of that connection alone.
    for said in ["", "GET / HTTP/1.1\r\n\r\n", "mpsgate-hold 7\ncheck\nend\n"] {
        let mut stream = UnixStream::connect(socket(dir)).unwrap();
        stream.write_all(said.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("refused"), "{said:?}: {answer:?}");
    }
    let other = Start { program: "/bin/sh".into(), ..wanted };
    assert!(refused(dir, &Request::Start(other)).contains("--control /usr/bin/tail"));

    kill(Pid::from_raw(first), Signal::SIGKILL).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    let second = loop {
        match ask(dir, &request) {
            Ok(Answer::Started(pid)) => break pid,
            other => assert!(Instant::now() < until, "{other:?}"),
        }
    };
    assert_ne!(first, second);
    kill(Pid::from_raw(second), Signal::SIGKILL).unwrap();
    drop(writer);
    let mut holder = serving.join().unwrap();
    holder.stop();
    assert!(matches!(ask(dir, &Request::Check), Err(HoldError::Away { .. })));
}

#[test]
fn its_socket_is_roots_alone_and_there_is_one_for_a_directory() {
    let root = tempfile::tempdir().unwrap();
    let options = options(root.path());
    let holder = Holder::bind(&options).unwrap();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&options.dir), mode(&holder.socket)), (0o700, 0o600));
    assert_eq!(Root::of_holder(&options.dir), Root::of("self"));
    assert!(matches!(Holder::bind(&options), Err(HoldError::Locked { .. })));
    drop(holder);
    Holder::bind(&options).unwrap();
    fs::set_permissions(&options.dir, fs::Permissions::from_mode(0o711)).unwrap();
    assert!(matches!(Holder::bind(&options), Err(HoldError::Unsafe { mode: 0o711, .. })));
}

#[test]
fn nobody_there_is_told_from_somebody_who_says_no() {
    let root = tempfile::tempdir().unwrap();
    let error = ask(&root.path().join("hold"), &Request::Check).unwrap_err();
    assert!(error.to_string().contains("no holder of MPS control daemons answers"), "{error}");
}
