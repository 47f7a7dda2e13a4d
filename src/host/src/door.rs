//! Where the doors of a card lie in its directory: mpsgated makes them there, and its gate serves
//! them.
//!
//! A container's is bound into it by its runtime, which is root. A plain process walks to its own.
//! So only root enters the directory of the former: a name alone leads nobody else there.

/// Whose a door is, and by that where it lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A container's.
    Container,
    /// A plain process's, or a Slurm job's. Before there were two directories every door lay there.
    Process,
}

/// The directory with the files that tell the gate of doors, of both kinds.
pub const FILES: &str = Kind::Process.directory();

impl Kind {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Container, Self::Process];

    /// The name of the directory.
    #[must_use]
    pub const fn directory(self) -> &'static str {
        match self {
            Self::Container => "containers",
            Self::Process => "clients",
        }
    }

    /// The mode of the directory: nobody but root lists either.
    #[must_use]
    pub const fn mode(self) -> u32 {
        match self {
            Self::Container => 0o700,
            Self::Process => 0o711,
        }
    }
}
