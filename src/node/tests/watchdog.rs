//! What the watchdog decides, look by look, as golden text; `MPSGATE_BLESS=1` rewrites it.

#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "the golden text is a file")]

use std::fmt::Write;

use mpsgate_config::Enforce;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{ContainerId, GrantKey, Instance, Mib};
use mpsgate_node::overuse::{Action, Kind, Limit, Look, Rules, Seen, Unnamed, User, Whose, decide};
use mpsgate_testing::golden;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn key(container: &str) -> GrantKey {
    GrantKey {
        runtime_root: "/run/runc".to_owned(),
        container_id: ContainerId::parse(container).unwrap(),
        instance: Instance::from_bytes([7; 16]),
    }
}

/// A client; what differs is changed by who calls.
fn client(pid: u32, container: &str, used_mib: u64) -> User {
    User {
        process: ProcessId { pid, start_time: 1 },
        used: Some(used_mib * MIB),
        kind: Kind::Client,
        whose: Whose::Grant(key(container)),
    }
}

fn nobodys(pid: u32, kind: Kind) -> User {
    User { kind, whose: Whose::Nobody, ..client(pid, "x", 300) }
}

/// `web` and `db` have 4 GiB each.
fn look(users: Vec<User>) -> Look {
    let limit = |name| Limit { key: key(name), memory: Mib(4096) };
    let limits = vec![limit("web"), limit("db")];
    let unnamed = Vec::new();
    Look { limits, users, unnamed, tells_clients: true, used: None, at_once: false }
}

const KILL: Rules = Rules { tolerance: Mib(512), enforce: Enforce::Kill, counts_clients: false };
const REPORT: Rules = Rules { enforce: Enforce::Report, ..KILL };

fn words(action: &Action) -> String {
    let of = |key: &GrantKey| key.container_id.to_string();
    match action {
        Action::End(over) => format!("END {}: {over}", of(&over.key)),
        Action::Report(over) => format!("REPORT {}: {over}", of(&over.key)),
        Action::Outsider { process, used } => {
            format!("OUTSIDER pid {} uses {}", process.pid, used.unwrap_or_default())
        }
        Action::Unnamed { pid, used } => {
            format!("UNNAMED pid {pid} has {}", used.unwrap_or_default())
        }
        Action::NoClient { process, key } => {
            format!("NO CLIENT pid {} of {}", process.pid, of(key))
        }
    }
}

/// The looks one after the other, each with what it led to.
fn story(title: &str, looks: &[(Look, Rules)]) -> String {
    let mut text = format!("# {title}\n");
    let mut seen = Seen::default();
    for (n, (look, rules)) in looks.iter().enumerate() {
        let out = decide(&seen, look, *rules);
        let used: Vec<String> =
            out.used.iter().map(|(key, used)| format!("{} {}", key.container_id, used.0)).collect();
        let _ = write!(text, "look {}: {}", n + 1, used.join(", "));
        if let Some(blind) = out.blind {
            let _ = write!(text, "; blind: {blind}");
        }
        if out.is_urgent {
            text.push_str("; the next look at once");
        }
        text.push('\n');
        for action in &out.actions {
            let _ = writeln!(text, "    {}", words(action));
        }
        seen = out.seen;
    }
    text + "\n"
}

fn same(look: Look, rules: Rules, times: usize) -> Vec<(Look, Rules)> {
    vec![(look, rules); times]
}

#[test]
fn every_case_reads_as_the_golden_text() {
    let over = || look(vec![client(1, "web", 3000), client(2, "web", 2000), client(3, "db", 4096)]);
    let within = || look(vec![client(1, "web", 3000), client(3, "db", 4096)]);
    let mut text = String::new();
    let mut add = |title: &str, looks: &[(Look, Rules)]| text.push_str(&story(title, looks));

    add(
        "at the grant and its tolerance: allowed",
        &same(look(vec![client(1, "web", 4608)]), KILL, 3),
    );
    add("two processes within the grant in sum: allowed", &same(within(), KILL, 3));
    add(
        "over in one look, within in the next: allowed",
        &[(over(), KILL), (within(), KILL), (over(), KILL), (within(), KILL)],
    );
    add("over in two looks: ended, and its neighbour is not", &same(over(), KILL, 4));
    add("one byte over", &{
        let mut one = client(1, "web", 4608);
        one.used = one.used.map(|used| used + 1);
        same(look(vec![one]), KILL, 2)
    });
    add("without a tolerance", &same(over(), Rules { tolerance: Mib(0), ..KILL }, 2));
    add(
        "both over: both are ended",
        &same(look(vec![client(1, "web", 5000), client(3, "db", 5000)]), KILL, 2),
    );
    add("report: said once", &same(over(), REPORT, 4));
    add(
        "report, and then kill",
        &[(over(), REPORT), (over(), REPORT), (over(), REPORT), (over(), KILL), (over(), KILL)],
    );
    add(
        "eight processes: the largest are named",
        &same(look((1..=8).map(|pid| client(pid, "web", 600 + u64::from(pid))).collect()), KILL, 2),
    );
    add(
        "an MPS server belongs to nobody and is no stranger",
        &same(
            look(vec![
                User { whose: Whose::Server, ..nobodys(9, Kind::Compute) },
                client(1, "web", 4096),
            ]),
            KILL,
            3,
        ),
    );
    add(
        "a process outside every grant: reported once, never ended",
        &same(
            look(vec![
                nobodys(9, Kind::Compute),
                nobodys(10, Kind::Client),
                client(1, "web", 4096),
            ]),
            KILL,
            3,
        ),
    );
    add("a display's graphics: allowed", &same(look(vec![nobodys(9, Kind::Graphics)]), KILL, 3));
    add(
        "another process with the pid of one that was seen: a look of its own",
        &[
            (look(vec![nobodys(9, Kind::Compute)]), KILL),
            (
                look(vec![User {
                    process: ProcessId { pid: 9, start_time: 2 },
                    ..nobodys(9, Kind::Compute)
                }]),
                KILL,
            ),
        ],
    );
    let unnamed = |pid, kind| Unnamed { pid, used: Some(14_000 * MIB), kind, was_granted: false };
    let of_nobody = |unnamed| Look { unnamed, ..look(vec![client(1, "web", 4096)]) };
    add(
        "a pid that nobody can name: reported once, and nobody is ended",
        &same(
            of_nobody(vec![
                unnamed(9, Kind::Client),
                Unnamed { used: None, ..unnamed(10, Kind::Compute) },
            ]),
            KILL,
            4,
        ),
    );
    add(
        "one that is there in a single look, and a display's: not reported",
        &[
            (of_nobody(vec![unnamed(9, Kind::Client), unnamed(10, Kind::Graphics)]), KILL),
            (of_nobody(vec![unnamed(10, Kind::Graphics)]), KILL),
            (of_nobody(vec![unnamed(9, Kind::Client)]), KILL),
        ],
    );
    let past = || look(vec![User { kind: Kind::Compute, ..client(1, "web", 300) }]);
    add("a container's process that is no MPS client: reported once", &same(past(), KILL, 3));
    add(
        "the same where the driver tells no clients: allowed",
        &same(Look { tells_clients: false, ..past() }, KILL, 3),
    );
    add(
        "over twice its grant and tolerance: looked at again at once, and ended",
        &same(look(vec![client(1, "web", 9217)]), KILL, 3),
    );
    let beside = |at_once| Look {
        at_once,
        ..look(vec![client(1, "web", 9217), client(3, "db", 5000), nobodys(9, Kind::Compute)])
    };
    add(
        "a look at once is none at who is over less, nor at strangers",
        &[(beside(false), KILL), (beside(true), KILL), (beside(false), KILL), (beside(true), KILL)],
    );
    add(
        "memory that is not told: what is told counts",
        &same(
            look(vec![User { used: None, ..client(1, "web", 0) }, client(2, "web", 5000)]),
            KILL,
            2,
        ),
    );
    let attaching = || look(vec![client(1, "web", 0)]);
    add(
        "a client without memory in two looks: it may be counted elsewhere",
        &same(attaching(), KILL, 3),
    );
    add(
        "a client that attaches, and then has memory",
        &[
            (attaching(), KILL),
            (look(vec![client(1, "web", 516)]), KILL),
            (attaching(), KILL),
            (attaching(), KILL),
        ],
    );
    add(
        "a client without memory beside one that has some: it has none",
        &same(look(vec![client(1, "web", 0), client(3, "db", 100)]), KILL, 3),
    );
    add(
        "where the node has seen that the driver counts them: it has none",
        &same(attaching(), Rules { counts_clients: true, ..KILL }, 3),
    );

    golden!("watchdog.txt", &text);
}

#[test]
fn one_that_should_have_ended_is_ended_again_after_half_a_minute() {
    let over = look(vec![client(1, "web", 9000)]);
    let mut seen = Seen::default();
    let mut ended = Vec::new();
    for n in 1..=70 {
        let out = decide(&seen, &over, KILL);
        if !out.actions.is_empty() {
            ended.push(n);
        }
        seen = out.seen;
    }
    assert_eq!(ended, [2, 32, 62]);
}

fn any_user() -> impl Strategy<Value = User> {
    let kind = prop_oneof![Just(Kind::Graphics), Just(Kind::Compute), Just(Kind::Client)];
    let whose = prop_oneof![
        4 => (0..3_usize).prop_map(|n| Whose::Grant(key(["web", "db", "gone"][n]))),
        1 => Just(Whose::Nobody),
        1 => Just(Whose::Server),
    ];
    let used = prop_oneof![
        8 => (0..6000_u64).prop_map(|mib| Some(mib * MIB + mib % 3)),
        1 => Just(None),
        1 => Just(Some(u64::MAX)),
    ];
    (1..20_u32, 0..3_u64, used, kind, whose).prop_map(|(pid, start_time, used, kind, whose)| User {
        process: ProcessId { pid, start_time },
        used,
        kind,
        whose,
    })
}

#[test]
fn others_are_who_has_no_grant_and_what_nobody_can_name() {
    let server = User { whose: Whose::Server, ..client(2, "web", 1) };
    let users = vec![client(1, "web", 1), server, nobodys(3, Kind::Compute)];
    let unnamed = |pid, was_granted| Unnamed { pid, used: None, kind: Kind::Client, was_granted };
    let drawn = Unnamed { kind: Kind::Graphics, ..unnamed(6, false) };
    let look = Look { unnamed: vec![unnamed(4, false), unnamed(5, true), drawn], ..look(users) };
    let others = |seen: &Seen| -> Vec<_> {
        look.others(seen).map(|other| (other.pid, other.used, other.kind)).collect()
    };
    let stranger = (3, Some(300 * MIB), Kind::Compute);
    let (ended, drawn) = ((4, None, Kind::Client), (6, None, Kind::Graphics));
    // A server that ends between NVML's list and the look at its process is listed once.
    let first = decide(&Seen::default(), &look, KILL).seen;
    assert_eq!(others(&first), [stranger, drawn]);
    let second = decide(&first, &look, KILL).seen;
    assert_eq!(others(&second), [stranger, ended, drawn]);
}

/// GiB in use, the processes, and what follows: containers, servers, others, nobody, counted twice.
#[test]
fn the_parts_of_a_cards_memory_add_up() {
    let server = User { whose: Whose::Server, kind: Kind::Compute, ..client(9, "web", 1024) };
    let host = User { whose: Whose::Nobody, ..client(8, "web", 2048) };
    let untold = User { used: None, ..client(7, "web", 0) };
    let web = client(1, "web", 3072);
    let cases: [(u64, Vec<User>, Option<[u64; 5]>); 6] = [
        (0, vec![], Some([0; 5])),
        (5, vec![], Some([0, 0, 0, 5, 0])),
        (7, vec![web.clone(), server.clone(), host.clone()], Some([3, 1, 2, 1, 0])),
        // One imports from the other.
        (4, vec![web.clone(), client(2, "db", 3072)], Some([6, 0, 0, 0, 2])),
        (9, vec![web.clone(), untold], None),
        (1, vec![server], Some([0, 1, 0, 0, 0])),
    ];
    for (used, users, expected) in cases {
        // Whose it is nobody knows: a part of what is nobody's, as far as it is in use.
        let unnamed =
            vec![Unnamed { pid: 6, used: Some(1 << 30), kind: Kind::Client, was_granted: true }];
        let look = Look { used: Some(used << 30), unnamed, ..look(users) };
        let parts = mpsgate_node::memory::parts(&look).map(|parts| {
            assert_eq!(parts.used, used << 30);
            [parts.containers, parts.servers, parts.others, parts.nobody, parts.counted_twice]
                .map(|bytes| bytes >> 30)
        });
        assert_eq!(parts, expected, "{look:?}");
    }
    assert_eq!(mpsgate_node::memory::parts(&look(vec![web])), None, "the whole was not told");
}

proptest! {
    #[test]
    fn whatever_is_on_a_card_the_parts_are_the_whole(
        users in prop::collection::vec(any_user(), 0..12),
        used in 0..1_u64 << 44,
    ) {
        let told = users.iter().all(|user| user.used.is_some());
        let sum: u128 = users.iter().filter_map(|user| user.used).map(u128::from).sum();
        prop_assume!(sum < u128::from(u64::MAX));
        let parts = mpsgate_node::memory::parts(&Look { used: Some(used), ..look(users) });
        prop_assert_eq!(parts.is_some(), told);
        if let Some(parts) = parts {
            let sum = parts.containers + parts.servers + parts.others + parts.nobody;
            prop_assert_eq!(sum, parts.used + parts.counted_twice);
            prop_assert!(parts.nobody == 0 || parts.counted_twice == 0);
        }
    }

    /// Whatever else is on the card, and whatever the looks before have shown: who is within its
    /// grant is never touched, and who is ended was over in both of the last two looks.
    #[test]
    fn no_container_within_its_grant_is_ever_acted_on(
        looks in prop::collection::vec(prop::collection::vec(any_user(), 0..12), 1..8),
        tolerance in 0..1024_u64,
        kill in any::<bool>(),
    ) {
        let enforce = if kill { Enforce::Kill } else { Enforce::Report };
        let rules = Rules { tolerance: Mib(tolerance), enforce, counts_clients: false };
        let limit = u128::from((4096 + tolerance) * MIB);
        let is_over = |look: &Look, key: &GrantKey| {
            let own = look.users.iter().filter(|user| user.whose == Whose::Grant(key.clone()));
            own.filter_map(|user| user.used).map(u128::from).sum::<u128>() > limit
        };
        let mut seen = Seen::default();
        let mut before: Option<Look> = None;
        for users in looks {
            let look = look(users);
            let out = decide(&seen, &look, rules);
            for action in &out.actions {
                let (Action::End(over) | Action::Report(over)) = action else { continue };
                prop_assert_eq!(matches!(action, Action::End(_)), kill);
                prop_assert!(look.limits.iter().any(|limit| limit.key == over.key));
                prop_assert!(is_over(&look, &over.key));
                prop_assert!(before.as_ref().is_some_and(|look| is_over(look, &over.key)));
            }
            seen = out.seen;
            before = Some(look);
        }
    }
}
