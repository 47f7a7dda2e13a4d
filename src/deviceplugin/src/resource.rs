//! What a pod asks for by name and number, and what one of it is worth.
//!
//! The number in a pod is a count of devices, so the unit must be the same wherever the pod may
//! land: it belongs to the resource's name. `aliyun.com/gpu-mem` is GiB, everywhere. gpushare can
//! be set to one device per MiB under that same name, and its list then outgrows the 4 MiB that
//! kubelet takes in a message (gpushare-scheduler-extender issues 16 and 156), and a pod's `7`
//! means 7 MiB on one node and 7 GiB on another. Finer memory here is a resource that says its
//! unit: `mpsgate.io/gpu-mem-256mi: 30` is 7.5 GiB.

use std::num::NonZeroU64;

use mpsgate_model::Mib;

/// MiB per device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit(NonZeroU64);

impl Unit {
    /// That of `aliyun.com/gpu-mem`.
    pub const GIB: Self = Self(match NonZeroU64::new(1024) {
        Some(mib) => mib,
        None => unreachable!(),
    });

    /// `None` for zero.
    #[must_use]
    pub fn new(mib: u64) -> Option<Self> {
        NonZeroU64::new(mib).map(Self)
    }

    /// In MiB.
    #[must_use]
    pub fn mib(self) -> u64 {
        self.0.get()
    }
}

/// What one device of a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worth {
    /// So much memory of a card.
    Memory(Unit),
    /// A card, to be counted.
    Card,
}

/// One extended resource of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    name: String,
    worth: Worth,
    most: Option<usize>,
    seeds_env: bool,
}

/// A name that kubelet refuses, or that makes no file name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of an extended resource, such as example.com/gpu-mem")]
pub struct BadResource(String);

impl Resource {
    /// GPU memory by the unit: `aliyun.com/gpu-mem` for GiB, `mpsgate.io/gpu-mem-<unit>mi` for
    /// every other.
    #[must_use]
    pub fn gpu_mem(unit: Unit) -> Self {
        let name = match unit {
            Unit::GIB => "aliyun.com/gpu-mem".to_owned(),
            Unit(mib) => format!("mpsgate.io/gpu-mem-{mib}mi"),
        };
        Self { name, worth: Worth::Memory(unit), most: None, seeds_env: true }
    }

    /// How many cards there are: `aliyun.com/gpu-count`.
    #[must_use]
    pub fn gpu_count() -> Self {
        let name = "aliyun.com/gpu-count".to_owned();
        Self { name, worth: Worth::Card, most: None, seeds_env: false }
    }

    /// nos' slices, `nvidia.com/gpu-<N>gb`: one of N GiB for a container. `None` for zero, and for
    /// more than any amount of memory.
    #[must_use]
    pub fn slice(gib: u64) -> Option<Self> {
        let unit = Unit::new(gib.checked_mul(Unit::GIB.mib())?)?;
        let name = format!("nvidia.com/gpu-{gib}gb");
        Some(Self { name, worth: Worth::Memory(unit), most: Some(1), seeds_env: false })
    }

    /// A resource of another name.
    ///
    /// # Errors
    /// A name that is not `domain/name`, or that Kubernetes keeps for itself.
    pub fn named(name: &str, worth: Worth) -> Result<Self, BadResource> {
        let bad = || BadResource(name.chars().take(400).collect());
        let (domain, word) = name.split_once('/').ok_or_else(bad)?;
        let framed = |text: &str| {
            let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
            ends(text.as_bytes().first()) && ends(text.as_bytes().last())
        };
        let host = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
        let any = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        // Kubernetes: IsExtendedResourceName. Its own domain, and what quotas call requests of a
        // resource.
        let kept = domain.ends_with("kubernetes.io") || name.starts_with("requests.");
        let fits = domain.len() <= 253 && word.len() <= 63 && framed(domain) && framed(word);
        if kept || !fits || !domain.bytes().all(host) || !word.bytes().all(any) {
            return Err(bad());
        }
        Ok(Self { name: name.to_owned(), worth, most: None, seeds_env: false })
    }

    /// Its name, as pods ask for it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What one of it is.
    #[must_use]
    pub fn worth(&self) -> Worth {
        self.worth
    }

    /// How many of it one container may have.
    #[must_use]
    pub fn most(&self) -> Option<usize> {
        self.most
    }

    /// Whether its containers get the environment by which applications of gpushare size
    /// themselves.
    pub(crate) fn has_seeds_env(&self) -> bool {
        self.seeds_env
    }

    /// The memory that so many of it are. `None` for cards.
    #[must_use]
    pub fn memory(&self, devices: usize) -> Option<Mib> {
        match self.worth {
            Worth::Memory(unit) => {
                Some(Mib(u64::try_from(devices).unwrap_or(u64::MAX).saturating_mul(unit.mib())))
            }
            Worth::Card => None,
        }
    }

    /// The file name of its socket, which is ours alone: kubelet's directory is shared by all
    /// plugins.
    #[must_use]
    pub fn socket_name(&self) -> String {
        format!("mpsgate-{}.sock", self.name.replace('/', "_"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use super::*;

    #[test]
    fn the_unit_is_told_by_the_name() {
        let memory = |mib| Resource::gpu_mem(Unit::new(mib).unwrap());
        assert_eq!(memory(1024).name(), "aliyun.com/gpu-mem");
        assert_eq!(memory(256).name(), "mpsgate.io/gpu-mem-256mi");
        assert_eq!(memory(256).memory(30), Some(Mib(7680)));
        let slice = Resource::slice(10).unwrap();
        assert_eq!((slice.name(), slice.most()), ("nvidia.com/gpu-10gb", Some(1)));
        assert_eq!(slice.memory(1), Some(Mib(10 * 1024)));
        assert_eq!(Resource::gpu_count().memory(3), None);
        assert_eq!(Unit::new(0), None);
        assert!(Resource::slice(0).is_none() && Resource::slice(u64::MAX).is_none());
    }

    #[test]
    fn only_names_that_kubelet_takes_are_names() {
        let named = |name: &str| Resource::named(name, Worth::Card).map(|r| r.socket_name());
        assert_eq!(named("example.com/gpu_mem.x").unwrap(), "mpsgate-example.com_gpu_mem.x.sock");
        for bad in [
            "",
            "gpu",
            "/gpu",
            "example.com/",
            "a/b/c",
            "Example.com/gpu",
            "../../etc/x",
            "example.com/..",
            "kubernetes.io/gpu",
            "x.kubernetes.io/gpu",
            "requests.x/gpu",
        ] {
            assert_eq!(named(bad), Err(BadResource(bad.to_owned())), "{bad}");
        }
    }

    #[test]
    fn names_of_ours_are_names() {
        for ours in [
            Resource::gpu_mem(Unit::GIB),
            Resource::gpu_mem(Unit::new(64).unwrap()),
            Resource::gpu_count(),
            Resource::slice(80).unwrap(),
        ] {
            assert!(Resource::named(ours.name(), ours.worth()).is_ok(), "{ours:?}");
        }
    }
}
