//! `--removal`, against an API server on which nobody but the test does mpsgated's part.

use std::time::Duration;

use clap::Parser as _;
use fake_api_server::{Cluster, Fault, World, managed_fields};
use mpsgate_edge::Remedy as _;
use mpsgate_scheduler::{Arguments, SchedulerError, remove};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::PATIENCE;

const CARDS: &str = "mpsgate.io/cards";
const REMOVAL: &str = "mpsgate.io/removal";

/// Three nodes: one with cards that a pod holds, one that only shows a condition, one that is none
/// of mpsgate's.
fn world() -> World {
    let mut world = World::default();
    for name in ["held", "shows", "other"] {
        world.add_node(name, &[]);
        world.give_back(name, false);
    }
    world.share("held", "uid-of-a");
    world.share("shows", "nobody");
    world.give_back("shows", false);
    world
}

struct Removing {
    api: Cluster,
    signal: Option<oneshot::Sender<()>>,
    ended: JoinHandle<Result<(), SchedulerError>>,
}

impl Removing {
    async fn start(world: World, flags: &[&str]) -> Self {
        let api = Cluster::start(world);
        let kubeconfig = api.server.kubeconfig.path().to_str().unwrap();
        let mut line = vec!["mpsgate-scheduler", "--kubeconfig", kubeconfig, "--namespace", "n"];
        line.extend(flags);
        let arguments = Arguments::parse_from(line);
        let (signal, heard) = oneshot::channel::<()>();
        let until = async move {
            if heard.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let step = arguments.removal.expect("a flag says it");
        let ended = tokio::spawn(async move { remove(&arguments, step, until).await });
        Self { api, signal: Some(signal), ended }
    }

    fn world<T>(&self, with: impl FnOnce(&mut World) -> T) -> T {
        self.api.world(with)
    }

    fn is_told(&self, node: &str) -> bool {
        let node = self.world(|world| world.get(&format!("nodes/{node}")));
        node["metadata"]["annotations"].get(REMOVAL).is_some()
    }

    async fn until_told(&self, node: &str) {
        let wait = async {
            while !self.is_told(node) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("in time");
    }

    async fn end(&mut self) -> Result<(), SchedulerError> {
        tokio::time::timeout(PATIENCE, &mut self.ended).await.expect("in time").unwrap()
    }
}

#[tokio::test]
async fn nodes_with_something_of_mpsgates_are_told_and_the_last_condition_is_waited_for() {
    let mut removing = Removing::start(world(), &["--removal", "begin"]).await;
    for node in ["held", "shows"] {
        removing.until_told(node).await;
    }
    assert!(!removing.is_told("other"));
    removing.world(|world| world.give_back("shows", true));
    removing.world(|world| world.give_back("held", false));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!removing.ended.is_finished(), "the condition of the one node is still there");
    removing.world(|world| world.give_back("held", true));
    removing.end().await.unwrap();
    // The chart's mpsgated still runs there: it must not take the cards again.
    assert!(removing.is_told("held") && removing.is_told("shows") && !removing.is_told("other"));
}

#[tokio::test]
async fn of_a_node_that_cannot_be_read_what_can_be_is_waited_for() {
    let mut world = world();
    world.edit("nodes", "other", |node| node["metadata"]["managedFields"] = managed_fields(1000));
    world.edit("nodes", "held", |node| node["metadata"]["labels"]["a"] = 1.into());
    let mut removing = Removing::start(world, &["--removal", "begin"]).await;
    for node in ["held", "shows"] {
        removing.until_told(node).await;
    }
    assert!(!removing.is_told("other") && !removing.ended.is_finished());
    removing.world(|world| {
        for node in ["held", "shows"] {
            world.give_back(node, false);
            world.give_back(node, true);
        }
    });
    removing.end().await.unwrap();
}

#[tokio::test]
async fn cards_that_are_held_too_long_are_named_and_all_nodes_go_on_as_before() {
    let flags = ["--removal", "begin", "--removal-timeout", "1"];
    let mut removing = Removing::start(world(), &flags).await;
    let error = removing.end().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "cards were not given back in 1 s, so that nothing is removed, on: held (pods with the uids uid-of-a)"
    );
    let hint = error.hint().unwrap();
    assert!(hint.contains("uninstall again"), "{hint}");
    assert!(!["held", "shows", "other"].into_iter().any(|node| removing.is_told(node)));
    let cards = removing.world(|world| world.get("nodes/held"));
    assert!(cards["metadata"]["annotations"].get(CARDS).is_some(), "{cards}");
}

#[tokio::test]
async fn a_signal_ends_it_and_all_nodes_go_on_as_before() {
    let mut removing = Removing::start(world(), &["--removal", "begin"]).await;
    removing.until_told("held").await;
    removing.signal.take().unwrap().send(()).unwrap();
    let error = removing.end().await.unwrap_err();
    assert!(matches!(error, SchedulerError::Stopped), "{error}");
    assert!(!["held", "shows", "other"].into_iter().any(|node| removing.is_told(node)));
}

#[tokio::test]
async fn what_may_have_been_written_is_taken_off_and_what_fails_is_tried_again_unless_it_is_refused()
 {
    let mut faulty = world();
    faulty.faults.extend([("GET /nodes", Fault::Cut), ("PATCH /nodes/held", Fault::DoneAndCut)]);
    let mut removing = Removing::start(faulty, &["--removal", "begin"]).await;
    for node in ["held", "shows"] {
        removing.until_told(node).await;
        removing.world(|world| {
            world.give_back(node, false);
            world.give_back(node, true);
        });
    }
    removing.end().await.unwrap();

    let mut faulty = world();
    faulty.faults.push_back(("PATCH /nodes/shows", Fault::Status(403)));
    let mut removing = Removing::start(faulty, &["--removal", "begin"]).await;
    let error = removing.end().await.unwrap_err();
    assert_eq!(error.to_string(), "cannot annotate node shows");
    let hint = error.hint().unwrap();
    assert!(hint.contains("mpsgate-removal"), "{hint}");
    assert!(!["held", "shows", "other"].into_iter().any(|node| removing.is_told(node)));
}

#[tokio::test]
async fn at_the_end_the_charts_pods_are_waited_for_and_a_node_with_one_that_stays_is_not_freed() {
    let end = |timeout| {
        [
            "--removal",
            "end",
            "--removal-timeout",
            timeout,
            "--removal-pods",
            "app.kubernetes.io/instance=mpsgate",
            "--removal-lease",
            "mpsgate-scheduler",
            "--removal-lease",
            "none-of-these",
        ]
    };
    let told = || {
        let mut world = world();
        ["held", "shows"].into_iter().for_each(|node| world.tell(node));
        world.add_bound("mpsgate-x", "held", 1);
        world.set_lease("");
        world
    };
    let mut removing = Removing::start(told(), &end("240")).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(removing.is_told("held") && removing.is_told("shows"));
    removing.world(|world| world.remove("pods/mpsgate-x"));
    removing.end().await.unwrap();
    assert!(!["held", "shows", "other"].into_iter().any(|node| removing.is_told(node)));
    assert!(removing.world(|world| world.get("leases/mpsgate-scheduler")).is_null());

    let mut removing = Removing::start(told(), &end("1")).await;
    let error = removing.end().await.unwrap_err();
    assert!(error.to_string().ends_with("mpsgate.io/removal: mpsgate-x on held"), "{error}");
    assert!(removing.is_told("held") && !removing.is_told("shows"));
    assert!(removing.world(|world| world.get("leases/mpsgate-scheduler")).is_null());
}
