//! ResourceClaims and ResourceSlices, at API servers that differ, fail, or are edited by hand
//! meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_api_server::{ApiServer, Fault, Resources, Right, Store};
use k8s_openapi::api::resource::v1::{AllocatedDeviceStatus, ResourceSliceSpec};
use mpsgate_kubernetes::{
    Claims, DRA_RULES, Error, Patience, RULES, Settings, Slices, State, Wanted, resource_slices,
};
use mpsgate_model::ClaimName;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{PATIENCE, settings};

const OWN: &str = "gpu-1-mpsgate.io";
const KEY: &str = "resourceslices/gpu-1-mpsgate.io";
/// Longer than the pauses after a first and a second failure, and than any time between two writes.
const A_WHILE: Duration = Duration::from_millis(3500);

fn spec(mib: u64) -> ResourceSliceSpec {
    let memory = format!("{mib}Mi");
    let policy = json!({"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}});
    serde_json::from_value(json!({
        "driver": "mpsgate.io", "nodeName": "gpu-1",
        "pool": {"name": "gpu-1", "generation": 0, "resourceSliceCount": 1},
        "devices": [{
            "name": "gpu-0", "allowMultipleAllocations": true,
            "attributes": {"uuid": {"string": "GPU-8d4f"}, "multiuser": {"bool": true}},
            "capacity": {"memory": {"value": memory, "requestPolicy": policy}},
            "taints": [{"key": "mpsgate.io/mps-fault", "effect": "NoSchedule"}],
        }],
    }))
    .expect("a spec")
}

fn wanted(mib: u64) -> Wanted {
    Wanted::Spec(Box::new(spec(mib)))
}

fn store() -> Store {
    let mut store = Store::default();
    store.add_node("gpu-1");
    store
}

/// Another server than that.
fn but(differs: impl FnOnce(&mut Store)) -> Resources {
    let mut store = store();
    differs(&mut store);
    Resources::start(store)
}

/// The future runs on `server` while `check` does.
async fn beside<F: Future<Output = ()>>(
    server: &Resources,
    first: Wanted,
    check: impl FnOnce(watch::Sender<Wanted>, watch::Receiver<Arc<Slices>>) -> F,
) {
    beside_as(settings(&server.server.kubeconfig), first, check).await;
}

async fn beside_as<F: Future<Output = ()>>(
    settings: Settings,
    first: Wanted,
    check: impl FnOnce(watch::Sender<Wanted>, watch::Receiver<Arc<Slices>>) -> F,
) {
    let (send, receive) = watch::channel(first);
    let (seen, run) = resource_slices(settings, receive);
    tokio::select! {
        never = run => match never {},
        done = tokio::time::timeout(PATIENCE, check(send, seen)) => done.expect("in time"),
    }
}

async fn until(server: &Resources, holds: impl Fn(&Store) -> bool) {
    while !server.store(|store| holds(store)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn seen(
    slices: &mut watch::Receiver<Arc<Slices>>,
    holds: impl Fn(&Slices) -> bool,
) -> Slices {
    Slices::clone(&*slices.wait_for(|slices| holds(slices)).await.expect("the sender is polled"))
}

fn generation(store: &Store) -> Option<u64> {
    store.get(KEY)["spec"]["pool"]["generation"].as_u64()
}

fn memory(store: &Store) -> Value {
    store.get(KEY)["spec"]["devices"][0]["capacity"]["memory"]["value"].clone()
}

#[tokio::test]
async fn the_slice_is_made_once_with_its_node_as_owner_though_the_server_adds_fields() {
    let server = but(|store| store.defaults = true);
    beside(&server, wanted(15360), async |_send, mut slices| {
        let shown = seen(&mut slices, |slices| slices.shown.is_some()).await;
        assert!(shown.state.is_current() && shown.served == Some(true), "{shown:?}");
        assert_eq!(shown.shown.expect("waited for").pool.generation, 1);
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(slices.borrow().write_error, None);
    })
    .await;
    server.store(|store| {
        assert_eq!(store.writes(), 1, "{:?}", store.asked);
        let slice = store.get(KEY);
        let owner = &slice["metadata"]["ownerReferences"];
        let node = store.get("nodes/gpu-1")["metadata"]["uid"].clone();
        let wanted = json!([{"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": node, "controller": true}]);
        assert_eq!(*owner, wanted);
        // 15360Mi, as it writes that.
        assert_eq!(memory(store), "15Gi");
        let list = &store.asked[0];
        assert!(list.ends_with("/apis/resource.k8s.io/v1/resourceslices"), "{list}");
    });
    let line = server.server.asked()[0].line.clone();
    assert!(
        line.contains("fieldSelector=spec.driver%3Dmpsgate.io%2Cspec.nodeName%3Dgpu-1"),
        "{line}"
    );
}

#[tokio::test]
async fn a_slice_that_is_right_already_is_left_as_it_is_by_the_next_mpsgated() {
    let server = Resources::start(store());
    beside(&server, wanted(15360), async |_send, mut slices| {
        seen(&mut slices, |slices| slices.shown.is_some()).await;
    })
    .await;
    beside(&server, wanted(15360), async |_send, mut slices| {
        seen(&mut slices, |slices| slices.shown.is_some()).await;
        tokio::time::sleep(A_WHILE).await;
    })
    .await;
    assert_eq!(server.store(|store| (store.writes(), generation(store))), (1, Some(1)));
    // Somebody's webhook is down, by which the API server refuses even the question.
    let refusal = || ("PUT resourceslices/gpu-1-mpsgate.io", Fault::Status(500));
    server.store(|store| {
        store.asked.clear();
        store.faults = std::iter::repeat_with(refusal).take(9).collect();
    });
    beside(&server, wanted(15360), async |send, mut slices| {
        let puts = |store: &Store| store.asked.iter().filter(|one| one.starts_with("PUT")).count();
        until(&server, |store| puts(store) >= 2).await;
        assert_eq!(slices.borrow().write_error, None);
        send.send_replace(wanted(1000));
        let shown = seen(&mut slices, |slices| slices.write_error.is_some()).await;
        let error = shown.write_error.expect("waited for");
        assert!(error.contains("cannot change ResourceSlice gpu-1-mpsgate.io"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn what_changes_has_a_higher_generation_and_is_written_at_most_once_a_second() {
    let server = Resources::start(store());
    beside(&server, wanted(1000), async |send, _slices| {
        until(&server, |store| memory(store) == "1000Mi").await;
        let began = Instant::now();
        for mib in 1001..1300 {
            send.send_replace(wanted(mib));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        until(&server, |store| memory(store) == "1299Mi").await;
        let writes = server.store(|store| store.writes());
        let seconds = usize::try_from(began.elapsed().as_secs()).expect("few");
        assert!((2..=seconds + 2).contains(&writes), "{writes} in {seconds} s");
        assert_eq!(server.store(|store| generation(store)), u64::try_from(writes).ok());
        let taint = |store: &Store| store.get(KEY)["spec"]["devices"][0]["taints"][0].clone();
        assert_eq!(server.store(|store| taint(store)["timeAdded"].clone()), "2026-01-31T12:00:00Z");
    })
    .await;
}

#[tokio::test]
async fn what_is_edited_or_deleted_by_hand_is_put_back() {
    for defaults in [false, true] {
        is_put_back(&but(|store| store.defaults = defaults)).await;
    }
}

async fn is_put_back(server: &Resources) {
    beside(server, wanted(1000), async |_send, slices| {
        let edits: [fn(&mut Value); 7] = [
            |slice| slice["spec"]["devices"][0]["capacity"]["memory"]["value"] = "1Ti".into(),
            |slice| slice["spec"]["devices"][0]["taints"] = json!([]),
            |slice| slice["spec"]["devices"][0]["attributes"]["more"] = json!({"bool": true}),
            |slice| slice["metadata"]["ownerReferences"] = json!([]),
            // With these two every claim of the card would wait before its pod is bound.
            |slice| slice["spec"]["devices"][0]["bindingConditions"] = json!(["never"]),
            |slice| slice["spec"]["devices"][0]["bindsToNode"] = true.into(),
            |slice| slice["spec"]["sharedCounters"] = json!([{"name": "c"}]),
        ];
        let right = |store: &Store| {
            let slice = store.get(KEY);
            let device = &slice["spec"]["devices"][0];
            let beside = slice["spec"]["sharedCounters"].is_null()
                && device["bindingConditions"].is_null()
                && device["bindsToNode"] != true;
            device["capacity"]["memory"]["value"] == "1000Mi"
                && device["taints"][0]["effect"] == "NoSchedule"
                && device["attributes"]["more"].is_null()
                && slice["metadata"]["ownerReferences"][0]["kind"] == "Node"
                && beside
        };
        until(server, right).await;
        for (edit, expected) in edits.iter().zip(2..) {
            server.store(|store| {
                store.edit(KEY, edit);
                assert!(!right(store));
            });
            until(server, right).await;
            assert_eq!(server.store(|store| generation(store)), Some(expected));
        }
        server.store(|store| store.remove(KEY)).expect("there");
        until(server, right).await;
        // What was there before is known, though it is gone.
        assert_eq!(server.store(|store| generation(store)), Some(9));
        assert_eq!(slices.borrow().write_error, None);
    })
    .await;
}

#[tokio::test]
async fn somebody_who_writes_in_between_is_a_conflict_after_which_it_is_put_right() {
    let mut store = store();
    store.before_put = Some(|store| {
        store.edit(KEY, |slice| slice["spec"]["pool"]["generation"] = 41.into());
    });
    let server = Resources::start(store);
    beside(&server, wanted(1000), async |send, slices| {
        until(&server, |store| memory(store) == "1000Mi").await;
        send.send_replace(wanted(2000));
        until(&server, |store| memory(store) == "2000Mi").await;
        assert_eq!(server.store(|store| generation(store)), Some(42));
        assert_eq!(slices.borrow().write_error, None);
    })
    .await;
}

#[tokio::test]
async fn left_overs_go_and_what_is_anothers_stays() {
    let mut store = store();
    store.add_slice("left-1", "gpu-1", "mpsgate.io", 3);
    store.add_slice("left-2", "gpu-1", "mpsgate.io", 8);
    store.add_slice("theirs", "gpu-1", "gpu.nvidia.com", 90);
    store.add_slice("there", "gpu-2", "mpsgate.io", 91);
    let server = Resources::start(store);
    beside(&server, wanted(1000), async |_send, _slices| {
        until(&server, |store| store.names("resourceslices") == [OWN, "theirs", "there"]).await;
        assert_eq!(server.store(|store| generation(store)), Some(9));
    })
    .await;
}

#[tokio::test]
async fn unknown_leaves_what_is_there_and_none_takes_it_away() {
    let mut store = store();
    store.add_slice("left", "gpu-1", "mpsgate.io", 3);
    store.add_slice(OWN, "gpu-1", "mpsgate.io", 3);
    store.add_slice("theirs", "gpu-1", "gpu.nvidia.com", 90);
    let server = Resources::start(store);
    beside(&server, Wanted::Unknown, async |send, mut slices| {
        seen(&mut slices, |slices| slices.shown.is_some()).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(server.store(|store| store.writes()), 0);
        send.send_replace(Wanted::None);
        until(&server, |store| store.names("resourceslices") == ["theirs"]).await;
        seen(&mut slices, |slices| slices.shown.is_none()).await;
        assert_eq!(server.store(|store| store.writes()), 2);
    })
    .await;
}

#[tokio::test]
async fn a_pool_of_another_name_is_another_slice() {
    let mut store = store();
    store.add_slice(OWN, "gpu-1", "mpsgate.io", 3);
    store.edit(KEY, |slice| slice["spec"]["pool"]["name"] = "old".into());
    let server = Resources::start(store);
    beside(&server, wanted(1000), async |_send, _slices| {
        until(&server, |store| generation(store) == Some(4)).await;
        assert_eq!(server.store(|store| store.get(KEY)["spec"]["pool"]["name"].clone()), "gpu-1");
    })
    .await;
}

#[tokio::test]
async fn a_server_without_the_group_is_told_once_and_asked_again_after_a_minute() {
    let server = but(|store| store.served = false);
    beside(&server, wanted(1000), async |_send, mut slices| {
        let shown = seen(&mut slices, |slices| slices.served.is_some()).await;
        let State::Failing { error, hint } = &shown.state else { panic!("{:?}", shown.state) };
        assert!(error.contains("does not serve resource.k8s.io/v1"), "{error}");
        assert!(hint.contains("Kubernetes 1.34 or newer serves resource.k8s.io/v1"), "{hint}");
        assert_eq!((shown.served, shown.write_error), (Some(false), None));
        tokio::time::sleep(A_WHILE).await;
    })
    .await;
    assert_eq!(server.store(|store| store.asked.len()), 1);
}

#[tokio::test]
async fn a_server_that_drops_sharing_gets_no_slice_and_is_not_written_to_again() {
    let server = but(|store| store.shares = false);
    beside(&server, wanted(1000), async |send, mut slices| {
        let shown = seen(&mut slices, |slices| slices.write_error.is_some()).await;
        let error = shown.write_error.expect("waited for");
        assert!(error.contains("devices.0.allowMultipleAllocations"), "{error}");
        let hint =
            "the feature gate DRAConsumableCapacity is off: on by default from Kubernetes 1.36";
        assert!(error.contains(hint), "{error}");
        send.send_replace(wanted(2000));
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(slices.borrow().write_error.as_ref(), Some(&error));
        server.store(|store| {
            assert!(
                store.names("resourceslices").is_empty() && store.writes() == 0,
                "{:?}",
                store.asked
            );
            let tried = store.asked.iter().filter(|asked| asked.ends_with(" dry")).count();
            assert_eq!(tried, 1, "{:?}", store.asked);
        });
        send.send_replace(Wanted::None);
        seen(&mut slices, |slices| slices.write_error.is_none()).await;
    })
    .await;
}

/// One of several API servers is older: what the dry run of another said is not true of it.
#[tokio::test]
async fn a_slice_that_lost_its_sharing_after_all_is_deleted() {
    let mut store = store();
    store.add_slice(OWN, "gpu-1", "mpsgate.io", 3);
    store.before_put = Some(|store| store.shares = false);
    let server = Resources::start(store);
    beside(&server, wanted(1000), async |_send, mut slices| {
        seen(&mut slices, |slices| slices.write_error.is_some()).await;
        tokio::time::sleep(A_WHILE).await;
        assert!(slices.borrow().write_error.is_some());
        server.store(|store| {
            assert!(store.names("resourceslices").is_empty());
            assert_eq!(store.writes(), 2, "{:?}", store.asked);
        });
    })
    .await;
}

/// What is there already does not change that: nothing is written in its place.
#[tokio::test]
async fn a_slice_that_would_lose_its_sharing_is_deleted_unwritten() {
    let mut store = store();
    store.add_slice(OWN, "gpu-1", "mpsgate.io", 3);
    store.shares = false;
    let server = Resources::start(store);
    beside(&server, wanted(1000), async |_send, mut slices| {
        seen(&mut slices, |slices| slices.write_error.is_some()).await;
        tokio::time::sleep(A_WHILE).await;
        server.store(|store| {
            assert!(store.names("resourceslices").is_empty());
            assert_eq!(store.writes(), 1, "{:?}", store.asked);
        });
    })
    .await;
}

#[tokio::test]
async fn a_server_that_drops_taints_keeps_the_rest_and_is_written_to_once() {
    let server = but(|store| store.taints = false);
    beside(&server, wanted(1000), async |send, mut slices| {
        let shown = seen(&mut slices, |slices| slices.write_error.is_some()).await;
        let error = shown.write_error.expect("waited for");
        assert!(error.contains("DRADeviceTaints"), "{error}");
        tokio::time::sleep(A_WHILE).await;
        assert_eq!(server.store(|store| (store.writes(), generation(store))), (1, Some(1)));
        assert!(slices.borrow().write_error.is_some());
        // Another one is written, of course; and one that is kept as it is clears the word.
        let mut healthy = spec(1000);
        healthy.devices.iter_mut().flatten().for_each(|device| device.taints = None);
        send.send_replace(Wanted::Spec(Box::new(healthy)));
        seen(&mut slices, |slices| slices.write_error.is_none()).await;
    })
    .await;
}

#[tokio::test]
async fn every_failure_of_a_list_a_watch_or_a_write_is_gone_on_from() {
    let mut store = store();
    store.faults = [
        ("GET resourceslices", Fault::Garbage),
        ("WATCH resourceslices", Fault::Cut),
        ("POST resourceslices", Fault::Status(500)),
        ("GET v1/nodes", Fault::Cut),
        ("POST resourceslices", Fault::DoneAndCut),
    ]
    .into();
    let server = Resources::start(store);
    beside(&server, wanted(1000), async |send, mut slices| {
        seen(&mut slices, |slices| slices.write_error.is_some()).await;
        until(&server, |store| memory(store) == "1000Mi").await;
        send.send_replace(wanted(2000));
        until(&server, |store| memory(store) == "2000Mi").await;
        seen(&mut slices, |slices| slices.write_error.is_none()).await;
    })
    .await;
}

#[tokio::test]
async fn without_its_node_there_is_no_slice_and_its_name_is_told() {
    let server = Resources::start(Store::default());
    server.store(|store| store.add_node("gpu-10"));
    beside(&server, wanted(1000), async |_send, mut slices| {
        let said = seen(&mut slices, |slices| slices.write_error.is_some()).await;
        let error = said.write_error.expect("waited for");
        assert!(error.contains("the API server knows no node gpu-1;"), "{error}");
        assert_eq!(server.store(|store| store.writes()), 0);
        server.store(|store| store.add_node("gpu-1"));
        until(&server, |store| memory(store) == "1000Mi").await;
    })
    .await;
}

#[tokio::test]
async fn a_watch_that_has_expired_is_another_list_and_nothing_is_written_anew() {
    let server = Resources::start(store());
    beside(&server, wanted(1000), async |_send, mut slices| {
        seen(&mut slices, |slices| slices.shown.is_some()).await;
        server.store(|store| store.compacted = 1000);
        seen(&mut slices, |slices| !slices.state.is_current()).await;
        server.store(|store| store.compacted = 0);
        seen(&mut slices, |slices| slices.state.is_current()).await;
    })
    .await;
    assert_eq!(server.store(|store| store.writes()), 1);
}

#[tokio::test]
async fn a_write_without_an_answer_is_given_up_and_done_again() {
    let mut store = store();
    store.faults = [("POST resourceslices", Fault::Silence)].into();
    let server = Resources::start(store);
    let [silence, answer] = [3, 2].map(Duration::from_secs);
    let hasty = Settings {
        patience: Patience { watch_seconds: 1, silence, answer },
        ..settings(&server.server.kubeconfig)
    };
    beside_as(hasty, wanted(1000), async |_send, mut slices| {
        let shown = seen(&mut slices, |slices| slices.write_error.is_some()).await;
        let error = shown.write_error.expect("waited for");
        assert!(error.contains("cannot make ResourceSlice gpu-1-mpsgate.io"), "{error}");
        until(&server, |store| memory(store) == "1000Mi").await;
        seen(&mut slices, |slices| slices.write_error.is_none()).await;
    })
    .await;
}

#[tokio::test]
async fn a_node_that_is_not_there_has_no_slice() {
    let server = Resources::start(Store::default());
    beside(&server, wanted(1000), async |_send, mut slices| {
        let shown = seen(&mut slices, |slices| slices.write_error.is_some()).await;
        let error = shown.write_error.expect("waited for");
        assert!(error.contains("knows no node gpu-1"), "{error}");
    })
    .await;
    assert_eq!(server.store(|store| store.writes()), 0);
}

const SHORT: Duration = Duration::from_secs(1);

fn claim(uid: &str) -> ClaimName {
    ClaimName { namespace: "team".to_owned(), name: "gpu".to_owned(), uid: uid.to_owned() }
}

fn device(driver: &str, device: &str, level: &str) -> AllocatedDeviceStatus {
    serde_json::from_value(json!({
        "driver": driver, "pool": "gpu-1", "device": device, "shareID": "11111111-0000-4000-8000-00000000beef",
        "data": {"level": level},
    }))
    .expect("a status")
}

fn with_claim() -> Resources {
    let mut store = store();
    let theirs = json!({"driver": "other.example", "pool": "p", "device": "d"});
    store.add_claim("team", "gpu", "uid-a", json!({"devices": [theirs]}));
    Resources::start(store)
}

fn claims(server: &ApiServer) -> Claims {
    Claims::new(settings(&server.kubeconfig), SHORT)
}

fn devices(server: &Resources) -> Vec<(String, Value)> {
    let claim = server.store(|store| store.get("resourceclaims/team/gpu"));
    let all = claim["status"]["devices"].as_array().cloned().unwrap_or_default();
    let of = |one: &Value| {
        (one["driver"].as_str().unwrap_or_default().to_owned(), one["data"]["level"].clone())
    };
    all.iter().map(of).collect()
}

#[tokio::test]
async fn a_claim_is_read_anew_each_time_and_one_that_is_deleted_is_none() {
    let server = with_claim();
    let claims = claims(&server.server);
    let found = claims.get("team", "gpu").await.expect("answered").expect("there");
    assert_eq!(found.metadata.uid.as_deref(), Some("uid-a"));
    server.store(|store| {
        store.edit("resourceclaims/team/gpu", |claim| claim["metadata"]["uid"] = "uid-b".into());
    });
    let found = claims.get("team", "gpu").await.expect("answered").expect("there");
    assert_eq!(found.metadata.uid.as_deref(), Some("uid-b"));
    server.store(|store| store.remove("resourceclaims/team/gpu"));
    assert_eq!(claims.get("team", "gpu").await.expect("answered"), None);
    let lines: Vec<_> = server.server.asked().into_iter().map(|asked| asked.line).collect();
    assert!(lines.iter().all(|line| !line.contains("resourceVersion")), "{lines:?}");
}

#[tokio::test]
async fn a_server_that_fails_does_not_say_that_a_claim_is_gone() {
    let server = with_claim();
    let claims = claims(&server.server);
    for fault in
        [Fault::Cut, Fault::Silence, Fault::Garbage, Fault::Status(500), Fault::Status(403)]
    {
        server.store(|store| store.faults.push_back(("GET resourceclaims/gpu", fault)));
        let began = Instant::now();
        let error = claims.get("team", "gpu").await.expect_err("no answer");
        assert!(began.elapsed() < SHORT * 3, "{fault:?}");
        assert!(error.line().contains("cannot read ResourceClaim team/gpu"), "{}", error.line());
        assert!(!error.hint().is_empty());
        // The next one works again.
        assert!(claims.get("team", "gpu").await.expect("answered").is_some(), "{fault:?}");
    }
    server.store(|store| store.served = false);
    let error = claims.get("team", "gpu").await.expect_err("not served");
    assert!(matches!(error, Error::NotServed { .. }), "{error:?}");
    assert!(error.hint().contains("1.34"), "{}", error.hint());
}

#[tokio::test]
async fn an_api_server_that_is_gone_is_an_error_in_time() {
    let server = with_claim();
    let claims = claims(&server.server);
    // Nobody listens there any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let file = fake_api_server::kubeconfig(gone.local_addr().expect("bound"));
    drop(gone);
    let nobody = Claims::new(settings(&file), SHORT);
    let began = Instant::now();
    let error = nobody.get("team", "gpu").await.expect_err("nobody is there");
    assert!(began.elapsed() < SHORT * 3);
    assert!(error.hint().contains("/readyz"), "{}", error.hint());
    let error = nobody.write_status(&claim("uid-a"), &[]).await.expect_err("nobody is there");
    assert!(
        error.line().contains("write the status of ResourceClaim team/gpu"),
        "{}",
        error.line()
    );
    assert!(claims.get("team", "gpu").await.expect("answered").is_some());
}

#[tokio::test]
async fn entries_of_ours_are_written_changed_and_taken_away_and_those_of_others_stay() {
    let server = with_claim();
    let claims = claims(&server.server);
    let write = async |devices: &[AllocatedDeviceStatus]| {
        claims.write_status(&claim("uid-a"), devices).await.expect("written");
    };
    let (theirs, ours) = ("other.example".to_owned(), "mpsgate.io".to_owned());
    let other = (theirs, Value::Null);
    let foreign = device("other.example", "gpu-0", "x");
    write(&[device("mpsgate.io", "gpu-0", "mps"), foreign]).await;
    assert_eq!(devices(&server), [other.clone(), (ours.clone(), "mps".into())]);
    write(&[device("mpsgate.io", "gpu-0", "gate")]).await;
    assert_eq!(devices(&server), [other.clone(), (ours.clone(), "gate".into())]);
    write(&[device("mpsgate.io", "gpu-1", "gate")]).await;
    assert_eq!(devices(&server), [other.clone(), (ours, "gate".into())]);
    write(&[]).await;
    assert_eq!(devices(&server), [other]);
    let line = &server.server.asked()[0].line;
    let path = "PATCH /apis/resource.k8s.io/v1/namespaces/team/resourceclaims/gpu/status?";
    assert!(line.starts_with(path) && line.contains("fieldManager=mpsgate.io"), "{line}");
}

#[tokio::test]
async fn a_claim_of_another_uid_is_not_written_and_neither_is_one_that_is_gone() {
    let server = with_claim();
    let claims = claims(&server.server);
    let before = devices(&server);
    let ours = [device("mpsgate.io", "gpu-0", "mps")];
    let error = claims.write_status(&claim("uid-old"), &ours).await.expect_err("another one");
    assert!(matches!(error, Error::NoClaim { .. }), "{error:?}");
    assert!(error.line().contains("team/gpu with uid uid-old"), "{}", error.line());
    assert_eq!(devices(&server), before);
    server.store(|store| store.remove("resourceclaims/team/gpu"));
    let error = claims.write_status(&claim("uid-a"), &ours).await.expect_err("gone");
    assert!(matches!(error, Error::NoClaim { .. }), "{error:?}");
    // A conflict of another kind is none of a uid.
    server.store(|store| store.faults.push_back(("PATCH status", Fault::Status(409))));
    let error = claims.write_status(&claim("uid-a"), &ours).await.expect_err("a conflict");
    assert_eq!(error.status(), Some(409), "{error:?}");
}

/// Those of [`RULES`] and [`DRA_RULES`], less one.
fn rights(without: Option<(&str, &str)>) -> Vec<Right> {
    let of = |rule: &mpsgate_kubernetes::Rule| {
        let resource = rule.resource.to_owned();
        let names: Vec<String> = rule.names.iter().map(|name| (*name).to_owned()).collect();
        let verbs = rule.verbs.iter().filter(|verb| without != Some((&resource, **verb)));
        verbs
            .map(|verb| Right {
                resource: resource.clone(),
                verb: (*verb).to_owned(),
                names: names.clone(),
            })
            .collect::<Vec<_>>()
    };
    RULES.iter().chain(&DRA_RULES).flat_map(of).collect()
}

/// What of all that is done here was refused, in words.
async fn refused(without: Option<(&str, &str)>) -> Vec<String> {
    let server = with_claim();
    server.store(|store| {
        store.rights = Some(rights(without));
        store.add_slice("left", "gpu-1", "mpsgate.io", 3);
    });
    let claims = claims(&server.server);
    let mut said = Vec::new();
    said.extend(claims.get("team", "gpu").await.err().map(|error| (error.line(), error.hint())));
    let ours = [device("mpsgate.io", "gpu-0", "mps")];
    let written = claims.write_status(&claim("uid-a"), &ours).await;
    said.extend(written.err().map(|error| (error.line(), error.hint())));
    let word = |slices: &Slices| match (&slices.state, &slices.write_error) {
        (State::Failing { error, hint } | State::Stale { error, hint, .. }, _) => {
            Some((error.clone(), hint.clone()))
        }
        (_, Some(error)) => Some((error.clone(), error.clone())),
        _ => None,
    };
    beside(&server, wanted(1000), async |send, mut slices| {
        let has = |slices: &Slices, memory: &str| {
            serde_json::to_value(&slices.shown)
                .is_ok_and(|spec| spec["devices"][0]["capacity"]["memory"]["value"] == memory)
        };
        let shown =
            seen(&mut slices, |slices| has(slices, "1000Mi") || word(slices).is_some()).await;
        said.extend(word(&shown));
        if said.is_empty() {
            send.send_replace(wanted(2000));
            let done = |slices: &Slices| has(slices, "2000Mi") || word(slices).is_some();
            let shown = seen(&mut slices, done).await;
            said.extend(word(&shown));
        }
    })
    .await;
    for (error, hint) in &said {
        assert!(error.contains("forbidden") && hint.contains("clusterrole"), "{error} {hint}");
    }
    said.into_iter().map(|(error, _)| error).collect()
}

#[tokio::test]
async fn all_of_it_works_with_the_rights_of_dra_rules_and_each_thing_fails_without_its_own() {
    assert_eq!(refused(None).await, Vec::<String>::new());
    let of = |rule: &mpsgate_kubernetes::Rule| {
        let resource = rule.resource;
        rule.verbs.iter().map(move |verb| (resource, *verb))
    };
    // Of the node it reads what its watch may list, and needs no right to `get` it.
    for (resource, verb) in DRA_RULES.iter().flat_map(of).chain([("nodes", "list")]) {
        let said = refused(Some((resource, verb))).await.join("\n");
        let named = format!("cannot {verb} resource \"{resource}\"");
        assert!(said.contains(&named), "{verb} {resource}: {said}");
    }
}
