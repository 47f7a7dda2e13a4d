//! The settings in force. They change while the daemon runs ([`reload`](crate::reload_settings)),
//! so nobody keeps a copy: what one decision needs is taken from one look.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use mpsgate_config::{Change, Config};

/// The settings, and the file that they came from.
#[derive(Debug)]
pub(crate) struct Settings {
    now: RwLock<Arc<Config>>,
    /// What a reload reads; `None` in tests that have none.
    pub(crate) file: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn new(config: Config, file: Option<PathBuf>) -> Self {
        Self { now: RwLock::new(Arc::new(config)), file }
    }

    /// As they are now.
    pub(crate) fn now(&self) -> Arc<Config> {
        // Replaced whole: a panic elsewhere has broken nothing.
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes what can be taken while the daemon runs, and names all that differs.
    pub(crate) fn adopt(&self, new: &Config) -> Vec<Change> {
        let mut slot = self.now.write().unwrap_or_else(PoisonError::into_inner);
        let mut config = Config::clone(&slot);
        let changes = config.adopt(new);
        *slot = Arc::new(config);
        changes
    }
}
