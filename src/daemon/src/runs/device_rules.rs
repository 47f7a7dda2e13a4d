//! What a plain process with a grant may open, as text for v1's `devices` and as a program for v2.

use mpsgate_model::DeviceNode;

/// A character device by major and minor; all of a major without a minor.
type Numbers = (u32, Option<u32>);

/// What any process may open: null, zero, full, random, urandom, tty, ptmx and pseudo-terminals.
const ANY: [Numbers; 8] = [
    (1, Some(3)),
    (1, Some(5)),
    (1, Some(7)),
    (1, Some(8)),
    (1, Some(9)),
    (5, Some(0)),
    (5, Some(2)),
    (136, None),
];

fn open(granted: &[DeviceNode]) -> impl Iterator<Item = Numbers> {
    ANY.into_iter().chain(granted.iter().map(|node| (node.major, Some(node.minor))))
}

/// The lines of v1's `devices.allow`, once everything is denied.
pub(super) fn rules(granted: &[DeviceNode]) -> Vec<String> {
    // Making a node opens none.
    let nodes = ["c *:* m", "b *:* m"].map(str::to_owned).into_iter();
    let rule = |(major, minor): Numbers| match minor {
        Some(minor) => format!("c {major}:{minor} rw"),
        None => format!("c {major}:* rw"),
    };
    nodes.chain(open(granted).map(rule)).collect()
}

/// The same as instructions of a program that the kernel asks before each access of a v2 cgroup:
/// `BPF_PROG_TYPE_CGROUP_DEVICE`, which is told `struct bpf_cgroup_dev_ctx` (linux/bpf.h) and
/// answers 1 where the access is allowed.
///
/// # Errors
/// What the assembler says; of a program that it does not know.
pub(super) fn program(granted: &[DeviceNode]) -> Result<Vec<u8>, String> {
    let mut lines = [
        "ldxw r2, [r1]",   // access_type: the access in the upper half, the kind in the lower
        "ldxw r3, [r1+4]", // major
        "ldxw r4, [r1+8]", // minor
        "mov r0, 1",
        "mov r5, r2",
        "rsh r5, 16",
        "jne r5, 1, +1", // BPF_DEVCG_ACC_MKNOD alone: making a node opens none
        "exit",
        "and r2, 0xffff",
        "jeq r2, 2, +2", // BPF_DEVCG_DEV_CHAR
        "mov r0, 0",
        "exit",
    ]
    .map(str::to_owned)
    .to_vec();
    for (major, minor) in open(granted) {
        match minor {
            Some(minor) => {
                lines.push(format!("jne r3, {major}, +2"));
                lines.push(format!("jne r4, {minor}, +1"));
            }
            None => lines.push(format!("jne r3, {major}, +1")),
        }
        lines.push("exit".to_owned());
    }
    lines.extend(["mov r0, 0", "exit"].map(str::to_owned));
    rbpf::assembler::assemble(&lines.join("\n"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    const MKNOD: u32 = 1;
    const READ: u32 = 2;
    const WRITE: u32 = 4;
    const BLOCK: u32 = 1;
    const CHAR: u32 = 2;

    fn granted() -> Vec<DeviceNode> {
        let node = |path: &str, major, minor| DeviceNode { path: path.to_owned(), major, minor };
        vec![
            node("/dev/nvidia1", 195, 1),
            node("/dev/nvidiactl", 195, 255),
            // The largest that the kernel knows (MINORBITS of linux/kdev_t.h).
            node("/dev/x", 4095, (1 << 20) - 1),
        ]
    }

    #[test]
    fn rules_are_a_list_of_what_is_open() {
        assert_eq!(
            rules(&granted()).join("\n"),
            "c *:* m\nb *:* m\nc 1:3 rw\nc 1:5 rw\nc 1:7 rw\nc 1:8 rw\nc 1:9 rw\nc 5:0 rw\n\
             c 5:2 rw\nc 136:* rw\nc 195:1 rw\nc 195:255 rw\nc 4095:1048575 rw"
        );
    }

    /// What v1 says: one rule has to cover all of it (device_cgroup.c of the kernel).
    fn rules_say(kind: u32, access: u32, major: u32, minor: u32) -> bool {
        let letter = if kind == CHAR { "c" } else { "b" };
        let wanted = [(MKNOD, 'm'), (READ, 'r'), (WRITE, 'w')];
        let is = |text: &str, number: u32| text == "*" || text == number.to_string();
        rules(&granted()).iter().any(|rule| {
            let [of, numbers, allowed] = rule.split(' ').collect::<Vec<_>>()[..] else { panic!() };
            let (its_major, its_minor) = numbers.split_once(':').unwrap();
            of == letter
                && is(its_major, major)
                && is(its_minor, minor)
                && wanted.iter().all(|(bit, word)| access & bit == 0 || allowed.contains(*word))
        })
    }

    #[test]
    fn the_program_says_what_the_rules_say() {
        let program = program(&granted()).unwrap();
        let vm = rbpf::EbpfVmRaw::new(Some(&program)).unwrap();
        let says = |kind: u32, access: u32, major: u32, minor: u32| {
            let words = [access << 16 | kind, major, minor].map(u32::to_ne_bytes);
            let said = vm.execute_program(&mut words.concat()).unwrap();
            let by_rules = u64::from(rules_say(kind, access, major, minor));
            assert_eq!(said, by_rules, "{kind} {access} {major}:{minor}");
            said
        };
        // The kernel asks for making a node by itself, and for opening one without that.
        for (major, minor) in
            [(1, 3), (1, 9), (5, 2), (136, 0), (136, 77), (195, 1), (195, 255), (4095, 1_048_575)]
        {
            for access in [READ, WRITE, READ | WRITE, MKNOD] {
                assert_eq!(says(CHAR, access, major, minor), 1, "{major}:{minor} {access}");
            }
            assert_eq!(says(BLOCK, READ, major, minor), 0, "a block device {major}:{minor}");
        }
        // Other cards, memory, a device of a terminal's major that is none, numbers that are alike
        // in part.
        for (major, minor) in
            [(195, 0), (195, 2), (1, 1), (5, 1), (137, 0), (0, 0), (4095, 0), (255, 195), (1, 195)]
        {
            for access in [READ, WRITE, READ | WRITE] {
                assert_eq!(says(CHAR, access, major, minor), 0, "{major}:{minor} {access}");
            }
            assert_eq!((says(CHAR, MKNOD, major, minor), says(BLOCK, MKNOD, major, minor)), (1, 1));
        }
    }
}
