//! A simulated day: what was granted and used adds up to what the card had in use, whatever came
//! and went.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]

use mpsgate_api::UsageDay;
use mpsgate_model::ledger::{Entry, ProcessId, State};
use mpsgate_model::{
    ContainerId, Grant, GrantKey, GrantedCard, Guarantee, Instance, Mib, Priority, example_gpu,
};
use mpsgate_node::overuse::{Kind, Look, User, Whose};
use mpsgate_node::usage_sums::add;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn entry(at: u8, memory: u64) -> Entry {
    let init = ProcessId { pid: u32::from(at) + 100, start_time: 1 };
    Entry {
        grant: Grant {
            key: GrantKey {
                runtime_root: "/run/runc".to_owned(),
                container_id: ContainerId::parse(&format!("c{at}")).unwrap(),
                instance: Instance::from_bytes([at; 16]),
            },
            cards: vec![GrantedCard { uuid: example_gpu(0), index: 0, minor: 0 }],
            memory: Mib(memory),
            uid: 0,
            compute: None,
            priority: Priority::Normal,
            client_dir: String::new(),
            devices: Vec::new(),
            guarantee: Guarantee::Mps,
            user: None,
        },
        state: State::Active { init, cgroup: None },
        since_ms: 0,
        broken_ms: None,
        cgroup_limit: None,
        limited_late: false,
        created_with: None,
        handed: None,
    }
}

fn user(pid: u32, whose: Whose, mib: Option<u64>) -> User {
    let kind = if whose == Whose::Server { Kind::Compute } else { Kind::Client };
    let process = ProcessId { pid, start_time: 1 };
    User { process, used: mib.map(|mib| mib * MIB), kind, whose }
}

/// One look: for how long it stands, MiB that grants hold and use, of the server, of a stranger and
/// of nobody; and whether NVML tells all.
#[derive(Debug, Clone)]
struct Moment {
    ms: u64,
    grants: Vec<(u64, u64)>,
    server: u64,
    other: u64,
    nobody: u64,
    told: bool,
}

fn moment() -> impl Strategy<Value = Moment> {
    let grants = prop::collection::vec((1..16_384_u64, 0..16_384_u64), 0..6);
    (1..5_000_u64, grants, 0..512_u64, 0..2048_u64, 0..4096_u64, prop::bool::weighted(0.9))
        .prop_map(|(ms, grants, server, other, nobody, told)| Moment {
            ms,
            grants,
            server,
            other,
            nobody,
            told,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_day_adds_up_to_what_the_card_had_in_use(moments in prop::collection::vec(moment(), 1..200)) {
        let mut day = UsageDay::new("2026-11-26".to_owned());
        let (mut in_use, mut granted, mut looked, mut told) = (0, 0, 0, 0);
        for Moment { ms, grants, server, other, nobody, told: tells } in &moments {
            let entries: Vec<Entry> =
                (0..).zip(grants).map(|(at, (memory, _))| entry(at, *memory)).collect();
            let mut users: Vec<User> = entries
                .iter()
                .zip(grants)
                .zip(1000..)
                .map(|((entry, (_, used)), pid)| {
                    user(pid, Whose::Grant(entry.grant.key.clone()), Some(*used))
                })
                .collect();
            users.push(user(1, Whose::Server, Some(*server)));
            users.push(user(2, Whose::Nobody, tells.then_some(*other)));
            let sum: u64 =
                grants.iter().map(|(_, used)| used).sum::<u64>() + server + other + nobody;
            let look =
                Look { limits: Vec::new(), unnamed: Vec::new(), users, tells_clients: true, used: Some(sum * MIB), at_once: false };
            add(&mut day, ("GPU-0", 0), *ms, &look, &entries);
            looked += ms;
            granted += grants.iter().map(|(memory, _)| memory * 1024 * ms).sum::<u64>();
            if *tells {
                told += ms;
                in_use += sum * 1024 * ms;
            }
        }
        let card = &day.cards["GPU-0"];
        prop_assert_eq!((card.looked_ms, card.told_ms, card.memory.used), (looked, told, in_use));
        let parts: u64 = card.memory.by_owner().iter().map(|(_, part)| part).sum();
        prop_assert_eq!((parts, card.memory.counted_twice), (card.memory.used, 0));
        let rows = || day.grants.values();
        prop_assert_eq!(rows().map(|row| row.used).sum::<u64>(), card.memory.containers);
        prop_assert_eq!(rows().map(|row| row.granted).sum::<u64>(), granted);
    }
}

#[test]
fn a_day_of_very_many_containers_stays_small_and_still_adds_up() {
    let mut day = UsageDay::new("2026-11-26".to_owned());
    let look = Look {
        unnamed: Vec::new(),
        limits: Vec::new(),
        users: Vec::new(),
        tells_clients: true,
        used: Some(0),
        at_once: false,
    };
    let all = mpsgate_api::MOST_GRANTS + 100;
    for at in 0..all {
        let mut entry = entry(0, 1);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&at.to_be_bytes());
        entry.grant.key.instance = Instance::from_bytes(bytes);
        add(&mut day, ("GPU-0", 0), 1000, &look, &[entry]);
    }
    assert_eq!(day.grants.len(), mpsgate_api::MOST_GRANTS + 1);
    let granted: u64 = day.grants.values().map(|row| row.granted).sum();
    assert_eq!(granted, u64::try_from(all).unwrap() * 1024 * 1000);
    assert_eq!(day.grants[&UsageDay::key("GPU-0", "")].container_id, "(more)");
}
