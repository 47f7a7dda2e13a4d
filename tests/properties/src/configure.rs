//! The settings of engines.

use std::io;
use std::path::{Path, PathBuf};

use mpsgate_configure::{
    ConfigureError, Options, Plan, Source, Version, containerd, crio, docker, podman,
};

use crate::text;

/// One file, which is all that there is.
struct One<'a>(&'a Path, &'a str);

impl Source for One<'_> {
    fn read(&self, path: &Path) -> io::Result<Option<String>> {
        Ok((path == self.0).then(|| self.1.to_owned()))
    }

    fn list(&self, directory: &Path) -> Vec<PathBuf> {
        Some(self.0.to_owned())
            .filter(|path| path.parent() == Some(directory))
            .into_iter()
            .collect()
    }

    fn walk(&self, directory: &Path) -> Result<Vec<PathBuf>, ConfigureError> {
        Ok(self.list(directory))
    }

    fn has_program(&self, _: &str) -> bool {
        true
    }
}

/// Settings of whichever engine are planned for, or the error names the file and what to do. What a
/// plan would write needs no second plan, and a check of it does not fail.
pub(crate) fn engine_settings(data: &[u8]) {
    let Some(text) = text(data) else { return };
    for engine in [None, Some(Version(2, 1))] {
        let options = Options {
            name: "mpsgate".to_owned(),
            shim: "/usr/bin/mpsgate-runtime".to_owned(),
            runtime: "runc".to_owned(),
            keep_default: false,
            all_handlers: true,
            engine,
            before: None,
        };
        settle(
            containerd::PATH,
            text,
            |source, path| containerd::plan(source, path, &options),
            |source, path| containerd::check(source, path, &options).map(drop),
        );
        settle(
            docker::PATH,
            text,
            |source, path| docker::plan(source, path, &options, &[]),
            |source, path| docker::check(source, path, &options).map(drop),
        );
        settle(
            podman::PATH,
            text,
            |source, path| podman::plan(source, path, &options, None),
            |source, path| podman::check(source, path, &options).map(drop),
        );
        settle(
            crio::PATH,
            text,
            |source, path| crio::plan(source, path, &options, &crio::Flags::default()),
            |source, path| crio::check(source, path, &options, &crio::Flags::default()).map(drop),
        );
        settle(
            "/x/config-v3.toml.tmpl",
            text,
            |source, path| containerd::plan(source, path, &options),
            |_, _| Ok(()),
        );
    }
}

fn settle(
    path: &str,
    text: &str,
    plan: impl Fn(&dyn Source, &Path) -> Result<Plan, ConfigureError>,
    check: impl Fn(&dyn Source, &Path) -> Result<(), ConfigureError>,
) {
    let path = Path::new(path);
    let changes = match plan(&One(path, text), path) {
        Ok(plan) => plan.changes,
        Err(error) => {
            assert!(!error.hint().is_empty());
            if let ConfigureError::Syntax { line, column, .. } = error {
                assert!(
                    (1..=text.matches('\n').count() + 2).contains(&line) && column > 0,
                    "{line}:{column} of {text:?}"
                );
            }
            return;
        }
    };
    // A drop-in beside the file is another test's.
    let [change] = changes.as_slice() else { return };
    if change.path == path {
        let again = plan(&One(path, &change.after), path).unwrap();
        assert_eq!(again.changes, [], "a second call changes something");
        check(&One(path, &change.after), path).unwrap();
    }
}
