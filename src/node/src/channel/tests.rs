use super::*;

fn seen(
    owner: Option<&'static str>,
    network: u64,
    over: bool,
    count: usize,
) -> Vec<Seen<&'static str>> {
    vec![Seen { owner, network: Some(network), over }; count]
}

fn too_much(all: &[Vec<Seen<&'static str>>]) -> Vec<&'static str> {
    let all = all.concat();
    let costs = costs(all.iter(), 48);
    costs.iter().filter(|(_, cost)| cost.is_too_much(48)).map(|(key, _)| *key).collect()
}

#[test]
fn who_costs_too_much() {
    let (a, b) = (Some("a"), Some("b"));
    for (what, all, ended) in [
        ("nothing", vec![], vec![]),
        ("as many as allowed", vec![seen(a, 1, true, 256)], vec![]),
        ("one more", vec![seen(a, 1, true, 257)], vec!["a"]),
        (
            "clients that stay, and neighbours'",
            vec![seen(a, 1, false, 48), seen(b, 1, false, 48)],
            vec![],
        ),
        (
            "clients that stay, and what is allowed",
            vec![seen(a, 1, false, 48), seen(a, 1, true, 256)],
            vec![],
        ),
        (
            "connections that wait, many times what a server takes",
            vec![seen(a, 1, false, 305)],
            vec!["a"],
        ),
        (
            "of two that waste, each its own",
            vec![seen(a, 1, true, 300), seen(b, 1, true, 200)],
            vec!["a"],
        ),
        (
            "makers that have ended, of one that was seen",
            vec![seen(a, 1, true, 8), seen(None, 1, true, 249)],
            vec!["a"],
        ),
        ("the same, seen too seldom", vec![seen(a, 1, true, 7), seen(None, 1, true, 1000)], vec![]),
        (
            "in another network namespace",
            vec![seen(a, 1, true, 8), seen(None, 2, true, 1000)],
            vec![],
        ),
        (
            "where two waste, nobody is guessed",
            vec![seen(a, 1, true, 8), seen(b, 1, true, 1), seen(None, 1, true, 1000)],
            vec![],
        ),
        (
            "beside a neighbour with clients",
            vec![seen(a, 1, true, 8), seen(b, 1, false, 9), seen(None, 1, true, 1000)],
            vec!["a"],
        ),
        (
            "kept open by another process than their makers, which have ended",
            vec![seen(a, 1, false, 56), seen(None, 1, false, 300)],
            vec!["a"],
        ),
        (
            "the same, by as many as a server's clients may be",
            vec![seen(a, 1, false, 48), seen(None, 1, false, 5000)],
            vec![],
        ),
        (
            "a neighbour's clients whose makers have ended, beside one that wastes little",
            vec![seen(a, 1, true, 208), seen(b, 1, false, 2), seen(None, 1, false, 48)],
            vec![],
        ),
        ("nobody seen at all", vec![seen(None, 1, true, 5000), seen(b, 1, false, 9)], vec![]),
    ] {
        assert_eq!(too_much(&all), ended, "{what}");
    }
}

#[test]
fn a_restart_is_due_at_half_the_limit() {
    assert!(!needs_restart(8191, 16384));
    assert!(needs_restart(8192, 16384));
    assert!(!needs_restart(20, u64::MAX));
}
