//! Whose memory under a pid is, look by look.

#![allow(clippy::unwrap_used, reason = "test code fails by panicking")]

use mpsgate_model::ledger::ProcessId;
use mpsgate_model::{ContainerId, GrantKey, Instance};
use mpsgate_node::holders::{Holders, Now, Share};
use mpsgate_node::overuse::Whose;

fn key(container: &str) -> GrantKey {
    GrantKey {
        runtime_root: "/run/runc".to_owned(),
        container_id: ContainerId::parse(container).unwrap(),
        instance: Instance::from_bytes([7; 16]),
    }
}

fn id(start_time: u64) -> ProcessId {
    ProcessId { pid: 9, start_time }
}

/// What happens between two looks, or what one sees. NVML is asked at tick 100.
enum Step {
    /// A client with this start time comes to the door of a container.
    Door(u64, &'static str),
    /// NVML lists pid 9, and a process with this start time has it, of that container, of a server
    /// (`server`) or of nobody (empty).
    Has(u64, &'static str),
    /// NVML lists pid 9, and no process has it.
    Ended,
    /// NVML lists pid 9, and whoever has it cannot be read.
    Unreadable,
    /// NVML does not list it; the process with this start time, if any, lives.
    Unlisted(Option<u64>),
    /// There was no look for a while; the process with this start time, if any, lives.
    Lapse(Option<u64>),
    /// From now on the grants of these live.
    Live(&'static [&'static str]),
    /// From now on NVML lists so many bytes; before, ten.
    Uses(u64),
    /// From now on the driver does not tell how many.
    Untold,
}

use Step::{Door, Ended, Has, Lapse, Live, Unlisted, Unreadable, Untold, Uses};

/// `START CONTAINER`, with the bytes where there are several.
fn words(shares: &[Share]) -> String {
    let one = |share: &Share| {
        let of = match &share.of {
            Some((process, Whose::Grant(key))) => {
                format!("{} {}", process.start_time, key.container_id)
            }
            Some((process, whose)) => format!("{} {whose:?}", process.start_time),
            None => "nobody can".to_owned(),
        };
        if shares.len() == 1 { of } else { format!("{of}: {}", share.used.unwrap_or_default()) }
    };
    shares.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// What each look at pid 9 has named, as `START CONTAINER`.
fn story(steps: &[Step]) -> Vec<String> {
    let mut holders = Holders::default();
    let mut live = vec![key("bad"), key("good")];
    let (mut named, mut used) = (Vec::new(), Some(10));
    for step in steps {
        let (is_listed, now) = match step {
            Door(start_time, container) => {
                holders.hand_over(id(*start_time), key(container), |key| live.contains(key));
                continue;
            }
            Live(containers) => {
                live = containers.iter().map(|container| key(container)).collect();
                continue;
            }
            Uses(bytes) => {
                used = Some(*bytes);
                continue;
            }
            Untold => {
                used = None;
                continue;
            }
            Lapse(start_time) => {
                holders.lapse(|process| start_time.map(id) == Some(*process));
                continue;
            }
            Has(start_time, whose) => (true, Some((*start_time, *whose))),
            Ended | Unreadable => (true, None),
            Unlisted(start_time) => (false, start_time.map(|start_time| (start_time, ""))),
        };
        let alive = now.map(|(start_time, _)| id(start_time));
        if is_listed {
            let now = match now {
                Some((start_time, "")) => Now::Living(id(start_time), Whose::Nobody),
                Some((start_time, "server")) => Now::Living(id(start_time), Whose::Server),
                Some((start_time, container)) => {
                    Now::Living(id(start_time), Whose::Grant(key(container)))
                }
                None if matches!(step, Unreadable) => Now::Unreadable,
                None => Now::Ended,
            };
            let shares = holders.share(9, used, now, Some(100), |key| live.contains(key));
            assert!(shares.iter().all(|share| share.used.is_some() == used.is_some()));
            let sum = shares.iter().filter_map(|share| share.used).sum::<u64>();
            assert_eq!(sum, used.unwrap_or_default());
            named.push(words(&shares));
        }
        holders.keep(
            |pid| is_listed && pid == 9,
            |process| alive == Some(*process),
            |key| live.contains(key),
        );
    }
    named.push(format!("{} kept", usize::from(holders != Holders::default())));
    named
}

/// While NVML does not answer nobody is forgotten.
#[test]
fn there_is_an_end_to_the_clients_that_are_remembered() {
    let mut holders = Holders::default();
    let pids = (1..10_000).map(|pid| (pid, 1));
    for (pid, start_time) in pids.chain((1..100).map(|start_time| (1, start_time))) {
        holders.hand_over(ProcessId { pid, start_time }, key("bad"), |_| true);
    }
    let mut is_known = |pid| {
        let shares = holders.share(pid, None, Now::Ended, None, |_| true);
        shares.iter().all(|share| share.of.is_some())
    };
    assert!(is_known(1) && is_known(4096) && !is_known(4097));
    assert!(format!("{holders:?}").matches("bad").count() <= 4096 + 8);
    holders.keep(|_| false, |process| *process == ProcessId { pid: 1, start_time: 1 }, |_| true);
    assert_eq!(format!("{holders:?}").matches("bad").count(), 1);
}

#[test]
fn memory_under_a_pid_is_whose_it_was_when_it_was_first_seen() {
    let cases: &[(&str, &[Step], &[&str])] = &[
        ("a process that lives", &[Has(1, "bad"), Has(1, "bad")], &["1 bad", "1 bad", "1 kept"]),
        (
            "one that has ended",
            &[Has(1, "bad"), Ended, Ended],
            &["1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "another has its pid: that is not it",
            &[Has(1, "bad"), Ended, Has(2, "good"), Has(2, "good")],
            &["1 bad", "1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "another has it at once, of no container",
            &[Has(1, "bad"), Has(2, "")],
            &["1 bad", "1 bad", "1 kept"],
        ),
        (
            "its grant has ended: nobody's, and never the other's",
            &[Has(1, "bad"), Live(&["good"]), Ended, Has(2, "good"), Has(2, "good")],
            &["1 bad", "nobody can", "nobody can", "nobody can", "1 kept"],
        ),
        (
            "a stranger's, whose pid a container's process has then",
            &[Has(1, ""), Ended, Has(2, "good")],
            &["1 Nobody", "nobody can", "nobody can", "1 kept"],
        ),
        (
            "a server's, whose pid a container's process has then",
            &[Has(1, "server"), Has(1, "server"), Has(2, "good")],
            &["1 Server", "1 Server", "nobody can", "1 kept"],
        ),
        (
            "not listed any more: the next one with that pid is a new one",
            &[Has(1, "bad"), Unlisted(None), Has(2, "good")],
            &["1 bad", "2 good", "1 kept"],
        ),
        (
            "not listed any more: forgotten",
            &[Has(1, "bad"), Unlisted(Some(1))],
            &["1 bad", "0 kept"],
        ),
        (
            "never seen alive: whoever has its pid then is another",
            &[Ended, Has(2, "good"), Unlisted(Some(2)), Has(2, "good")],
            &["nobody can", "nobody can", "2 good", "1 kept"],
        ),
        (
            "never seen alive, and a client has its pid then: what it left is not the client's",
            &[Ended, Door(2, "good"), Has(2, "good"), Uses(15), Has(2, "good")],
            &["nobody can", "nobody can", "2 good: 5, nobody can: 10", "1 kept"],
        ),
        (
            "what nobody's process left becomes less: it stays nobody's, and no more",
            &[Ended, Uses(4), Door(2, "good"), Has(2, "good"), Uses(9), Has(2, "good")],
            &["nobody can", "nobody can", "2 good: 5, nobody can: 4", "1 kept"],
        ),
        (
            "never seen alive, and not listed in between: all is the client's",
            &[Ended, Unlisted(None), Door(2, "good"), Has(2, "good")],
            &["nobody can", "2 good", "1 kept"],
        ),
        (
            "never seen alive, but at a door",
            &[Door(1, "bad"), Ended, Has(2, "good")],
            &["1 bad", "1 bad", "1 kept"],
        ),
        (
            "at a door, and without a context for a while",
            &[Door(1, "bad"), Unlisted(Some(1)), Unlisted(Some(1)), Ended],
            &["1 bad", "1 kept"],
        ),
        ("at a door, and ended without one", &[Door(1, "bad"), Unlisted(None)], &["0 kept"]),
        (
            "at a door, and its grant has ended",
            &[Door(1, "bad"), Live(&["good"]), Unlisted(Some(1))],
            &["0 kept"],
        ),
        (
            "whoever leaves memory behind is to blame while its grant lives, not the next client",
            &[Has(1, "bad"), Ended, Door(2, "good"), Has(2, "good")],
            &["1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "after that it is nobody's, and the next client's is what is more",
            &[
                Has(1, "bad"),
                Ended,
                Live(&["good"]),
                Door(2, "good"),
                Has(2, "good"),
                Uses(15),
                Has(2, "good"),
                Ended,
            ],
            &[
                "1 bad",
                "1 bad",
                "nobody can",
                "2 good: 5, nobody can: 10",
                "2 good: 5, nobody can: 10",
                "1 kept",
            ],
        ),
        (
            "its grant ends while another has its pid",
            &[
                Has(1, "bad"),
                Door(2, "good"),
                Uses(15),
                Has(2, "good"),
                Live(&["good"]),
                Has(2, "good"),
            ],
            &["1 bad", "1 bad: 10, 2 good: 5", "2 good: 5, nobody can: 10", "1 kept"],
        ),
        (
            "what two left: the part of one whose grant has ended is nobody's",
            &[
                Live(&["bad", "worse", "good"]),
                Has(1, "bad"),
                Door(2, "worse"),
                Uses(30),
                Has(2, "worse"),
                Live(&["bad", "good"]),
                Ended,
                Door(3, "good"),
                Uses(31),
                Has(3, "good"),
            ],
            &[
                "1 bad",
                "1 bad: 10, 2 worse: 20",
                "1 bad: 10, nobody can: 20",
                "1 bad: 10, 3 good: 1, nobody can: 20",
                "1 kept",
            ],
        ),
        (
            "the same, with the third one there before a look",
            &[
                Live(&["bad", "worse", "good"]),
                Has(1, "bad"),
                Door(2, "worse"),
                Uses(30),
                Has(2, "worse"),
                Live(&["bad", "good"]),
                Door(3, "good"),
                Uses(31),
                Has(3, "good"),
                Uses(32),
                Has(3, "good"),
            ],
            &[
                "1 bad",
                "1 bad: 10, 2 worse: 20",
                "1 bad: 10, 3 good: 1, nobody can: 20",
                "1 bad: 10, 3 good: 2, nobody can: 20",
                "1 kept",
            ],
        ),
        (
            "a client that was not listed for a while left nothing",
            &[Door(1, "bad"), Has(1, "bad"), Unlisted(Some(1)), Door(2, "good"), Has(2, "good")],
            &["1 bad", "2 good", "1 kept"],
        ),
        (
            "another process of the same grant, which came to no door",
            &[Has(1, "bad"), Uses(15), Has(2, "bad"), Uses(20), Door(3, "good"), Has(3, "good")],
            &["1 bad", "1 bad", "1 bad: 15, 3 good: 5", "1 kept"],
        ),
        (
            "another process of the same grant, which came to its door",
            &[Has(1, "bad"), Door(2, "bad"), Uses(15), Has(2, "bad"), Ended],
            &["1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "another process of the same container, whose grant has ended",
            &[Has(1, "bad"), Live(&["good"]), Uses(15), Has(2, "bad"), Door(3, "good"), Has(3, "")],
            &["1 bad", "nobody can", "3 good: 5, nobody can: 10", "1 kept"],
        ),
        (
            "the ninth process of one pid is known, too",
            &[
                Door(1, "bad"),
                Door(2, "bad"),
                Door(3, "bad"),
                Door(4, "bad"),
                Door(5, "bad"),
                Door(6, "bad"),
                Door(7, "bad"),
                Door(8, "bad"),
                Uses(0),
                Has(8, "bad"),
                Door(9, "good"),
                Uses(10),
                Has(9, "good"),
            ],
            &["1 bad", "9 good", "1 kept"],
        ),
        (
            "and what the first of them left is nobody's",
            &[
                Ended,
                Door(2, "bad"),
                Door(3, "bad"),
                Door(4, "bad"),
                Door(5, "bad"),
                Door(6, "bad"),
                Door(7, "bad"),
                Door(8, "bad"),
                Has(8, "bad"),
                Door(9, "good"),
                Uses(15),
                Has(9, "good"),
            ],
            &["nobody can", "nobody can", "9 good: 5, nobody can: 10", "1 kept"],
        ),
        (
            "nobody knows what an ended one had: none of it is charged to anybody",
            &[Untold, Has(1, "bad"), Ended, Door(2, "good"), Uses(30), Has(2, "good"), Ended],
            &["1 bad", "1 bad", "nobody can", "nobody can", "1 kept"],
        ),
        (
            "nobody knows it, and who has the pid is of the same grant",
            &[Untold, Has(1, "bad"), Uses(30), Has(2, "bad"), Ended],
            &["1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "what an ended one had is known, and not told for a while",
            &[Has(1, "bad"), Door(2, "good"), Untold, Has(2, "good"), Uses(15), Has(2, "good")],
            &["1 bad", "1 bad", "1 bad: 10, 2 good: 5", "1 kept"],
        ),
        (
            "a client without memory is one, after another had none",
            &[Door(1, "bad"), Door(2, "good"), Uses(0), Has(2, "good")],
            &["2 good", "1 kept"],
        ),
        (
            "an ended process takes no more: what is more is the next client's",
            &[Has(1, "bad"), Door(2, "good"), Uses(15), Has(2, "good"), Ended],
            &["1 bad", "1 bad: 10, 2 good: 5", "1 bad: 10, 2 good: 5", "1 kept"],
        ),
        (
            "of a process that came to no door what is more is nobody's",
            &[Has(1, "bad"), Uses(15), Has(2, "good")],
            &["1 bad", "1 bad: 10, nobody can: 5", "1 kept"],
        ),
        (
            "what it left behind is less than it had: the next client has no part in it",
            &[Has(1, "bad"), Uses(4), Door(2, "good"), Has(2, "good"), Uses(9), Has(2, "good")],
            &["1 bad", "1 bad", "1 bad: 4, 2 good: 5", "1 kept"],
        ),
        (
            "it had none at a look, and another has the pid before the next one",
            &[Door(1, "bad"), Unlisted(Some(1)), Door(2, "good"), Has(2, "good")],
            &["2 good", "1 kept"],
        ),
        (
            "it ended before a look: none of what it may have left is the next client's",
            &[Door(1, "bad"), Door(2, "good"), Has(2, "good"), Uses(15), Has(2, "good")],
            &["nobody can", "nobody can", "1 kept"],
        ),
        (
            "it ended before a look, and left nothing: all is the next client's",
            &[Door(1, "bad"), Door(2, "good"), Uses(0), Has(2, "good"), Uses(15), Has(2, "good")],
            &["2 good", "2 good", "1 kept"],
        ),
        (
            "it is moved into its container's cgroup after the first look",
            &[Has(1, ""), Has(1, "bad"), Ended],
            &["1 Nobody", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "it leaves its container's cgroup",
            &[Has(1, "bad"), Has(1, ""), Ended],
            &["1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "a grant of an inner container came later",
            &[Has(1, "bad"), Has(1, "good"), Ended],
            &["1 bad", "1 good", "1 good", "1 kept"],
        ),
        (
            "it cannot be read at the first look: that is not its end",
            &[Unreadable, Has(1, "good"), Uses(15), Has(1, "good"), Ended],
            &["nobody can", "1 good", "1 good", "1 good", "1 kept"],
        ),
        (
            "it cannot be read at any look: nothing is kept",
            &[Unreadable],
            &["nobody can", "0 kept"],
        ),
        (
            "it came to a door, and cannot be read for a while",
            &[Door(1, "bad"), Unreadable, Has(1, "bad")],
            &["1 bad", "1 bad", "1 kept"],
        ),
        (
            "a server's, which cannot be read for a while",
            &[Has(1, "server"), Unreadable, Has(1, "server")],
            &["1 Server", "nobody can", "1 Server", "1 kept"],
        ),
        (
            "what is listed while it cannot be read may be another's by then",
            &[Has(1, "bad"), Uses(15), Unreadable, Door(2, "good"), Has(2, "good")],
            &["1 bad", "1 bad", "1 bad: 10, 2 good: 5", "1 kept"],
        ),
        (
            "and is its own where it is read again",
            &[Has(1, "bad"), Uses(15), Unreadable, Has(1, "bad"), Door(2, "good"), Has(2, "good")],
            &["1 bad", "1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "no look for a while: what is listed under an ended one's pid may be another's",
            &[Has(1, "bad"), Ended, Lapse(None), Ended, Door(2, "good"), Has(2, "good")],
            &["1 bad", "1 bad", "nobody can", "nobody can", "1 kept"],
        ),
        (
            "no look for a while: another has its pid, and is charged with none of it",
            &[Has(1, "bad"), Door(2, "good"), Lapse(Some(2)), Uses(30), Has(2, "good")],
            &["1 bad", "nobody can", "1 kept"],
        ),
        (
            "no look for a while: who was looked at before has had the pid ever since",
            &[
                Has(1, "bad"),
                Door(2, "good"),
                Uses(15),
                Has(2, "good"),
                Lapse(Some(2)),
                Uses(30),
                Has(2, "good"),
            ],
            &["1 bad", "1 bad: 10, 2 good: 5", "1 bad: 10, 2 good: 20", "1 kept"],
        ),
        (
            "no look for a while: the same, with both of the same grant",
            &[
                Has(1, "bad"),
                Door(2, "bad"),
                Uses(15),
                Has(2, "bad"),
                Lapse(Some(2)),
                Uses(30),
                Has(2, "bad"),
            ],
            &["1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "no look for so long that it counts again and again",
            &[
                Has(1, "bad"),
                Door(2, "good"),
                Uses(15),
                Has(2, "good"),
                Lapse(Some(2)),
                Lapse(Some(2)),
                Has(2, "good"),
            ],
            &["1 bad", "1 bad: 10, 2 good: 5", "1 bad: 10, 2 good: 5", "1 kept"],
        ),
        (
            "no look for a while: what who stayed had when it ended nobody knows",
            &[
                Live(&["bad", "good", "worse"]),
                Has(1, "bad"),
                Door(2, "worse"),
                Uses(15),
                Has(2, "worse"),
                Lapse(Some(2)),
                Uses(60),
                Door(3, "good"),
                Has(3, "good"),
            ],
            &["1 bad", "1 bad: 10, 2 worse: 5", "1 bad: 10, nobody can: 50", "1 kept"],
        ),
        (
            "no look for a while: nor does anybody know it of two of one grant",
            &[
                Has(1, "bad"),
                Door(2, "bad"),
                Uses(15),
                Has(2, "bad"),
                Lapse(Some(2)),
                Door(3, "good"),
                Has(3, "good"),
            ],
            &["1 bad", "1 bad", "nobody can", "1 kept"],
        ),
        (
            "no look for a while: who was looked at before has ended since",
            &[Has(1, "bad"), Door(2, "good"), Uses(15), Has(2, "good"), Lapse(None), Ended],
            &["1 bad", "1 bad: 10, 2 good: 5", "nobody can", "1 kept"],
        ),
        (
            "no look for a while: who lives has what it has, and has ended later",
            &[Has(1, "bad"), Lapse(Some(1)), Uses(30), Has(1, "bad"), Ended],
            &["1 bad", "1 bad", "1 bad", "1 kept"],
        ),
        (
            "a process that started after NVML was asked is not meant",
            &[Has(101, "good"), Door(102, "good"), Has(102, "good")],
            &["nobody can", "nobody can", "1 kept"],
        ),
    ];
    for (title, steps, expected) in cases {
        assert_eq!(story(steps), *expected, "{title}");
    }
}
