//! Compute modes: what a card gets back, whatever came between, and that nobody else's card is
//! touched.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use mpsgate_api::{Call, CardState};
use mpsgate_config::Manage;
use serde_json::json;

use crate::harness::{Node, Running, on_card, request, uuid, wait_for};

const EXCLUSIVE: &str = "EXCLUSIVE_PROCESS";

impl Node {
    fn lease_file(&self, card: u32) -> PathBuf {
        self.paths.state.join("compute-mode").join(uuid(card))
    }

    /// The mode that the card's lease remembers.
    fn leased(&self, card: u32) -> Option<String> {
        let text = fs::read(self.lease_file(card)).ok()?;
        let lease: serde_json::Value = serde_json::from_slice(&text).unwrap();
        Some(lease["previous"].as_str().unwrap().to_owned())
    }

    fn write_lease(&self, card: u32, previous: &str) -> String {
        let text = format!(
            r#"{{"format":1,"uuid":"{}","previous":"{previous}","taken_at_s":1}}"#,
            uuid(card)
        );
        fs::create_dir_all(self.lease_file(card).parent().unwrap()).unwrap();
        fs::write(self.lease_file(card), &text).unwrap();
        text
    }

    fn set_mode(&self, card: usize, mode: &str) {
        self.nvml(|state| state["cards"][card]["compute_mode"] = json!(mode));
    }

    /// Every change of a compute mode that NVML was asked for: `UUID MODE`.
    fn writes(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("nvml.json.writes"));
        text.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn manage(&mut self, cards: &[u32]) {
        self.config.gpus.manage = Manage::Uuids(cards.iter().map(|card| uuid(*card)).collect());
    }

    /// What a reboot leaves: /run is empty, nothing runs, and no card has a compute mode of its
    /// own.
    fn reboot(&self, cards: u32) {
        for card in 0..cards {
            self.mps(card).stop(&self.spawner(), Duration::ZERO).unwrap();
            self.set_mode(card as usize, "DEFAULT");
        }
        fs::remove_dir_all(&self.paths.run).unwrap();
    }
}

/// Each status looks at the cards.
fn wait_ready(daemon: &Running, card: usize) {
    wait_for("the card is ready", || daemon.card(card).state == CardState::Ready);
}

#[test]
fn a_crash_in_the_middle_of_enable_is_completed_and_disable_gives_the_old_mode_back() {
    let node = Node::unmanaged(1);
    node.set_mode(0, "PROHIBITED");
    let daemon = node.start();
    daemon.done(Call::Enable { gpu: "0".to_owned() }).unwrap();
    let recorded = fs::read(node.paths.managed()).unwrap();
    daemon.done(Call::Disable { gpu: "0".to_owned() }).unwrap();
    assert_eq!((node.compute_mode(0).as_str(), node.leased(0)), ("PROHIBITED", None));
    drop(daemon);
    // The card is recorded; then, the lease is written; then, the mode is changed.
    for (lease, mode) in [(false, "PROHIBITED"), (true, "PROHIBITED"), (true, EXCLUSIVE)] {
        fs::write(node.paths.managed(), &recorded).unwrap();
        if lease {
            node.write_lease(0, "prohibited");
        }
        node.set_mode(0, mode);
        let daemon = node.start();
        assert_eq!(daemon.card(0).state, CardState::Ready);
        assert_eq!(node.compute_mode(0), EXCLUSIVE);
        assert_eq!(node.leased(0).as_deref(), Some("prohibited"));
        daemon.done(Call::Disable { gpu: "0".to_owned() }).unwrap();
        assert_eq!((node.compute_mode(0).as_str(), node.leased(0)), ("PROHIBITED", None));
    }
}

#[test]
fn a_reboot_leases_managed_cards_anew_and_ends_the_leases_of_others() {
    let mut node = Node::new(3);
    node.set_mode(0, "PROHIBITED");
    node.set_mode(1, "PROHIBITED");
    drop(node.start());
    assert_eq!(node.leased(0).as_deref(), Some("prohibited"));
    node.reboot(3);
    // An administrator's own script may run before us.
    node.set_mode(2, EXCLUSIVE);
    fs::remove_file(node.lease_file(2)).unwrap();
    let before = node.writes().len();

    node.manage(&[0, 2]);
    let daemon = node.start();
    wait_for("card 1's lease ends", || node.leased(1).is_none());
    assert_eq!(
        (node.compute_mode(0).as_str(), node.leased(0).as_deref()),
        (EXCLUSIVE, Some("default"))
    );
    assert_eq!(node.compute_mode(1), "DEFAULT", "not what it was before the reboot");
    assert_eq!(node.leased(2).as_deref(), Some("exclusive_process"));
    assert_eq!(node.writes()[before..], [format!("{} {EXCLUSIVE}", uuid(0))]);
    drop(daemon);
    node.manage(&[]);
    let _daemon = node.start();
    wait_for("both are given back", || node.leased(0).is_none() && node.leased(2).is_none());
    assert_eq!(
        (node.compute_mode(0).as_str(), node.compute_mode(2).as_str()),
        ("DEFAULT", EXCLUSIVE)
    );
}

#[test]
fn a_driver_that_is_reloaded_is_noticed_and_the_mode_taken_again() {
    let node = Node::new(1);
    node.set_mode(0, "PROHIBITED");
    let daemon = node.start();
    // Calls into the library fail as long as its module is away; a new one knows no modes.
    let (file, away) = (node.dir.path().join("nvml.json"), node.dir.path().join("nvml.away"));
    fs::rename(&file, &away).unwrap();
    wait_for("NVML is away", || daemon.status().nvml_error.is_some());
    assert_eq!(node.leased(0).as_deref(), Some("prohibited"), "kept meanwhile");
    let reloaded = fs::read_to_string(&away).unwrap().replace(EXCLUSIVE, "DEFAULT");
    fs::write(&away, reloaded).unwrap();
    fs::rename(&away, &file).unwrap();
    wait_for("the mode is ours again", || {
        daemon.status();
        node.compute_mode(0) == EXCLUSIVE
    });
    wait_ready(&daemon, 0);
    assert_eq!(node.leased(0).as_deref(), Some("default"), "what a reload leaves");
}

#[test]
fn a_mode_that_somebody_sets_is_taken_again_and_is_the_one_to_go_back_to() {
    let node = Node::unmanaged(1);
    let daemon = node.start();
    daemon.done(Call::Enable { gpu: "0".to_owned() }).unwrap();
    node.set_mode(0, "PROHIBITED");
    wait_for("the mode is ours again", || {
        daemon.status();
        node.compute_mode(0) == EXCLUSIVE
    });
    wait_ready(&daemon, 0);
    daemon.done(Call::Disable { gpu: "0".to_owned() }).unwrap();
    assert_eq!((node.compute_mode(0).as_str(), node.leased(0)), ("PROHIBITED", None));
}

#[test]
fn a_lease_that_cannot_be_read_is_named_kept_and_its_card_not_touched() {
    let mut node = Node::new(3);
    node.manage(&[0, 1]);
    let newer = format!(r#"{{"format":2,"uuid":"{}","boot":"x"}}"#, uuid(0));
    for (card, text, why) in [
        (0, newer.as_str(), "has format 2, this version knows 1"),
        (0, "{\"format\":1,\"uu", "EOF"),
        (2, "", ""),
    ] {
        node.write_lease(card, "default");
        fs::write(node.lease_file(card), text).unwrap();
        node.set_mode(card as usize, EXCLUSIVE);
        let before = node.writes();
        let daemon = node.start();
        wait_ready(&daemon, 1);
        let file = node.lease_file(card);
        if card == 0 {
            let state = daemon.state(0);
            assert!(state.contains(why) && state.contains(file.to_str().unwrap()), "{state}");
            let refusal = daemon.reserve(on_card(request("web", 1), 0)).unwrap_err();
            assert_eq!(refusal.code, "E_GPU_UNHEALTHY");
            assert!(refusal.hint.contains(&format!("remove {}", file.display())), "{refusal:?}");
        }
        daemon.release(&daemon.reserve(on_card(request("other", 1), 1)).unwrap().key);
        drop(daemon);
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
        assert_eq!(node.compute_mode(card as usize), EXCLUSIVE);
        let ours = |line: &&String| line.starts_with(&uuid(card));
        assert_eq!(node.writes().iter().filter(ours).count(), before.iter().filter(ours).count());
        fs::remove_file(&file).unwrap();
    }
    let daemon = node.start();
    assert_eq!(daemon.card(0).state, CardState::Ready, "with the file out of the way");
}

#[test]
fn a_card_that_cannot_be_given_back_is_tried_again() {
    let mut node = Node::new(1);
    drop(node.start());
    node.manage(&[]);
    node.nvml(|state| state["refuse_compute_mode"] = json!(true));
    let _daemon = node.start();
    wait_for("its control daemon has ended", || node.control_pid(0).is_none());
    assert_eq!(node.leased(0).as_deref(), Some("default"), "kept until it is done");
    node.nvml(|state| {
        state.as_object_mut().unwrap().remove("refuse_compute_mode");
    });
    wait_for("it is given back", || node.leased(0).is_none());
    assert_eq!(node.compute_mode(0), "DEFAULT");
}

#[test]
fn an_unmanaged_card_is_never_written_to() {
    let mut node = Node::new(3);
    node.set_mode(1, "PROHIBITED");
    node.manage(&[0]);
    for _ in 0..2 {
        let daemon = node.start();
        daemon.done(Call::Enable { gpu: "2".to_owned() }).unwrap();
        let grant = daemon.reserve(request("web", 1)).unwrap();
        daemon.release(&grant.key);
        assert!(daemon.done(Call::Disable { gpu: "0".to_owned() }).is_err());
        assert!(daemon.done(Call::Disable { gpu: "1".to_owned() }).is_ok(), "nothing to do");
        daemon.done(Call::Disable { gpu: "2".to_owned() }).unwrap();
        daemon.stop().unwrap();
    }
    node.manage(&[]);
    let _daemon = node.start();
    wait_for("card 0 is given back", || node.compute_mode(0) == "DEFAULT");
    wait_for("each was taken and given back", || node.writes().len() == 6);
    let writes = node.writes();
    assert!(writes.iter().all(|line| !line.starts_with(&uuid(1))), "{writes:?}");
    assert!(node.leased(1).is_none());
}
