//! Named places where a test kills the process, before and after each step that changes something.
//!
//! `crash_point!("ledger.renamed")` compiles to nothing. With the feature `crash-points`, which only
//! `tests/faults` builds with, it looks at `/run/mpsgate-crash/point`: a file of root's that names a
//! point and optionally says at which passing (`ledger.renamed 3`). The process that passes it takes the
//! file away, leaves its name and pid in `/run/mpsgate-crash/died`, and kills itself with SIGKILL: no
//! destructor runs and nothing is flushed, as in a crash.
//!
//! A name that [`POINTS`] does not list does not compile, with or without the feature; a listed one
//! that nobody passes fails `tests/points.rs`.

mod points;

#[cfg(feature = "crash-points")]
mod armed;

#[cfg(feature = "crash-points")]
pub use armed::pass;
pub use points::{POINTS, is_listed};

/// Where a point is armed.
pub const ARMED: &str = "/run/mpsgate-crash/point";
/// Where the process that died at it says so.
pub const DIED: &str = "/run/mpsgate-crash/died";

/// A place where a test may kill this process; see the crate's documentation.
#[cfg(feature = "crash-points")]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {{
        const { assert!($crate::is_listed($name), "list this point in src/crashpoint/src/points.rs") };
        $crate::pass($name);
    }};
}

/// A place where a test may kill this process; see the crate's documentation. Nothing here.
#[cfg(not(feature = "crash-points"))]
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {{
        const { assert!($crate::is_listed($name), "list this point in src/crashpoint/src/points.rs") };
    }};
}
