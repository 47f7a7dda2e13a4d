//! `mpsgate resize` as a table in golden text: each level and direction, and each bad wish.

use std::fmt::Write as _;

use mpsgate_model::{Guarantee, Mib, Refusal};
use mpsgate_policy::{Resize, resize, resized};

const GIB: u64 = 1024;

fn asked(level: Guarantee, wants: u64) -> Resize<'static> {
    Resize {
        container: "web",
        cards: "GPU 0",
        level,
        uses_mps: level != Guarantee::None,
        has: Mib(7 * GIB),
        wants: Mib(wants),
        pod_limit: None,
        total: Mib(15 * GIB),
        room: Mib(11 * GIB),
        uses: Some(Mib(3 * GIB)),
    }
}

fn answer(golden: &mut String, title: &str, asked: &Resize<'_>) {
    let answer = match resize(asked) {
        Ok(what) => format!("{what:?}\n{}", resized(asked).join("\n")),
        Err(Refusal { code, sentence, hint }) => {
            format!("{sentence} [{}]\nhint: {hint}", code.as_str())
        }
    };
    let _ = writeln!(golden, "{title}\n  {}\n", answer.replace('\n', "\n  "));
}

#[test]
fn each_level_and_direction() {
    let mut golden = String::new();
    let levels = [Guarantee::None, Guarantee::Mps, Guarantee::MpsWatchdog, Guarantee::Cgroup];
    for level in levels {
        for (word, wants) in [("more", 9 * GIB), ("as much", 7 * GIB), ("less", 5 * GIB)] {
            answer(&mut golden, &format!("{}, {word}", level.as_str()), &asked(level, wants));
        }
    }
    for (word, wants) in [("more", 9 * GIB), ("less", 5 * GIB)] {
        let share = Resize { uses_mps: false, ..asked(Guarantee::Cgroup, wants) };
        answer(&mut golden, &format!("cgroup without MPS, {word}"), &share);
    }
    let cgroup = |wants| asked(Guarantee::Cgroup, wants);
    for (title, asked) in [
        ("all that the card has left", cgroup(11 * GIB)),
        ("a MiB more than that", cgroup(11 * GIB + 1)),
        ("more than the card has", cgroup(16 * GIB)),
        ("what its pod may have", Resize { pod_limit: Some(Mib(8 * GIB)), ..cgroup(8 * GIB) }),
        ("more than its pod may", Resize { pod_limit: Some(Mib(8 * GIB)), ..cgroup(9 * GIB) }),
        ("what it uses", cgroup(3 * GIB)),
        ("a MiB less than it uses", cgroup(3 * GIB - 1)),
        ("less, and nobody sees its use", Resize { uses: None, ..cgroup(GIB) }),
        (
            "less, on a card that shrank below what it has",
            Resize { total: Mib(4 * GIB), room: Mib(0), ..cgroup(5 * GIB) },
        ),
    ] {
        answer(&mut golden, title, &asked);
    }
    mpsgate_testing::golden!("resize.txt", &golden);
}
