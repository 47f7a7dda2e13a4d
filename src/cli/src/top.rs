//! `mpsgate top`: cards and containers on a terminal, look by look.
//!
//! ```text
//!  asks each interval (a thread) ─► model ─► view ─► terminal
//!                        keys ─► wish ─┘
//! ```
//!
//! The terminal is taken only once the daemon has answered, and given back however this ends.

mod bars;
mod model;
mod screen;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use mpsgate_api::Status;
use mpsgate_edge::{ExitCode, print};
use mpsgate_host::clock::now_ms;
use mpsgate_model::printable;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::Paragraph;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::bars::Ramp;
use self::model::{Model, Wish};
use self::screen::Look;
use crate::args::TopArgs;
use crate::{CliError, daemon_call};

/// Longest wait for a key: answers and signals are seen as soon as this.
const WAIT: Duration = Duration::from_millis(100);
/// Between two pictures of the same answer, for the ages in it.
const STALE: Duration = Duration::from_secs(1);
/// Lines that a page key scrolls.
const PAGE: isize = 10;

pub(crate) fn run(args: &TopArgs) -> Result<ExitCode, CliError> {
    if !io::stdout().is_terminal() {
        return Err(CliError::NoTerminal("stdout"));
    }
    if !io::stdin().is_terminal() {
        return Err(CliError::NoTerminal("stdin"));
    }
    let mut model = Model::new(daemon_call::status(&args.daemon.socket)?);
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(CliError::Terminal)?;
    }
    let answers = ask(&args.daemon.socket, Duration::from_secs(args.interval.into()));
    let mut terminal = ratatui::try_init().map_err(CliError::Terminal)?;
    let done = watch(&mut terminal, &mut model, &answers, args.interval, &ended);
    let restored = ratatui::try_restore();
    done.and(restored).map_err(CliError::Terminal)?;
    Ok(ExitCode::Done)
}

/// Asks the daemon from now on, without the picture waiting for it: a hung one answers after
/// seconds.
fn ask(socket: &Path, interval: Duration) -> Receiver<Result<Status, CliError>> {
    let (sender, receiver): (SyncSender<_>, _) = sync_channel(1);
    let socket = socket.to_owned();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            // Nobody listens any more.
            if sender.send(daemon_call::status(&socket)).is_err() {
                return;
            }
        }
    });
    receiver
}

fn watch(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    answers: &Receiver<Result<Status, CliError>>,
    seconds: u16,
    ended: &AtomicBool,
) -> io::Result<()> {
    let coloured = print::coloured();
    let ramp = Ramp::of_locale(|name| std::env::var(name).ok());
    let mut drawn: Option<Instant> = None;
    while !ended.load(Ordering::Relaxed) {
        for answer in answers.try_iter() {
            drawn = None;
            match answer {
                Ok(status) => model.take(status),
                Err(error) => model.fail(printable::chain(&error)),
            }
        }
        if drawn.is_none_or(|drawn| drawn.elapsed() >= STALE) {
            terminal.draw(|frame| {
                let area = frame.area();
                let look = Look {
                    width: area.width.into(),
                    height: area.height.into(),
                    now_ms: now_ms(),
                    seconds,
                    ramp,
                    coloured,
                };
                frame.render_widget(Paragraph::new(screen::draw(model, &look)), area);
            })?;
            drawn = Some(Instant::now());
        }
        if !event::poll(WAIT)? {
            continue;
        }
        // A key, or another size.
        drawn = None;
        if let Event::Key(key) = event::read()? {
            match wish(key) {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Wish(wish)) => model.wish(wish),
                None => {}
            }
        }
    }
    Ok(())
}

enum Key {
    Quit,
    Wish(Wish),
}

fn wish(key: KeyEvent) -> Option<Key> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let wish = match key.code {
        // Raw mode makes a key of what is a signal elsewhere.
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
            return Some(Key::Quit);
        }
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => return Some(Key::Quit),
        KeyCode::Char('s') => Wish::Sort,
        KeyCode::Char('r') => Wish::Reverse,
        KeyCode::Char('p' | ' ') => Wish::Pause,
        KeyCode::Down | KeyCode::Char('j') => Wish::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => Wish::Scroll(-1),
        KeyCode::PageDown => Wish::Scroll(PAGE),
        KeyCode::PageUp => Wish::Scroll(-PAGE),
        KeyCode::Home => Wish::ToStart,
        KeyCode::End => Wish::ToEnd,
        _ => return None,
    };
    Some(Key::Wish(wish))
}

#[cfg(test)]
mod tests;
