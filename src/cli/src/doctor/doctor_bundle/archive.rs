//! The archive: gzip over tar, made beside its final place, where nobody but its owner may read it.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::Part;
use crate::error::BundleError;

/// Everything lies below one directory.
const DIRECTORY: &str = "mpsgate-bundle";
/// Of the files in it, too.
const MODE: u32 = 0o600;

/// Writes it whole or not at all; its size.
pub(super) fn write(target: &Path, parts: &[Part], now_s: u64) -> Result<u64, BundleError> {
    let failed = |source| BundleError::Write { path: target.to_owned(), source };
    let directory = match target.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // A temporary file has mode 0600 from the start and a name that nobody can lie in wait at.
    let mut file = tempfile::Builder::new()
        .prefix(".mpsgate-bundle.")
        .tempfile_in(directory)
        .map_err(failed)?;
    pack(file.as_file_mut(), parts, now_s).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    let size = file.as_file().metadata().map_err(failed)?.len();
    // Fails where the name was taken meanwhile, by a link too.
    file.persist_noclobber(target).map_err(|error| match error.error.kind() {
        ErrorKind::AlreadyExists => BundleError::Exists { path: target.to_owned() },
        _ => failed(error.error),
    })?;
    Ok(size)
}

fn pack(file: impl Write, parts: &[Part], now_s: u64) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for part in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.text.len().try_into().map_err(io::Error::other)?);
        header.set_mode(MODE);
        header.set_mtime(now_s);
        header.set_cksum();
        archive.append_data(
            &mut header,
            format!("{DIRECTORY}/{}", part.name),
            part.text.as_bytes(),
        )?;
    }
    archive.into_inner()?.finish()?.flush()
}
