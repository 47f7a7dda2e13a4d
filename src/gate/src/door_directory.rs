//! The directories with the containers' doors, and the one with their files: which containers there
//! are.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use mpsgate_host::door_place::{FILES, Kind};
use mpsgate_model::Instance;
use mpsgate_model::door_file::{self, Container, LONGEST};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use crate::error::GateError;

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A card's directory, that of the files below it, and what happens there.
#[derive(Debug)]
pub(crate) struct Directory {
    card: PathBuf,
    path: PathBuf,
    fd: OwnedFd,
    watch: OwnedFd,
}

/// What has happened in it.
pub(crate) enum Changed {
    /// The files of these containers.
    Some(BTreeSet<Instance>),
    /// More than the kernel remembers.
    Anything,
}

impl Directory {
    /// Opens and watches that of a card's files.
    pub(crate) fn open(card: &Path) -> Result<Self, GateError> {
        let path = card.join(FILES);
        let fd =
            openat(CWD, &path, DIRECTORY, Mode::empty()).map_err(GateError::fs("open", &path))?;
        check_own(fd.as_fd(), &path)?;
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(GateError::system("watch files"))?;
        let wanted = WatchFlags::MOVED_TO
            | WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&watch, &path, wanted).map_err(GateError::fs("watch", &path))?;
        Ok(Self { card: card.into(), path, fd, watch })
    }

    /// Readable when something has happened.
    pub(crate) fn watch(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// What has happened since the last call.
    pub(crate) fn changed(&self) -> Changed {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.watch, &mut buffer);
        let mut names = BTreeSet::new();
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    return Changed::Anything;
                }
                Ok(event) => names.extend(event.file_name().and_then(name_of)),
                Err(Errno::INTR) => {}
                Err(_) => return Changed::Some(names),
            }
        }
    }

    /// All containers that have a file.
    pub(crate) fn names(&self) -> Result<BTreeSet<Instance>, GateError> {
        let failed = || GateError::fs::<std::io::Error>("list", &self.path);
        let entries = std::fs::read_dir(&self.path).map_err(failed())?;
        let mut names = BTreeSet::new();
        for entry in entries {
            let entry = entry.map_err(failed())?;
            names.extend(entry.file_name().to_str().and_then(door_file::instance_of));
        }
        Ok(names)
    }

    /// What a container's file says; `None` where there is none.
    pub(crate) fn read(&self, name: &Instance) -> Result<Option<Container>, GateError> {
        let path = self.path.join(door_file::file_name(name));
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.fd, door_file::file_name(name), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(GateError::fs("open", path)(errno)),
        };
        let wrong = |why: &str| GateError::File { path: path.clone(), why: why.to_owned() };
        let stat = fstat(&file).map_err(GateError::fs("look at", &path))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(wrong("it is no file"));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            return Err(wrong("others may write it"));
        }
        let mut bytes = Vec::new();
        File::from(file)
            .take(LONGEST + 1)
            .read_to_end(&mut bytes)
            .map_err(GateError::fs("read", &path))?;
        if bytes.len() as u64 > LONGEST {
            return Err(wrong("it is too long"));
        }
        Container::read(&bytes).map(Some).map_err(|error| wrong(&error.to_string()))
    }

    /// A container's door, of whichever kind it is, and its path.
    pub(crate) fn of(&self, name: &Instance) -> Result<(OwnedFd, PathBuf), GateError> {
        match self.door(Kind::Container, name) {
            Err(GateError::Fs { source, .. }) if source.kind() == ErrorKind::NotFound => {
                self.door(Kind::Process, name)
            }
            found => found,
        }
    }

    fn door(&self, kind: Kind, name: &Instance) -> Result<(OwnedFd, PathBuf), GateError> {
        let mut path = self.card.join(kind.directory());
        let doors =
            openat(CWD, &path, DIRECTORY, Mode::empty()).map_err(GateError::fs("open", &path))?;
        check_own(doors.as_fd(), &path)?;
        path.push(name.as_str());
        let door = openat(&doors, name.as_str(), DIRECTORY, Mode::empty())
            .map_err(GateError::fs("open", &path))?;
        check_own(door.as_fd(), &path)?;
        Ok((door, path))
    }
}

fn name_of(file: &CStr) -> Option<Instance> {
    door_file::instance_of(file.to_str().ok()?)
}

/// That nobody else can put anything in its place or into it.
fn check_own(fd: BorrowedFd<'_>, path: &Path) -> Result<(), GateError> {
    let stat = fstat(fd).map_err(GateError::fs("look at", path))?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        let why = format!("it is uid {}'s with mode {:o}", stat.st_uid, stat.st_mode & 0o7777);
        return Err(GateError::File { path: path.into(), why });
    }
    Ok(())
}
