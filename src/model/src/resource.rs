//! The extended resources that a pod asks for by name and number, and their value in memory.
//!
//! The number in a pod is a count of devices, so the unit must be the same wherever the pod may
//! land: it belongs to the resource's name. `aliyun.com/gpu-mem` is GiB, everywhere. gpushare can
//! be set to one device per MiB under that same name, and its list then outgrows the 4 MiB that
//! kubelet takes in a message (gpushare-scheduler-extender issues 16 and 156), and a pod's `7`
//! means 7 MiB on one node and 7 GiB on another. Finer memory here is a resource whose name has its
//! unit: `mpsgate.io/gpu-mem-256mi: 30` is 7.5 GiB.

use std::fmt;

use crate::Mib;

/// GPU memory in GiB (ACK): a limit, the extended resource of the node, and an annotation.
pub const GPU_MEMORY: &str = "aliyun.com/gpu-mem";
/// Cards (ACK): a pod's label or annotation, a limit, and the extended resource of the node.
pub const GPU_COUNT: &str = "aliyun.com/gpu-count";
/// Percent of one card's compute (ACK).
pub const GPU_CORE: &str = "aliyun.com/gpu-core.percentage";
/// The name of nos' slices, around N; nos: `nvidia\.com/gpu-\d+gb`.
const SLICE: (&str, &str) = ("nvidia.com/gpu-", "gb");
/// The name of mpsgate's finer units, around N.
const UNIT: (&str, &str) = ("mpsgate.io/gpu-mem-", "mi");
const GIB: u64 = 1024;

/// An extended resource for GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// [`GPU_MEMORY`].
    Memory,
    /// A slice of nos, `nvidia.com/gpu-<N>gb`: N GiB, and one slice for a container.
    Slice(u64),
    /// `mpsgate.io/gpu-mem-<N>mi`: N MiB.
    Unit(u64),
    /// [`GPU_COUNT`].
    Cards,
    /// [`GPU_CORE`].
    Core,
}

impl Resource {
    /// Parses its name. `010` would be a second name for 10, and is refused.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let numbered = |(before, after): (&str, &str)| -> Option<u64> {
            let number = name.strip_prefix(before)?.strip_suffix(after)?;
            let plain = !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
            number.parse().ok().filter(|_| plain)
        };
        Some(match name {
            GPU_MEMORY => Self::Memory,
            GPU_COUNT => Self::Cards,
            GPU_CORE => Self::Core,
            _ => numbered(SLICE).map(Self::Slice).or_else(|| numbered(UNIT).map(Self::Unit))?,
        })
    }

    /// Memory by so many MiB. `None` for zero.
    #[must_use]
    pub fn by(mib: u64) -> Option<Self> {
        (mib > 0).then_some(if mib == GIB { Self::Memory } else { Self::Unit(mib) })
    }

    /// A slice of so many GiB. `None` for zero, and for more than any amount of memory.
    #[must_use]
    pub fn slice(gib: u64) -> Option<Self> {
        (gib > 0 && gib.checked_mul(GIB).is_some()).then_some(Self::Slice(gib))
    }

    /// The memory of one unit. `None` where the resource is not memory.
    #[must_use]
    pub fn unit(self) -> Option<Mib> {
        match self {
            Self::Memory => Some(Mib(GIB)),
            Self::Slice(gib) => Some(Mib(gib.saturating_mul(GIB))),
            Self::Unit(mib) => Some(Mib(mib)),
            Self::Cards | Self::Core => None,
        }
    }

    /// The memory of so many units. `None` where the resource is not memory.
    #[must_use]
    pub fn memory(self, count: u64) -> Option<Mib> {
        self.unit().map(|unit| Mib(unit.0.saturating_mul(count)))
    }
}

impl fmt::Display for Resource {
    /// Its name, as pods ask for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, (before, after)) = match self {
            Self::Memory => return f.write_str(GPU_MEMORY),
            Self::Cards => return f.write_str(GPU_COUNT),
            Self::Core => return f.write_str(GPU_CORE),
            Self::Slice(gib) => (gib, SLICE),
            Self::Unit(mib) => (mib, UNIT),
        };
        write!(f, "{before}{number}{after}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_has_the_unit() {
        for (name, resource, three) in [
            ("aliyun.com/gpu-mem", Resource::by(1024), Some(3072)),
            ("mpsgate.io/gpu-mem-256mi", Resource::by(256), Some(768)),
            ("mpsgate.io/gpu-mem-1024mi", Some(Resource::Unit(1024)), Some(3072)),
            ("nvidia.com/gpu-10gb", Resource::slice(10), Some(30 * 1024)),
            ("aliyun.com/gpu-count", Some(Resource::Cards), None),
            ("aliyun.com/gpu-core.percentage", Some(Resource::Core), None),
        ] {
            assert_eq!(Resource::parse(name), resource, "{name}");
            let found = resource.map(|resource| (resource.to_string(), resource.memory(3)));
            assert_eq!(found, Some((name.to_owned(), three.map(Mib))));
        }
        assert_eq!(
            (Resource::by(0), Resource::slice(0), Resource::slice(u64::MAX)),
            (None, None, None)
        );
    }

    #[test]
    fn what_is_no_name_of_one_is_none() {
        for name in [
            "",
            "nvidia.com/gpu",
            "nvidia.com/gpu-10",
            "nvidia.com/gpu-gb",
            "nvidia.com/gpu-0gb",
            "nvidia.com/gpu-010gb",
            "nvidia.com/gpu-+10gb",
            "nvidia.com/gpu-10Gb",
            "nvidia.com/gpu-1.5gb",
            "example.com/gpu-10gb",
            "nvidia.com/gpu-99999999999999999999gb",
            "mpsgate.io/gpu-mem",
            "mpsgate.io/gpu-mem-0mi",
            "aliyun.com/gpu-mem ",
        ] {
            assert_eq!(Resource::parse(name), None, "{name}");
        }
    }
}
