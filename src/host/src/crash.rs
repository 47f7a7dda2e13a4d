//! Named places where a test kills the process, before and after each step that changes something.
//!
//! `crash_point!("daemon.start.locked")` compiles to nothing. With the feature `crash-points`,
//! which only `tests/faults` builds with, it reads `/run/mpsgate-crash/point`: a file of root that
//! names a point and optionally at which passing (`daemon.start.locked 3`). The process that passes
//! it removes the file, leaves its name and pid in `/run/mpsgate-crash/died`, and kills itself with
//! SIGKILL: no destructor runs and nothing is flushed, as in a crash.
//!
//! A name that [`POINTS`] does not list does not compile, with or without the feature. A listed
//! name that no code passes fails `tests/points.rs`.

mod points;

#[cfg(feature = "crash-points")]
mod armed;

#[cfg(feature = "crash-points")]
pub use armed::pass;
pub use points::{POINTS, is_listed};

/// Compiles to nothing in shipped programs.
#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub const fn pass(_name: &str) {}

/// The file that arms a point.
pub const ARMED: &str = "/run/mpsgate-crash/point";
/// The file in which the process that died at the point leaves its name.
pub const DIED: &str = "/run/mpsgate-crash/died";

/// A place where a test may kill this process; see [`crash`](crate::crash).
#[macro_export]
macro_rules! crash_point {
    ($name:literal) => {{
        const {
            assert!(
                $crate::crash::is_listed($name),
                "list this point in src/host/src/crash/points.rs"
            )
        };
        $crate::crash::pass($name);
    }};
}

/// The points of one caller in a function of this crate: `crash_steps!("ledger": "created",
/// "written", "renamed")` are `ledger.created` and so on.
#[macro_export]
macro_rules! crash_steps {
    ($of:literal: $($step:literal),+) => {{
        const {
            $(assert!(
                $crate::crash::is_listed(concat!($of, ".", $step)),
                "list these points in src/host/src/crash/points.rs"
            );)+
        }
        $crate::crash::Steps::of($of)
    }};
}

/// The points of one caller in a function that several callers share; made by
/// [`crash_steps`](crate::crash_steps).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Steps {
    #[cfg(feature = "crash-points")]
    of: Option<&'static str>,
}

impl Steps {
    /// The points of a caller that `tests/faults` cannot bring there.
    pub const NONE: Self = Self {
        #[cfg(feature = "crash-points")]
        of: None,
    };

    /// For [`crash_steps`](crate::crash_steps), which checks that they are listed.
    #[doc(hidden)]
    #[must_use]
    pub const fn of(_of: &'static str) -> Self {
        Self {
            #[cfg(feature = "crash-points")]
            of: Some(_of),
        }
    }

    #[inline]
    pub(crate) fn pass(self, _step: &str) {
        #[cfg(feature = "crash-points")]
        if let Some(of) = self.of {
            pass(&format!("{of}.{_step}"));
        }
    }
}
