//! Whether another user than root can make a path lead elsewhere, or change a file. The shim asks
//! before the runtime mounts a path; [`engine`](crate::engine) and readers of engines' settings ask
//! about programs and settings.
//!
//! Anybody who can write a directory can change the names in it. In a sticky directory (`/tmp`)
//! others' names are safe and root's are not. The target of the path may belong to anybody: a
//! volume's own directory does, and nothing below it is checked.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FsWord, NFS_SUPER_MAGIC, PROC_SUPER_MAGIC, statfs};

/// As many links as the kernel follows.
const LINKS_MAX: u32 = 40;
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;
/// File systems whose server decides about names: FUSE, NFS, SMB (two versions) and CIFS, of
/// linux/magic.h. And proc, whose links lead to wherever a process has gone.
const FOREIGN: [FsWord; 6] =
    [0x6573_5546, NFS_SUPER_MAGIC, 0x517b, 0xfe53_4d42, 0xff53_4d42, PROC_SUPER_MAGIC];

#[derive(Debug, Clone, Copy)]
struct Name {
    uid: u32,
    mode: u32,
    device: u64,
    is_link: bool,
    is_directory: bool,
}

/// Names that were looked at.
#[derive(Debug, Default)]
pub struct Exchange {
    names: HashMap<PathBuf, Option<Name>>,
    foreign: HashMap<u64, bool>,
}

impl Exchange {
    /// Whether another user can exchange a component of an absolute path.
    #[must_use]
    pub fn can(&mut self, path: &Path) -> bool {
        let mut left: VecDeque<OsString> = parts(path);
        let mut here = PathBuf::from("/");
        let mut links = 0;
        let Some(root) = self.name(&here) else { return true };
        while let Some(part) = left.pop_front() {
            if part == ".." {
                here.pop();
                continue;
            }
            let Some(directory) = self.name(&here) else { return true };
            let entry = here.join(&part);
            let name = self.name(&entry);
            if is_others(directory, name)
                || (directory.device != root.device && self.is_foreign(directory.device, &here))
            {
                return true;
            }
            match name {
                // Only root can make a name that is missing.
                None => return false,
                Some(name) if name.is_link => {
                    links += 1;
                    let Ok(target) = std::fs::read_link(&entry) else { return true };
                    if links > LINKS_MAX {
                        return true;
                    }
                    if target.is_absolute() {
                        here = PathBuf::from("/");
                    }
                    for part in parts(&target).into_iter().rev() {
                        left.push_front(part);
                    }
                }
                Some(name) if name.is_directory => here = entry,
                Some(_) => return false,
            }
        }
        false
    }

    /// Whether only root can change a file's content or a directory's list; either may be missing.
    ///
    /// # Errors
    /// Who else can, as a sentence about the path.
    pub fn roots_alone(&mut self, path: &Path) -> Result<(), String> {
        if !path.is_absolute() {
            return Err(format!("{} is no whole path", path.display()));
        }
        if self.can(path) {
            let why = "another user than root can put something else in its place";
            return Err(format!("{}: {why}", path.display()));
        }
        match std::fs::metadata(path) {
            Ok(found) => is_roots(found.uid(), found.mode())
                .map_err(|why| format!("{} {why}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(format!("cannot look at {}: {error}", path.display())),
        }
    }

    fn name(&mut self, path: &Path) -> Option<Name> {
        if let Some(known) = self.names.get(path) {
            return *known;
        }
        let found = std::fs::symlink_metadata(path).ok().map(|meta| Name {
            uid: meta.uid(),
            mode: meta.mode(),
            device: meta.dev(),
            is_link: meta.is_symlink(),
            is_directory: meta.is_dir(),
        });
        self.names.insert(path.to_owned(), found);
        found
    }

    fn is_foreign(&mut self, device: u64, path: &Path) -> bool {
        *self
            .foreign
            .entry(device)
            .or_insert_with(|| statfs(path).map_or(true, |found| FOREIGN.contains(&found.f_type)))
    }
}

/// Whether only root can write a file with this owner and these permission bits; if not, why.
pub(crate) fn is_roots(uid: u32, mode: u32) -> Result<(), String> {
    match (uid, mode & OTHERS_WRITE) {
        (0, 0) => Ok(()),
        (0, _) => Err(format!("can be written by others than root (mode {:04o})", mode & 0o7777)),
        _ => Err(format!("belongs to the user {uid}, not to root")),
    }
}

/// Whether another user than root can change a name in a directory.
fn is_others(directory: Name, name: Option<Name>) -> bool {
    let sticky = directory.mode & STICKY != 0;
    directory.uid != 0
        || (directory.mode & OTHERS_WRITE != 0
            && !(sticky && name.is_some_and(|name| name.uid == 0)))
}

fn parts(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn can(path: &Path) -> bool {
        Exchange::default().can(path)
    }

    #[test]
    fn a_name_belongs_to_the_owner_of_its_directory() {
        mpsgate_testing::need!(mpsgate_testing::root());
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        assert!(!can(&root), "the directory for temporary files is sticky, and this one is root's");
        let make = |below: &str, uid: u32, mode: u32| {
            let path = root.join(below);
            fs::create_dir_all(&path).unwrap();
            chown(&path, Some(uid), None).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let volume = make("volumes/x/_data", 1000, 0o777);
        assert!(!can(&volume), "an engine's volume is its user's, its name is not");
        assert!(can(&volume.join("below")), "there or not");
        let home = make("home/u", 1000, 0o700);
        assert!(!can(&home));
        make("home/u/x", 0, 0o755);
        assert!(can(&home.join("x")), "root's, in a directory of another's");
        assert!(can(&home.join("x/y")));
        let all = make("all", 0, 0o777);
        make("all/x", 0, 0o755);
        assert!(can(&all.join("x")));
        let group = make("group", 0, 0o770);
        make("group/x", 0, 0o755);
        assert!(can(&group.join("x")));
        let sticky = make("sticky", 0, 0o1777);
        make("sticky/roots", 0, 0o755);
        make("sticky/others", 1000, 0o755);
        assert!(!can(&sticky.join("roots")) && !can(&sticky.join("roots/none")));
        assert!(can(&sticky.join("others")) && can(&sticky.join("none")));
        // A link is as safe as its target.
        symlink(&home, root.join("link")).unwrap();
        assert!(!can(&root.join("link")) && can(&root.join("link/x")));
        assert!(!can(&root.join("link/../../sticky/roots")));
        symlink("../volumes/x", sticky.join("to")).unwrap();
        assert!(!can(&sticky.join("to/_data")));
        symlink("loop", root.join("loop")).unwrap();
        assert!(can(&root.join("loop")));
        assert!(!can(Path::new("/no/such/path")));
        assert!(can(Path::new("/proc/1/root/etc")), "a process goes where it likes");
    }

    #[test]
    fn a_file_is_roots_alone_where_nobody_else_can_write_or_replace_it() {
        mpsgate_testing::need!(mpsgate_testing::root());
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let check = |path: &Path| Exchange::default().roots_alone(path);
        let file = root.join("config.toml");
        assert_eq!(check(&file), Ok(()), "only root can make it");
        fs::write(&file, "").unwrap();
        assert_eq!(check(&file), Ok(()));
        let shown = file.display();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        let why = format!("{shown} can be written by others than root (mode 0666)");
        assert_eq!(check(&file), Err(why));
        chown(&file, Some(1000), None).unwrap();
        assert_eq!(check(&file), Err(format!("{shown} belongs to the user 1000, not to root")));
        fs::remove_file(&file).unwrap();
        chown(&root, Some(1000), None).unwrap();
        let why = "another user than root can put something else in its place";
        assert_eq!(check(&file), Err(format!("{shown}: {why}")));
        let relative = Path::new("etc/config.toml");
        assert_eq!(check(relative), Err("etc/config.toml is no whole path".to_owned()));
    }
}
