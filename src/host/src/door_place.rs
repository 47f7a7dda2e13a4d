//! The directories of a card's doors: mpsgated makes the doors there, and the card's gate serves
//! them.
//!
//! The runtime, which is root, binds a container's door into the container. A plain process walks
//! to its own. So only root may enter the directory of containers' doors: a name alone leads no
//! other user there.

/// The kind of a door's owner, which decides the door's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A container.
    Container,
    /// A plain process or a Slurm job. Before there were two directories, this one had every door.
    Process,
}

/// The directory with the files that describe the doors of both kinds to the gate.
pub const FILES: &str = Kind::Process.directory();

impl Kind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Container, Self::Process];

    /// The name of the directory.
    #[must_use]
    pub const fn directory(self) -> &'static str {
        match self {
            Self::Container => "containers",
            Self::Process => "clients",
        }
    }

    /// The mode of the directory: only root may list either.
    #[must_use]
    pub const fn mode(self) -> u32 {
        match self {
            Self::Container => 0o700,
            Self::Process => 0o711,
        }
    }
}
