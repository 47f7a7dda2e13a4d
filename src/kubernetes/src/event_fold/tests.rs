use super::*;

fn event(uid: &str, message: &str) -> Event {
    Event {
        subject: Subject::Pod {
            namespace: "n".to_owned(),
            name: "p".to_owned(),
            uid: uid.to_owned(),
        },
        reason: Reason::GpuMemoryRefused,
        severity: Severity::Warning,
        message: message.to_owned(),
    }
}

fn write(folding: &mut Folding, now: Instant) -> Folded {
    match folding.next(now, |_| true) {
        Next::Write(event) => event,
        other => panic!("nothing to write: {other:?}"),
    }
}

#[test]
fn the_same_again_is_one_event_with_a_count() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    folding.take(event("u", "no"), now, "t1");
    let first = write(&mut folding, now);
    assert_eq!((first.count, first.name.as_deref(), first.first.as_str()), (1, None, "t1"));
    folding.written(&first, Outcome::Written("p.1".to_owned()));
    assert!(matches!(folding.next(now, |_| true), Next::Nothing));

    for _ in 0..5 {
        folding.take(event("u", "no"), now, "t2");
    }
    let again = write(&mut folding, now);
    assert_eq!((again.count, again.name.as_deref()), (6, Some("p.1")));
    assert_eq!((again.first.as_str(), again.last.as_str()), ("t1", "t2"));
    assert!(matches!(folding.next(now, |_| true), Next::Nothing));
}

#[test]
fn a_pod_that_is_refused_for_ever_costs_a_write_a_minute() {
    let (mut folding, start) = (Folding::default(), Instant::now());
    let mut writes = 0;
    // Ten minutes, a refusal each second.
    for second in 0..600 {
        let now = start + Duration::from_secs(second);
        folding.take(event("u", "no"), now, "t");
        while let Next::Write(event) = folding.next(now, |_| true) {
            writes += 1;
            folding.written(&event, Outcome::Written("p.1".to_owned()));
        }
    }
    assert_eq!(writes, 3 + 9);
    // What is left is due at a moment that `next` names.
    let now = start + Duration::from_secs(599);
    folding.take(event("u", "no"), now, "t");
    let Next::At(due) = folding.next(now, |_| true) else { panic!("nothing is due") };
    assert_eq!(write(&mut folding, due).count, 601);
}

#[test]
fn one_pod_does_not_use_up_another_ones_budget() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    for n in 0..10 {
        folding.take(event("loud", &format!("{n}")), now, "t");
    }
    for _ in 0..3 {
        let event = write(&mut folding, now);
        folding.written(&event, Outcome::Written(event.message.clone()));
    }
    folding.take(event("loud", "one more"), now, "t");
    assert!(matches!(folding.next(now, |_| true), Next::At(_)));
    folding.take(event("quiet", "no"), now, "t");
    assert_eq!(write(&mut folding, now).message, "no");
}

#[test]
fn different_messages_are_three_events_at_most_the_last_of_them_the_newest() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    for n in 0..10 {
        folding.take(event("u", &format!("{n}")), now, "t");
    }
    let mut seen = vec![];
    while let Next::Write(event) = folding.next(now, |_| true) {
        seen.push((event.message.clone(), event.count));
    }
    assert_eq!(seen, [("0".to_owned(), 1), ("1".to_owned(), 1), ("9".to_owned(), 8)]);
}

#[test]
fn what_the_api_server_forgot_is_created_anew() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    folding.take(event("u", "no"), now, "t1");
    let first = write(&mut folding, now);
    folding.written(&first, Outcome::Written("p.1".to_owned()));
    folding.take(event("u", "no"), now, "t2");
    let patch = write(&mut folding, now);
    folding.written(&patch, Outcome::Forgotten);
    let anew = write(&mut folding, now);
    assert_eq!((anew.name, anew.count, anew.first.as_str()), (None, 1, "t2"));
}

#[test]
fn what_it_will_never_take_is_dropped() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    folding.take(event("u", "no"), now, "t");
    let first = write(&mut folding, now);
    folding.written(&first, Outcome::Refused("gone".to_owned()));
    assert!(matches!(folding.next(now, |_| true), Next::Nothing));
}

#[test]
fn what_is_reported_during_a_write_is_written_after_it() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    folding.take(event("u", "no"), now, "t1");
    let first = write(&mut folding, now);
    folding.take(event("u", "no"), now, "t2");
    folding.written(&first, Outcome::Written("p.1".to_owned()));
    let second = write(&mut folding, now);
    assert_eq!((second.count, second.name.as_deref()), (2, Some("p.1")));
}

#[test]
fn memory_is_bounded_and_quiet_ones_are_forgotten() {
    let (mut folding, start) = (Folding::default(), Instant::now());
    for n in 0..2000 {
        folding.take(event(&n.to_string(), "no"), start + Duration::from_millis(n), "t");
    }
    assert_eq!(folding.budgets.len(), REMEMBERED);
    folding.take(event("late", "no"), start + FORGOTTEN + Duration::from_secs(10), "t");
    assert_eq!(folding.budgets.len(), 1);
}

#[test]
fn a_message_is_cut_to_1024_bytes_between_characters() {
    let now = Instant::now();
    for (message, end, most) in [("ü".repeat(1000), "ü…", 1024), ("short".to_owned(), "short", 5)]
    {
        let mut folding = Folding::default();
        folding.take(event("p", &message), now, "t");
        let Next::Write(written) = folding.next(now, |_| true) else { panic!("nothing is due") };
        assert!(written.message.len() <= most && written.message.ends_with(end), "{written:?}");
    }
}

fn node_event(message: &str) -> Event {
    Event { subject: Subject::Node, reason: Reason::MpsFault, ..event("", message) }
}

#[test]
fn what_is_refused_waits_longer_each_time_and_nobody_else_does() {
    let (mut folding, start) = (Folding::default(), Instant::now());
    folding.take(event("refused", "no"), start, "t");
    let mut now = start;
    let mut waited = Vec::new();
    for attempt in 0..12 {
        let refused = write(&mut folding, now);
        assert_eq!(folding.refused(&refused, now), attempt == 0, "told once");
        let Next::At(due) = folding.next(now, |_| true) else { panic!("it is forgotten") };
        waited.push(due.duration_since(now).as_secs());
        // Another pod, and at first the node, in the meantime.
        folding.take(event(&format!("other-{attempt}"), "other"), now, "t");
        let node = usize::from(attempt < 3);
        if node > 0 {
            folding.take(node_event("other"), now, "t");
        }
        for _ in 0..=node {
            let other = write(&mut folding, now);
            assert_eq!(other.message, "other");
            folding.written(&other, Outcome::Written("name".to_owned()));
        }
        now = due;
    }
    assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    let at_last = write(&mut folding, now);
    assert_eq!((at_last.message.as_str(), at_last.count), ("no", 1), "nothing is lost");
    folding.written(&at_last, Outcome::Written("p".to_owned()));
    folding.take(event("refused", "no"), now, "t");
    assert_eq!(write(&mut folding, now).count, 2, "once it is taken, it is as any other");
}

#[test]
fn what_cannot_be_sent_is_as_it_was() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    folding.take(event("u", "no"), now, "t");
    for _ in 0..10 {
        let event = write(&mut folding, now);
        folding.unsent(&event);
    }
}

#[test]
fn a_namespace_that_is_being_written_to_holds_up_no_other() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    folding.take(event("u", "no"), now, "t");
    folding.take(node_event("fault"), now, "t");
    let busy = |subject: &Subject| *subject == Subject::Node;
    let Next::Write(first) = folding.next(now, busy) else { panic!("the node is held up") };
    assert_eq!(first.message, "fault");
    assert!(matches!(folding.next(now, busy), Next::Nothing));
    assert_eq!(write(&mut folding, now).message, "no");
}

#[test]
fn a_thousand_refused_pods_push_the_nodes_events_out_of_nothing() {
    let (mut folding, start) = (Folding::default(), Instant::now());
    folding.take(node_event("fault"), start, "t");
    for n in 0..1000 {
        folding.take(event(&n.to_string(), "no"), start + Duration::from_millis(n + 1), "t");
    }
    let now = start + Duration::from_secs(2);
    let Next::Write(event) = folding.next(now, |subject| *subject == Subject::Node) else {
        panic!("the node's event is forgotten")
    };
    assert_eq!(event.message, "fault");
}

#[test]
fn a_message_is_one_line_that_no_terminal_obeys() {
    let (mut folding, now) = (Folding::default(), Instant::now());
    let hostile = "a\u{1b}]0;x\u{7}\nb\u{9b}2J\u{202e}c\u{2066}\u{2028}\u{7f}ü – 名";
    folding.take(event("u", hostile), now, "t");
    assert_eq!(write(&mut folding, now).message, "a�]0;x��b�2J�c���ü – 名");
}
