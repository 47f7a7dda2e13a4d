//! For the tests of other crates: where the built library is, and how to set it up.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// `example.json`: two whole 16 GiB Tesla T4 in compute mode DEFAULT, nothing running.
pub const EXAMPLE: &str = include_str!("../example.json");

/// The library that cargo built beside the running test.
///
/// # Errors
/// `NotFound` where the caller's Cargo.toml does not name `fake-nvml` as a dev-dependency.
pub fn library() -> io::Result<PathBuf> {
    let test = env::current_exe()?;
    // Tests lie in deps/, where cargo puts dependencies too; examples and binaries lie beside it.
    for directory in test.ancestors().skip(1).take(2) {
        for candidate in ["deps/libnvidia_ml.so", "libnvidia_ml.so"] {
            let library = directory.join(candidate);
            if library.is_file() {
                return Ok(library);
            }
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("no libnvidia_ml.so near {}: cargo build -p fake-nvml", test.display()),
    ))
}

/// Puts a library of its own into `directory`, with `state` as its `nvml.json`. Returns its path,
/// `directory/libnvidia-ml.so.1`.
///
/// # Errors
/// As [`library`], and those of writing.
pub fn install(directory: &Path, state: &str) -> io::Result<PathBuf> {
    fs::write(directory.join(crate::state::FILE_NAME), state)?;
    let installed = directory.join("libnvidia-ml.so.1");
    fs::copy(library()?, &installed)?;
    Ok(installed)
}
