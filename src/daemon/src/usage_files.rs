//! The files of what was granted and used: one for each day (UTC), written every 30 s. So much is
//! lost where mpsgated is killed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use mpsgate_api::UsageDay;
use mpsgate_host::file::{Durability, make_directory};
use mpsgate_model::ledger::Entry;
use mpsgate_node::overuse::Look;
use mpsgate_oci::runtime_log::rfc3339;
use tokio::time::Instant;

use crate::DaemonError;
use crate::files::{FileKind, Files, write_file};

/// Between two writes.
const WRITE: Duration = Duration::from_secs(30);
/// A longer pause between two looks is not known to be as the last of them was.
const GAP: Duration = Duration::from_secs(10);
/// Days that are kept.
const DAYS: usize = 400;

/// The day that is being added to.
#[derive(Debug)]
pub(crate) struct Usage {
    directory: PathBuf,
    day: Mutex<UsageDay>,
}

impl Usage {
    /// Goes on with today's file.
    pub(crate) fn open(directory: PathBuf) -> Self {
        let day = Mutex::new(load(&directory, today()));
        Self { directory, day }
    }

    /// So far.
    pub(crate) fn day(&self) -> MutexGuard<'_, UsageDay> {
        // A panic elsewhere leaves a sum that is short of one look.
        self.day.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a look at a card. `since`: when it was last looked at.
    pub(crate) fn add(
        &self,
        card: (&str, u32),
        since: Option<Instant>,
        look: &Look,
        granted: &[Entry],
    ) {
        let Some(passed) = since.map(|since| since.elapsed()).filter(|passed| *passed <= GAP)
        else {
            return;
        };
        let ms = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        mpsgate_node::usage_sums::add(&mut self.day(), card, ms, look, granted);
    }

    /// Writes what has come, and begins a new day where the old one is over. Blocks; looks are
    /// added meanwhile.
    pub(crate) fn keep(&self) -> io::Result<()> {
        let today = today();
        let day = self.day().clone();
        if day.day == today {
            return if day.cards.is_empty() { Ok(()) } else { write(&self.directory, &day) };
        }
        let next = load(&self.directory, today);
        let over = std::mem::replace(&mut *self.day(), next);
        let written = write(&self.directory, &over);
        if written.is_err() {
            // It goes on, without what has come since.
            *self.day() = over;
        } else {
            remove_old(&self.directory);
        }
        written
    }
}

/// Writes for as long as the process lives. A day that cannot be written goes on, and is said once.
pub(crate) async fn keep(usage: Arc<Usage>, files: Arc<Files>) -> Result<(), DaemonError> {
    let mut was_written = true;
    loop {
        tokio::time::sleep(WRITE).await;
        let of = Arc::clone(&usage);
        let written = files.run(FileKind::Usage, move || of.keep()).await;
        match (&written, was_written) {
            (Err(error), true) => {
                log::error!(directory:% = usage.directory.display(), reason:% = error; "usage not written");
            }
            (Ok(()), false) => log::info!("usage written again"),
            _ => {}
        }
        was_written = written.is_ok();
    }
}

/// The day, as its file is named.
fn today() -> String {
    let mut now = rfc3339(SystemTime::now());
    now.truncate("2026-11-26".len());
    now
}

fn file_of(directory: &Path, day: &str) -> PathBuf {
    directory.join(format!("{day}.json"))
}

/// The file of a day as far as it is written. One that cannot be read is put aside: nothing is lost
/// and the day goes on.
fn load(directory: &Path, day: String) -> UsageDay {
    let path = file_of(directory, &day);
    let why = match std::fs::read(&path) {
        Ok(bytes) => match UsageDay::parse(&bytes) {
            Ok(known) if known.day == day => return known,
            Ok(_) => "it is another day's".to_owned(),
            Err(error) => error.to_string(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return UsageDay::new(day),
        Err(error) => error.to_string(),
    };
    let aside = directory.join(format!("{day}.unreadable"));
    let moved = std::fs::rename(&path, &aside);
    log::error!(path:% = path.display(), reason = why.as_str(), aside:% = aside.display(), moved = moved.is_ok(); "usage of the day so far cannot be read");
    UsageDay::new(day)
}

fn write(directory: &Path, day: &UsageDay) -> io::Result<()> {
    make_directory(directory, 0o700)?;
    let text = serde_json::to_vec(day)?;
    write_file(&file_of(directory, &day.day), &text, 0o600, Durability::Atomic)
}

/// The oldest days, beyond those that are kept.
fn remove_old(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    let is_day = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let mut days: Vec<_> = entries.flatten().map(|entry| entry.path()).filter(is_day).collect();
    days.sort();
    let old = days.len().saturating_sub(DAYS);
    for path in days.into_iter().take(old) {
        if let Err(error) = std::fs::remove_file(&path) {
            log::warn!(path:% = path.display(), reason:% = error; "old usage not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn a_day_is_gone_on_with_and_what_cannot_be_read_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("usage");
        let day = "2026-11-26";
        assert_eq!(load(&directory, day.to_owned()), UsageDay::new(day.to_owned()));
        let mut known = UsageDay::new(day.to_owned());
        known.cards.entry("GPU-0".to_owned()).or_default().memory.used = 7;
        write(&directory, &known).unwrap();
        write(&directory, &known).unwrap();
        assert_eq!(load(&directory, day.to_owned()), known);
        // Torn, newer, older, of another day.
        for bad in [
            "{\"format\":1,\"da",
            "{\"format\":2}",
            "{\"format\":0,\"day\":\"2026-11-26\",\"cards\":{},\"grants\":{}}",
            "{\"format\":1,\"day\":\"2026-11-25\",\"cards\":{},\"grants\":{}}",
        ] {
            std::fs::write(file_of(&directory, day), bad).unwrap();
            assert_eq!(load(&directory, day.to_owned()), UsageDay::new(day.to_owned()), "{bad}");
            let aside = std::fs::read_to_string(directory.join(format!("{day}.unreadable")));
            assert_eq!(aside.unwrap(), bad);
            assert!(!file_of(&directory, day).exists());
        }
    }

    #[test]
    fn a_day_that_is_over_is_written_and_a_new_one_begun_unless_it_cannot_be() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("usage");
        let usage = Usage::open(directory.clone());
        let mut over = UsageDay::new("2026-11-25".to_owned());
        over.cards.entry("GPU-0".to_owned()).or_default().memory.used = 7;
        *usage.day() = over.clone();
        std::fs::write(&directory, "").unwrap();
        usage.keep().unwrap_err();
        assert_eq!(*usage.day(), over, "it goes on");
        std::fs::remove_file(&directory).unwrap();
        usage.keep().unwrap();
        assert_eq!(load(&directory, over.day.clone()), over);
        let next = usage.day().clone();
        assert_eq!(next, UsageDay::new(next.day.clone()));
        assert_ne!(next.day, over.day);
    }

    #[test]
    fn the_oldest_days_go() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..DAYS + 2 {
            std::fs::write(dir.path().join(format!("day-{n:04}.json")), "").unwrap();
        }
        std::fs::write(dir.path().join("a.unreadable"), "").unwrap();
        remove_old(dir.path());
        let mut left: Vec<_> =
            dir.path().read_dir().unwrap().flatten().map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left.len(), DAYS + 1);
        assert_eq!(
            (left[0].to_str(), left[1].to_str()),
            (Some("a.unreadable"), Some("day-0002.json"))
        );
    }
}
