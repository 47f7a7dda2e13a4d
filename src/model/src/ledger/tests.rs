#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code fails by panicking")]
use proptest::prelude::*;

use super::*;
pub(crate) use crate::example_gpu as card;
use crate::{ContainerId, GrantedCard, Guarantee, Instance, Priority};

pub(crate) fn grant(id: u8, instance: u8, on: u8, mib: u64) -> Grant {
    Grant {
        key: GrantKey {
            runtime_root: "/run/runc".to_owned(),
            container_id: ContainerId::parse(&format!("c{id}")).unwrap(),
            instance: Instance::from_bytes([instance; 16]),
        },
        cards: vec![GrantedCard { uuid: card(on), index: on.into(), minor: on.into() }],
        memory: Mib(mib),
        uid: 0,
        compute: None,
        priority: Priority::Normal,
        client_dir: "/run/mpsgate/mps/0/containers/0123456789abcdef0123456789abcdef".to_owned(),
        devices: Vec::new(),
        guarantee: Guarantee::Mps,
        user: None,
    }
}

#[test]
fn a_level_that_is_no_more_is_read_as_the_one_below_it() {
    let made = serde_json::to_string(&grant(1, 1, 0, 60)).unwrap();
    let old = made.replace("\"guarantee\":\"mps\"", "\"guarantee\":\"mps+gate\"");
    assert_ne!(old, made);
    let read: Grant = serde_json::from_str(&old).unwrap();
    assert_eq!(read, Grant { guarantee: Guarantee::MpsWatchdog, ..grant(1, 1, 0, 60) });
    assert!(serde_json::to_string(&read).unwrap().contains("\"mps+watchdog\""));
}

const HOLDER: ProcessId = ProcessId { pid: 7, start_time: 1 };

fn capacity() -> Capacity {
    Capacity { memory: Mib(100), max_clients: 3 }
}

#[test]
fn a_reservation_becomes_a_grant_and_is_released_once() {
    let mut ledger = Ledger::default();
    let key = grant(1, 1, 0, 60).key;
    ledger.reserve(grant(1, 1, 0, 60), HOLDER, &[capacity()], 0).unwrap();
    assert_eq!(ledger.granted(&card(0)), Mib(60));
    let init = ProcessId { pid: 9, start_time: 2 };
    ledger.activate(&key, init, None).unwrap();
    assert_eq!(ledger.expire(&key), None, "an active grant does not expire");
    ledger.activate(&key, init, None).unwrap();
    let other = ProcessId { pid: 10, start_time: 2 };
    assert!(ledger.activate(&key, other, None).is_err());
    assert!(ledger.release(&key).is_some());
    assert_eq!(ledger.release(&key), None);
    assert_eq!(ledger.granted(&card(0)), Mib(0));
}

#[test]
fn the_death_of_a_control_daemon_breaks_the_grants_of_its_card_once_and_no_reservation() {
    let mut ledger = Ledger::default();
    for (id, on) in [(1, 0), (2, 0), (3, 1)] {
        ledger.reserve(grant(id, 1, on, 10), HOLDER, &[capacity()], 0).unwrap();
    }
    for (id, on) in [(1, 0), (3, 1)] {
        let init = ProcessId { pid: 10 + u32::from(id), start_time: 1 };
        ledger.activate(&grant(id, 1, on, 0).key, init, None).unwrap();
    }
    assert_eq!(ledger.mark_broken(&card(0), 5), [grant(1, 1, 0, 0).key]);
    assert_eq!(ledger.mark_broken(&card(0), 6), []);
    let broken: Vec<_> = ledger.entries().iter().map(|entry| entry.broken_ms).collect();
    assert_eq!(broken, [Some(5), None, None]);
    assert_eq!(ledger.granted(&card(0)), Mib(20), "it counts until its container ends");
    let text = serde_json::to_string(&ledger).unwrap();
    assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
}

#[test]
fn the_limit_of_a_cgroup_is_noted_for_a_grant() {
    let mut ledger = Ledger::default();
    let key = grant(1, 1, 0, 60).key;
    ledger.reserve(grant(1, 1, 0, 60), HOLDER, &[capacity()], 0).unwrap();
    assert_eq!(ledger.set_cgroup_limit(&key, Mib(60), false), None, "it has no container yet");
    ledger.activate(&key, ProcessId { pid: 9, start_time: 2 }, None).unwrap();
    assert_eq!(ledger.set_cgroup_limit(&key, Mib(64), false), Some(true));
    assert_eq!(ledger.set_cgroup_limit(&key, Mib(64), false), Some(false));
    let text = serde_json::to_string(&ledger).unwrap();
    assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
}

#[test]
fn a_grant_is_resized_within_its_card_and_knows_what_it_began_with() {
    let mut ledger = Ledger::default();
    let key = grant(1, 1, 0, 60).key;
    for (id, mib) in [(1, 60), (2, 30)] {
        ledger.reserve(grant(id, 1, 0, mib), HOLDER, &[capacity()], 0).unwrap();
    }
    let no_grant = Err(LedgerError::NotActive { key: key.clone() });
    assert_eq!(ledger.resize(&key, Mib(50), &[capacity()]).cloned(), no_grant, "a reservation");
    ledger.activate(&key, ProcessId { pid: 9, start_time: 2 }, None).unwrap();
    let mut resize = |mib, capacities: &[Capacity]| {
        let result = ledger.resize(&key, Mib(mib), capacities).map(|entry| entry.created_with);
        (result, ledger.granted(&card(0)))
    };
    assert_eq!(resize(70, &[capacity()]), (Ok(Some(Mib(60))), Mib(100)));
    let full = LedgerError::NoMemory { card: card(0), free: Mib(70), asked: Mib(71) };
    assert_eq!(resize(71, &[capacity()]), (Err(full), Mib(100)));
    assert!(resize(71, &[]).0.is_err(), "a card of which nothing is known");
    assert_eq!(resize(10, &[]), (Ok(Some(Mib(60))), Mib(40)), "less always fits");
    assert_eq!(resize(60, &[capacity()]), (Ok(None), Mib(90)));
    resize(65, &[capacity()]).0.unwrap();
    let text = serde_json::to_string(&ledger).unwrap();
    assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
}

#[test]
fn a_late_release_of_the_previous_instance_leaves_the_new_one() {
    let mut ledger = Ledger::default();
    ledger.reserve(grant(1, 2, 0, 60), HOLDER, &[capacity()], 0).unwrap();
    assert_eq!(ledger.release(&grant(1, 1, 0, 60).key), None);
    assert_eq!(ledger.entries().len(), 1);
}

#[test]
fn one_container_is_counted_once() {
    let mut ledger = Ledger::default();
    ledger.reserve(grant(1, 1, 0, 10), HOLDER, &[capacity()], 0).unwrap();
    let again = ledger.reserve(grant(1, 2, 0, 10), HOLDER, &[capacity()], 0);
    assert!(matches!(again, Err(LedgerError::Exists { .. })));
}

#[test]
fn memory_and_clients_are_bounded_per_card() {
    let mut ledger = Ledger::default();
    ledger.reserve(grant(1, 1, 0, 60), HOLDER, &[capacity()], 0).unwrap();
    assert_eq!(
        ledger.reserve(grant(2, 1, 0, 41), HOLDER, &[capacity()], 0),
        Err(LedgerError::NoMemory { card: card(0), free: Mib(40), asked: Mib(41) })
    );
    ledger.reserve(grant(2, 1, 1, 41), HOLDER, &[capacity()], 0).unwrap();
    ledger.reserve(grant(3, 1, 0, 1), HOLDER, &[capacity()], 0).unwrap();
    ledger.reserve(grant(4, 1, 0, 1), HOLDER, &[capacity()], 0).unwrap();
    assert_eq!(
        ledger.reserve(grant(5, 1, 0, 1), HOLDER, &[capacity()], 0),
        Err(LedgerError::NoClient { card: card(0), clients: 3 })
    );
}

/// Found with its fuzz target: the sum wrapped around, and the card looked empty.
#[test]
fn a_card_whose_sum_does_not_fit_is_full() {
    let mut ledger = Ledger::default();
    let any = Capacity { memory: Mib(u64::MAX), max_clients: 48 };
    ledger.reserve(grant(1, 1, 0, u64::MAX), HOLDER, &[any], 0).unwrap();
    let mut read = serde_json::to_value(&ledger).unwrap();
    let mut second = read["entries"][0].clone();
    second["grant"]["key"]["container_id"] = "c2".into();
    read["entries"].as_array_mut().unwrap().push(second);
    let promise = serde_json::json!({
        "pod_uid": "u", "container": "c", "resource": "mem", "card": card(0), "memory": u64::MAX
    });
    read["promises"] = serde_json::json!([promise, promise]);
    let mut ledger: Ledger = serde_json::from_value(read).unwrap();
    assert_eq!(ledger.granted(&card(0)), Mib(u64::MAX));
    assert_eq!(ledger.promised(&card(0)), Mib(u64::MAX));
    let more = ledger.reserve(grant(3, 1, 0, 1), HOLDER, &[capacity()], 0);
    assert!(matches!(more, Err(LedgerError::NoMemory { .. })));
}

/// A grant without MPS, on cards of 100 and of 40 MiB as the test has them.
fn spread(id: u8, on: &[u8], mib: u64) -> (Grant, Vec<Capacity>) {
    let cards = on.iter().map(|n| GrantedCard { uuid: card(*n), index: 0, minor: 0 });
    let grant =
        Grant { cards: cards.collect(), guarantee: Guarantee::None, ..grant(id, 1, 0, mib) };
    (grant, on.iter().map(|n| small(*n)).collect())
}

fn small(card: u8) -> Capacity {
    Capacity { memory: Mib(if card == 0 { 100 } else { 40 }), max_clients: u32::MAX }
}

#[test]
fn several_cards_are_reserved_together_or_not_at_all() {
    let mut ledger = Ledger::default();
    let mut reserve = |(grant, capacities): (Grant, Vec<Capacity>)| {
        let result = ledger.reserve(grant, HOLDER, &capacities, 0);
        (result, ledger.granted(&card(0)), ledger.granted(&card(1)))
    };
    assert_eq!(reserve(spread(1, &[0, 1], 30)), (Ok(()), Mib(30), Mib(30)), "each has it whole");
    let full = LedgerError::NoMemory { card: card(1), free: Mib(10), asked: Mib(11) };
    assert_eq!(reserve(spread(2, &[0, 1], 11)), (Err(full), Mib(30), Mib(30)));
    let key = spread(2, &[], 0).0.key;
    let twice = LedgerError::CardTwice { key: key.clone(), card: card(0) };
    assert_eq!(reserve(spread(2, &[0, 0], 1)), (Err(twice), Mib(30), Mib(30)));
    assert_eq!(reserve(spread(2, &[], 1)).0, Err(LedgerError::NoCard { key }));
    let (grant, _) = spread(2, &[0, 1], 1);
    assert!(reserve((grant, vec![small(0)])).0.is_err(), "a card of which nothing is known");
    assert!(ledger.release(&spread(1, &[], 0).0.key).is_some());
    assert_eq!((ledger.granted(&card(0)), ledger.granted(&card(1))), (Mib(0), Mib(0)));
}

#[derive(Debug, Clone)]
enum Op {
    Reserve(u8, u8, u8, u64),
    Activate(u8, u8),
    Release(u8, u8),
    Expire(u8, u8),
    Resize(u8, u8, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let (id, instance, on) = (0..6_u8, 0..3_u8, 0..2_u8);
    prop_oneof![
        (id.clone(), instance.clone(), on, prop_oneof![0..120_u64, Just(u64::MAX)])
            .prop_map(|(i, l, c, m)| Op::Reserve(i, l, c, m)),
        (id.clone(), instance.clone()).prop_map(|(i, l)| Op::Activate(i, l)),
        (id.clone(), instance.clone()).prop_map(|(i, l)| Op::Release(i, l)),
        (id.clone(), instance.clone()).prop_map(|(i, l)| Op::Expire(i, l)),
        (id, instance, prop_oneof![1..120_u64, Just(u64::MAX)])
            .prop_map(|(i, l, m)| Op::Resize(i, l, m)),
    ]
}

proptest! {
    #[test]
    fn no_card_of_several_is_overbooked_and_a_refusal_leaves_all_as_they_were(
        asked in prop::collection::vec(
            (0..8_u8, prop::collection::vec(0..3_u8, 0..4), prop_oneof![0..60_u64, Just(u64::MAX)], any::<bool>()),
            0..60,
        )
    ) {
        let mut ledger = Ledger::default();
        for (id, on, mib, release) in asked {
            let before = ledger.clone();
            let (grant, capacities) = spread(id, &on, mib);
            if release {
                ledger.release(&grant.key);
            } else if ledger.reserve(grant, HOLDER, &capacities, 0).is_err() {
                prop_assert_eq!(&before, &ledger);
            } else {
                for n in 0..3 {
                    let more = ledger.granted(&card(n)).0 - before.granted(&card(n)).0;
                    prop_assert_eq!(more, if on.contains(&n) { mib } else { 0 }, "card {}", n);
                }
            }
            for n in 0..3 {
                prop_assert!(ledger.granted(&card(n)) <= small(n).memory);
            }
        }
    }

    #[test]
    fn no_sequence_of_operations_overcommits_a_card(ops in prop::collection::vec(op(), 0..80)) {
        let mut ledger = Ledger::default();
        for op in ops {
            let before = ledger.clone();
            let failed = match op {
                Op::Reserve(i, l, c, m) => ledger.reserve(grant(i, l, c, m), HOLDER, &[capacity()], 0).is_err(),
                Op::Activate(i, l) => ledger.activate(&grant(i, l, 0, 0).key, HOLDER, None).is_err(),
                Op::Release(i, l) => ledger.release(&grant(i, l, 0, 0).key).is_none(),
                Op::Expire(i, l) => ledger.expire(&grant(i, l, 0, 0).key).is_none(),
                Op::Resize(i, l, m) => {
                    ledger.resize(&grant(i, l, 0, 0).key, Mib(m), &[capacity()]).is_err()
                }
            };
            if failed {
                prop_assert_eq!(&before, &ledger, "a failed operation changed the ledger");
            }
            for c in 0..2 {
                prop_assert!(ledger.granted(&card(c)) <= capacity().memory);
                prop_assert!(ledger.on_card(&card(c)).count() <= 3);
            }
            prop_assert!(!ledger.has_duplicates());
        }
    }
}
