//! Devices and device rules of a spec, as runtimes and the kernel read their numbers and letters.

use serde_json::Value;

/// One entry of `linux.devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device<'a> {
    /// Path inside the container.
    pub path: &'a str,
    /// `c`, `u`, `b` or `p`.
    pub kind: &'a str,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl Device<'_> {
    /// Whether it is a character device. runc knows two letters for these; crun accepts any that
    /// begins with neither `b` nor `p`.
    #[must_use]
    pub fn is_character(&self) -> bool {
        !self.kind.starts_with(['b', 'p'])
    }
}

/// One entry of `linux.resources.devices`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceRule<'a> {
    /// Allow or deny.
    pub allow: bool,
    /// `a`, `b`, `c`; absent means all.
    pub kind: &'a str,
    /// Absent or negative means all.
    pub major: Option<u32>,
    /// Absent or negative means all.
    pub minor: Option<u32>,
    /// Any of `r`, `w`, `m`; absent means all.
    pub access: &'a str,
}

impl DeviceRule<'_> {
    /// Whether the rule applies to reading or writing this character device. A rule of type `a`
    /// applies to every device, whatever its other fields: runc and the kernel's cgroup v1 read no
    /// further.
    #[must_use]
    pub fn covers(&self, major: u32, minor: Option<u32>) -> bool {
        self.is_for_all()
            || (self.is_for_characters()
                && self.major.is_none_or(|m| m == major)
                && (minor.is_none() || self.minor.is_none() || self.minor == minor)
                && self.reads_or_writes())
    }

    /// Whether the rule has type `a`.
    pub(super) fn is_for_all(&self) -> bool {
        self.kind.is_empty() || self.kind.starts_with('a')
    }

    pub(super) fn is_for_characters(&self) -> bool {
        !self.kind.starts_with('b')
    }

    /// Whether it covers more than making a node (`m`), which gives no access.
    fn reads_or_writes(&self) -> bool {
        self.reads() || self.writes()
    }

    pub(super) fn reads(&self) -> bool {
        self.access.is_empty() || self.access.contains('r')
    }

    pub(super) fn writes(&self) -> bool {
        self.access.is_empty() || self.access.contains('w')
    }

    /// The rule of a privileged container: every device.
    #[must_use]
    pub fn allows_all(&self) -> bool {
        self.allow && self.is_for_all() && self.has_no_numbers() && self.reads_or_writes()
    }

    pub(super) fn has_no_numbers(&self) -> bool {
        self.major.is_none() && self.minor.is_none()
    }

    /// Whether it opens character devices whose major it does not name. For runc a rule of type `a`
    /// applies to all devices, whatever its numbers and letters.
    #[must_use]
    pub fn opens_every_major(&self) -> bool {
        let of_characters =
            self.is_for_characters() && self.major.is_none() && self.reads_or_writes();
        self.allow && (self.is_for_all() || of_characters)
    }

    /// The rule with which engines begin: it denies every device.
    #[must_use]
    pub fn denies_all(&self) -> bool {
        !self.allow && self.is_for_all() && self.has_no_numbers() && self.reads() && self.writes()
    }
}

/// Reads one entry of `linux.devices`; `None` if it is not a device.
pub(super) fn device(value: &Value) -> Option<Device<'_>> {
    let number = |key| Number::of(value.get(key));
    let (path, kind) = (value.get("path")?.as_str()?, value.get("type")?.as_str()?);
    Some(device_of(path, kind, number("major"), number("minor")))
}

/// Reads one entry of `linux.resources.devices`; `None` if it is not a rule.
pub(super) fn device_rule(value: &Value) -> Option<DeviceRule<'_>> {
    let text = |key| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let numbers = (Number::of(value.get("major")), Number::of(value.get("minor")));
    rule_of(value.get("allow")?.as_bool()?, text("type"), numbers, text("access"))
}

/// A device as the kernel makes its node. Of the numbers that a runtime is given (64 bits with a
/// sign), the bits that fit a 32-bit `dev_t` are left. A missing number is zero.
pub(super) fn device_of<'a>(
    path: &'a str,
    kind: &'a str,
    major: Number,
    minor: Number,
) -> Device<'a> {
    let bits = |number, bits| match number {
        Number::Is(n) => u32::try_from(n & bits).unwrap_or_default(),
        Number::Absent | Number::Odd => 0,
    };
    Device { path, kind, major: bits(major, 0xfff), minor: bits(minor, 0xf_ffff) }
}

/// A rule with these fields. A number that no device has means all devices in an allow rule; a deny
/// rule with one is ignored.
pub(super) fn rule_of<'a>(
    allow: bool,
    kind: &'a str,
    (major, minor): (Number, Number),
    access: &'a str,
) -> Option<DeviceRule<'a>> {
    let all_or = |number| match number {
        Number::Absent => Some(None),
        Number::Is(n) if n < 0 => Some(None),
        Number::Is(n) if u32::try_from(n).is_ok() => Some(u32::try_from(n).ok()),
        Number::Is(_) | Number::Odd => allow.then_some(None),
    };
    Some(DeviceRule { allow, kind, major: all_or(major)?, minor: all_or(minor)?, access })
}

/// A number of a device or rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Number {
    #[default]
    Absent,
    Is(i64),
    /// Another type, a fraction, or beyond 64 bits.
    Odd,
}

impl Number {
    fn of(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self::Absent,
            Some(value) => value.as_i64().map_or(Self::Odd, Self::Is),
        }
    }
}
