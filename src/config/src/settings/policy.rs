//! `[policy]`.

/// `[policy]`
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Policy {
    /// A container that could reach a managed card without a grant.
    pub unallocated: Unallocated,
    /// `NVIDIA_VISIBLE_DEVICES` that names a managed card, without a request.
    pub visible_devices: VisibleDevices,
    /// A privileged container without a request.
    pub privileged: Privileged,
    /// The IPC namespace of a container with a request.
    pub ipc: Ipc,
    /// A container with a request that sees the host's processes, or those of another container.
    pub host_pid: HostPid,
    /// A granted container that takes what is not its own.
    pub enforce: Enforce,
    /// How far NVML may show a container above its grant before it counts as over.
    pub tolerance_mib: Tolerance,
    /// Containers that may use cards without a grant.
    pub exempt: Vec<Exempt>,
}

/// `policy.tolerance_mib`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tolerance {
    /// The tolerance that the card was shown to need.
    #[default]
    Auto,
    /// So many MiB on every card.
    Mib(u32),
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            unallocated: Unallocated::Refuse,
            visible_devices: VisibleDevices::Refuse,
            privileged: Privileged::RemoveNodes,
            ipc: Ipc::RequireHost,
            host_pid: HostPid::Own,
            enforce: Enforce::Kill,
            tolerance_mib: Tolerance::Auto,
            exempt: Vec::new(),
        }
    }
}

words! {
    /// The treatment of a container that could reach a managed card without a grant.
    Unallocated {
        /// It does not start.
        Refuse = "refuse",
        /// It starts without the cards.
        Strip = "strip",
        /// It starts as it is, and a warning is logged.
        Warn = "warn",
    }
}

words! {
    /// The treatment of `NVIDIA_VISIBLE_DEVICES` with a managed card and no request.
    VisibleDevices {
        /// The container does not start.
        Refuse = "refuse",
        /// The variable becomes `void`.
        Strip = "strip",
    }
}

words! {
    /// The treatment of a privileged container without a request.
    Privileged {
        /// The nodes of managed cards are taken off its list of devices.
        RemoveNodes = "remove-nodes",
        /// Also, its allow-all device rule becomes a list of all devices except NVIDIA's.
        Close = "close",
    }
}

words! {
    /// The treatment of a container with a request that sees the host's processes or another
    /// container's.
    HostPid {
        /// A container with the host's gets a namespace of its own; one with another container's
        /// does not start.
        Own = "own",
        /// It does not start.
        Refuse = "refuse",
        /// It starts, and a warning is logged.
        Warn = "warn",
    }
}

words! {
    /// The IPC namespace that a container with a request must have.
    Ipc {
        /// The namespace of the MPS daemon, which is the host's.
        RequireHost = "require-host",
        /// The one that the node's driver was seen to need; the host's until that is known.
        Auto = "auto",
        /// Any namespace.
        Any = "any",
    }
}

words! {
    /// The treatment of a container with a grant that takes memory of its neighbours.
    Enforce {
        /// It is killed, and the reason is recorded.
        Kill = "kill",
        /// It is only reported.
        Report = "report",
    }
}

/// One `[[policy.exempt]]`: both must match.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize))]
pub struct Exempt {
    /// Kubernetes namespace.
    pub namespace: String,
    /// Image repository without a tag, repository with digest, or digest.
    pub image: String,
}
