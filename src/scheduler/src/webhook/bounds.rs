//! How much of an object is looked at. Its author chooses every length, and whoever may make a pod
//! in one namespace asks: so nothing is done for each of many things with a text that all of them
//! share, and what is more than here is not looked at ([`Unseen::TooMuch`]). Nothing real comes
//! near.

use std::fmt;
use std::time::Instant;

use super::shape::{MOST, TOO_LONG};

/// Containers of a pod, of all kinds. A kubelet has 110 pods by default, most of one or two.
const CONTAINERS: usize = 512;
/// Mounts of a pod's containers, all together: each is held against its volume.
const MOUNTS: usize = 4_096;
/// Capabilities that are added to a pod's containers, all together: each is held against every one
/// that there is.
const CAPABILITIES: usize = 4_096;
/// Bytes of paths that are put together, for mounts of the volumes that can show what is looked
/// for. A path has 4 KiB at most (`PATH_MAX`), and thousands of mounts may begin with one.
const PATHS: usize = 1 << 20;

/// Bytes of an object, as the API server writes it: six for each `<`, `>` and `&` in it.
const LONGEST: usize = 8 << 20;
/// What is said of one that has more.
pub(super) const TOO_LARGE: &str = "more than 8 MiB of JSON";

/// Why an object is not looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unseen {
    /// It has more of something than is looked at.
    TooMuch(String),
    /// There is no pod in it.
    NoPod,
    /// The time for this review was over while it was looked at.
    Late,
}

impl fmt::Display for Unseen {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMuch(what) => {
                write!(to, "this object is too long to be looked at: it has {what}")
            }
            Self::NoPod => to.write_str("this object has no pod in it that could be looked at"),
            Self::Late => to.write_str(
                "this object is too long to be looked at: it has more in it than there was time for",
            ),
        }
    }
}

impl Unseen {
    /// Why JSON could not be read by its shape.
    pub(super) fn of(error: &serde_json::Error) -> Self {
        // serde keeps nothing of an error but its text.
        if error.to_string().starts_with(TOO_LONG) {
            return Self::TooMuch(TOO_LONG.to_owned());
        }
        Self::NoPod
    }
}

/// Whether an object's JSON is short enough.
pub(super) fn json(text: &str) -> Result<(), Unseen> {
    if text.len() <= LONGEST {
        return Ok(());
    }
    Err(Unseen::TooMuch(TOO_LARGE.to_owned()))
}

/// What has been looked at of one object, and until when it may be.
#[derive(Debug)]
pub(super) struct Look {
    until: Instant,
    paths: usize,
}

impl Look {
    pub(super) fn new(until: Instant) -> Self {
        Self { until, paths: 0 }
    }

    /// Asked wherever work begins that grows with the object.
    pub(super) fn in_time(&self) -> Result<(), Unseen> {
        if Instant::now() < self.until {
            return Ok(());
        }
        Err(Unseen::Late)
    }

    pub(super) fn containers(&self, count: usize) -> Result<(), Unseen> {
        at_most(count, CONTAINERS, "containers")
    }

    pub(super) fn mounts(&self, count: usize) -> Result<(), Unseen> {
        at_most(count, MOUNTS, "volume mounts")
    }

    pub(super) fn capabilities(&self, count: usize) -> Result<(), Unseen> {
        at_most(count, CAPABILITIES, "capabilities")
    }

    /// Before a path of so many bytes is put together.
    pub(super) fn path(&mut self, bytes: usize) -> Result<(), Unseen> {
        self.paths = self.paths.saturating_add(bytes);
        at_most(self.paths, PATHS, "bytes of paths of the host in its volume mounts")
    }
}

fn at_most(count: usize, most: usize, what: &str) -> Result<(), Unseen> {
    if count <= most {
        return Ok(());
    }
    Err(Unseen::TooMuch(format!("more than {most} {what}")))
}

/// What to do about an object that is too long.
pub(super) fn hint() -> String {
    format!(
        "make it smaller: at most {CONTAINERS} containers, {MOUNTS} volume mounts, {} KiB of paths of the host in them, \
         {CAPABILITIES} capabilities, {} MiB of JSON, and {MOST} of anything else",
        PATHS >> 10,
        LONGEST >> 20
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn look() -> Look {
        Look::new(Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn each_bound_is_what_is_still_looked_at() {
        let path = |bytes: &[usize]| {
            let mut look = look();
            bytes.iter().try_for_each(|bytes| look.path(*bytes))
        };
        for (what, most, more) in [
            ("containers", look().containers(CONTAINERS), look().containers(CONTAINERS + 1)),
            ("volume mounts", look().mounts(MOUNTS), look().mounts(MOUNTS + 1)),
            (
                "capabilities",
                look().capabilities(CAPABILITIES),
                look().capabilities(CAPABILITIES + 1),
            ),
            ("bytes of paths", path(&[PATHS - 1, 1]), path(&[PATHS, 1])),
            ("bytes of paths", path(&[]), path(&[1, usize::MAX])),
            ("8 MiB of JSON", json(&" ".repeat(LONGEST)), json(&" ".repeat(LONGEST + 1))),
        ] {
            assert_eq!(most, Ok(()), "{what}");
            assert!(
                matches!(&more, Err(Unseen::TooMuch(said)) if said.contains(what)),
                "{what}: {more:?}"
            );
        }
    }

    #[test]
    fn a_look_whose_time_is_over_goes_no_further() {
        assert_eq!(look().in_time(), Ok(()));
        assert_eq!(Look::new(Instant::now()).in_time(), Err(Unseen::Late));
    }
}
