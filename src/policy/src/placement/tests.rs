#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a failing unwrap is the test's failure"
)]
use mpsgate_model::{Code, example_gpu as uuid};

use super::*;

fn holder(container: &str, gib: u64, uid: u32) -> Holder {
    Holder { container: container.to_owned(), memory: Mib(gib * 1024), uid }
}

/// A ready card of 15 GiB.
fn card<'a>(uuid: &'a GpuUuid, index: u32, holders: &[(&'a str, u64, u32)]) -> Candidate<'a> {
    Candidate {
        uuid,
        index,
        managed: true,
        condition: Condition::Ready,
        memory: Mib(15 * 1024),
        promised: Mib(0),
        holders: holders.iter().map(|&(container, gib, uid)| holder(container, gib, uid)).collect(),
        max_clients: 48,
        multiuser: false,
    }
}

fn need(gib: u64, uid: u32) -> Need<'static> {
    Need { memory: Mib(gib * 1024), uid, gpu: None, hints: &[], spread: false }
}

fn text(result: Result<usize, Refusal>) -> String {
    let refusal = result.unwrap_err();
    format!("{refusal}\nhint: {}", refusal.hint)
}

#[test]
fn prefers_cards_with_grants_of_equal_size() {
    let ids = [uuid(0), uuid(1), uuid(2)];
    let cards =
        [card(&ids[0], 0, &[("a", 8, 0)]), card(&ids[1], 1, &[("b", 5, 0)]), card(&ids[2], 2, &[])];
    assert_eq!(choose(&cards, &need(5, 0)), Ok(1), "although card 0 would be left fuller");
}

#[test]
fn a_node_that_spreads_takes_the_emptiest_whatever_its_sizes() {
    let ids = [uuid(0), uuid(1), uuid(2)];
    let cards =
        [card(&ids[0], 0, &[("a", 5, 0)]), card(&ids[1], 1, &[]), card(&ids[2], 2, &[("b", 1, 0)])];
    let spread = Need { spread: true, ..need(5, 0) };
    assert_eq!(choose(&cards, &need(5, 0)), Ok(0));
    assert_eq!(choose(&cards, &spread), Ok(1));
    assert_eq!(choose(&cards[..1], &spread), Ok(0));
    assert_eq!(choose(&cards, &Need { hints: &ids[2..], ..spread }), Ok(2));
}

#[test]
fn takes_the_card_that_kubelet_chose_where_it_serves_and_else_the_best() {
    let ids = [uuid(0), uuid(1), uuid(2)];
    let mut cards =
        [card(&ids[0], 0, &[("a", 5, 0)]), card(&ids[1], 1, &[]), card(&ids[2], 2, &[])];
    let hinted = |hints| Need { hints, ..need(5, 0) };
    assert_eq!(choose(&cards, &hinted(&[])), Ok(0));
    assert_eq!(choose(&cards, &hinted(&ids[2..])), Ok(2), "before equal size");
    let elsewhere = [uuid(9)];
    assert_eq!(choose(&cards, &hinted(&elsewhere)), Ok(0), "a card that is not here");
    cards[2].holders = vec![holder("c", 11, 0)];
    assert_eq!(choose(&cards, &hinted(&ids[2..])), Ok(0), "it is full");
    let named = GpuSelector::Uuid(uuid(1));
    let both = Need { gpu: Some(&named), ..hinted(&ids[..1]) };
    assert_eq!(choose(&cards, &both), Ok(1), "who is named is no hint");
}

#[test]
fn then_takes_the_card_with_the_least_left() {
    let ids = [uuid(0), uuid(1), uuid(2)];
    let mut cards =
        [card(&ids[0], 0, &[]), card(&ids[1], 1, &[("b", 8, 0)]), card(&ids[2], 2, &[("c", 6, 0)])];
    assert_eq!(choose(&cards, &need(5, 0)), Ok(1));
    cards[2].promised = Mib(3 * 1024);
    assert_eq!(choose(&cards, &need(5, 0)), Ok(2), "a promise counts like a grant");
}

#[test]
fn then_takes_the_lowest_index_wherever_it_stands() {
    let ids = [uuid(0), uuid(1)];
    assert_eq!(choose(&[card(&ids[0], 3, &[]), card(&ids[1], 1, &[])], &need(5, 0)), Ok(1));
}

#[test]
fn takes_what_fits_exactly() {
    let id = uuid(0);
    assert_eq!(choose(&[card(&id, 0, &[("a", 8, 0)])], &need(7, 0)), Ok(0));
    assert_eq!(choose(&[card(&id, 0, &[])], &need(15, 0)), Ok(0));
}

#[test]
fn a_named_card_is_taken_by_index_and_by_uuid() {
    let ids = [uuid(0), uuid(1)];
    let cards = [card(&ids[0], 0, &[("a", 5, 0)]), card(&ids[1], 1, &[])];
    for gpu in [GpuSelector::Index(1), GpuSelector::Uuid(uuid(1))] {
        assert_eq!(choose(&cards, &Need { gpu: Some(&gpu), ..need(5, 0) }), Ok(1));
    }
}

#[test]
fn refuses_a_gpu_that_is_not_there_and_lists_those_that_are() {
    let ids = [uuid(0), uuid(1)];
    let cards = [card(&ids[0], 0, &[]), card(&ids[1], 1, &[])];
    let gpu = GpuSelector::Index(7);
    assert_eq!(
        text(choose(&cards, &Need { gpu: Some(&gpu), ..need(5, 0) })),
        "it asks for GPU 7, but this node has only GPU 0 (GPU-00000000-0000-0000-0000-000000000000), \
         GPU 1 (GPU-00000001-0000-0000-0000-000000000000) [E_UNKNOWN_GPU]\n\
         hint: name one of these in mpsgate.io/gpu, or leave it out and mpsgate chooses"
    );
    assert_eq!(
        text(choose(&[], &need(5, 0))),
        "it asks for GPU memory, but this node has no GPU [E_UNKNOWN_GPU]\n\
         hint: look at what the driver sees: nvidia-smi -L"
    );
}

#[test]
fn refuses_unmanaged_cards_and_says_how_to_hand_them_over() {
    let ids = [uuid(0), uuid(1)];
    let mut cards = [card(&ids[0], 0, &[]), card(&ids[1], 1, &[])];
    cards[0].managed = false;
    assert_eq!(choose(&cards, &need(5, 0)), Ok(1));
    let gpu = GpuSelector::Index(0);
    assert_eq!(
        text(choose(&cards, &Need { gpu: Some(&gpu), ..need(5, 0) })),
        "it asks for memory of GPU 0 (GPU-00000000-0000-0000-0000-000000000000), which is not handed to \
         mpsgate [E_GPU_UNMANAGED]\n\
         hint: mpsgate enable GPU-00000000-0000-0000-0000-000000000000"
    );
    cards[1].managed = false;
    assert_eq!(
        text(choose(&cards, &need(5, 0))),
        "none of the 2 GPUs of this node is handed to mpsgate [E_GPU_UNMANAGED]\n\
         hint: mpsgate enable GPU-00000000-0000-0000-0000-000000000000"
    );
}

#[test]
fn refuses_unfit_cards_with_the_reason() {
    let ids = [uuid(0), uuid(1)];
    let mut cards = [card(&ids[0], 0, &[]), card(&ids[1], 1, &[])];
    cards[0].condition = Condition::Unfit { why: "is in MIG mode", hint: "turn MIG off" };
    assert_eq!(choose(&cards, &need(5, 0)), Ok(1));
    let gpu = GpuSelector::Index(0);
    assert_eq!(
        text(choose(&cards, &Need { gpu: Some(&gpu), ..need(5, 0) })),
        "GPU 0 (GPU-00000000-0000-0000-0000-000000000000) is in MIG mode [E_GPU_UNFIT]\n\
         hint: turn MIG off"
    );
    cards[1].condition = Condition::Unfit { why: "is older than Volta", hint: "leave it out" };
    assert_eq!(
        text(choose(&cards, &need(5, 0))),
        "no GPU here can be shared under MPS: GPU 0 (GPU-00000000-0000-0000-0000-000000000000) is in \
         MIG mode; GPU 1 (GPU-00000001-0000-0000-0000-000000000000) is older than Volta [E_GPU_UNFIT]\n\
         hint: turn MIG off"
    );
}

#[test]
fn refuses_unhealthy_cards_with_the_reason() {
    let ids = [uuid(0), uuid(1)];
    let mut cards = [card(&ids[0], 0, &[]), card(&ids[1], 1, &[])];
    cards[0].condition =
        Condition::Unhealthy { why: "has no MPS control daemon", hint: "mpsgate doctor" };
    assert_eq!(choose(&cards, &need(5, 0)), Ok(1));
    let gpu = GpuSelector::Index(0);
    assert_eq!(
        text(choose(&cards, &Need { gpu: Some(&gpu), ..need(5, 0) })),
        "GPU 0 (GPU-00000000-0000-0000-0000-000000000000) has no MPS control daemon [E_GPU_UNHEALTHY]\n\
         hint: mpsgate doctor"
    );
}

#[test]
fn an_unhealthy_card_that_would_be_large_enough_is_named_rather_than_called_too_small() {
    let ids = [uuid(0), uuid(1)];
    let mut cards = [card(&ids[0], 0, &[]), card(&ids[1], 1, &[])];
    cards[0].condition = Condition::Unhealthy { why: "fell off the bus", hint: "reboot" };
    cards[1].memory = Mib(4096);
    assert_eq!(choose(&cards, &need(4, 0)), Ok(1));
    assert_eq!(choose(&cards, &need(5, 0)).unwrap_err().code, Code::GpuUnhealthy);
    assert_eq!(choose(&cards, &need(16, 0)).unwrap_err().code, Code::TooLarge);
}

#[test]
fn refuses_more_than_the_largest_card() {
    let ids = [uuid(0), uuid(1)];
    let mut cards = [card(&ids[0], 0, &[]), card(&ids[1], 1, &[])];
    cards[1].memory = Mib(139 * 1024);
    assert_eq!(choose(&cards, &need(139, 0)), Ok(1));
    assert_eq!(
        text(choose(&cards, &need(140, 0))),
        "it asks for 140 GiB, but the largest card, GPU 1 (GPU-00000001-0000-0000-0000-000000000000), \
         has 139 GiB to give [E_TOO_LARGE]\n\
         hint: ask for at most 139Gi"
    );
    let gpu = GpuSelector::Index(0);
    assert_eq!(
        text(choose(&cards, &Need { gpu: Some(&gpu), ..need(16, 0) })),
        "it asks for 16 GiB of GPU 0 (GPU-00000000-0000-0000-0000-000000000000), which has 15 GiB to \
         give [E_TOO_LARGE]\n\
         hint: ask for at most 15Gi"
    );
}

#[test]
fn refuses_without_room_and_says_who_holds_what_largest_first() {
    let ids = [uuid(0), uuid(1)];
    let mut cards = [
        card(&ids[0], 0, &[("db", 5, 0), ("web", 7, 0)]),
        card(
            &ids[1],
            1,
            &[
                ("a", 2, 0),
                ("b", 2, 0),
                ("c", 2, 0),
                ("d", 2, 0),
                ("e", 2, 0),
                ("f", 1, 0),
                ("g", 1, 0),
            ],
        ),
    ];
    cards[0].promised = Mib(1536);
    assert_eq!(choose(&cards, &need(3, 0)), Ok(1));
    assert_eq!(
        text(choose(&cards, &need(4, 0))),
        "it asks for 4 GiB, no card has that: GPU 0 (GPU-00000000-0000-0000-0000-000000000000) has \
         1536 MiB of 15 GiB left: web holds 7 GiB, db holds 5 GiB, 1536 MiB promised to pods; GPU 1 \
         (GPU-00000001-0000-0000-0000-000000000000) has 3 GiB of 15 GiB left: a holds 2 GiB, b holds \
         2 GiB, c holds 2 GiB, d holds 2 GiB, e holds 2 GiB, 2 more hold 2 GiB [E_NO_CAPACITY]\n\
         hint: ask for at most 3Gi, or stop one of these containers; all grants: mpsgate status"
    );
}

#[test]
fn refuses_a_full_card_without_a_number_to_ask_for() {
    let id = uuid(0);
    let cards = [card(&id, 0, &[("web", 15, 0)])];
    assert_eq!(
        text(choose(&cards, &need(1, 0))),
        "it asks for 1 GiB, GPU 0 (GPU-00000000-0000-0000-0000-000000000000) has 0 MiB of 15 GiB left: \
         web holds 15 GiB [E_NO_CAPACITY]\n\
         hint: stop one of these containers and try again; all grants: mpsgate status"
    );
}

#[test]
fn refuses_one_client_more_than_the_server_takes() {
    let id = uuid(0);
    let mut cards = [card(&id, 0, &[("a", 1, 0), ("b", 1, 0)])];
    cards[0].max_clients = 3;
    assert_eq!(choose(&cards, &need(1, 0)), Ok(0));
    cards[0].max_clients = 2;
    assert_eq!(
        text(choose(&cards, &need(1, 0))),
        "it asks for 1 GiB, GPU 0 (GPU-00000000-0000-0000-0000-000000000000) has 13 GiB of 15 GiB left \
         and all 2 MPS clients taken: a holds 1 GiB, b holds 1 GiB [E_NO_CAPACITY]\n\
         hint: stop one of these containers and try again; all grants: mpsgate status"
    );
}

#[test]
fn a_card_serves_one_uid_unless_its_server_is_multi_user() {
    let ids = [uuid(0), uuid(1)];
    let mut cards = [card(&ids[0], 0, &[("web", 7, 0), ("db", 2, 0)]), card(&ids[1], 1, &[])];
    assert_eq!(choose(&cards, &need(5, 0)), Ok(0));
    assert_eq!(choose(&cards, &need(5, 1000)), Ok(1), "an idle card serves any uid");
    assert_eq!(
        text(choose(&cards[..1], &need(5, 1000))),
        "its CUDA processes run as uid 1000, and an MPS server serves one uid at a time: GPU 0 \
         (GPU-00000000-0000-0000-0000-000000000000) serves uid 0 for web, db [E_UID]\n\
         hint: run it as uid 0 (docker run --user 0), or wait until these containers end"
    );
    cards[0].multiuser = true;
    assert_eq!(choose(&cards[..1], &need(5, 1000)), Ok(0));
}

#[test]
fn many_cards_are_listed_up_to_a_limit() {
    let ids: Vec<GpuUuid> = (0..20).map(uuid).collect();
    let cards: Vec<Candidate<'_>> = (0..20).zip(&ids).map(|(n, id)| card(id, n, &[])).collect();
    let gpu = GpuSelector::Index(99);
    let refusal = choose(&cards, &Need { gpu: Some(&gpu), ..need(1, 0) }).unwrap_err();
    assert!(
        refusal.sentence.ends_with("GPU 15 (GPU-0000000f-0000-0000-0000-000000000000), and 4 more")
    );
}

fn several(cards: &[Candidate<'_>], need: &Need<'_>, count: u32) -> Result<Vec<usize>, Refusal> {
    choose_several(cards, need, NonZeroU32::new(count).unwrap())
}

/// As without MPS: any number of holders, of any uid.
fn shared<'a>(uuid: &'a GpuUuid, index: u32, holders: &[(&'a str, u64, u32)]) -> Candidate<'a> {
    Candidate { max_clients: u32::MAX, multiuser: true, ..card(uuid, index, holders) }
}

#[test]
fn several_cards_are_different_ones_the_fullest_that_fit_first() {
    let ids = [uuid(0), uuid(1), uuid(2), uuid(3)];
    let cards = [
        shared(&ids[0], 0, &[]),
        shared(&ids[1], 1, &[("a", 9, 0)]),
        shared(&ids[2], 2, &[("b", 13, 1000)]),
        shared(&ids[3], 3, &[("c", 2, 0), ("d", 2, 7)]),
    ];
    for (gib, count, chosen) in [
        (4, 1, vec![1]),
        (4, 2, vec![1, 3]),
        (4, 3, vec![1, 3, 0]),
        (2, 4, vec![3, 2, 1, 0]),
        (11, 2, vec![3, 0]),
    ] {
        assert_eq!(several(&cards, &need(gib, 0), count), Ok(chosen), "{gib} GiB on {count}");
    }
    let hinted = Need { hints: &ids[..1], ..need(4, 0) };
    assert_eq!(several(&cards, &hinted, 2), Ok(vec![0, 1]), "kubelet's card is among them");
    let hinted = Need { hints: &[uuid(3), uuid(0)], ..need(4, 0) };
    assert_eq!(several(&cards, &hinted, 2), Ok(vec![3, 0]), "the scheduler's cards");
}

#[test]
fn too_few_cards_are_named_with_what_they_have_left() {
    let ids = [uuid(0), uuid(1)];
    let cards = [shared(&ids[0], 0, &[("a", 9, 0)]), shared(&ids[1], 1, &[])];
    let text = |result: Result<Vec<usize>, Refusal>| {
        let refusal = result.unwrap_err();
        format!("{refusal}\nhint: {}", refusal.hint)
    };
    assert_eq!(
        text(several(&cards, &need(7, 0), 2)),
        "it asks for 7 GiB on each of 2 cards, and 1 can have that now: GPU 0 \
         (GPU-00000000-0000-0000-0000-000000000000) has 6 GiB of 15 GiB left: a holds 9 GiB; GPU 1 \
         (GPU-00000001-0000-0000-0000-000000000000) has 15 GiB of 15 GiB left [E_NO_CAPACITY]\n\
         hint: stop one of these containers and try again; all grants: mpsgate status; cards that take no grants \
         stand there, too"
    );
    assert_eq!(
        text(several(&cards, &need(7, 0), 3)),
        "it asks for 7 GiB on each of 3 cards, and 2 of this node can have that [E_TOO_LARGE]\n\
         hint: ask for at most 2 cards"
    );
    assert!(text(several(&cards, &need(16, 0), 2)).contains("the largest card"), "as for one");
}

proptest::proptest! {
    #[test]
    fn chosen_cards_are_as_many_as_asked_different_and_have_the_room(
        held in proptest::collection::vec(0..16_u64, 1..8),
        gib in 1..16_u64,
        count in 1..9_u32,
    ) {
        let ids: Vec<GpuUuid> = (0..8).map(uuid).collect();
        let cards: Vec<Candidate<'_>> = held
            .iter()
            .zip(&ids)
            .zip(0..)
            .map(|((held, id), index)| shared(id, index, &[("a", *held, 0)]))
            .collect();
        let fits = held.iter().filter(|held| 15 - (**held).min(15) >= gib).count();
        match several(&cards, &need(gib, 0), count) {
            Ok(mut chosen) => {
                proptest::prop_assert!(chosen.iter().all(|at| cards[*at].free() >= Mib(gib * 1024)));
                chosen.sort_unstable();
                chosen.dedup();
                proptest::prop_assert_eq!(chosen.len(), count as usize);
            }
            Err(_) => proptest::prop_assert!(fits < count as usize),
        }
    }
}
