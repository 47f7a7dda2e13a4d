//! `/proc/PID/mountinfo`, and where directories are by it: a device and a path on it, whatever is
//! mounted where.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::makedev;

pub(crate) mod processes;

/// Controllers by which a container gets out of its device rules or its grant, or holds others up.
pub(crate) const WRITABLE_CONTROLLERS: [&str; 3] = ["devices", "memory", "freezer"];

/// One mount, as proc_pid_mountinfo(5) has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    id: u64,
    parent: u64,
    /// As `st_dev` has it on most file systems.
    pub(crate) device: u64,
    /// What of the file system is shown.
    pub(crate) root: PathBuf,
    /// Where.
    pub(crate) point: PathBuf,
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    options: String,
}

impl Line {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let (mount, fs) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let id = fields.next()?.parse().ok()?;
        let parent = fields.next()?.parse().ok()?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let (root, point) = (path(fields.next()?), path(fields.next()?));
        let flags = fields.next()?;
        let mut fs = fs.splitn(3, ' ');
        let (fs_type, _, options) = (fs.next()?, fs.next()?, fs.next().unwrap_or_default());
        let is_ro = |options: &str| options.split(',').any(|option| option == "ro");
        Some(Self {
            id,
            parent,
            device: makedev(major.parse().ok()?, minor.parse().ok()?),
            root,
            point,
            read_only: is_ro(flags) || is_ro(options),
            fs_type: fs_type.to_owned(),
            options: options.to_owned(),
        })
    }

    pub(crate) fn is_cgroup(&self) -> bool {
        matches!(self.fs_type.as_str(), "cgroup" | "cgroup2")
    }

    pub(crate) fn has_any(&self, controllers: &[&str]) -> bool {
        self.options.split(',').any(|option| controllers.contains(&option))
    }

    fn place(&self) -> Place {
        Place { device: self.device, path: self.root.clone() }
    }

    /// The same thing at the same place, in another mount namespace or on top of the other.
    fn is_copy_of(&self, other: &Self) -> bool {
        self.device == other.device && self.root == other.root && self.point == other.point
    }
}

/// The kernel writes blanks and the like as octal numbers.
fn path(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// The mounts that a process sees: a pid or `self`.
pub(crate) fn of(process: &str) -> io::Result<Vec<Line>> {
    let bytes = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(String::from_utf8_lossy(&bytes).lines().filter_map(Line::parse).collect())
}

/// A path on a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    device: u64,
    path: PathBuf,
}

impl Place {
    /// Whether a mount shows this or something below.
    pub(crate) fn holds(&self, line: &Line) -> bool {
        line.device == self.device && line.root.starts_with(&self.path)
    }

    /// Whether a mount shows just this.
    pub(crate) fn is_of(&self, line: &Line) -> bool {
        *self == line.place()
    }
}

/// Where a directory of the node is, among our own mounts.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) place: Place,
    /// Where it is mounted, by the mount above; `None` where it is no mount itself.
    mounted_at: Option<Place>,
    canonical: PathBuf,
}

impl Located {
    /// `None` where there is no such directory.
    pub(crate) fn of(path: &Path, own: &[Line]) -> Option<Self> {
        let canonical = std::fs::canonicalize(path).ok()?;
        let directory = std::fs::File::open(&canonical).ok()?;
        // Names do not tell which of two mounts at one place is seen.
        let text =
            std::fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).ok()?;
        let id = text
            .lines()
            .find_map(|line| line.strip_prefix("mnt_id:"))?
            .trim()
            .parse::<u64>()
            .ok()?;
        let line = own.iter().find(|line| line.id == id)?;
        let below = |line: &Line, path: &Path| {
            let rest = path.strip_prefix(&line.point).ok()?;
            // Without the slash that joining nothing leaves.
            let path =
                if rest.as_os_str().is_empty() { line.root.clone() } else { line.root.join(rest) };
            Some(Place { device: line.device, path })
        };
        let above = own.iter().find(|above| above.id == line.parent && above.id != line.id);
        let mounted_at = above.filter(|_| line.point == canonical);
        Some(Self {
            place: below(line, &canonical)?,
            mounted_at: mounted_at.and_then(|above| below(above, &canonical)),
            canonical,
        })
    }

    /// Whether a mount in a container came there with a bind of a directory above.
    fn came_along(&self, line: &Line, all: &[Line]) -> bool {
        let Some(mounted_at) = &self.mounted_at else { return false };
        let Some(above) = all.iter().find(|above| above.id == line.parent) else { return false };
        let rest = line.point.strip_prefix(&above.point).unwrap_or_else(|_| Path::new(""));
        self.place.is_of(line)
            && above.device == mounted_at.device
            && above.root.join(rest) == mounted_at.path
    }
}

/// Mounts that a process has and we do not, with all that stands on them; all of its mounts, but
/// for those at directories of ours, where it has no mount namespace of its own.
pub(crate) fn new_ones<'a>(
    its: &'a [Line],
    own: &[Line],
    shares_ours: bool,
    located: &[Located],
) -> Vec<&'a Line> {
    if shares_ours {
        let at_ours =
            |line: &Line| located.iter().any(|ours| line.point.starts_with(&ours.canonical));
        return its.iter().filter(|line| !at_ours(line)).collect();
    }
    let mut left: HashMap<&Path, Vec<&Line>> = HashMap::new();
    for line in own {
        left.entry(&line.point).or_default().push(line);
    }
    // A namespace begins with one copy of each mount. Another copy is the container's: runtimes
    // bind a root on itself, with all that is mounted below it.
    let mut is_copy = |line: &Line| {
        let Some(at) = left.get_mut(&*line.point) else { return false };
        let found = at.iter().position(|own| own.is_copy_of(line));
        found.map(|found| at.swap_remove(found)).is_some()
    };
    let mut new: HashSet<u64> =
        its.iter().filter(|line| !is_copy(line)).map(|line| line.id).collect();
    // What stands on a new mount is new, also where shared propagation has brought it to us, at the
    // same place. The root itself comes to nobody: pivot_root(2) refuses a root whose parent is
    // shared. In several rounds, as a mount that was moved may stand before the one below it.
    loop {
        let on_new = |line: &&Line| new.contains(&line.parent) && !new.contains(&line.id);
        let more: Vec<u64> = its.iter().filter(on_new).map(|line| line.id).collect();
        if more.is_empty() {
            break;
        }
        new.extend(more);
    }
    its.iter().filter(|line| new.contains(&line.id)).collect()
}

/// Of a container's new mounts those that show something of ours, but for what a bind of a
/// directory above brought.
pub(crate) fn ours<'a>(new: &'a [Line], all: &[Line], located: &[Located]) -> Vec<&'a Line> {
    new.iter()
        .filter(|line| {
            located.iter().any(|ours| ours.place.holds(line) && !ours.came_along(line, all))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    fn line(text: &str) -> Line {
        Line::parse(text).unwrap()
    }

    fn located(device: &str, path: &str) -> Located {
        let (major, minor) = device.split_once(':').unwrap();
        let device = makedev(major.parse().unwrap(), minor.parse().unwrap());
        let place = Place { device, path: path.into() };
        Located { place, mounted_at: None, canonical: "/run/mpsgate".into() }
    }

    #[test]
    fn a_line_says_what_is_mounted_and_how() {
        let found = line(
            "36 35 98:0 /a\\040b /mnt/c\\134d ro,noatime master:1 - ext4 /dev/root rw,errors=x",
        );
        assert_eq!((found.root.to_str(), found.point.to_str()), (Some("/a b"), Some("/mnt/c\\d")));
        assert!(found.read_only && !found.is_cgroup());
        let cgroup = line("30 25 0:26 /x /y rw,nosuid - cgroup cgroup rw,cpu,memory");
        assert!(cgroup.is_cgroup() && !cgroup.read_only && cgroup.has_any(&WRITABLE_CONTROLLERS));
        let named = line("30 25 0:26 /x /y rw - cgroup systemd rw,xattr,name=systemd");
        assert!(named.is_cgroup() && !named.has_any(&WRITABLE_CONTROLLERS));
        for bad in ["", "36 35 98:0 / /", "x 35 98:0 / / rw - ext4 d rw"] {
            assert_eq!(Line::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_below_ours_is_ours_under_every_mount_point() {
        let ours_at = [located("0:24", "/mpsgate")];
        let all: Vec<Line> = [
            "1 0 0:24 /mpsgate/mps/0 /b/rootfs/m rw - tmpfs t rw",
            "2 0 0:24 /mpsgate /b/rootfs/n rw - tmpfs t rw",
            "3 0 0:24 /mpsgate2 /b/rootfs/o rw - tmpfs t rw",
            "4 0 0:24 / /b/rootfs/p rw - tmpfs t rw",
            "5 0 0:25 /mpsgate /b/rootfs/q rw - tmpfs t rw",
        ]
        .map(line)
        .into();
        let points = |found: Vec<&Line>| -> Vec<String> {
            found.iter().map(|line| line.point.display().to_string()).collect()
        };
        assert_eq!(points(ours(&all, &all, &ours_at)), ["/b/rootfs/m", "/b/rootfs/n"]);
        // Those that we have too are not the container's.
        let new = new_ones(&all, all.get(1..).unwrap(), false, &ours_at);
        assert_eq!(points(new), ["/b/rootfs/m"]);
    }

    #[test]
    fn what_stands_in_a_containers_root_is_new_also_where_the_node_has_the_same() {
        let lines = |texts: &[&str]| -> Vec<Line> { texts.iter().map(|text| line(text)).collect() };
        let node = [
            "1 0 8:1 / / rw shared:1 - ext4 d rw",
            "2 1 0:24 / /run rw shared:2 - tmpfs t rw",
            "3 1 0:24 /x /n rw shared:3 - tmpfs t rw",
            "4 1 0:50 / /b/rootfs rw shared:4 - overlay o rw",
        ];
        // As its namespace begins, with propagation like this or less.
        let begun = [
            "21 20 8:1 / / rw shared:1 - ext4 d rw",
            "22 21 0:24 / /run rw master:2 - tmpfs t rw",
            "23 21 0:24 /x /n rw - tmpfs t rw",
            "24 21 0:50 / /b/rootfs rw - overlay o rw",
        ];
        let root = "31 24 0:50 / /b/rootfs rw shared:4 - overlay o rw";
        let of_ours = "0:24 /mpsgate /b/rootfs/m rw shared:9 - tmpfs t rw";
        let new = |on_node: &[String], its: &[String]| -> Vec<u64> {
            let own = lines(&node);
            let mut all = lines(&begun);
            let more = |texts: &[String]| texts.iter().map(|text| line(text)).collect::<Vec<_>>();
            all.extend(more(its));
            let own = [own, more(on_node)].concat();
            new_ones(&all, &own, false, &[]).iter().map(|line| line.id).collect()
        };
        assert!(new(&[], &[]).is_empty(), "the node's alone");
        assert_eq!(new(&[], &[root.to_owned()]), [31], "a root that is bound on itself");
        let propagated = format!("9 4 {of_ours}");
        let mounted = [root.to_owned(), format!("32 31 {of_ours}")];
        assert_eq!(new(&[propagated.clone()], &mounted), [31, 32], "shared with the node");
        let moved = [format!("30 31 {of_ours}"), root.to_owned()];
        assert_eq!(new(&[propagated.clone()], &moved), [30, 31], "made before what it stands on");
        // The bind of the root brings what the node has mounted below.
        let brought = [format!("25 24 {of_ours}"), root.to_owned(), format!("32 31 {of_ours}")];
        assert_eq!(new(&[propagated.clone()], &brought), [31, 32]);
        let of_node = [format!("25 24 {of_ours}")];
        assert!(new(&[propagated], &of_node).is_empty(), "the node's, outside of its root");
    }

    #[test]
    fn a_mount_of_ours_that_a_bind_of_the_root_brought_is_no_mount_of_ours() {
        let mut ours_at = located("0:30", "/");
        let root = makedev(8, 1);
        ours_at.mounted_at = Some(Place { device: root, path: "/var/lib/mpsgate".into() });
        let brought = line("9 8 0:30 / /b/rootfs/host/var/lib/mpsgate rw - ext4 d rw");
        let all = [line("8 7 8:1 / /b/rootfs/host rw - ext4 d rw"), brought.clone()];
        assert!(ours(&[brought], &all, &[ours_at.clone()]).is_empty());
        let direct = line("9 8 0:30 / /b/rootfs/x rw - ext4 d rw");
        assert_eq!(ours(&[direct], &all, &[ours_at]).len(), 1);
    }

    #[test]
    fn a_directory_is_found_among_our_mounts() {
        let own = of("self").unwrap();
        let found = Located::of(Path::new("/proc/self/../.."), &own).unwrap();
        assert_eq!(found.canonical, Path::new("/"));
        assert!(own.iter().any(|line| found.place.is_of(line)));
        assert!(Located::of(Path::new("/no/such"), &own).is_none());
    }
}
