//! An API server, or a network before it, that says nothing any more without an end of the
//! connection.

use std::sync::Arc;
use std::time::Duration;

use fake_api_server::{Answer, ApiServer, Said, kubeconfig};
use mpsgate_kubernetes::{Patience, Pods, Settings, State, pods};
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{PATIENCE, added, bookmark, has, pod, settings};

/// So short that what takes longer than any test waits is seen in it.
const SHORT: Patience =
    Patience { watch_seconds: 1, silence: Duration::from_secs(1), answer: Duration::from_secs(2) };

fn hasty(kubeconfig: &NamedTempFile) -> Settings {
    Settings { patience: SHORT, ..settings(kubeconfig) }
}

fn is_silent(pods: &Pods) -> bool {
    matches!(&pods.state, State::Stale { error, hint, .. }
        if error.contains("cannot watch the pods of node gpu-1: nothing was heard for") && hint.contains("/readyz"))
}

/// Runs the pod watch until each of `all` was seen, one after the other.
async fn until(settings: Settings, all: &[fn(&Pods) -> bool]) {
    let (mut seen, run) = pods(settings);
    let check = async {
        for one in all {
            seen.wait_for(|pods| one(pods)).await.expect("the sender is polled");
        }
    };
    tokio::select! {
        never = run => match never {},
        done = tokio::time::timeout(PATIENCE, check) => done.expect("in time"),
    }
}

#[tokio::test]
async fn a_watch_without_a_word_is_not_current_any_more_and_begun_anew() {
    let double = ApiServer::scripted(vec![
        Answer::list(5, &[pod("a", 1)]),
        Answer::watch([added(&pod("b", 6))], None),
        Answer::list(9, &[pod("c", 8)]),
    ]);
    until(hasty(&double.kubeconfig), &[|pods| has(pods, "b"), is_silent, |pods| has(pods, "c")])
        .await;
}

#[tokio::test]
async fn a_watch_that_is_accepted_and_not_answered_is_not_current_any_more() {
    let double = ApiServer::scripted(vec![Answer::list(5, &[pod("a", 1)]), Answer::Silence]);
    until(hasty(&double.kubeconfig), &[|pods| has(pods, "a"), is_silent]).await;
}

#[tokio::test]
async fn a_list_without_an_answer_is_an_error_and_asked_for_again() {
    let double = ApiServer::scripted(vec![Answer::Silence, Answer::list(5, &[pod("a", 1)])]);
    let failing: fn(&Pods) -> bool = |pods| matches!(pods.state, State::Failing { .. });
    until(hasty(&double.kubeconfig), &[failing, |pods| has(pods, "a")]).await;
}

#[tokio::test]
async fn a_quiet_watch_is_ended_by_the_server_and_watched_on_from_its_bookmark_without_another_list()
 {
    let ended = |lines: &[Value]| Answer::watch(lines, Some(Said::End));
    let double = ApiServer::scripted(vec![
        Answer::list(5, &[pod("a", 1)]),
        ended(&[bookmark("Pod", "7")]),
        ended(&[]),
        ended(&[]),
        Answer::watch([added(&pod("b", 8))], None),
    ]);
    // Never lost: else there would be a second list.
    until(settings(&double.kubeconfig), &[|pods| has(pods, "b")]).await;
    let asked = double.asked();
    assert_eq!(asked.len(), 5, "{asked:?}");
    assert!(asked[1..].iter().all(|asked| asked.line.contains("watch=true")), "{asked:?}");
    assert!(asked[1..].iter().all(|asked| asked.line.contains("timeoutSeconds=20")), "{asked:?}");
    assert!(asked[2..].iter().all(|asked| asked.line.contains("resourceVersion=7")), "{asked:?}");
}

/// Forwards while it is told to; then what is open stays open, what comes is accepted, and nothing
/// goes through.
async fn proxy(listener: TcpListener, to: std::net::SocketAddr, forwards: watch::Receiver<bool>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let mut forwards = forwards.clone();
        #[expect(clippy::disallowed_methods, reason = "the proxy is a program of its own")]
        tokio::spawn(async move {
            let mut far = None;
            while *forwards.borrow_and_update() {
                let far = match &mut far {
                    Some(far) => far,
                    none => none.insert(TcpStream::connect(to).await.expect("the fake listens")),
                };
                tokio::select! {
                    ended = copy_bidirectional(&mut near, far) => return drop(ended),
                    _ = forwards.changed() => {}
                }
            }
            // Also when it forwards again: packets of before were given up.
            std::future::pending::<()>().await;
        });
    }
}

#[tokio::test]
async fn a_network_that_swallows_all_that_is_sent_is_noticed_and_so_is_its_return() {
    let double = ApiServer::scripted(vec![
        Answer::list(5, &[pod("a", 1)]),
        Answer::watch([added(&pod("b", 6))], None),
        Answer::list(9, &[pod("c", 8)]),
    ]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let file = kubeconfig(listener.local_addr().expect("bound"));
    let (forward, forwards) = watch::channel(true);
    let (mut seen, run) = pods(hasty(&file));
    let check = async {
        let known = |pods: &Arc<Pods>| has(pods, "b");
        seen.wait_for(known).await.expect("polled");
        forward.send_replace(false);
        let silent = |pods: &Arc<Pods>| is_silent(pods);
        assert!(seen.wait_for(silent).await.expect("polled").get("b").is_some());
        forward.send_replace(true);
        seen.wait_for(|pods| has(pods, "c")).await.expect("polled");
    };
    tokio::select! {
        never = run => match never {},
        () = proxy(listener, double.address, forwards) => panic!("the proxy ended"),
        done = tokio::time::timeout(PATIENCE, check) => done.expect("in time"),
    }
}
