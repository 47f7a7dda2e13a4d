//! Claims beside everything else: a table, and sequences at random.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]
use proptest::prelude::*;

use super::*;
use crate::ledger::tests::{card, grant};
use crate::ledger::{ProcessId, Promise};
use crate::{CLAIM, Handed, PodContainer, Priority};

const HOLDER: ProcessId = ProcessId { pid: 7, start_time: 1 };
const CARD: u64 = 100;
const CLIENTS: u32 = 4;

fn share(request: &str, on: u8, mib: u64) -> ClaimShare {
    ClaimShare {
        request: request.to_owned(),
        pool: "node".to_owned(),
        device: format!("gpu-{on}"),
        share_id: None,
        card: card(on),
        memory: Mib(mib),
        compute: None,
        priority: Priority::Normal,
    }
}

fn claim(id: u8, pod: &str, shares: Vec<ClaimShare>) -> PreparedClaim {
    let claim = ClaimName {
        namespace: "default".to_owned(),
        name: format!("claim-{id}"),
        uid: format!("uid-{id}"),
    };
    PreparedClaim { claim, pod_uid: pod.to_owned(), shares }
}

/// The capacity as the daemon gives it: without all that is kept for others than the asker.
fn capacity(ledger: &Ledger, on: u8, asker: Option<&ShareKey>, local: bool) -> Capacity {
    let promised = if local { ledger.promised(&card(on)) } else { Mib(0) };
    let claimed = ledger.claimed_beside(&card(on), asker);
    Capacity {
        memory: Mib(CARD).saturating_sub(promised).saturating_sub(claimed),
        max_clients: CLIENTS - ledger.claimed_clients(&card(on), asker),
    }
}

fn prepare(ledger: &mut Ledger, claim: PreparedClaim) -> Result<bool, PrepareError> {
    let promised = [0, 1].map(|on| ledger.promised(&card(on)));
    ledger.prepare(claim, |uuid| Capacity {
        memory: Mib(CARD).saturating_sub(promised[usize::from(*uuid == card(1))]),
        max_clients: CLIENTS,
    })
}

/// Whether a container of the pod can take the share.
fn take(ledger: &mut Ledger, id: u8, key: &ShareKey) -> bool {
    let Some((claim, share)) = ledger.share(key) else { return false };
    let (pod_uid, memory) = (claim.pod_uid.clone(), share.memory);
    if ledger.holder(key).is_some() {
        return false;
    }
    let on = u8::from(share.card == card(1));
    let capacity = capacity(ledger, on, Some(key), false);
    let grant = grant(id, 1, on, memory.0);
    let grant_key = grant.key.clone();
    // Claimed memory is always there, whatever happened in between.
    ledger.reserve(grant, HOLDER, &[capacity], 0).is_ok_and(|()| {
        let pod = PodContainer {
            uid: pod_uid,
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            container: "main".to_owned(),
        };
        let (resource, share) = (CLAIM.to_owned(), Some(key.clone()));
        ledger.set_handed(&grant_key, Handed { pod, resource, share })
    })
}

fn key(id: u8, request: &str) -> ShareKey {
    ShareKey { claim_uid: format!("uid-{id}"), request: request.to_owned() }
}

#[test]
fn a_claim_is_kept_for_its_pod_until_it_is_taken_back() {
    let mut ledger = Ledger::default();
    let first = claim(1, "p", vec![share("a", 0, 40), share("b", 0, 30)]);
    assert_eq!(prepare(&mut ledger, first.clone()), Ok(true));
    assert_eq!(prepare(&mut ledger, first), Ok(false), "the same again");
    let other_pod = claim(1, "q", vec![share("a", 0, 40), share("b", 0, 30)]);
    assert!(matches!(prepare(&mut ledger, other_pod), Err(PrepareError::Differs { .. })));
    assert_eq!((ledger.claimed(&card(0)), ledger.claimed(&card(1))), (Mib(70), Mib(0)));
    // Kubelet must not give claimed memory out as devices; kube-scheduler has counted it itself.
    assert_eq!(ledger.withheld(&card(0), "mem"), Mib(70));
    assert_eq!(ledger.withheld(&card(0), CLAIM), Mib(0));
    let too_much = prepare(&mut ledger, claim(2, "q", vec![share("a", 0, 31)]));
    let full = LedgerError::NoMemory { card: card(0), free: Mib(30), asked: Mib(31) };
    assert_eq!(too_much, Err(PrepareError::Ledger(full)));

    assert!(take(&mut ledger, 1, &key(1, "a")));
    assert!(!take(&mut ledger, 2, &key(1, "a")), "one container at a time");
    assert_eq!((ledger.granted(&card(0)), ledger.claimed(&card(0))), (Mib(40), Mib(30)));
    assert_eq!(ledger.withheld(&card(0), "mem"), Mib(70));
    // A smaller grant leaves the rest of its share to its next instance.
    let holder = ledger.holder(&key(1, "a")).unwrap().grant.key.clone();
    ledger.activate(&holder, HOLDER, None).unwrap();
    ledger.resize(&holder, Mib(10), &[capacity(&ledger, 0, None, false)]).unwrap();
    assert_eq!((ledger.granted(&card(0)), ledger.claimed(&card(0))), (Mib(10), Mib(60)));
    assert_eq!(ledger.claimed_clients(&card(0), None), 1);

    assert_eq!(ledger.unprepare("uid-1").map(|claim| claim.shares.len()), Some(2));
    assert_eq!(ledger.unprepare("uid-1"), None);
    assert_eq!((ledger.granted(&card(0)), ledger.claimed(&card(0))), (Mib(10), Mib(0)));
    let late = claim(1, "p", vec![share("a", 0, 40)]);
    assert!(matches!(prepare(&mut ledger, late), Err(PrepareError::Over { .. })));
    let next_pod = claim(1, "q", vec![share("a", 0, 40)]);
    assert_eq!(prepare(&mut ledger, next_pod), Ok(true), "of a claim that is not a template's");
}

#[test]
fn claims_are_in_the_file_and_a_file_without_them_is_read() {
    let mut ledger = Ledger::default();
    let text = serde_json::to_string(&ledger).unwrap();
    assert_eq!(text, r#"{"entries":[],"promises":[]}"#);
    assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
    prepare(&mut ledger, claim(1, "p", vec![share("a", 0, 40)])).unwrap();
    prepare(&mut ledger, claim(2, "p", vec![share("a", 0, 40)])).unwrap();
    assert!(take(&mut ledger, 1, &key(1, "a")));
    ledger.unprepare("uid-2");
    let text = serde_json::to_string(&ledger).unwrap();
    assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
}

#[test]
fn only_so_many_taken_back_are_remembered() {
    let mut ledger = Ledger::default();
    for n in 0..=REMEMBERED {
        let one = PreparedClaim {
            claim: ClaimName {
                namespace: "default".to_owned(),
                name: "c".to_owned(),
                uid: n.to_string(),
            },
            pod_uid: "p".to_owned(),
            shares: Vec::new(),
        };
        prepare(&mut ledger, one).unwrap();
        ledger.unprepare(&n.to_string()).unwrap();
    }
    assert_eq!(ledger.unprepared.len(), REMEMBERED);
    assert_eq!(ledger.unprepared[0].claim_uid, "1");
}

#[derive(Debug, Clone)]
enum Op {
    Prepare(u8, Vec<(u8, u64)>),
    Unprepare(u8),
    Take(u8, u8, u8),
    Plugin(u8, u8, u64),
    Local(u8, u8, u64),
    Promise(u8, u64),
    Resize(u8, u64),
    Release(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let mib = || prop_oneof![1..60_u64, Just(u64::MAX)];
    prop_oneof![
        (0..5_u8, prop::collection::vec((0..2_u8, mib()), 1..3))
            .prop_map(|(c, s)| Op::Prepare(c, s)),
        (0..5_u8).prop_map(Op::Unprepare),
        (0..8_u8, 0..5_u8, 0..2_u8).prop_map(|(i, c, r)| Op::Take(i, c, r)),
        (0..8_u8, 0..2_u8, mib()).prop_map(|(i, c, m)| Op::Plugin(i, c, m)),
        (0..8_u8, 0..2_u8, mib()).prop_map(|(i, c, m)| Op::Local(i, c, m)),
        (0..2_u8, 0..60_u64).prop_map(|(c, m)| Op::Promise(c, m)),
        (0..8_u8, mib()).prop_map(|(i, m)| Op::Resize(i, m)),
        (0..8_u8).prop_map(Op::Release),
    ]
}

proptest! {
    /// Kubelet's devices, claims and local containers on one node never have more than the card,
    /// and claimed memory is always there for its pod.
    #[test]
    fn no_sequence_gives_the_same_memory_twice(ops in prop::collection::vec(op(), 0..80)) {
        let mut ledger = Ledger::default();
        let mut pods = 0_u32;
        for op in ops {
            match op {
                Op::Prepare(id, shares) => {
                    // Each claim has another pod: for the same pod the call would be a late one.
                    pods += 1;
                    let named = shares.iter().enumerate();
                    let shares = named.map(|(n, (on, mib))| share(&n.to_string(), *on, *mib));
                    let shares = shares.collect();
                    let before = ledger.clone();
                    if prepare(&mut ledger, claim(id, &pods.to_string(), shares)).is_err() {
                        prop_assert_eq!(&before, &ledger);
                    }
                }
                Op::Unprepare(id) => drop(ledger.unprepare(&format!("uid-{id}"))),
                Op::Take(id, of, request) => {
                    let key = key(of, &request.to_string());
                    let is_new = ledger.get(&grant(id, 1, 0, 0).key).is_none();
                    let waits = ledger.share(&key).is_some() && ledger.holder(&key).is_none();
                    let taken = take(&mut ledger, id, &key);
                    prop_assert_eq!(taken, is_new && waits, "what is claimed is there");
                }
                Op::Plugin(id, on, mib) => {
                    let capacity = capacity(&ledger, on, None, false);
                    let _ = ledger.reserve(grant(id, 1, on, mib), HOLDER, &[capacity], 0);
                }
                Op::Local(id, on, mib) => {
                    let capacity = capacity(&ledger, on, None, true);
                    let _ = ledger.reserve(grant(id, 1, on, mib), HOLDER, &[capacity], 0);
                }
                Op::Promise(on, mib) => {
                    let [pod_uid, container, resource] = ["x", "c", "mem"].map(str::to_owned);
                    let (card, memory) = (card(on), Mib(mib));
                    ledger.set_promises(vec![Promise { pod_uid, container, resource, card, memory }]);
                }
                Op::Resize(id, mib) => {
                    let key = grant(id, 1, 0, 0).key;
                    let _ = ledger.activate(&key, HOLDER, None);
                    let Some(entry) = ledger.get(&key) else { continue };
                    let on = u8::from(entry.grant.cards[0].uuid == card(1));
                    let share = entry.handed.as_ref().and_then(|handed| handed.share.clone());
                    let most = if share.is_some() { entry.created_with() } else { Mib(u64::MAX) };
                    let capacity = capacity(&ledger, on, share.as_ref(), share.is_none());
                    let _ = ledger.resize(&key, Mib(mib).min(most), &[capacity]);
                }
                Op::Release(id) => drop(ledger.release(&grant(id, 1, 0, 0).key)),
            }
            for on in 0..2 {
                let sum = ledger.granted(&card(on)).0 + ledger.claimed(&card(on)).0;
                prop_assert!(sum <= CARD, "{} on card {}", sum, on);
                let entries = u32::try_from(ledger.on_card(&card(on)).count()).unwrap();
                let clients = entries + ledger.claimed_clients(&card(on), None);
                prop_assert!(clients <= CLIENTS, "{} clients on card {}", clients, on);
            }
        }
    }
}
