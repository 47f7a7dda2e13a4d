//! Reads `/proc/PID/mountinfo`, and identifies directories by it: by a device and a path on it,
//! whatever is mounted where.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mpsgate_oci::spec::{Layers, is_overlay};
use nix::fcntl::OFlag;
use nix::sys::stat::makedev;

pub(crate) mod procfs_mounts;
pub(crate) mod sysfs_mounts;

/// Controllers by which a container could leave its device rules or its grant, or delay others.
pub(crate) const WRITABLE_CONTROLLERS: [&str; 3] = ["devices", "memory", "freezer"];

/// One mount, as in proc_pid_mountinfo(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    id: u64,
    parent: u64,
    /// The device number; equal to `st_dev` on most file systems.
    pub(crate) device: u64,
    /// The part of the file system that is shown.
    pub(crate) root: PathBuf,
    /// The place of the mount.
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

    pub(crate) fn is_overlay(&self) -> bool {
        is_overlay(&self.fs_type)
    }

    /// The layers behind an overlay, or behind a path below it. Relative names are left out: their
    /// beginning is unknown, and engines write the layers of their images so.
    pub(crate) fn layers(&self, below: &Path) -> Vec<Layer> {
        if !self.is_overlay() {
            return Vec::new();
        }
        let shown = joined(&self.root, below);
        let rest = shown.strip_prefix("/").unwrap_or(&shown);
        let named = self.options.split(',').flat_map(named).filter(|top| top.is_absolute());
        named.map(|top| Layer { top, rest: rest.to_owned() }).collect()
    }

    /// Whether it shows the same as the mount below it: a root that was a mount before.
    pub(crate) fn is_on_itself(&self, all: &[Self]) -> bool {
        all.iter().any(|below| below.id == self.parent && below.is_copy_of(self))
    }

    fn place(&self) -> Place {
        Place { device: self.device, path: self.root.clone() }
    }

    /// Whether both are the same mount at the same place, in two mount namespaces or one on top of
    /// the other.
    pub(crate) fn is_copy_of(&self, other: &Self) -> bool {
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

/// The layers that an option of an overlay names. Kernels escape the whole option, or each name of
/// a list: both readings count, because a wrong one leads nowhere.
fn named(option: &str) -> Vec<PathBuf> {
    let mut named: Vec<PathBuf> =
        Layers::of(&path(option).to_string_lossy()).paths.into_iter().map(PathBuf::from).collect();
    if option.contains('\\') {
        named.extend(Layers::of(option).paths.iter().map(|name| path(name)));
    }
    named
}

/// Joins both, without a slash after `path` if `rest` is empty.
fn joined(path: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { path.to_owned() } else { path.join(rest) }
}

/// The part of a layer that an overlay shows.
#[derive(Debug)]
pub(crate) struct Layer {
    /// The layer's directory.
    pub(crate) top: PathBuf,
    /// The path below it.
    pub(crate) rest: PathBuf,
}

impl Layer {
    pub(crate) fn shown(&self) -> PathBuf {
        joined(&self.top, &self.rest)
    }

    /// Whether no link leads elsewhere from the shown path: an overlay follows none.
    pub(crate) fn is_in_place(&self) -> bool {
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let found = real(&self.top).zip(real(&self.shown()));
        found.is_none_or(|(top, shown)| shown == joined(&top, &self.rest))
    }
}

/// The mounts of a process: a pid or `self`.
pub(crate) fn of(process: &str) -> io::Result<Vec<Line>> {
    let bytes = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(text(&bytes).lines().filter_map(Line::parse).collect())
}

/// This process's mounts, read on first use; none if they cannot be read.
#[derive(Debug, Default)]
pub(crate) struct Own(OnceCell<Vec<Line>>);

impl Own {
    pub(crate) fn lines(&self) -> &[Line] {
        self.0.get_or_init(|| of("self").unwrap_or_default())
    }
}

/// Writes bytes that are not text as the kernel writes blanks, so that no path looks like another.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\{byte:03o}")));
    }
    text
}

/// A path on a file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    device: u64,
    path: PathBuf,
}

impl Place {
    /// Whether a mount shows this or a path below it.
    pub(crate) fn holds(&self, line: &Line) -> bool {
        line.device == self.device && line.root.starts_with(&self.path)
    }

    /// Whether a mount shows this or a directory above it.
    fn is_below(&self, line: &Line) -> bool {
        line.device == self.device && self.path.starts_with(&line.root)
    }

    /// Whether a mount shows exactly this.
    pub(crate) fn is_of(&self, line: &Line) -> bool {
        *self == line.place()
    }
}

/// Opens a path without reading or waiting, whatever it is. Links are followed as in mount(2).
fn opened(path: &Path) -> Option<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_PATH.bits()).open(path).ok()
}

/// The path of an open file, without links.
fn place(file: &File) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// The mount of this process that a path is on, and the path without links.
fn mount_of<'a>(path: &Path, own: &'a [Line]) -> Option<(&'a Line, PathBuf)> {
    mount_of_file(&opened(path)?, own)
}

/// The same for an open file.
fn mount_of_file<'a>(file: &File, own: &'a [Line]) -> Option<(&'a Line, PathBuf)> {
    // Names do not show which of two mounts at one place is visible.
    let text =
        mpsgate_host::procfs::text(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    let id = id.trim().parse::<u64>().ok()?;
    Some((own.iter().find(|line| line.id == id)?, place(file)?))
}

/// The layers behind a path of the node that is on an overlay.
pub(crate) fn layers_at(path: &Path, own: &[Line]) -> Vec<Layer> {
    let found = mount_of(path, own);
    let layers = found.and_then(|(line, place)| {
        place.strip_prefix(&line.point).ok().map(|below| line.layers(below))
    });
    layers.unwrap_or_default()
}

/// A directory of the node, and its place among this process's mounts.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) place: Place,
    /// The place of its mount on the mount above; `None` if it is not a mount itself.
    mounted_at: Option<Place>,
    canonical: PathBuf,
}

impl Located {
    /// `None` if there is no such directory.
    pub(crate) fn of(path: &Path, own: &[Line]) -> Option<Self> {
        let (line, canonical) = mount_of(path, own)?;
        let below = |line: &Line, path: &Path| {
            let rest = path.strip_prefix(&line.point).ok()?;
            Some(Place { device: line.device, path: joined(&line.root, rest) })
        };
        let above = own.iter().find(|above| above.id == line.parent && above.id != line.id);
        let mounted_at = above.filter(|_| line.point == canonical);
        Some(Self {
            place: below(line, &canonical)?,
            mounted_at: mounted_at.and_then(|above| below(above, &canonical)),
            canonical,
        })
    }

    /// Whether a mount shows a directory above, also above the place on which this one is mounted.
    pub(crate) fn is_below(&self, line: &Line) -> bool {
        self.place.is_below(line) || self.mounted_at.as_ref().is_some_and(|at| at.is_below(line))
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

/// Mounts that a process has and this one has not, with all mounts on top of them. Without a mount
/// namespace of its own, all of its mounts except those at mpsgate's directories.
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
    // A namespace begins with one copy of each mount. A second copy is the container's: runtimes
    // bind a root on itself, with all mounts below it.
    let mut is_copy = |line: &Line| {
        let Some(at) = left.get_mut(&*line.point) else { return false };
        let found = at.iter().position(|own| own.is_copy_of(line));
        found.map(|found| at.swap_remove(found)).is_some()
    };
    let mut new: HashSet<u64> =
        its.iter().filter(|line| !is_copy(line)).map(|line| line.id).collect();
    // A mount on top of a new mount is new, even if shared propagation has brought it here, at the
    // same place. The root itself is never propagated: pivot_root(2) refuses a root with a shared
    // parent. This takes several rounds, because a mount that was moved may come before the one
    // below it.
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

/// A container's new mounts of mpsgate's directories, except those that came with a bind of a
/// directory above.
pub(crate) fn ours<'a>(new: &'a [Line], all: &[Line], located: &[Located]) -> Vec<&'a Line> {
    new.iter()
        .filter(|line| {
            located.iter().any(|ours| ours.place.holds(line) && !ours.came_along(line, all))
        })
        .collect()
}

/// A container's new mounts of mpsgate's directories or of directories above them, whole or with
/// the part that is mounted there.
pub(crate) fn above_ours<'a>(new: &'a [Line], located: &[Located]) -> Vec<&'a Line> {
    new.iter().filter(|line| located.iter().any(|ours| ours.is_below(line))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use std::os::unix::ffi::OsStrExt;

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
        let raw = line(&text(b"36 35 98:0 /a/\xff /b/\xc3\xa4\xfe rw - ext4 d rw"));
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        assert_eq!(
            (bytes(&raw.root), bytes(&raw.point)),
            (b"/a/\xff".to_vec(), b"/b/\xc3\xa4\xfe".to_vec())
        );
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
        assert_eq!(points(above_ours(&all, &ours_at)), ["/b/rootfs/n", "/b/rootfs/p"]);
        // Mounts that this process has too are not the container's.
        let new = new_ones(&all, all.get(1..).unwrap(), false, &ours_at);
        assert_eq!(points(new), ["/b/rootfs/m"]);
    }

    #[test]
    fn the_layers_of_an_overlay_are_found_however_the_kernel_shows_them() {
        let shown = |root: &str, fs_type: &str, options: &str, below: &str| -> Vec<PathBuf> {
            let text = format!("9 8 0:90 {root} /b/rootfs/x rw - {fs_type} o rw,{options}");
            line(&text).layers(Path::new(below)).iter().map(Layer::shown).collect()
        };
        for (root, below, options, expected) in [
            ("/", "", "lowerdir=/a:/b,upperdir=/u,workdir=/w", &["/a", "/b", "/u"][..]),
            ("/", "", "lowerdir+=/a,lowerdir+=/b,datadir+=/d", &["/a", "/b", "/d"]),
            ("/", "", "lowerdir=/a::/d", &["/a", "/d"]),
            ("/sub", "", "lowerdir=/a:/b", &["/a/sub", "/b/sub"]),
            ("/sub", "x/y", "lowerdir=/a", &["/a/sub/x/y"]),
            ("/", "x", "lowerdir=/a\\040b", &["/a b/x"]),
            // As their author escaped them, and as some kernels do.
            ("/", "", r"lowerdir=/a\134:b:/c", &["/a:b", "/c"]),
            ("/", "", r"lowerdir=/a\072b:/c", &["/a:b", "/c"]),
            ("/", "", r"lowerdir+=/a\054b", &["/a,b"]),
            ("/", "", r"upperdir=/a\134\054b", &["/a,b"]),
        ] {
            let found = shown(root, "overlay", options, below);
            let is_found = |path: &&str| found.iter().any(|one| one == Path::new(path));
            assert!(expected.iter().all(is_found), "{options}: {found:?}");
        }
        // Layers of an image, as Docker and containerd mount it.
        assert!(shown("/", "overlay", "lowerdir=l/AB:l/CD,upperdir=x/diff", "").is_empty());
        assert!(shown("/", "overlay", "workdir=/w,metacopy=on", "").is_empty());
        assert!(shown("/", "tmpfs", "lowerdir=/a", "").is_empty());
    }

    #[test]
    fn what_lies_behind_a_path_is_asked_of_the_mount_that_it_is_on() {
        let dir = tempfile::tempdir().unwrap();
        let here = dir.path().canonicalize().unwrap();
        std::fs::create_dir(here.join("a")).unwrap();
        std::os::unix::fs::symlink("a", here.join("link")).unwrap();
        let own = of("self").unwrap();
        let (line, place) = mount_of(&here, &own).unwrap();
        assert_eq!(place, here);
        // As if an overlay were mounted there, with `/sub` shown.
        let overlay = Line {
            root: "/sub".into(),
            point: here.clone(),
            fs_type: "overlay".to_owned(),
            options: "rw,lowerdir=/l,upperdir=/u".to_owned(),
            ..line.clone()
        };
        let behind = |name: &str, line: &Line| -> Vec<PathBuf> {
            let layers = layers_at(&here.join(name), std::slice::from_ref(line));
            layers.iter().map(Layer::shown).collect()
        };
        for name in ["a", "link", "a/../a"] {
            let expected = [PathBuf::from("/l/sub/a"), PathBuf::from("/u/sub/a")];
            assert_eq!(behind(name, &overlay), expected, "{name}");
        }
        assert!(behind("none", &overlay).is_empty());
        let disk = Line { fs_type: "ext4".to_owned(), ..overlay };
        assert!(behind("a", &disk).is_empty());
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
        // The beginning of its namespace, with propagation like this or less.
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
        let is_on_itself = |text: &str| line(text).is_on_itself(&lines(&begun));
        assert!(is_on_itself(root) && !is_on_itself("31 21 0:50 / /b/rootfs rw - overlay o rw"));
        let propagated = format!("9 4 {of_ours}");
        let mounted = [root.to_owned(), format!("32 31 {of_ours}")];
        assert_eq!(
            new(std::slice::from_ref(&propagated), &mounted),
            [31, 32],
            "shared with the node"
        );
        let moved = [format!("30 31 {of_ours}"), root.to_owned()];
        assert_eq!(
            new(std::slice::from_ref(&propagated), &moved),
            [30, 31],
            "made before what it stands on"
        );
        // The bind of the root brings the node's mounts below it.
        let brought = [format!("25 24 {of_ours}"), root.to_owned(), format!("32 31 {of_ours}")];
        assert_eq!(new(std::slice::from_ref(&propagated), &brought), [31, 32]);
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
        assert_eq!(ours(&[direct], &all, &[ours_at.clone()]).len(), 1);
        let above = |text: &str| !above_ours(&[line(text)], &[ours_at.clone()]).is_empty();
        for root in ["/", "/var", "/var/lib", "/var/lib/mpsgate"] {
            assert!(above(&format!("9 8 8:1 {root} /b/rootfs/x rw - ext4 d rw")), "{root}");
        }
        for root in ["/var/log", "/var/lib/mpsgate2", "/var/lib/m"] {
            assert!(!above(&format!("9 8 8:1 {root} /b/rootfs/x rw - ext4 d rw")), "{root}");
            assert!(!above(&format!("9 8 0:30 {root} /b/rootfs/x rw - ext4 d rw")), "{root}");
        }
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
