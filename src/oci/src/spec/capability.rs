//! Capabilities by the names that a spec has for them.

/// The capabilities of today's kernels (linux/capability.h), each at its number.
pub const CAPABILITIES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// The capability that some runtime takes a text for; `None` if today's kernels have no such
/// capability. crun reads the text with libcap (`cap_from_name`): in any case, or as a number in
/// one of C's forms, and ignores what follows. runc accepts only the whole name.
#[must_use]
pub fn capability(text: &str) -> Option<&'static str> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (text.get(2..)?, 16),
        [b'0', ..] => (text, 8),
        [b'1'..=b'9', ..] => (text, 10),
        _ => {
            let name = text.split(|c: char| !(c.is_ascii_alphabetic() || c == '_')).next()?;
            return CAPABILITIES.into_iter().find(|known| known.eq_ignore_ascii_case(name));
        }
    };
    let digits = digits.split(|c: char| !c.is_digit(radix)).next()?;
    CAPABILITIES.get(usize::from_str_radix(digits, radix).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_known_by_what_some_runtime_takes_for_it() {
        for text in ["CAP_BPF", "cap_bpf", "39", "0x27", "0X27z", "047", "CAP_BPF,x", "CAP_BPF2"] {
            assert_eq!(capability(text), Some("CAP_BPF"), "{text}");
        }
        for (text, expected) in [("0", "CAP_CHOWN"), ("40", "CAP_CHECKPOINT_RESTORE")] {
            assert_eq!(capability(text), Some(expected), "{text}");
        }
        for text in ["", "BPF", "CAP_NEW", "41", "0x", "99999999999999999999", "-1", " 1"] {
            assert_eq!(capability(text), None, "{text}");
        }
    }
}
