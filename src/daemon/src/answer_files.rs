//! What the node has shown of each card: the files below `qualification/` in the state directory,
//! one for each card. They outlive a reboot and an upgrade.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use mpsgate_host::file::{Durability, make_directory};
use mpsgate_model::{GpuUuid, Qualification};
use mpsgate_oci::runtime_log::rfc3339;
use rustix::fs::{Mode, OFlags};

use crate::files::write_file;

/// Longer is no answer.
const LIMIT: u64 = 256 << 10;

/// The answers of a card, or why they cannot be read.
pub(crate) type Found = Result<Option<Qualification>, String>;

/// The answers of these cards. Blocks.
pub(crate) fn load(directory: &Path, cards: Vec<GpuUuid>) -> BTreeMap<GpuUuid, Found> {
    cards.into_iter().map(|card| (card.clone(), of_card(directory, &card))).collect()
}

/// Keeps the answers of a card. Blocks.
pub(crate) fn store(directory: &Path, found: &Qualification) -> io::Result<()> {
    make_directory(directory, 0o700)?;
    let path = file_of(directory, &found.subject.card);
    write_file(&path, &serde_json::to_vec_pretty(found)?, 0o600, Durability::Synced)
}

/// How answers name a control program: what a package changes with it.
pub(crate) fn control(program: &Path) -> String {
    match std::fs::metadata(program) {
        Ok(file) => {
            let modified = file.modified().map(rfc3339).unwrap_or_default();
            format!("{} bytes, modified {modified}", file.len())
        }
        Err(error) => format!("not read: {}", error.kind()),
    }
}

fn file_of(directory: &Path, card: &GpuUuid) -> PathBuf {
    directory.join(format!("{card}.json"))
}

fn of_card(directory: &Path, card: &GpuUuid) -> Found {
    let path = file_of(directory, card);
    let why = |why: String| format!("{}: {why}", path.display());
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(why(error.to_string())),
    };
    match Qualification::parse(&bytes) {
        Ok(found) if found.subject.card == *card => Ok(Some(found)),
        Ok(found) => Err(why(format!("it is of {}", found.subject.card))),
        Err(error) => Err(why(error.to_string())),
    }
}

/// A promise rests on it: it has to be root's, and nobody else's to write.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_file() || found.uid() != own || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is no file that root alone can write"));
    }
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::fs::PermissionsExt;

    use mpsgate_model::{QUESTIONS, Subject, example_gpu};

    use super::*;

    fn answers() -> Qualification {
        let subject = Subject {
            card: example_gpu(0),
            driver: "550.163.01".to_owned(),
            control: String::new(),
            questions: QUESTIONS,
            simulated: false,
        };
        Qualification::new(subject, Vec::new())
    }

    #[test]
    fn answers_are_kept_for_their_card() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("qualification");
        assert_eq!(of_card(&directory, &example_gpu(0)), Ok(None));
        store(&directory, &answers()).unwrap();
        assert_eq!(of_card(&directory, &example_gpu(0)), Ok(Some(answers())));
        assert_eq!(of_card(&directory, &example_gpu(1)), Ok(None));
        let (own, others) =
            (file_of(&directory, &example_gpu(0)), file_of(&directory, &example_gpu(1)));
        std::fs::copy(own, &others).unwrap();
        assert!(of_card(&directory, &example_gpu(1)).unwrap_err().contains("it is of GPU-"));
    }

    #[test]
    fn what_others_can_write_or_is_torn_or_newer_says_nothing_and_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = file_of(directory.path(), &example_gpu(0));
        let why = || of_card(directory.path(), &example_gpu(0)).unwrap_err();
        store(directory.path(), &answers()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(why().contains("root alone"), "{}", why());
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(why().contains("symbolic links"), "{}", why());
        std::fs::remove_file(&path).unwrap();
        for (text, what) in
            [(r#"{"format":2}"#, "format 2"), (r#"{"format":0}"#, "format 0"), (r#"{"form"#, "EOF")]
        {
            std::fs::write(&path, text).unwrap();
            assert!(why().contains(what), "{}", why());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_control_program_is_named_by_what_a_package_changes() {
        assert!(control(Path::new("/bin/sh")).contains("bytes, modified 20"));
        assert!(control(Path::new("/nonexistent")).starts_with("not read: "));
    }
}
