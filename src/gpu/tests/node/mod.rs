//! A simulated NVML library of its own per test.

use std::fs;
use std::path::PathBuf;

use mpsgate_gpu::{GpuError, Nvml};
use serde_json::Value;

/// The node has the example's two cards unless a test edits them.
pub(crate) struct Node {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) library: PathBuf,
}

impl Node {
    pub(crate) fn new(edit: impl FnOnce(&mut Value)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut state = serde_json::from_str(fake_nvml::EXAMPLE).unwrap();
        edit(&mut state);
        let library = fake_nvml::install(directory.path(), &state.to_string()).unwrap();
        Self { directory, library }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("nvml.json")
    }

    pub(crate) fn state(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.file()).unwrap()).unwrap()
    }

    pub(crate) fn load(&self) -> Result<Nvml, GpuError> {
        Nvml::load(&self.library)
    }
}
