//! `status`, `enable` and `disable` against a thread that answers as mpsgated, or as something
//! else.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread::JoinHandle;

use mpsgate_api::{
    Call, ClientProcess, Json, Mps, MpsAction, Reply, ServerClients, Status, WireRefusal, WouldEnd,
    decode_length, encode, parse_envelope,
};
use mpsgate_model::{Code, Refusal};
use mpsgate_testing::golden;

use crate::{mpsgate, text};

/// A daemon for one call, or for some in turn.
struct Daemon {
    // Holds the socket.
    _dir: tempfile::TempDir,
    socket: PathBuf,
    thread: JoinHandle<Vec<Call>>,
}

impl Daemon {
    /// Answers with `bytes` and hangs up.
    fn sending(bytes: Vec<u8>) -> Self {
        Self::in_turn(vec![bytes])
    }

    /// Answers each call with its bytes and hangs up.
    fn in_turn(answers: Vec<Vec<u8>>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let answer = move |bytes: Vec<u8>| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut prefix = [0; 4];
            stream.read_exact(&mut prefix).unwrap();
            let mut content = vec![0; decode_length(prefix).unwrap()];
            stream.read_exact(&mut content).unwrap();
            stream.write_all(&bytes).unwrap();
            parse_envelope(&content).unwrap().call
        };
        let thread = std::thread::spawn(move || answers.into_iter().map(answer).collect());
        Self { _dir: dir, socket, thread }
    }

    fn answering(replies: &[Reply]) -> Self {
        Self::sending(replies.iter().flat_map(|reply| encode(reply).unwrap()).collect())
    }

    fn socket(&self) -> &str {
        text(&self.socket)
    }

    /// What was asked.
    fn calls(self) -> Vec<Call> {
        self.thread.join().unwrap()
    }

    /// The only thing that was asked.
    fn call(self) -> Call {
        let [call] = self.calls().try_into().unwrap();
        call
    }
}

fn status() -> Status {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/status-busy.json");
    serde_json::from_str(&std::fs::read_to_string(golden).unwrap()).unwrap()
}

#[test]
fn status_prints_what_the_daemon_answers() {
    let daemon = Daemon::answering(&[Reply::Status(Box::new(status()))]);
    let ended = mpsgate(&["status", "--socket", daemon.socket()]);
    ended.assert_code(0);
    assert!(ended.stdout.starts_with("SIMULATED"), "{ended:#?}");
    assert!(
        ended
            .stdout
            .contains("\nGRANTS, as the ledger records them; USED, as the device counts it\n"),
        "{ended:#?}"
    );
    assert_eq!(ended.stderr, "");
    assert!(matches!(daemon.call(), Call::Status));
}

#[test]
fn status_as_json_is_the_daemons_own_words() {
    let daemon = Daemon::answering(&[Reply::Status(Box::new(status()))]);
    let ended = mpsgate(&["status", "-o", "json", "--socket", daemon.socket()]);
    ended.assert_code(0);
    golden!("status-busy.json", &ended.stdout);
    drop(daemon.call());
}

#[test]
fn an_absent_daemon_is_69_with_the_command_that_starts_it() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("none");
    for args in [
        &["status"][..],
        &["status", "-o", "json"],
        &["enable", "0"],
        &["disable", "0"],
        &["mps", "stop", "0"],
        &["mps", "restart", "0", "--yes"],
        &["reload"],
    ] {
        let ended = mpsgate(&[args, &["--socket", text(&socket)]].concat());
        ended.assert_code(69).assert_stderr(&[
            "error: mpsgated is not running: no socket answers at ",
            "\ncause: No such file or directory",
            "\nhint: systemctl start mpsgated; journalctl -u mpsgated -n 50\n",
        ]);
        assert_eq!(ended.stdout, "", "{args:?}");
    }
}

#[test]
fn a_plain_file_in_the_sockets_place_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    mpsgate(&["status", "--socket", text(file.path())])
        .assert_code(69)
        .assert_stderr(&["is not a socket", "\nhint: remove the file"]);
}

#[test]
fn garbage_another_version_another_answer_and_silence_are_told_apart() {
    let done: Reply = Reply::Done { text: String::new() };
    for (bytes, parts) in [
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            ["no message of mpsgate", "cause: a frame of"],
        ),
        (b"\0\0\0\x04null".to_vec(), ["no message of mpsgate", "cause: the frame is no message"]),
        (
            encode::<Reply>(&Reply::Version { daemon: 9 }).unwrap(),
            ["speaks version 9", "reinstall"],
        ),
        (encode(&done).unwrap(), ["answered another question", "systemctl status mpsgated"]),
        (Vec::new(), ["closed the connection", "systemctl status mpsgated"]),
    ] {
        let daemon = Daemon::sending(bytes);
        let ended = mpsgate(&["status", "--socket", daemon.socket()]);
        ended.assert_code(69).assert_stderr(&parts).assert_stderr(&["error: ", "\nhint: "]);
        drop(daemon.call());
    }
}

#[test]
fn a_daemon_that_hangs_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    // Connections are queued, and nobody takes them.
    let _listener = UnixListener::bind(&socket).unwrap();
    mpsgate(&["status", "--socket", text(&socket)])
        .assert_code(69)
        .assert_stderr(&["did not answer within 2 s", "hint: systemctl status mpsgated"]);
}

#[test]
fn enable_waits_through_progress_and_tells_what_changed() {
    let daemon = Daemon::answering(&[
        Reply::Progress { doing: "starting the MPS control daemon".to_owned() },
        Reply::Done { text: "GPU 0 is managed".to_owned() },
    ]);
    let ended = mpsgate(&["enable", "0", "--no-qualify", "--socket", daemon.socket()]);
    ended.assert_code(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("GPU 0 is managed\n", ""));
    assert!(matches!(daemon.call(), Call::Enable { gpu } if gpu == "0"));
}

#[test]
fn where_nothing_changed_that_is_the_answer() {
    for (verb, answer) in
        [("enable", "GPU 3 is managed already\n"), ("disable", "GPU 3 is not managed\n")]
    {
        let daemon = Daemon::answering(&[Reply::Done { text: String::new() }]);
        let ended = mpsgate(&[verb, "3", "--socket", daemon.socket()]);
        // That the card cannot be asked is no failure of what was done.
        let is_asked = ended.stderr.contains("hint: mpsgate qualify 3");
        assert_eq!(is_asked, verb == "enable", "{}", ended.stderr);
        ended.assert_code(0);
        assert_eq!(ended.stdout, answer);
        match daemon.call() {
            Call::Enable { gpu } => assert_eq!((verb, gpu.as_str()), ("enable", "3")),
            Call::Disable { gpu } => assert_eq!((verb, gpu.as_str()), ("disable", "3")),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_refusal_is_1_with_code_and_hint() {
    let refusal =
        Refusal::new(Code::GpuUnfit, "Tesla P4 has compute capability 6.1", "choose another GPU");
    let daemon = Daemon::answering(&[Reply::Refused(WireRefusal::from(refusal))]);
    let ended = mpsgate(&["enable", "0", "--socket", daemon.socket()]);
    ended.assert_code(1);
    assert_eq!(
        ended.stderr,
        "error: Tesla P4 has compute capability 6.1 [E_GPU_UNFIT]\nhint: choose another GPU\n"
    );
    drop(daemon.call());
}

#[test]
fn mps_without_yes_prints_who_would_die_and_is_1() {
    let list = WouldEnd {
        action: MpsAction::Stop,
        card: "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77".to_owned(),
        card_index: 0,
        grants: status().grants,
        servers: vec![ServerClients {
            pid: 4711,
            uid: Some(1000),
            clients: vec![ClientProcess {
                pid: 4712,
                container_id: Some("web".to_owned()),
                command: "python train.py".to_owned(),
            }],
        }],
        unknown: None,
    };
    let daemon = Daemon::answering(&[Reply::WouldEnd { list: Json::of(&list) }]);
    let ended = mpsgate(&["mps", "stop", "0", "--socket", daemon.socket()]);
    ended.assert_code(1);
    assert_eq!(ended.stderr, "");
    golden!("mps-stop.txt", &ended.stdout);
    match daemon.call() {
        Call::Mps(Mps { gpu, action: MpsAction::Stop, confirmed: false }) => assert_eq!(gpu, "0"),
        other => panic!("{other:?}"),
    }
    let daemon = Daemon::answering(&[Reply::WouldEnd { list: Json::of(&list) }]);
    let ended = mpsgate(&["mps", "stop", "0", "-o", "json", "--socket", daemon.socket()]);
    ended.assert_code(1);
    golden!("mps-stop.json", &ended.stdout);
    drop(daemon.call());
}

/// One card of two has a control daemon; the other one's was stopped by the operator.
fn preflight(change: impl FnOnce(&mut Status, &mut [WouldEnd; 2])) -> Daemon {
    let mut status = status();
    let list = |card: u32, unknown: Option<&str>| WouldEnd {
        action: MpsAction::Restart,
        card: status.cards[card as usize].uuid.clone(),
        card_index: card,
        grants: Vec::new(),
        servers: Vec::new(),
        unknown: unknown.map(str::to_owned),
    };
    let mut lists = [list(0, None), list(1, Some("it is stopped"))];
    lists[0].servers = vec![ServerClients { pid: 4100, uid: Some(0), clients: Vec::new() }];
    status.cards.truncate(2);
    status.cards[1].mps = None;
    change(&mut status, &mut lists);
    let lists = lists.map(|list| Reply::WouldEnd { list: Json::of(&list) });
    let replies = std::iter::once(Reply::Status(Box::new(status))).chain(lists);
    Daemon::in_turn(replies.map(|reply| encode(&reply).unwrap()).collect())
}

#[test]
fn preflight_names_all_who_would_die_on_any_card_and_is_1() {
    let somebody = |status: &mut Status, lists: &mut [WouldEnd; 2]| {
        lists[0].grants = std::mem::take(&mut status.grants);
        lists[0].servers[0].clients =
            vec![ClientProcess { pid: 77, container_id: None, command: "./a.out".to_owned() }];
    };
    let daemon = preflight(somebody);
    let ended = mpsgate(&["mps", "preflight", "--socket", daemon.socket()]);
    ended.assert_code(1);
    assert_eq!(ended.stderr, "");
    golden!("mps-preflight.txt", &ended.stdout);
    let calls = daemon.calls();
    assert!(
        matches!(
            &calls[..],
            [
                Call::Status,
                Call::Mps(Mps { confirmed: false, .. }),
                Call::Mps(Mps { confirmed: false, .. })
            ]
        ),
        "{calls:?}"
    );
    let daemon = preflight(somebody);
    let ended = mpsgate(&["mps", "preflight", "-o", "json", "--socket", daemon.socket()]);
    ended.assert_code(1);
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&document["schema"], &document["nobody"]), (&1.into(), &false.into()));
    assert_eq!(document["cards"][0]["servers"][0]["clients"][0]["pid"], 77);
}

#[test]
fn preflight_is_0_where_nobody_would_die_and_1_where_a_control_daemon_does_not_tell() {
    let daemon = preflight(|_, _| {});
    let ended = mpsgate(&["mps", "preflight", "--socket", daemon.socket()]);
    ended.assert_code(0);
    assert!(ended.stdout.contains("No process would be terminated now."), "{}", ended.stdout);
    assert_eq!(ended.stdout.matches(": nobody\n").count(), 2, "{}", ended.stdout);

    let silent = |_: &mut Status, lists: &mut [WouldEnd; 2]| {
        lists[0].servers.clear();
        lists[0].unknown = Some("it did not answer in 8 s".to_owned());
    };
    let orphan = |_: &mut Status, lists: &mut [WouldEnd; 2]| {
        lists[1].servers = vec![ServerClients { pid: 5, uid: None, clients: Vec::new() }];
    };
    for daemon in [preflight(silent), preflight(orphan)] {
        let ended = mpsgate(&["mps", "preflight", "--socket", daemon.socket()]);
        ended.assert_code(1);
        assert!(ended.stdout.contains("There may be more: "), "{}", ended.stdout);
    }
}

#[test]
fn mps_with_yes_says_what_was_done() {
    let text = "the MPS of GPU 0 is restarted".to_owned();
    let daemon = Daemon::answering(&[Reply::Done { text }]);
    let ended = mpsgate(&["mps", "restart", "0", "--yes", "--socket", daemon.socket()]);
    ended.assert_code(0);
    assert_eq!(ended.stdout, "the MPS of GPU 0 is restarted\n");
    let call = daemon.call();
    assert!(
        matches!(call, Call::Mps(Mps { action: MpsAction::Restart, confirmed: true, .. })),
        "{call:?}"
    );
}

#[test]
fn a_reload_prints_a_line_for_each_setting_that_changed() {
    let lines =
        vec!["log.level: taken".to_owned(), "mps.control: takes effect after: x".to_owned()];
    for (lines, answer) in [
        (lines, "log.level: taken\nmps.control: takes effect after: x\n"),
        (Vec::new(), "no setting has changed\n"),
    ] {
        let daemon = Daemon::answering(&[Reply::Reloaded { lines }]);
        let ended = mpsgate(&["reload", "--socket", daemon.socket()]);
        ended.assert_code(0);
        assert_eq!(ended.stdout, answer);
        assert!(matches!(daemon.call(), Call::Reload));
    }
    let refusal = Refusal::new(Code::Config, "config.toml:3: unknown key", "known here: level");
    let daemon = Daemon::answering(&[Reply::Refused(WireRefusal::from(refusal))]);
    let ended = mpsgate(&["reload", "--socket", daemon.socket()]);
    ended
        .assert_code(1)
        .assert_stderr(&["error: config.toml:3: unknown key [E_CONFIG]\nhint: known"]);
    drop(daemon.call());
}

#[test]
fn who_may_not_reach_the_socket_is_told_to_be_root() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    mpsgate_testing::need!(mpsgate_testing::root());
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    let socket = dir.path().join("s");
    let _listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o711)).unwrap();
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o600)).unwrap();
    // The build directory may be closed to others: a copy is not.
    let program = dir.path().join("mpsgate");
    std::fs::copy(env!("CARGO_BIN_EXE_mpsgate"), &program).unwrap();
    let output = std::process::Command::new(&program)
        .args(["status", "--socket", text(&socket)])
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: only root may talk to mpsgated\ncause: "), "{stderr}");
    assert!(stderr.ends_with("\nhint: run it with sudo, or as root\n"), "{stderr}");
}
