//! Reserve, activate, release, expire.

use std::collections::BTreeMap;

use mpsgate_api::{Activate, Call, Engine, ExecRecord, FILES_FORMAT, GrantState, Report};
use mpsgate_model::{Instance, Mib};
use mpsgate_policy::NoteAction;

use crate::harness::{Container, Node, key, need, on_card, request, root, servers, uuid, wait_for};

#[test]
fn a_grant_names_all_that_the_container_needs() {
    let node = Node::new(2);
    let daemon = node.start();
    let grant = daemon.reserve(on_card(request("web", 7), 1)).unwrap();
    assert_eq!(grant.key, key("web", 1));
    assert_eq!(grant.memory, Mib(7168));
    let card = &grant.cards[0];
    assert_eq!((card.uuid.as_str(), card.index, card.minor), (uuid(1).as_str(), 1, 1));
    let door = format!("1/containers/{}", grant.key.instance);
    assert_eq!(grant.client_dir, node.paths.mps().join(door).display().to_string());
    assert!(std::path::Path::new(&grant.client_dir).join("control").exists());
    let status = daemon.status();
    assert_eq!(status.grants.len(), 1);
    assert_eq!(
        (status.grants[0].state.as_str(), status.grants[0].pid),
        ("reserved", std::process::id())
    );
    assert_eq!((status.cards[1].granted_mib, status.cards[1].free_mib), (7168, 8192));
    assert!(status.simulated);
}

#[test]
fn a_reservation_for_the_callers_parent_is_held_by_that() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut call = request("web", 7);
    call.for_parent = true;
    daemon.reserve(call).unwrap();
    let status = daemon.status();
    assert_eq!(
        (status.grants[0].state.as_str(), status.grants[0].pid),
        ("reserved", std::os::unix::process::parent_id())
    );
}

#[test]
fn the_server_takes_the_uid_and_the_limit_of_the_grant_before_the_container_starts() {
    need!(servers());
    let node = Node::new(1);
    let daemon = node.start();
    let mut call = request("web", 7);
    call.uid = crate::harness::server_uid();
    let grant = daemon.reserve(call).unwrap();
    let servers = node.mps(0).servers().unwrap();
    assert_eq!(servers.iter().map(|s| s.uid).collect::<Vec<_>>(), [Some(grant.uid)]);
    let init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    assert_eq!(node.mps(0).channel().default_limit().unwrap().as_deref(), Some("7G"));
    assert_eq!(daemon.card(0).mps.unwrap().default_limit_mib, Some(7168));
}

#[test]
fn a_grant_ends_with_its_init_although_nobody_reaps_it() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let mut init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    assert_eq!(daemon.status().grants[0].state, GrantState::Active);
    init.kill();
    wait_for("the grant is free", || daemon.granted_mib() == 0);
}

#[test]
fn a_cgroup_that_is_holds_or_lies_in_another_grants_is_refused() {
    let node = Node::new(1);
    let daemon = node.start();
    let outer = need!(Cgroup::new("shared"));
    let (own, beside) = (outer.below("v"), outer.below("vw"));
    let within = own.below("w/deep");
    let mut init = Container::new();
    let web = daemon.reserve(request("web", 1)).unwrap();
    own.add(&init);
    daemon.activate(&web, &init, Some(own.id())).unwrap();
    for (name, cgroup, says) in [
        ("same", &own, " is that of container web, which has a grant too"),
        ("inner", &within, " lies in "),
        ("outer", &outer, " holds "),
    ] {
        let grant = daemon.reserve(request(name, 1)).unwrap();
        let other = Container::new();
        cgroup.add(&other);
        let refusal = daemon.activate(&grant, &other, Some(cgroup.id())).unwrap_err();
        assert_eq!(refusal.code, "E_CGROUP");
        assert!(refusal.sentence.contains(says), "{}", refusal.sentence);
    }
    let next = daemon.reserve(request("next", 1)).unwrap();
    let neighbour = Container::new();
    beside.add(&neighbour);
    daemon.activate(&next, &neighbour, Some(beside.id())).unwrap();
    // Who was refused does not keep the grant of another, once its own processes have ended.
    init.kill();
    wait_for("the grant is free", || {
        daemon.status().grants.iter().all(|g| g.container_id != "web")
    });
    drop(within);
}

#[test]
fn release_is_idempotent_and_names_the_instance() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    assert_eq!(daemon.release(&key("web", 2)), "", "another instance");
    assert_eq!(daemon.granted_mib(), 7168);
    assert_eq!(daemon.release(&grant.key), "7 GiB released");
    assert_eq!(daemon.release(&grant.key), "");
    assert_eq!(daemon.granted_mib(), 0);
}

#[test]
fn a_container_that_lives_is_not_granted_twice_and_one_that_ended_is_counted_once() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let mut init = Container::new();
    daemon.activate(&grant, &init, None).unwrap();
    let mut again = request("web", 8);
    again.key.instance = Instance::from_bytes([2; 16]);
    let refusal = daemon.reserve(again.clone()).unwrap_err();
    assert!(refusal.sentence.contains("has a grant of 7 GiB already"), "{refusal:?}");
    init.kill();
    // At once, whether or not the watch has seen the end yet.
    wait_for("the previous instance is replaced", || daemon.reserve(again.clone()).is_ok());
    assert_eq!(daemon.granted_mib(), 8192);
}

#[test]
fn refusals_carry_code_sentence_and_hint_and_are_counted() {
    let node = Node::new(1);
    let daemon = node.start();
    daemon.reserve(request("web", 9)).unwrap();
    let refusal = daemon.reserve(request("db", 7)).unwrap_err();
    assert_eq!(refusal.code, "E_NO_CAPACITY");
    assert_eq!(
        refusal.sentence,
        format!("it asks for 7 GiB, GPU 0 ({}) has 6 GiB of 15 GiB left: web holds 9 GiB", uuid(0))
    );
    assert_eq!(daemon.reserve(request("db", 16)).unwrap_err().code, "E_TOO_LARGE");
    assert_eq!(daemon.reserve(on_card(request("db", 1), 9)).unwrap_err().code, "E_UNKNOWN_GPU");
    let mut other = request("db", 1);
    other.uid = 4711;
    assert_eq!(daemon.reserve(other).unwrap_err().code, "E_UID");
    let report = Report {
        container_id: "x".to_owned(),
        code: "E_PRIVILEGED".to_owned(),
        action: NoteAction::Refused.into(),
        sentence: "it is privileged".to_owned(),
        hint: None,
        pod: None,
    };
    daemon.done(Call::Report(report.clone())).unwrap();
    daemon.done(Call::Report(Report { code: "\u{1b}[31m".to_owned(), ..report.clone() })).unwrap();
    for action in [NoteAction::Stripped, NoteAction::Warned, NoteAction::Noted] {
        daemon.done(Call::Report(Report { action: action.into(), ..report.clone() })).unwrap();
    }
    let counted: BTreeMap<String, u64> = [
        ("E_NO_CAPACITY", 1),
        ("E_TOO_LARGE", 1),
        ("E_UNKNOWN_GPU", 1),
        ("E_UID", 1),
        ("E_PRIVILEGED", 1),
        ("OTHER", 1),
    ]
    .map(|(code, count)| (code.to_owned(), count))
    .into();
    let status = daemon.status();
    assert_eq!(status.refusals, counted);
    assert_eq!(status.notes, [("E_PRIVILEGED".to_owned(), 2)].into(), "noted is logged alone");
}

#[test]
fn a_request_below_a_kubelet_is_not_trusted() {
    let node = Node::new(1);
    let daemon = node.start();
    let mut call = request("pod", 1);
    call.engine = Engine::Kubernetes;
    assert_eq!(daemon.reserve(call).unwrap_err().code, "E_UNCONFIRMED");
    let mut node = node;
    drop(daemon);
    node.config.trust.local = mpsgate_config::Switch::Off;
    let daemon = node.start();
    let refusal = daemon.reserve(request("web", 1)).unwrap_err();
    assert_eq!(refusal.code, "E_UNCONFIRMED");
    assert!(refusal.hint.contains("trust.local = \"on\""), "{refusal:?}");
}

#[test]
fn who_was_never_reserved_for_gets_nothing() {
    let node = Node::new(1);
    let daemon = node.start();
    let init = Container::new();
    let bare = Activate { key: key("nobody", 1), pid: init.pid(), cgroup: None, grant: None };
    assert_eq!(daemon.activate_with(bare, init.pid()).unwrap_err().code, "E_NO_RESERVATION");
}

#[test]
fn the_pidfd_must_be_the_named_process() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let (named, sent) = (Container::new(), Container::new());
    let cgroup = Some(daemon.own_cgroup(named.pid()));
    let call = Activate { key: grant.key.clone(), pid: named.pid(), cgroup, grant: None };
    let refusal = daemon.activate_with(call.clone(), sent.pid()).unwrap_err();
    assert_eq!(refusal.code, "E_HOOK_STATE");
    assert!(refusal.sentence.contains(&format!("pid {}", sent.pid())), "{refusal:?}");
    daemon.activate_with(call, named.pid()).unwrap();
}

#[test]
fn a_directory_that_is_no_cgroup_of_the_init_is_refused() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let init = Container::new();
    let path = node.dir.path().display().to_string();
    let cgroup = mpsgate_model::ledger::CgroupId { path, inode: 1 };
    let refusal = daemon.activate(&grant, &init, Some(cgroup)).unwrap_err();
    assert_eq!(refusal.code, "E_HOOK_STATE");
    assert!(refusal.sentence.contains("not on a cgroup filesystem"), "{refusal:?}");
}

#[test]
fn the_exec_record_of_this_instance_goes_with_the_grant() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let name = mpsgate_model::GrantKey::record_name("/run/runc", "web").unwrap();
    let path = node.paths.grants().join(name);
    let mut record = ExecRecord {
        format: FILES_FORMAT,
        grant: grant.clone(),
        drop: Vec::new(),
        set: Vec::new(),
        closed: Vec::new(),
    };
    record.grant.key.instance = Instance::from_bytes([2; 16]);
    std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    daemon.release(&grant.key);
    assert!(path.exists(), "the record of a newer instance stays");
    let grant = daemon.reserve(request("web", 7)).unwrap();
    record.grant.key = grant.key.clone();
    std::fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
    daemon.release(&grant.key);
    assert!(!path.exists());
}

#[test]
fn two_hundred_at_once_on_eight_cards_overcommit_none() {
    let node = Node::new(8);
    let daemon = node.start();
    let granted: Vec<_> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..200)
            .map(|n| {
                let daemon = &daemon;
                scope.spawn(move || daemon.reserve(request(&format!("c{n}"), 1 + n % 3)))
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).collect()
    });
    let asked: u64 = granted.iter().flatten().map(|grant| grant.memory.0).sum();
    let refused: Vec<_> = granted.iter().filter_map(|g| g.as_ref().err()).collect();
    assert!(refused.iter().all(|r| r.code == "E_NO_CAPACITY"), "{refused:?}");
    let status = daemon.status();
    assert_eq!(status.grants.len(), granted.iter().flatten().count());
    assert_eq!(status.cards.iter().map(|card| card.granted_mib).sum::<u64>(), asked);
    for card in &status.cards {
        let held: u64 =
            status.grants.iter().filter(|g| g.card == card.uuid).map(|g| g.memory_mib).sum();
        assert_eq!(held, card.granted_mib);
        assert!(held <= card.memory_mib, "{card:?}");
        // Less than the smallest request is left, or a refusal was wrong.
        assert!(card.free_mib < 3 * 1024, "{card:?}");
    }
}

/// A cgroup of our own in whatever hierarchy this machine has, removed at the end.
pub(crate) struct Cgroup(std::path::PathBuf);

impl Cgroup {
    pub(crate) fn new(name: &str) -> Result<Self, &'static str> {
        root()?;
        let name = format!("mpsgated-test-{name}-{}", std::process::id());
        // v2, else a hierarchy of v1 that needs no settings.
        ["/sys/fs/cgroup", "/sys/fs/cgroup/freezer", "/sys/fs/cgroup/unified"]
            .map(|root| std::path::Path::new(root).join(&name))
            .into_iter()
            .find(|path| {
                let made = std::fs::create_dir(path).is_ok();
                let usable = made && path.join("cgroup.procs").exists();
                if made && !usable {
                    std::fs::remove_dir(path).unwrap();
                }
                usable
            })
            .map(Self)
            .ok_or("needs a cgroup hierarchy that can be written")
    }

    /// One of v2, below `root`: its tree, or the one beside v1's.
    pub(crate) fn on_v2(name: &str) -> Result<(std::path::PathBuf, Self), &'static str> {
        root()?;
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(std::path::PathBuf::from);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists());
        root.and_then(|root| {
            let path = root.join(format!("mpsgated-test-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).ok().map(|()| (root, Self(path)))
        })
        .ok_or("needs a tree of cgroup v2 that can be written")
    }

    pub(crate) fn add(&self, container: &Container) {
        self.add_pid(container.pid());
    }

    pub(crate) fn add_pid(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Into a cgroup of its own below.
    pub(crate) fn add_below(&self, name: &str, pid: u32) {
        std::fs::create_dir_all(self.0.join(name)).unwrap();
        std::fs::write(self.0.join(name).join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Into one so far below that its path is longer than the kernel shows.
    pub(crate) fn add_beyond_paths(&self, pid: u32) -> BeyondPaths {
        use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
        let name = "d".repeat(200);
        let mut directories = vec![open(&self.0, OFlags::DIRECTORY, Mode::empty()).unwrap()];
        for _ in 0..22 {
            let last = directories.last().unwrap();
            mkdirat(last, name.as_str(), Mode::RWXU).unwrap();
            directories
                .push(openat(last, name.as_str(), OFlags::DIRECTORY, Mode::empty()).unwrap());
        }
        let procs =
            openat(directories.last().unwrap(), "cgroup.procs", OFlags::WRONLY, Mode::empty());
        rustix::io::write(procs.unwrap(), pid.to_string().as_bytes()).unwrap();
        BeyondPaths { name, directories }
    }

    /// One below it.
    pub(crate) fn below(&self, name: &str) -> Self {
        let below = self.0.join(name);
        std::fs::create_dir_all(&below).unwrap();
        Self(below)
    }

    pub(crate) fn id(&self) -> mpsgate_model::ledger::CgroupId {
        use std::os::unix::fs::MetadataExt;
        mpsgate_model::ledger::CgroupId {
            path: self.0.display().to_string(),
            inode: self.0.metadata().unwrap().ino(),
        }
    }
}

/// Directories that only their parents can remove.
pub(crate) struct BeyondPaths {
    name: String,
    directories: Vec<std::os::fd::OwnedFd>,
}

impl Drop for BeyondPaths {
    fn drop(&mut self) {
        for parent in self.directories.iter().rev().skip(1) {
            for _ in 0..500 {
                if rustix::fs::unlinkat(parent, self.name.as_str(), rustix::fs::AtFlags::REMOVEDIR)
                    .is_ok()
                {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        fn remove(directory: &std::path::Path) -> bool {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove(&entry.path());
                }
            }
            std::fs::remove_dir(directory).is_ok()
        }
        // The kernel needs a moment to forget the last process.
        let gone = || remove(&self.0);
        for _ in 0..500 {
            if gone() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        eprintln!("left behind: {}", self.0.display());
    }
}

#[test]
fn a_grant_lasts_until_the_last_process_of_the_cgroup_has_ended() {
    let cgroup = need!(Cgroup::new("last"));
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let (mut init, mut left_over) = (Container::new(), Container::new());
    cgroup.add(&left_over);
    let refusal = daemon.activate(&grant, &init, Some(cgroup.id())).unwrap_err();
    assert_eq!(refusal.code, "E_HOOK_STATE");
    assert!(refusal.sentence.contains("is not in it"), "{refusal:?}");
    let mut other = cgroup.id();
    other.inode += 1;
    let refusal = daemon.activate(&grant, &init, Some(other)).unwrap_err();
    assert!(refusal.sentence.contains("its inode is another one"), "{refusal:?}");

    cgroup.add(&init);
    daemon.activate(&grant, &init, Some(cgroup.id())).unwrap();
    assert_eq!(daemon.status().grants[0].cgroup, Some(cgroup.id().path));
    init.kill();
    // Another grant that ends for the same reason shows that the daemon has looked.
    let second = daemon.reserve(request("other", 1)).unwrap();
    let mut other_init = Container::new();
    daemon.activate(&second, &other_init, None).unwrap();
    other_init.kill();
    wait_for("the other has ended", || daemon.granted_mib() == 7168);
    left_over.kill();
    wait_for("the grant is free", || daemon.granted_mib() == 0);
    drop((init, left_over));
}

#[test]
#[ignore = "a measurement: cargo test --release -p mpsgate-daemon -- --ignored reservations"]
fn measures_reservations_per_second() {
    let mut node = Node::new(8);
    node.config.mps.max_clients = 100;
    let daemon = node.start();
    for n in 0..400 {
        let mut call = request(&format!("standing-{n}"), 1);
        call.request.memory = Some(Mib(100));
        daemon.reserve(call).unwrap();
    }
    let (callers, rounds) = (8, 250);
    let started = std::time::Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let daemon = &daemon;
            scope.spawn(move || {
                for round in 0..rounds {
                    let mut call = request(&format!("c{caller}-{round}"), 1);
                    call.request.memory = Some(Mib(100));
                    let grant = daemon.reserve(call).unwrap();
                    daemon.release(&grant.key);
                }
            });
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    let reservations = f64::from(callers * rounds);
    println!(
        "{:.0} reservations/s with as many releases, 400 grants standing",
        reservations / seconds
    );
}

#[test]
fn a_hook_without_pidfds_names_its_init_by_pid() {
    let node = Node::new(1);
    let daemon = node.start();
    let grant = daemon.reserve(request("web", 7)).unwrap();
    let mut init = Container::new();
    let cgroup = Some(daemon.own_cgroup(init.pid()));
    let call = Activate { key: grant.key.clone(), pid: init.pid(), cgroup, grant: None };
    daemon.done(Call::Activate(call.clone())).unwrap();
    assert_eq!(daemon.done(Call::Activate(call)).unwrap(), "", "asked again for the same init");
    init.kill();
    wait_for("the grant is free", || daemon.granted_mib() == 0);
    let call = Activate { key: grant.key, pid: init.pid(), cgroup: None, grant: None };
    assert_eq!(daemon.done(Call::Activate(call)).unwrap_err().code, "E_HOOK_STATE");
}
