//! Why CUDA does not answer `probe`.

use std::ffi::c_int;

/// Why CUDA does not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// No libcuda, or not one.
    #[error("cannot use {library}")]
    Library {
        /// Its name.
        library: String,
        /// What the loader said.
        #[source]
        source: libloading::Error,
    },
    /// A function failed.
    #[error("{function} failed: {name} ({code})")]
    Call {
        /// The function.
        function: &'static str,
        /// CUDA's name of the error.
        name: String,
        /// Its number.
        code: c_int,
    },
}

impl CudaError {
    /// What to do about it. Numbers from the driver API's `cuda.h`.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Library { .. } => {
                "run it where the driver's libraries are: inside a container, inject.mode nvidia-runtime or cdi \
                 brings them in"
            }
            Self::Call { code: 805, .. } => {
                "the process does not reach the MPS server: does the container have the host's IPC namespace \
                 (docker run --ipc=host) and a grant (mpsgate status)?"
            }
            Self::Call { code: 800 | 807..=809, .. } => {
                "the MPS server refuses this process: mpsgate status and mpsgate doctor, on the host, say why"
            }
            Self::Call { code: 100 | 101, .. } => "no GPU is visible here: does the container have a grant?",
            Self::Call { .. } => "mpsgate doctor, on the host, checks the node",
        }
        .to_owned()
    }
}
