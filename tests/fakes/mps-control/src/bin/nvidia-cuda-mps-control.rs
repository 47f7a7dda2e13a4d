//! The control program's double; see the library.
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(fake_mps_control::main())
}
