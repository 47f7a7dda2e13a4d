use super::*;

/// A node's name, whether it is told, whether it has cards, and what is shown there.
fn node(name: &str, is_told: bool, is_shared: bool, shown: &[&'static str]) -> Remains {
    let shown = shown.to_vec();
    Remains { node: name.to_owned(), is_told, is_shared, shown, ..Remains::default() }
}

fn names(nodes: &[Remains]) -> Vec<&str> {
    nodes.iter().map(|node| node.node.as_str()).collect()
}

#[test]
fn whoever_has_cards_or_shows_something_is_told_once_and_cards_are_waited_for() {
    let found = plan(vec![
        node("nothing", false, false, &[]),
        node("new", false, true, &["mpsgate.io/cards"]),
        node("told", true, true, &["mpsgate.io/cards"]),
        node("bare", false, true, &[]),
        node("shows", false, false, &["GPUMemorySharingReady"]),
        node("still shows", true, false, &["GPUMemorySharingReady"]),
        // An earlier attempt has told it, and it has given all back since.
        node("free", true, false, &[]),
    ]);
    assert_eq!(found.tell, ["new", "bare", "shows"]);
    assert_eq!(names(&found.waits), ["new", "told", "bare"]);
    assert_eq!(names(&found.left), ["shows", "still shows"]);
}

#[test]
fn all_nodes_are_looked_at_first_and_last_and_what_is_no_card_is_waited_for_in_vain_once() {
    let shared = || node("n", true, true, &["mpsgate.io/cards"]);
    let shows = || node("n", true, false, &["GPUMemorySharingReady"]);
    let free = || node("n", true, false, &[]);
    for (which, nodes, free, expected) in [
        (Which::All, vec![shared()], 0, Next::Wait(Which::Shared)),
        (Which::Shared, vec![shared()], 0, Next::Wait(Which::Shared)),
        (Which::Shared, vec![], 0, Next::All),
        (Which::Shared, vec![shows()], 0, Next::All),
        (Which::All, vec![shows()], 0, Next::Wait(Which::All)),
        (Which::All, vec![shows()], 14, Next::Wait(Which::All)),
        (Which::All, vec![shows()], 15, Next::Done),
        // However long it takes.
        (Which::All, vec![shows(), shared()], 60, Next::Wait(Which::Shared)),
        (Which::All, vec![free()], 0, Next::Done),
        (Which::All, vec![], 0, Next::Done),
    ] {
        let said = format!("{which:?} {nodes:?} {free}");
        assert_eq!(next(which, &plan(nodes), Duration::from_secs(free)), expected, "{said}");
    }
}

#[test]
fn a_node_is_named_with_what_keeps_its_cards() {
    let holders = |uids: &[&str]| uids.iter().map(|uid| (*uid).to_owned()).collect();
    let bare = |name: &str| node(name, true, true, &[]);
    let nodes = [
        Remains { holders: holders(&["p1", "p2"]), ..bare("n1") },
        Remains { local_mib: 2048, ..bare("n2") },
        Remains { holders: holders(&["p3"]), local_mib: 1, ..bare("n3") },
        bare("n4"),
    ];
    assert_eq!(
        kept(&nodes),
        "n1 (pods with the uids p1, p2), n2 (local containers with 2048 MiB), \
         n3 (pods with the uids p3 and local containers with 1 MiB), n4 (no container)"
    );
    let many: Vec<_> = (0..22).map(|index| bare(&format!("n{index}"))).collect();
    assert!(kept(&many).ends_with("n19 (no container) and 2 more"), "{}", kept(&many));
}

#[test]
fn a_node_with_a_pod_of_the_chart_is_not_freed() {
    let nodes = ["n1", "n2", "n3"].map(|name| node(name, name != "n3", false, &[]));
    let pod = |node: Option<&str>| ("mpsgate-x".to_owned(), node.map(str::to_owned));
    assert_eq!(freed(&nodes, &[]), ["n1", "n2"]);
    assert_eq!(freed(&nodes, &[pod(Some("n1")), pod(None)]), ["n2"]);
}
