//! The program itself: command line, exit status, signals, systemd's protocol, and the fixed paths,
//! in a mount namespace of its own.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use mpsgate_api::Call;

use crate::harness::{LIMIT, Node, need, request, root, wait_for};

const MPSGATED: &str = env!("CARGO_BIN_EXE_mpsgated");

fn output(arguments: &[&str]) -> Output {
    Command::new(MPSGATED).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn says_its_version_and_help_on_stdout_and_refuses_unknown_options() {
    let version = output(&["--version"]);
    assert_eq!(text(&version.stdout), format!("mpsgated {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(version.status.code(), Some(0));
    assert!(text(&output(&["--help"]).stdout).contains("--config <FILE>"));
    let usage = output(&["--frobnicate"]);
    assert_eq!((usage.status.code(), usage.stdout.len()), (Some(64), 0));
}

#[test]
fn bad_settings_end_it_with_78_and_name_file_key_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    fs::write(&file, "[gpus]\nmanage = \"all\"\nreserve_mb = 1\n").unwrap();
    let ended = output(&["--config", file.to_str().unwrap()]);
    assert_eq!(ended.status.code(), Some(78));
    let stderr = text(&ended.stderr);
    for part in ["error: ", "cause: ", "hint: ", "config.toml", "reserve_mb", "3"] {
        assert!(stderr.contains(part), "{part}: {stderr}");
    }
}

/// `mpsgated` with the fixed paths, which lie on `place` in a mount namespace of its own.
struct Program {
    child: Child,
    run: PathBuf,
    errors: PathBuf,
}

impl Program {
    /// `before` runs as shell script after the mounts.
    fn start(node: &Node, before: &str, environment: &[(&str, &Path)]) -> Self {
        let place = node.dir.path().join("fixed");
        fs::create_dir_all(place.join("run")).unwrap();
        fs::create_dir_all(place.join("lib")).unwrap();
        let config = write_config(node);
        let errors = node.dir.path().join("stderr");
        let script = format!(
            "set -e; mount --bind {0}/run /run; mkdir -p {0}/lib/mpsgate; mount --bind {0}/lib /var/lib; \
             {before}\nexec {MPSGATED} --config {1}",
            place.display(),
            config.display(),
        );
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        Self { child, run: place.join("run/mpsgate"), errors }
    }

    fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }

    /// Its socket lies on our own filesystem, under the other name.
    fn call(&self, call: Call) -> Option<mpsgate_api::Reply> {
        mpsgate_api::Client::connect(&self.run.join("mpsgated.sock"))
            .ok()?
            .call(call, None, LIMIT)
            .ok()
    }

    fn wait_ready(&self) {
        wait_for("the program is ready", || self.errors().contains("mpsgated is ready"));
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        wait_for("the program ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        // Held open: with its last process the namespace ends, and its number is another test's
        // next.
        let _held = fs::File::open(format!("/proc/{}/ns/mnt", self.child.id()));
        let theirs = namespace(&self.child.id().to_string())
            .filter(|n| Some(n) != namespace("self").as_ref());
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The holder and all that it has started outlive mpsgated: they are in its mount namespace,
        // or children of what is.
        let Some(theirs) = theirs else { return };
        let stat = |pid: &u32| mpsgate_host::process::Stat::of(*pid).map(|stat| stat.parent);
        let mut doomed: Vec<u32> = Vec::new();
        loop {
            let all = mpsgate_host::process::all();
            let is_new = |pid: &u32| {
                !doomed.contains(pid)
                    && (namespace(&pid.to_string()).as_ref() == Some(&theirs)
                        || stat(pid).is_some_and(|parent| doomed.contains(&parent)))
            };
            let more: Vec<u32> = all.into_iter().filter(is_new).collect();
            if more.is_empty() {
                break;
            }
            doomed.extend(more);
        }
        let pids: Vec<String> = doomed.iter().map(u32::to_string).collect();
        let _ = Command::new("kill").arg("-9").args(pids).status();
    }
}

fn write_config(node: &Node) -> PathBuf {
    let file = node.dir.path().join("config.toml");
    let text = format!(
        "[nvml]\nlibrary = \"{}\"\n[mps]\ncontrol = \"{}\"\n[metrics]\nlisten = \"off\"\n",
        node.config.nvml.library.display(),
        node.config.mps.control.display(),
    );
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn tells_systemd_that_it_is_ready_alive_and_stopping() {
    need!(root());
    let node = Node::unmanaged(1);
    let path = node.dir.path().join("notify");
    let notify = UnixDatagram::bind(&path).unwrap();
    notify.set_read_timeout(Some(LIMIT)).unwrap();
    let micros = Path::new("200000");
    let mut program =
        Program::start(&node, "", &[("NOTIFY_SOCKET", &path), ("WATCHDOG_USEC", micros)]);
    let hear = |wanted: &str| {
        let mut buffer = [0; 256];
        loop {
            let length = notify.recv(&mut buffer).unwrap();
            if text(&buffer[..length]).contains(wanted) {
                return;
            }
        }
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    assert_eq!(program.run.join("runtime").read_link().is_ok(), has_runc());
    program.signal("-TERM");
    hear("STOPPING=1");
    assert_eq!(program.exit_code(), Some(0));
    assert!(!program.run.join("mpsgated.sock").exists());
}

fn has_runc() -> bool {
    mpsgate_config::find_runtime(Path::new("runc"), None).is_some()
}

#[test]
fn hangup_takes_what_it_can_names_what_it_cannot_and_survives_bad_settings() {
    need!(root());
    let node = Node::unmanaged(1);
    let program = Program::start(&node, "", &[]);
    program.wait_ready();
    // A card that is not known yet would be managed from its first look on, without a word.
    wait_for(
        "the card is known",
        || matches!(program.call(Call::Status), Some(mpsgate_api::Reply::Status(s)) if !s.cards.is_empty()),
    );
    let file = node.dir.path().join("config.toml");
    let good = fs::read_to_string(&file).unwrap();
    let add = |text: &str| fs::write(&file, format!("{good}{text}")).unwrap();
    let changed = good.replacen("[mps]\n", "[mps]\nsupervisor = \"holder\"\n", 1);
    assert_ne!(changed, good);
    fs::write(
        &file,
        format!(
            "{changed}[runtime]\npath = \"/usr/bin/true\"\n[log]\nlevel = \"debug\"\n[gpus]\nmanage = \"all\"\n"
        ),
    )
    .unwrap();
    program.signal("-HUP");
    // All lines are written once the card is handed over, or could not be.
    wait_for("it is reloaded", || program.errors().contains("gpus.manage: taken"));
    for line in [
        "runtime.path: taken",
        "log.level: taken",
        "is managed now: 15 GiB to give",
        "mps.supervisor: takes effect after: systemctl restart mpsgated",
    ] {
        let said = || program.errors();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while !said().contains(line) {
            assert!(std::time::Instant::now() < until, "no {line:?} in:\n{}", said());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    assert_eq!(program.run.join("runtime").read_link().unwrap(), Path::new("/usr/bin/true"));
    add("[gpus]\nmanag = \"all\"\n");
    program.signal("-HUP");
    wait_for("the mistake is told", || program.errors().contains("settings not reloaded"));
    assert!(program.call(Call::Status).is_some());
}

#[test]
fn a_read_only_run_keeps_it_from_starting_and_is_named() {
    need!(root());
    let node = Node::unmanaged(1);
    let mut program = Program::start(&node, "mount -o remount,ro,bind /run", &[]);
    let code = program.exit_code();
    let errors = program.errors();
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("error: cannot create directory /run/mpsgate"), "{errors}");
    assert!(errors.contains("Read-only file system"), "{errors}");
}

#[test]
fn a_full_run_refuses_reservations_and_recovers() {
    need!(root());
    let node = Node::unmanaged(1);
    // Seen from here through /proc/<pid>/root.
    let program = Program::start(&node, "mount -t tmpfs -o size=256k tmpfs /run", &[]);
    program.wait_ready();
    let root = PathBuf::from(format!("/proc/{}/root", program.child.id()));
    let run = root.join("run/mpsgate");
    let call = |call: Call| -> mpsgate_api::Reply {
        let client = mpsgate_api::Client::connect(&run.join("mpsgated.sock")).unwrap();
        client.call(call, None, LIMIT).unwrap()
    };
    let enabled = call(Call::Enable { gpu: "0".to_owned() });
    assert!(matches!(enabled, mpsgate_api::Reply::Done { .. }), "{enabled:?}");
    let fill = root.join("run/fill");
    let _ = fs::write(&fill, vec![0; 1 << 20]);
    let refused = call(Call::Reserve(request("web", 1)));
    let mpsgate_api::Reply::Refused(refusal) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.code, "E_LEDGER");
    assert!(refusal.sentence.contains("No space left on device"), "{refusal:?}");
    let status = call(Call::Status);
    assert!(matches!(status, mpsgate_api::Reply::Status(_)), "{status:?}");
    fs::remove_file(fill).unwrap();
    let reserved = call(Call::Reserve(request("web", 1)));
    assert!(matches!(reserved, mpsgate_api::Reply::Reserved { .. }), "{reserved:?}");
    call(Call::Release(mpsgate_api::Release { key: request("web", 1).key }));
    let disabled = call(Call::Disable { gpu: "0".to_owned() });
    assert!(matches!(disabled, mpsgate_api::Reply::Done { .. }), "{disabled:?}");
}

#[test]
fn a_planted_link_in_place_of_run_mpsgate_is_refused() {
    need!(root());
    let node = Node::unmanaged(1);
    let mut program = Program::start(&node, "ln -s /var/lib /run/mpsgate", &[]);
    assert_eq!(program.exit_code(), Some(2));
    assert!(program.errors().contains("/run/mpsgate is a symbolic link"), "{}", program.errors());
    assert_eq!(program.errors().lines().filter(|line| line.starts_with("hint: ")).count(), 1);
}

#[test]
fn memory_of_its_own_stays_below_ten_mib_with_nine_cards_and_four_hundred_grants() {
    need!(root());
    let node = Node::unmanaged(9);
    let program = Program::start(&node, "", &[]);
    program.wait_ready();
    let mut granted = 0;
    for card in 0..9 {
        let done = program.call(Call::Enable { gpu: card.to_string() });
        assert!(matches!(done, Some(mpsgate_api::Reply::Done { .. })), "{done:?}");
    }
    for n in 0..405 {
        let mut call = request(&format!("{n:064x}"), 1);
        call.request.memory = Some(mpsgate_model::Mib(100));
        granted += u32::from(matches!(
            program.call(Call::Reserve(call)),
            Some(mpsgate_api::Reply::Reserved { .. })
        ));
    }
    assert!(granted >= 400, "{granted}");
    let mut status = String::new();
    fs::File::open(format!("/proc/{}/status", program.child.id()))
        .unwrap()
        .read_to_string(&mut status)
        .unwrap();
    // Not VmRSS: of an unoptimised build most of that is the program's own file, and how much of
    // it is mapped is the page cache's to say. `make bench` measures the shipped program's.
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 10 * 1024, "{status}");
}
