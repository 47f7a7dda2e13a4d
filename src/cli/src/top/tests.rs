//! Pictures as golden text; one of them is the README's.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "test code fails by panicking")]

use std::fmt::Write as _;

use mpsgate_api::{CardState, GrantStatus};
use mpsgate_testing::golden;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

use super::bars::{ASCII, UNICODE};
use super::*;
const NOW: u64 = 1_700_000_000_000;
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
/// From `tests/golden`.
const PICTURE: &str = "../../../../docs/top.svg";

/// The node of the status tests: two managed cards, one of them without its MPS, and one that is
/// not.
fn busy() -> Status {
    let text = std::fs::read_to_string(format!("{GOLDEN}/status-busy.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A healthy node after a while: each look has the containers use a little more.
fn working() -> Model {
    let mut status = busy();
    status.kubelet = false;
    status.simulated = false;
    status.actions.truncate(1);
    status.cards.truncate(2);
    for (card, (name, total, granted)) in status
        .cards
        .iter_mut()
        .zip([("NVIDIA H200", 143_771, 131_072), ("Tesla T4", 16_384, 14_336)])
    {
        name.clone_into(&mut card.name);
        (card.total_mib, card.memory_mib, card.granted_mib) = (total, total - 1024, granted);
        card.state = CardState::Ready.into();
        (card.hint, card.unwatched, card.memory) = (None, None, None);
    }
    let sample = status.grants[0].clone();
    status.grants = [
        ("llama-7b", 0, 65_536, 6),
        ("whisper", 0, 16_384, 40),
        ("4f1a5c9d2e7b8a6f0c3d4e5f60718293a4b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9", 0, 49_152, 3),
        ("notebook", 1, 7_168, 1),
        ("train", 1, 7_168, 300),
    ]
    .into_iter()
    .map(|(id, card, memory, minutes)| GrantStatus {
        container_id: id.to_owned(),
        card_index: card,
        memory_mib: memory,
        since_ms: NOW - minutes * 60_000,
        used_mib: Some(0),
        ..sample.clone()
    })
    .collect();
    let mut model = None;
    for look in 0..40_u64 {
        let mut next = status.clone();
        for (n, grant) in (0..).zip(&mut next.grants) {
            let wave = [20, 24, 31, 45, 60, 71, 83, 90, 88, 96]
                [usize::try_from(look + n * 7).unwrap() % 10];
            grant.used_mib = (n != 3).then(|| grant.memory_mib * wave / 100);
        }
        for card in &mut next.cards {
            let own = next.grants.iter().filter(|grant| grant.card_index == card.index);
            card.used_mib = Some(500 + own.filter_map(|grant| grant.used_mib).sum::<u64>());
        }
        match &mut model {
            None => model = Some(Model::new(next)),
            Some(model) => model.take(next),
        }
    }
    model.unwrap()
}

fn look(width: usize, height: usize) -> Look {
    Look { width, height, now_ms: NOW, seconds: 2, ramp: UNICODE, coloured: true }
}

/// What the terminal shows.
fn draw(model: &Model, look: &Look) -> Buffer {
    let size = (u16::try_from(look.width).unwrap(), u16::try_from(look.height).unwrap());
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    let lines = screen::draw(model, look);
    assert!(lines.len() <= look.height, "{} lines in {}", lines.len(), look.height);
    terminal.draw(|frame| frame.render_widget(Paragraph::new(lines), frame.area())).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.content.chunks(buffer.area.width.into()) {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        writeln!(text, "{}", line.trim_end()).unwrap();
    }
    text
}

#[test]
fn pictures_of_every_size_and_state() {
    let mut all = String::new();
    let mut add = |title: &str, model: &Model, look: &Look| {
        writeln!(all, "==== {title}, {}x{}", look.width, look.height).unwrap();
        all.push_str(&text(&draw(model, look)));
    };
    add("a node at work", &working(), &look(80, 16));
    add("a wide terminal", &working(), &look(130, 14));
    add("a narrow one", &working(), &look(64, 14));
    add("a low one", &working(), &look(80, 8));
    add("too small", &working(), &look(63, 8));
    add("without UTF-8", &working(), &Look { ramp: ASCII, ..look(80, 14) });
    add("a broken node", &Model::new(busy()), &look(80, 22));
    let mut old = working();
    old.fail("mpsgated is not running: no socket answers at /run/mpsgate/mpsgated.sock".to_owned());
    add("mpsgated gone", &old, &look(80, 14));
    let mut none = busy();
    (none.cards, none.grants, none.actions) = (Vec::new(), Vec::new(), Vec::new());
    none.nvml_error = Some("cannot load the NVML library libnvidia-ml.so.1".to_owned());
    add("nothing there", &Model::new(none), &look(80, 10));
    let mut moved = working();
    for wish in [Wish::Sort, Wish::Reverse, Wish::Pause, Wish::Scroll(2)] {
        moved.wish(wish);
    }
    add("sorted, reversed, paused, scrolled", &moved, &look(80, 14));
    golden!("top.txt", &all);
}

#[test]
fn no_size_and_no_number_of_things_makes_more_lines_or_columns_than_there_are() {
    let mut many = busy();
    let (card, grant) = (many.cards[1].clone(), many.grants[0].clone());
    many.cards = (0..16).map(|index| mpsgate_api::CardStatus { index, ..card.clone() }).collect();
    many.grants = (0..500)
        .map(|n| GrantStatus { container_id: format!("container-{n}"), ..grant.clone() })
        .collect();
    for model in [working(), Model::new(busy()), Model::new(many)] {
        for (width, height) in [(64, 8), (79, 9), (80, 24), (81, 12), (95, 50), (300, 100)] {
            let look = look(width, height);
            let lines = screen::draw(&model, &look);
            assert_eq!(lines.len(), height, "{width}x{height}");
            // Sentences may be cut by the terminal; rows of a table may not.
            let buffer = text(&draw(&model, &look));
            for title in ["STATE", "AGE"] {
                assert!(buffer.contains(title), "{title} in {width}x{height}:\n{buffer}");
            }
        }
    }
}

#[test]
fn keys_sort_scroll_and_end() {
    let press = |code| wish(KeyEvent::new(code, KeyModifiers::NONE));
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert!(matches!(press(code), Some(Key::Quit)));
    }
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(matches!(wish(interrupt), Some(Key::Quit)));
    assert!(press(KeyCode::Char('c')).is_none());

    let mut model = working();
    let order = |model: &Model| {
        let names = model.sorted().into_iter().map(|grant| grant.container_id[..4].to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    let mut orders = vec![order(&model)];
    for _ in 0..5 {
        model.wish(Wish::Sort);
        orders.push(order(&model));
    }
    assert_eq!(
        orders,
        [
            "llam 4f1a whis trai note",
            "llam trai whis 4f1a note",
            "llam 4f1a whis note trai",
            "trai whis llam 4f1a note",
            "4f1a llam whis note trai",
            "4f1a llam note trai whis",
        ]
    );
    model.wish(Wish::Scroll(-3));
    assert_eq!(model.offset, 0);
    model.wish(Wish::Scroll(99));
    assert_eq!(model.offset, 4);
}

#[test]
fn what_is_gone_is_forgotten_and_a_pause_changes_nothing() {
    let mut model = working();
    let first = model.status().grants[0].clone();
    assert_eq!(model.grant_history(&first).count(), 40);
    model.wish(Wish::Pause);
    model.take(busy());
    assert_eq!(model.status().grants.len(), 5);
    model.wish(Wish::Pause);
    model.take(busy());
    assert_eq!(model.grant_history(&first).count(), 0);
}

/// Hostile words, as a process's command line in an action may hold: nothing of it reaches the
/// terminal but as text.
#[test]
fn escape_sequences_are_not_passed_on() {
    let mut status = busy();
    status.actions[0].why = "pid 7 (\u{1b}]0;owned\u{7}\u{1b}[2J) held it".to_owned();
    status.actions.truncate(1);
    let shown = text(&draw(&Model::new(status), &look(80, 24)));
    assert!(shown.contains("held it"), "{shown}");
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
}

#[test]
fn the_picture_of_the_readme_is_this_program_s() {
    golden!(PICTURE, &svg(&draw(&working(), &look(80, 16))));
}

/// The terminal as an SVG, whose characters stand in fixed columns whatever the font.
fn svg(buffer: &Buffer) -> String {
    let (width, height) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (across, down) = (8.4, 18.0);
    #[allow(clippy::cast_precision_loss, reason = "hundreds")]
    let at = |n: usize, step: f64| n as f64 * step;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.1} {:.1}\" \
         font-family=\"ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace\" font-size=\"14\">\n\
         <title>mpsgate top</title>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#16181d\"/>\n",
        at(width, across) + 20.0,
        at(height, down) + 20.0,
    );
    for (y, row) in buffer.content.chunks(width).enumerate() {
        let mut x = 0;
        while x < width {
            let cell = &row[x];
            let same = |other: &&ratatui::buffer::Cell| {
                other.fg == cell.fg && other.modifier == cell.modifier
            };
            let run: String = row[x..].iter().take_while(same).map(|cell| cell.symbol()).collect();
            let length = run.chars().count();
            let reversed = cell.modifier.contains(Modifier::REVERSED);
            let (left, top) = (at(x, across) + 10.0, at(y, down) + 10.0);
            if reversed {
                writeln!(
                    svg,
                    "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{down:.1}\" fill=\"#c8ccd4\"/>",
                    at(length, across)
                )
                .unwrap();
            }
            if !run.trim().is_empty() {
                let colour = match cell.fg {
                    Color::Green => "#7ec699",
                    Color::Yellow => "#e5c07b",
                    Color::Red => "#f07178",
                    _ if reversed => "#16181d",
                    _ => "#c8ccd4",
                };
                let weight = if cell.modifier.contains(Modifier::BOLD) {
                    " font-weight=\"bold\""
                } else {
                    ""
                };
                writeln!(
                    svg,
                    "<text xml:space=\"preserve\" x=\"{left:.1}\" y=\"{:.1}\" textLength=\"{:.1}\" fill=\"{colour}\"{weight}>{run}</text>",
                    top + 13.5,
                    at(length, across)
                )
                .unwrap();
            }
            x += length;
        }
    }
    svg.push_str("</svg>\n");
    svg
}
