//! Proves device access by trying: a child in the container's cgroup must open the granted nodes,
//! and must fail to open the others. On cgroup v2 device rules cannot be read, because they are a
//! BPF program.
//!
//! Works at createRuntime on runc and crun, cgroup v1 and v2 (measured, runc 1.1.5 and crun 1.21):
//! a granted node gives success or, without a driver, ENXIO; a closed one EPERM.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mpsgate_host::crash_point;
use mpsgate_host::file::{remove_leftovers, temporary_name};
use mpsgate_model::{Code, DeviceNode, Refusal};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, SFlag, major, makedev, minor, mknod};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

use super::cgroup_root::Cgroup;

/// A device for the child to open, and whether it should succeed.
struct Probe<'a> {
    node: &'a DeviceNode,
    path: PathBuf,
    open: bool,
    temporary: bool,
}

impl Drop for Probe<'_> {
    fn drop(&mut self) {
        if self.temporary {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The child's exit status if all results are right.
const AS_EXPECTED: u8 = 0;
/// The child could not join the cgroup.
const NOT_JOINED: u8 = 255;

/// Checks that the cgroup can open the `granted` nodes and cannot open the `closed` ones.
pub(super) fn check(
    cgroup: Option<&Cgroup>,
    granted: &[DeviceNode],
    closed: &[DeviceNode],
) -> Result<(), Refusal> {
    if granted.is_empty() && closed.is_empty() {
        return Ok(());
    }
    let Some(cgroup) = cgroup else {
        return Err(failed("its cgroup cannot be found"));
    };
    let mut probes = Vec::new();
    for (nodes, open) in [(granted, true), (closed, false)] {
        // The driver files may have been injected without an optional node; a closed node must be
        // closed in any case.
        for node in nodes.iter().filter(|node| !(open && node.is_optional())) {
            probes.push(probe(node, open).map_err(|why| failed(&why))?);
        }
    }
    if let Some(rules) = Rules::read(cgroup) {
        return match probes.iter().find(|probe| !rules.agree(probe.node, probe.open)) {
            None => Ok(()),
            Some(probe) => Err(refusal(probe)),
        };
    }
    // The exit status is the number of the first wrong probe, from 1.
    match in_cgroup(cgroup, &probes)? {
        AS_EXPECTED => Ok(()),
        NOT_JOINED => Err(failed(&format!("{} cannot be written", cgroup.procs.display()))),
        wrong => match probes.get(usize::from(wrong) - 1) {
            Some(probe) => Err(refusal(probe)),
            None => Err(failed("the test of its devices ended without a result")),
        },
    }
}

fn refusal(probe: &Probe<'_>) -> Refusal {
    let node = format!("{} ({}:{})", probe.node.path, probe.node.major, probe.node.minor);
    if probe.open {
        Refusal::new(
            Code::DeviceClosed,
            format!("it cannot open {node}, which was granted to it"),
            "something changed its device rules after mpsgate-runtime: make mpsgate-runtime the last wrapper before runc or crun",
        )
    } else {
        Refusal::new(
            Code::DeviceOpen,
            format!("it can open {node}, a managed GPU that was not granted to it"),
            "remove what opens it (--device, --device-cgroup-rule, a hook or NRI plugin that adds GPUs)",
        )
    }
}

fn failed(why: &str) -> Refusal {
    Refusal::new(
        Code::DeviceClosed,
        format!("its devices cannot be checked: {why}"),
        "create the container anew; mpsgate doctor checks the node",
    )
}

/// The host's node of a device, or a temporary one where the host has none (a simulated GPU).
fn probe(node: &DeviceNode, open: bool) -> Result<Probe<'_>, String> {
    let host = Path::new(&node.path);
    let is_it = std::fs::symlink_metadata(host).is_ok_and(|meta| {
        meta.file_type().is_char_device()
            && (major(meta.rdev()), minor(meta.rdev())) == (node.major.into(), node.minor.into())
    });
    if is_it {
        return Ok(Probe { node, path: host.to_owned(), open, temporary: false });
    }
    // Below /dev, because other directories are often mounted nodev.
    let dev = Path::new("/dev");
    remove_leftovers(dev);
    let name = temporary_name(&format!("{}-{}", node.major, node.minor), std::process::id());
    let path = dev.join(name);
    // A file that a process with the same pid left.
    let _ = std::fs::remove_file(&path);
    let device = makedev(node.major.into(), node.minor.into());
    mknod(&path, SFlag::S_IFCHR, Mode::S_IRUSR | Mode::S_IWUSR, device)
        .map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
    crash_point!("hook.node_made");
    Ok(Probe { node, path, open, temporary: true })
}

/// Device rules of cgroup v1. They can be read, unlike those of v2, and trying costs more there:
/// moving a process into a cgroup takes the kernel an RCU grace period, 2 to 12 ms (measured, Linux
/// 6.18).
pub(crate) struct Rules(pub(crate) String);

impl Rules {
    /// `None` on v2, and if everything is allowed: the kernel then does not list denied devices.
    fn read(cgroup: &Cgroup) -> Option<Self> {
        let text = std::fs::read_to_string(cgroup.procs.with_file_name("devices.list")).ok()?;
        (!text.lines().any(|line| line.starts_with('a'))).then_some(Self(text))
    }

    /// Whether the rules give a node the right access: a granted one opens for reading and writing
    /// at once, another card's not even for one of them.
    pub(crate) fn agree(&self, node: &DeviceNode, open: bool) -> bool {
        let mut found = self.0.lines().filter_map(|line| {
            // type major:minor access, as in devices.allow
            let (device, access) = line.strip_prefix("c ")?.split_once(' ')?;
            let (major, minor) = device.split_once(':')?;
            let is = |text: &str, number: u32| text == "*" || text.parse() == Ok(number);
            (is(major, node.major) && is(minor, node.minor)).then_some(access)
        });
        if open {
            found.any(|access| access.contains('r') && access.contains('w'))
        } else {
            !found.any(|access| access.contains(['r', 'w']))
        }
    }
}

/// Runs the probes in a child that joins the cgroup, so that this process never has to leave it.
///
/// JUSTIFICATION for unsafe code: nothing but fork gives a process of the same program that can
/// join another cgroup and end. One place.
#[allow(unsafe_code, reason = "see above")]
fn in_cgroup(cgroup: &Cgroup, probes: &[Probe<'_>]) -> Result<u8, Refusal> {
    // SAFETY: this program has one thread, so the child may do what the parent may.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {
            let status = run(cgroup, probes);
            // SAFETY: _exit ends the child without running anything of the parent's.
            unsafe { nix::libc::_exit(i32::from(status)) }
        }
        Ok(ForkResult::Parent { child }) => loop {
            match waitpid(child, None) {
                Ok(WaitStatus::Exited(_, status)) => {
                    return u8::try_from(status).map_err(|_| failed("the test ended oddly"));
                }
                Err(Errno::EINTR) => {}
                Ok(status) => return Err(failed(&format!("the test ended with {status:?}"))),
                Err(error) => return Err(failed(&error.to_string())),
            }
        },
        Err(error) => Err(failed(&format!("fork: {error}"))),
    }
}

fn run(cgroup: &Cgroup, probes: &[Probe<'_>]) -> u8 {
    let joined =
        OpenOptions::new().write(true).open(&cgroup.procs).and_then(|mut f| f.write_all(b"0"));
    if joined.is_err() {
        return NOT_JOINED;
    }
    crash_point!("hook.probe_joined");
    for (number, probe) in (1..NOT_JOINED).zip(probes) {
        // A granted node opens for both at once; a closed one must not open for either.
        let ways: &[(bool, bool)] =
            if probe.open { &[(true, true)] } else { &[(true, false), (false, true)] };
        let is_open = ways.iter().any(|(read, write)| opens(&probe.path, *read, *write));
        if is_open != probe.open {
            return number;
        }
    }
    AS_EXPECTED
}

/// Whether the device cgroup lets this process open a node.
fn opens(path: &Path, read: bool, write: bool) -> bool {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_NOFOLLOW;
    match OpenOptions::new().read(read).write(write).custom_flags(flags.bits()).open(path) {
        Ok(_) => true,
        // The rule let it through, but no driver is behind it.
        Err(error) => matches!(
            error.raw_os_error().map(Errno::from_raw),
            Some(Errno::ENXIO | Errno::ENODEV | Errno::EIO | Errno::EBUSY)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_v1_say_what_a_node_is() {
        let rules = Rules("b *:* m\nc 1:3 rwm\nc 195:0 rw\nc 195:255 r\nc 510:* rwm\n".to_owned());
        let agrees = |major, minor, open| {
            let node = DeviceNode { path: String::new(), major, minor };
            rules.agree(&node, open)
        };
        assert!(agrees(195, 0, true) && !agrees(195, 0, false));
        assert!(agrees(510, 7, true) && !agrees(510, 7, false));
        assert!(agrees(195, 1, false) && !agrees(195, 1, true));
        // Reading alone is the access of neither a granted nor a closed node.
        assert!(!agrees(195, 255, true) && !agrees(195, 255, false));
    }
}
