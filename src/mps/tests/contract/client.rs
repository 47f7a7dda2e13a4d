//! NVIDIA's own client library, without a GPU: which daemon it reaches, from where, and what it
//! needs. Both control daemons, NVIDIA's and the fake, have the fake's server here, which decides
//! the result of each client's `cuInit`.
//!
//! Everything after the first words of a server needs a card: `tests/gpu`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use mpsgate_mps::{ControlDaemon, MpsInstance};

use crate::harness::{Bench, feed, libcuda, need, root, wait_for};

/// `CUDA_ERROR_NO_DEVICE`: no MPS was found, or no card behind it.
const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_MAP_FAILED`: the server's region was not found.
const MAP_FAILED: i32 = 205;
/// `CUDA_ERROR_MPS_CONNECTION_FAILED`: a server greeted, and then sent nothing.
const CONNECTION_FAILED: i32 = 805;
/// A code that no library returns by itself: it came from the server.
const SERVERS_WORD: i32 = 4711;

/// A control daemon with the fake's server, and a client of its branch.
struct Stage {
    card: MpsInstance,
    _daemon: ControlDaemon,
    program: PathBuf,
    library: PathBuf,
}

/// The result of `cuInit`, and the client in the daemon's log: pid and uid.
#[derive(Debug, PartialEq, Eq)]
struct Attached {
    code: i32,
    logged: Option<u32>,
}

/// Fails, with the reason, where this machine cannot run the test.
fn stage(bench: &Bench) -> Result<Stage, String> {
    root()?;
    let library = bench.readable(&libcuda(bench.version)?.canonicalize().unwrap());
    bench.with_server()?;
    let (card, daemon) = bench.started();
    let stage = Stage { card, _daemon: daemon, program: bench.cuda_client(), library };
    stage.steer("fake-server-status", &SERVERS_WORD.to_string());
    Ok(stage)
}

impl Stage {
    fn steer(&self, file: &str, text: &str) {
        fs::write(self.card.dirs().log_dir().join(file), text).unwrap();
    }

    fn log(&self) -> String {
        self.card.dirs().log_file().since(0).unwrap()
    }

    /// Runs the client below `around`, a command line that ends with the client's, and checks while
    /// it lives: the pid in the daemon's log must be this client's own on this machine.
    fn attach(&self, pipe: &Path, around: &[&str]) -> Attached {
        let before = self.log().len();
        let mut line: Vec<&str> = around.to_vec();
        // As root the library makes /dev/nvidiactl, if it may (measured).
        line.extend(["setpriv", "--bounding-set", "-mknod", "--"]);
        let mut command = std::process::Command::new(line[0]);
        command.args(&line[1..]).arg(&self.program).arg(&self.library);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
        command.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut text = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut text).unwrap();
        let (inner, code) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{text:?}"));
        // The daemon's log comes from a thread of its own, in order.
        self.card.channel().server_list().unwrap();
        wait_for("the log has all", || self.log()[before..].contains("Cmd:get_server_list"));
        let log = self.log().split_off(before);
        let seen = log.lines().filter_map(|line| line.split_once("NEW CLIENT ")).next_back();
        let logged = seen.map(|(_, rest)| {
            let words: Vec<&str> = rest.split([' ', ':']).collect();
            let status = fs::read_to_string(format!("/proc/{}/status", words[0])).unwrap();
            let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
            assert_eq!(pids.split_whitespace().last(), Some(inner), "{log}");
            words[3].parse().unwrap()
        });
        drop(child.stdin.take());
        child.wait().unwrap();
        Attached { code: code.parse().unwrap(), logged }
    }
}

const ATTACHED: Attached = Attached { code: SERVERS_WORD, logged: Some(0) };
const AS_1000: [&str; 6] = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"];

pub(crate) fn the_real_client_attaches_through_control_alone(bench: &Bench) {
    let stage = need!(stage(bench));
    let dir = bench.control_alone();
    assert_eq!(stage.attach(&dir, &[]), ATTACHED);
    // A running server learns of the second client.
    assert_eq!(stage.attach(&dir, &[]), ATTACHED);
    assert!(stage.log().contains("Server already exists"), "{}", stage.log());
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "it makes nothing there");
}

/// A container brings its own library if the node's is not injected.
pub(crate) fn a_library_of_another_branch_attaches_all_the_same(bench: &Bench) {
    let mut stage = need!(stage(bench));
    let fetched = libcuda(if bench.version == 535 { 550 } else { 535 });
    // The library of 555 cannot be downloaded here: a variable names a copy.
    let given = std::env::var_os("MPSGATE_LIBCUDA_555").map(PathBuf::from);
    if given.is_none() {
        need!(fetched.as_ref());
    }
    for library in fetched.into_iter().chain(given) {
        stage.library = bench.readable(&library.canonicalize().unwrap());
        assert_eq!(stage.attach(&bench.control_alone(), &[]), ATTACHED);
    }
}

pub(crate) fn what_is_no_library_or_has_no_cuinit_is_named(bench: &Bench) {
    let library = need!(libcuda(bench.version));
    let client = bench.cuda_client();
    let whole = fs::read(&library).unwrap();
    let truncated = bench.dir.path().join("truncated.so");
    // A larger part would crash the loader itself: it maps what the header promises.
    fs::write(&truncated, &whole[..32]).unwrap();
    let missing = bench.dir.path().join("missing.so");
    for (file, why) in [
        (truncated.as_path(), "file too short"),
        (&missing, "No such file or directory"),
        (Path::new("libc.so.6"), "undefined symbol: cuInit"),
    ] {
        let mut command = std::process::Command::new(&client);
        command.arg(file);
        let output = feed(command, "");
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
        assert!(text.starts_with(&*file.to_string_lossy()) && text.contains(why), "{text}");
    }
}

/// Whatever namespaces a container has, the daemon sees the true pid and uid.
pub(crate) fn the_real_client_attaches_from_any_namespace_and_as_any_uid(bench: &Bench) {
    let stage = need!(stage(bench));
    let dir = bench.control_alone();
    for namespace in ["--ipc", "--net", "--uts", "--mount"] {
        assert_eq!(stage.attach(&dir, &["unshare", namespace]), ATTACHED, "{namespace}");
    }
    assert_eq!(stage.attach(&dir, &["unshare", "--user", "--map-root-user"]), ATTACHED);
    let own_pids = ["unshare", "--pid", "--fork", "--mount-proc"];
    assert_eq!(stage.attach(&dir, &own_pids), ATTACHED);
    let read_only =
        format!("mount --bind {0} {0}; mount -o remount,bind,ro {0}; exec \"$@\"", dir.display());
    assert_eq!(stage.attach(&dir, &["unshare", "--mount", "sh", "-c", &read_only, "sh"]), ATTACHED);
    let other = Attached { code: SERVERS_WORD, logged: Some(1000) };
    assert_eq!(stage.attach(&dir, &AS_1000), other);
    let mut rootless: Vec<&str> = AS_1000.to_vec();
    rootless.extend(["unshare", "--user", "--map-root-user", "--ipc", "--net"]);
    assert_eq!(stage.attach(&dir, &rootless), other);
}

/// If no daemon of mpsgate listens, the library continues without MPS. So no container may have a
/// card's node without a working channel.
pub(crate) fn the_real_client_goes_on_without_mps_where_nobody_listens(bench: &Bench) {
    let stage = need!(stage(bench));
    let none = Attached { code: NO_DEVICE, logged: None };
    let dir = bench.dir.path().join("elsewhere");
    fs::create_dir(&dir).unwrap();
    let control = dir.join("control");
    assert_eq!(stage.attach(&dir, &[]), none, "an empty directory");
    symlink("/nowhere", &control).unwrap();
    assert_eq!(stage.attach(&dir, &[]), none, "a link to nothing");
    fs::remove_file(&control).unwrap();
    fs::write(&control, "").unwrap();
    assert_eq!(stage.attach(&dir, &[]), none, "a regular file");
    fs::remove_file(&control).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&control).unwrap());
    assert_eq!(stage.attach(&dir, &[]), none, "a socket of another kind, whose maker has gone");
}

/// The result of `cuInit` for a server that only greets equals that for a daemon without a server.
pub(crate) fn the_code_alone_does_not_tell_whom_the_real_client_reached(bench: &Bench) {
    let stage = need!(stage(bench));
    use nix::sys::socket::{
        AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
        send, socket,
    };
    use std::os::fd::AsRawFd;
    let dir = bench.dir.path().join("foreign");
    fs::create_dir(&dir).unwrap();
    let listener =
        socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(listener.as_raw_fd(), &UnixAddr::new(&dir.join("control")).unwrap()).unwrap();
    listen(&listener, Backlog::new(4).unwrap()).unwrap();
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The client checks whether a daemon is there, and connects again.
            for _ in 0..2 {
                let one = accept(listener.as_raw_fd()).unwrap();
                send(one, b"OUTBHELL\0", MsgFlags::MSG_NOSIGNAL).unwrap();
                let _ = recv(one, &mut [0; 16], MsgFlags::empty());
                let _ = nix::unistd::close(one);
            }
        });
        stage.attach(&dir, &[])
    });
    assert_eq!(seen, Attached { code: CONNECTION_FAILED, logged: None });
    fs::write(stage.card.dirs().log_dir().join("fake-server-dies"), "").unwrap();
    let seen = stage.attach(&bench.control_alone(), &[]);
    assert_eq!(seen, Attached { code: CONNECTION_FAILED, logged: Some(0) });
}

/// Not the IPC namespace matters, but the mount `/dev/shm`, where these drivers give the server's
/// region a name.
pub(crate) fn the_real_client_looks_for_the_servers_region_in_dev_shm(bench: &Bench) {
    let stage = need!(stage(bench));
    stage.steer("fake-server-status", "0");
    stage.steer("fake-server-region", "named");
    let dir = bench.control_alone();
    // The region was found, and only the card is missing.
    let found = Attached { code: NO_DEVICE, logged: Some(0) };
    assert_eq!(stage.attach(&dir, &[]), found);
    assert_eq!(stage.attach(&dir, &["unshare", "--ipc"]), found);
    let own =
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /dev/shm; exec \"$@\"", "sh"];
    assert_eq!(stage.attach(&dir, &own), Attached { code: MAP_FAILED, logged: Some(0) });
    let log = stage.log();
    let (_, name) = log.split_once("Created named shared memory region ").unwrap();
    fs::remove_file(Path::new("/dev/shm").join(name.lines().next().unwrap())).unwrap();
}
