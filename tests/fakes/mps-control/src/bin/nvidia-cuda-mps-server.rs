//! The server; see the library.
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fake_mps_control::serve())
}
