//! One picture of the node, as lines. Pure: the terminal's size, the time and the characters are
//! given.
//!
//! 80 columns show everything; what a wider terminal adds goes to bars, histories and names.

use mpsgate_api::{CardState, CardStatus, GrantState, GrantStatus};
use mpsgate_model::OneOf;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use super::bars::Ramp;
use super::model::Model;
use crate::status::{age, nobodys, short_id};

/// Below these nothing useful fits.
const NARROWEST: usize = 64;
const LOWEST: usize = 8;
/// From this height on there are blank lines.
const AIRY: usize = 12;
/// Columns that all parts of a row need.
const WHOLE: usize = 80;
/// Percent of a limit from which a bar is yellow.
const NEARLY: u64 = 90;

/// How a picture is drawn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) now_ms: u64,
    /// Time between two questions to the daemon.
    pub(crate) seconds: u16,
    pub(crate) ramp: Ramp,
    pub(crate) coloured: bool,
}

/// Widths of the parts that grow with the terminal.
struct Widths {
    name: usize,
    container: usize,
    bar: usize,
    history: usize,
}

impl Widths {
    fn of(width: usize) -> Self {
        let Some(more) = width.checked_sub(WHOLE) else {
            return Self { name: 10, container: 12, bar: 4, history: 0 };
        };
        let third = more / 3;
        let names = third.min(20);
        let bar = 8 + third.min(24);
        Self { name: 14 + names, container: 14 + names, bar, history: 8 + more - names - (bar - 8) }
    }
}

impl Look {
    fn style(&self, color: Color) -> Style {
        if self.coloured { Style::new().fg(color) } else { Style::new() }
    }

    /// Green, yellow where little is left, red where it is more than all.
    fn level(&self, value: u64, most: u64) -> Style {
        let (value, most) = (u128::from(value), u128::from(most));
        self.style(match value {
            _ if value > most => Color::Red,
            _ if value * 100 >= most * u128::from(NEARLY) => Color::Yellow,
            _ => Color::Green,
        })
    }
}

/// Never more lines than the terminal has.
pub(crate) fn draw(model: &Model, look: &Look) -> Vec<Line<'static>> {
    if look.width < NARROWEST || look.height < LOWEST {
        let (width, height) = (look.width, look.height);
        return vec![Line::from(format!(
            "{width}x{height} is too small: {NARROWEST}x{LOWEST}, or mpsgate status"
        ))];
    }
    let widths = Widths::of(look.width);
    // A low terminal has no line to spare.
    let blank = |lines: &mut Vec<_>| {
        if look.height >= AIRY {
            lines.push(Line::default());
        }
    };
    let mut lines = head(model, look);
    blank(&mut lines);
    // Containers have half of the terminal at least.
    let cards = cards(model, look, &widths);
    let room = (look.height / 2).saturating_sub(lines.len()).max(2);
    let hidden = cards.len().saturating_sub(room);
    if hidden == 0 {
        lines.extend(cards);
    } else {
        lines.extend(cards.into_iter().take(room - 1));
        lines.push(Line::from(format!("  and {} lines more: mpsgate status", hidden + 1)));
    }
    blank(&mut lines);
    let last = last_action(model, look);
    let below = 1 + usize::from(last.is_some());
    let room = look.height.saturating_sub(lines.len() + below);
    lines.extend(grants(model, look, &widths, room));
    lines.resize(look.height - below, Line::default());
    lines.extend(last);
    lines.push(keys(model, look));
    lines
}

fn head(model: &Model, look: &Look) -> Vec<Line<'static>> {
    let status = model.status();
    let mut text = String::new();
    if status.simulated {
        text += "SIMULATED: ";
    }
    text += &format!("mpsgated {}", status.version);
    if let Some(driver) = &status.driver {
        text += &format!(", driver {driver}");
    }
    text += &format!(", every {} s", look.seconds);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut lines = vec![Line::from(Span::styled(text, bold))];
    if let Some(trouble) = &model.trouble {
        let text = format!("old: {trouble}");
        lines.push(Line::from(Span::styled(text, look.style(Color::Red))));
    } else if let Some(error) = &status.nvml_error {
        let text = format!("NVML does not answer: {error}; mpsgate doctor");
        lines.push(Line::from(Span::styled(text, look.style(Color::Red))));
    }
    lines
}

fn cards(model: &Model, look: &Look, widths: &Widths) -> Vec<Line<'static>> {
    let status = model.status();
    if status.cards.is_empty() {
        return vec![Line::from("no card was found: mpsgate doctor")];
    }
    let (name, bar) = (widths.name, widths.bar);
    let mut lines = vec![title(format!(
        "GPU  {:name$}  {:bar$} {:>11}{}  {:>11}  {:>7}  STATE",
        "NAME",
        "",
        "USED/GiB",
        history_title(widths),
        "GRANTED/GiB",
        "CLIENTS",
    ))];
    for card in &status.cards {
        lines.extend(card_lines(model, card, look, widths));
    }
    if !status.cards.iter().any(|card| card.managed) {
        lines.push(Line::from("no card is managed: mpsgate enable GPU"));
    }
    lines
}

fn card_lines(
    model: &Model,
    card: &CardStatus,
    look: &Look,
    widths: &Widths,
) -> Vec<Line<'static>> {
    let used = card.used_mib.unwrap_or_default();
    let level = look.level(used, card.total_mib);
    let mut spans = vec![
        Span::from(format!("{:>3}  {}  ", card.index, fit(&card.name, widths.name))),
        Span::styled(look.ramp.bar(used, card.total_mib, widths.bar), level),
        Span::from(format!(
            " {:>11}",
            format!("{}/{}", card.used_mib.map_or_else(dash, gib), gib(card.total_mib))
        )),
    ];
    if widths.history > 0 {
        let samples = model.card_history(&card.uuid);
        let history = look.ramp.history(samples, card.total_mib, widths.history);
        spans.push(Span::styled(format!("  {history}"), level));
    }
    let (granted, clients) = if card.managed {
        (
            format!("{}/{}", gib(card.granted_mib), gib(card.memory_mib)),
            format!("{}/{}", card.clients, card.max_clients),
        )
    } else {
        (dash(), dash())
    };
    spans.push(Span::from(format!("  {granted:>11}  {clients:>7}  ")));
    let word = |text: &str, color| Span::styled(text.to_owned(), look.style(color));
    // A state of many words has its own line, with what to do.
    match card.state {
        OneOf::Known(CardState::Ready) => spans.push(word("ready", Color::Green)),
        OneOf::Known(CardState::Unmanaged) => spans.push(Span::from("-")),
        _ => spans.push(word("!", Color::Red)),
    }
    let mut lines = vec![Line::from(spans)];
    if !matches!(card.state, OneOf::Known(CardState::Ready | CardState::Unmanaged)) {
        let hint = card.hint.as_deref().map(|hint| format!(": {hint}")).unwrap_or_default();
        lines.push(Line::from(word(&format!("     {}{hint}", card.state), Color::Red)));
    }
    if let Some(memory) = nobodys(card) {
        let text = format!("     {memory} in use are of no process: mpsgate status");
        lines.push(Line::from(word(&text, Color::Yellow)));
    }
    if let Some(why) = &card.unwatched {
        let text = format!("     what containers use is not seen: {why}");
        lines.push(Line::from(word(&text, Color::Yellow)));
    }
    lines
}

/// At most `room` lines.
fn grants(model: &Model, look: &Look, widths: &Widths, room: usize) -> Vec<Line<'static>> {
    let grants = model.sorted();
    if grants.is_empty() {
        return vec![Line::from("no container has a grant")];
    }
    let (container, bar) = (widths.container, widths.bar);
    let mut lines = vec![title(format!(
        "{:container$}  GPU  {:bar$} {:>9}  {:>9}{}  {:12}  {:>4}",
        "CONTAINER",
        "",
        "USED",
        "LIMIT",
        history_title(widths),
        "GUARANTEE",
        "AGE",
    ))];
    let left = grants.len().saturating_sub(model.offset);
    // The last line says how many there are below it.
    let shown = if left < room { left } else { room.saturating_sub(2) };
    for grant in grants.iter().skip(model.offset).take(shown) {
        lines.push(grant_line(model, grant, look, widths));
    }
    if shown < left {
        lines.push(Line::from(format!("{} more below", left - shown)));
    }
    lines
}

fn grant_line(model: &Model, grant: &GrantStatus, look: &Look, widths: &Widths) -> Line<'static> {
    let used = grant.used_mib.unwrap_or_default();
    let level = look.level(used, grant.memory_mib);
    let name = fit(short_id(&grant.container_id), widths.container);
    let mut spans = vec![
        Span::from(format!("{name}  {:>3}  ", grant.card_index)),
        Span::styled(look.ramp.bar(used, grant.memory_mib, widths.bar), level),
        Span::from(format!(
            " {:>9}  {:>9}",
            grant.used_mib.map_or_else(dash, with_unit),
            with_unit(grant.memory_mib)
        )),
    ];
    if widths.history > 0 {
        let samples = model.grant_history(grant);
        let history = look.ramp.history(samples, grant.memory_mib, widths.history);
        spans.push(Span::styled(format!("  {history}"), level));
    }
    let held = if grant.state == GrantState::Active {
        Span::from(format!("  {:12}", grant.guarantee))
    } else {
        Span::styled(format!("  {:12}", grant.state), look.style(Color::Red))
    };
    let age = age(look.now_ms.saturating_sub(grant.since_ms));
    spans.extend([held, Span::from(format!("  {age:>4}"))]);
    Line::from(spans)
}

/// What mpsgated did last.
fn last_action(model: &Model, look: &Look) -> Option<Line<'static>> {
    let action = model.status().actions.last()?;
    let who = action.container_id.as_deref().map_or("no container", short_id);
    let ago = age(look.now_ms.saturating_sub(action.at_ms));
    let text =
        format!("{ago} ago, GPU {}: {who} {}: {}", action.card_index, action.what, action.why);
    Some(Line::from(Span::styled(text, look.style(Color::Yellow))))
}

fn keys(model: &Model, look: &Look) -> Line<'static> {
    let order = if model.reverse { ", reversed" } else { "" };
    let pause = if model.paused { "p go on (PAUSED)" } else { "p pause" };
    let text = format!(
        "q quit  s sort: {}{order}  r reverse  {pause}  arrows scroll",
        model.sort.as_str(),
    );
    // One style for the whole width, as a bar.
    let text = format!("{text:width$}", width = look.width);
    Line::from(Span::styled(text, Style::new().add_modifier(Modifier::REVERSED)))
}

fn title(text: String) -> Line<'static> {
    Line::from(Span::styled(text, Style::new().add_modifier(Modifier::BOLD)))
}

fn history_title(widths: &Widths) -> String {
    match widths.history {
        0 => String::new(),
        width => format!("  {:width$}", "HISTORY"),
    }
}

/// Exactly `width` characters; cut ones end in `~`.
fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return format!("{text:width$}");
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// GiB with one digit behind the point, rounded.
fn gib(mib: u64) -> String {
    let tenths = (u128::from(mib) * 10 + 512) / 1024;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn with_unit(mib: u64) -> String {
    format!("{} GiB", gib(mib))
}

fn dash() -> String {
    "-".to_owned()
}
