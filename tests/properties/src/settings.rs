//! The settings file.

use std::path::Path;

use mpsgate_config::{Config, ConfigError, runtime_path_hint};

use crate::text;

/// Settings are read, or the error names the file, a line that exists and what to do. A readable
/// file gives the runtime that it names to pass-through as well; a broken one gives a name or an
/// absolute path.
pub(crate) fn settings(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let file = Path::new("/etc/mpsgate/config.toml");
    let hint = runtime_path_hint(text);
    if let Some(path) = &hint {
        let is_plain = !path.contains('/') && path != "." && path != "..";
        assert!(!path.is_empty() && !path.contains('\0'));
        assert!(path.starts_with('/') || is_plain, "{path:?} depends on the working directory");
    }
    match Config::parse(text, file) {
        Ok(config) => {
            let expected = hint.unwrap_or_else(|| "runc".to_owned());
            assert_eq!(config.runtime.path, Path::new(&expected));
        }
        Err(error) => {
            assert!(!error.hint().is_empty());
            assert!(error.to_string().starts_with("/etc/mpsgate/config.toml:"), "{error}");
            let line = match error {
                ConfigError::Syntax { line, .. }
                | ConfigError::UnknownKey { line, .. }
                | ConfigError::GoneKey { line, .. }
                | ConfigError::BadValue { line, .. }
                | ConfigError::MissingKey { line, .. } => line,
                other => panic!("{other} from text"),
            };
            let lines = text.split('\n').count();
            assert!((1..=lines).contains(&line), "line {line} of {lines}");
        }
    }
}
