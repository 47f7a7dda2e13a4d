//! What the tests of all crates share: skips with a name, waiting with a limit, golden text,
//! hostile text, and programs that are built for a test. A dev-dependency only; it knows nothing of
//! the product.

use std::fmt::Display;
use std::io::Write;
use std::time::{Duration, Instant};

pub mod golden;
mod hostile;
mod lease;
mod process;
pub mod programs;

pub use hostile::{ODD, assert_printable, odd};
pub use lease::{can_be_leased, leased};
pub use process::Spawned;

/// How long [`wait_for`] waits: enough for a loaded machine. Only a failing test waits for it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Ends a test that cannot run on this machine. It prints `SKIPPED: CRATE::TEST: REASON`, by which
/// the runner's reports count the test as skipped.
///
/// The name is that of the running test, also where a function that several tests call is the one
/// that returns.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::say_skipped(module_path!(), &format_args!($($reason)+));
        return;
    }};
}

/// What a test needs: the value of an `Ok`, or [`skip!`] with the reason that an `Err` gives.
#[macro_export]
macro_rules! need {
    ($found:expr) => {
        match $found {
            Ok(found) => found,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}

/// Compares text with a file of the crate's `tests/golden`: see [`golden::compare`].
#[macro_export]
macro_rules! golden {
    ($name:expr, $text:expr) => {
        $crate::golden::compare(
            format!("{}/tests/golden/{}", env!("CARGO_MANIFEST_DIR"), $name),
            $text,
        )
    };
}

/// Prints the line of [`skip!`], past the test harness, which keeps back what a passing test
/// prints.
///
/// # Panics
/// Outside of a test: the harness gives each test a thread that bears its name.
pub fn say_skipped(module: &str, reason: &dyn Display) {
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").expect("the thread of a test");
    let owner = module.split("::").next().unwrap_or(module);
    let line = format!("SKIPPED: {owner}::{test}: {reason}\n");
    std::io::stderr().write_all(line.as_bytes()).expect("stderr is open");
}

/// # Errors
/// Not root, as words for [`skip!`].
pub fn root() -> Result<(), &'static str> {
    if nix::unistd::geteuid().is_root() { Ok(()) } else { Err("needs root") }
}

/// Waits for a condition, never for a duration.
///
/// # Panics
/// After [`LIMIT`], with `what`.
#[track_caller]
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let waited: Result<(), String> =
        try_wait_for(what, Duration::from_millis(5), || Ok(condition()));
    if let Err(error) = waited {
        panic!("{error}");
    }
}

/// The same for programs that are no tests; looks again after each `pause`.
///
/// # Errors
/// After [`LIMIT`], with `what`; or what the condition fails with.
pub fn try_wait_for<E: From<String>>(
    what: &str,
    pause: Duration,
    mut condition: impl FnMut() -> Result<bool, E>,
) -> Result<(), E> {
    let deadline = Instant::now() + LIMIT;
    while !condition()? {
        if Instant::now() > deadline {
            return Err(format!("waited {} s for {what}", LIMIT.as_secs()).into());
        }
        std::thread::sleep(pause);
    }
    Ok(())
}
