//! The settings, as whoever decides about a container reads them.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use mpsgate_config::{Config, ConfigError, paths};

/// The settings of this node. Unlike [`Config::load`] it waits: a container that has the file by a
/// bind can take a lease on it (fcntl(2)), and meanwhile the defaults would decide on others. The
/// kernel ends a lease after `fs.lease-break-time` (45 s).
pub(crate) fn load() -> Result<Config, ConfigError> {
    load_file(Path::new(paths::CONFIG_FILE))
}

fn load_file(file: &Path) -> Result<Config, ConfigError> {
    match Config::load(file) {
        Err(ConfigError::Read { source, .. }) if source.kind() == ErrorKind::WouldBlock => {
            // Nobody gets another lease while it is open.
            let _open = File::open(file);
            Config::load(file)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use mpsgate_testing::{can_be_leased, leased, wait_for};

    use super::*;

    #[test]
    fn settings_on_which_somebody_has_a_lease_are_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        let text = "[policy]\nprivileged = \"close\"\n";
        write(&file, text).unwrap();
        set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        wait_for("it can be leased", || can_be_leased(&file));
        let _lease = leased(&file, 3);
        assert!(Config::load(&file).is_err());
        assert_eq!(load_file(&file).unwrap(), Config::parse(text, &file).unwrap());
    }
}
