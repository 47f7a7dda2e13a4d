//! Disks that hang, at each kind of file: who needs it waits and is told so, and is answered once
//! it goes on; everybody else is answered meanwhile. In the order of events, never by the clock.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex};

use mpsgate_api::{Call, Envelope, Release, Reply, VERSION, decode_length, encode};
use mpsgate_daemon::FileKind;
use mpsgate_model::Grant;

use crate::harness::{LIMIT, Node, Running, need, on_card, request, root, uuid, wait_for};
use crate::tokens::call_of;

/// The disks of a node: writes of the kind that is held wait until it is let go.
#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<(Mutex<Held>, Condvar)>);

#[derive(Default)]
struct Held {
    kind: Option<FileKind>,
    hangs: bool,
}

impl Disk {
    /// What a writer calls before each write.
    pub(crate) fn pass(&self, kind: FileKind) {
        let (held, changed) = &*self.0;
        let mut held = held.lock().unwrap();
        while held.kind == Some(kind) {
            held.hangs = true;
            held = changed.wait(held).unwrap();
        }
    }

    /// Holds one kind up, or none.
    fn hold(&self, kind: Option<FileKind>) {
        *self.0.0.lock().unwrap() = Held { kind, hangs: false };
        self.0.1.notify_all();
    }

    fn hangs(&self) -> bool {
        self.0.0.lock().unwrap().hangs
    }
}

/// A call that is under way, frame by frame.
struct Asked(UnixStream);

impl Asked {
    fn new(daemon: &Running, call: Call) -> Self {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(&encode(&Envelope { version: VERSION, call }).unwrap()).unwrap();
        Self(stream)
    }

    fn frame(&mut self) -> Reply {
        let mut prefix = [0; 4];
        self.0.read_exact(&mut prefix).unwrap();
        let mut content = vec![0; decode_length(prefix).unwrap()];
        self.0.read_exact(&mut content).unwrap();
        serde_json::from_slice(&content).unwrap()
    }

    /// Returns once it is told that it waits for this.
    fn waits_for(&mut self, what: &str) {
        loop {
            match self.frame() {
                Reply::Progress { doing } if doing.contains(what) => return,
                Reply::Progress { .. } => {}
                other => panic!("it was to wait for {what:?}: {other:?}"),
            }
        }
    }

    fn answer(mut self) -> Reply {
        loop {
            match self.frame() {
                Reply::Progress { .. } => {}
                answer => return answer,
            }
        }
    }

    fn granted(self) -> Grant {
        match self.answer() {
            Reply::Reserved { grant, .. } => *grant,
            other => panic!("{other:?}"),
        }
    }
}

fn enable(card: u32) -> Call {
    Call::Enable { gpu: card.to_string() }
}

#[test]
fn what_operators_and_runtimes_write_keeps_nobody_else_waiting() {
    let node = Node::unmanaged(2);
    let daemon = node.start();
    daemon.done(enable(0)).unwrap();
    let old = daemon.reserve(on_card(request("old", 1), 0)).unwrap();
    let disable = || Call::Disable { gpu: "1".to_owned() };
    let release = || Call::Release(Release { key: old.key.clone() });
    let cases: [(FileKind, &str, &dyn Fn() -> Call); 5] = [
        (FileKind::Managed, "what the operator wants is being written down", &|| enable(1)),
        (FileKind::Managed, "what the operator wants is being written down", &disable),
        (FileKind::Snapshot, "the shim is being told of the card", &|| enable(1)),
        (FileKind::Snapshot, "the shim is being told of the card", &disable),
        (FileKind::Records, "what the grant had is being removed", &release),
    ];
    for (n, (kind, what, call)) in cases.into_iter().enumerate() {
        node.disk.hold(Some(kind));
        let mut asked = Asked::new(&daemon, call());
        asked.waits_for(what);
        let web = on_card(request(&format!("web-{n}"), 1), 0);
        daemon.reserve(web).unwrap();
        assert!(daemon.status().cards[0].granted_mib >= 1024, "{kind:?}: it is on the ledger");
        node.disk.hold(None);
        let answer = asked.answer();
        assert!(matches!(answer, Reply::Done { .. }), "{kind:?}: {answer:?}");
    }
}

fn ledger(node: &Node) -> serde_json::Value {
    let text = fs::read(node.paths.ledger().join("ledger.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn a_grant_is_given_once_it_is_in_the_ledger_and_one_write_serves_all_who_wait() {
    let node = Node::new(1);
    let daemon = node.start();
    daemon.reserve(request("old", 1)).unwrap();
    let before = ledger(&node);
    node.disk.hold(Some(FileKind::Ledger));
    let mut asked = ["web", "db"].map(|name| Asked::new(&daemon, Call::Reserve(request(name, 2))));
    for one in &mut asked {
        one.waits_for("the grant is being recorded");
    }
    assert_eq!(daemon.granted_mib(), 5 * 1024, "a status is answered meanwhile");
    assert_eq!(ledger(&node), before, "nothing is there of what nobody has been given yet");
    node.disk.hold(None);
    for one in asked {
        let grant = one.granted();
        let found = ledger(&node).to_string().contains(grant.key.instance.as_str());
        assert!(found, "{grant:?}");
    }
    let generation = |ledger: &serde_json::Value| ledger["generation"].as_u64().unwrap();
    assert_eq!(generation(&ledger(&node)), generation(&before) + 1);
}

#[test]
fn a_door_that_cannot_be_written_yet_keeps_its_container_waiting_and_no_status() {
    need!(root());
    let node = Node::new(1);
    let daemon = node.start();
    node.disk.hold(Some(FileKind::Doors));
    let mut asked = Asked::new(&daemon, Call::Reserve(request("web", 2)));
    asked.waits_for("the container's door to MPS is being opened");
    assert_eq!(daemon.granted_mib(), 2048);
    node.disk.hold(None);
    assert!(!asked.granted().client_dir.is_empty());
}

#[test]
fn a_pod_whose_token_cannot_be_written_down_yet_keeps_no_other_container_waiting() {
    let node = Node::new(1);
    let daemon = node.start();
    let pod = call_of(&node, "pod", 2, "p1");
    node.disk.hold(Some(FileKind::Tokens));
    let mut asked = Asked::new(&daemon, Call::Reserve(pod));
    asked.waits_for("its pod is being confirmed");
    daemon.reserve(request("web", 1)).unwrap();
    assert_eq!(daemon.granted_mib(), 1024);
    node.disk.hold(None);
    assert_eq!(asked.granted().memory.0, 2048);
}

#[test]
fn the_watchdog_does_not_wait_for_its_file() {
    let node = Node::new(1);
    let daemon = node.start();
    node.disk.hold(Some(FileKind::Holders));
    wait_for("a round's write hangs", || node.disk.hangs());
    node.nvml(|state| state["cards"][0]["memory_used_mib"] = 77.into());
    daemon.reserve(request("web", 1)).unwrap();
    let seen = || daemon.card(0).memory.map(|memory| memory.used);
    wait_for("a later round has looked", || seen() == Some(77 << 20));
    node.disk.hold(None);
}

#[test]
fn what_waits_for_a_disk_is_written_before_the_end() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    node.disk.hold(Some(FileKind::Managed));
    let mut asked = Asked::new(&daemon, enable(0));
    asked.waits_for("what the operator wants is being written down");
    let socket = daemon.socket.clone();
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| daemon.stop());
        // All tasks have ended then, and with them whoever asked for it.
        wait_for("nobody listens", || UnixStream::connect(&socket).is_err());
        assert!(!node.paths.managed().exists());
        node.disk.hold(None);
        ended.join().unwrap().unwrap();
    });
    assert!(fs::read_to_string(node.paths.managed()).unwrap().contains(&uuid(0)));
}
