//! The edge of every program but the shim: its output and its exit code.
//!
//! ```text
//! argv ─► run ─► the program ─► Ok(ExitCode)          print: the answer, to stdout
//!                           └─► Err(Remedy) ─► report: error:, cause:, hint:, to stderr
//!                logging ◄─ log's macros               log lines, to the journal or stderr
//! ```
//!
//! The shim has an edge of its own: an engine reads its stderr, and it has no room for an argument
//! parser.

mod error;
mod error_lines;
mod exit;
pub mod logging;
pub mod print;
mod program_main;

pub use error::{EdgeError, Remedy};
pub use error_lines::report;
pub use exit::ExitCode;
pub use program_main::run;
