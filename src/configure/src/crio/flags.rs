//! CRI-O's command line and environment, as far as they decide where containers go (`crio --help`).

use std::path::Path;

use serde_json::{Map, Value};

use super::handler::{Handler, Origin};
use crate::command_line::values;

/// Names of one setting: flags, then the variable of the environment.
const CONFIG: (&[&str], &str) = (&["config", "c"], "CONTAINER_CONFIG");
const DIRECTORY: (&[&str], &str) = (&["config-dir", "d"], "CONTAINER_CONFIG_DIR");
const DEFAULT: (&[&str], &str) = (&["default-runtime"], "CONTAINER_DEFAULT_RUNTIME");
const RUNTIMES: (&[&str], &str) = (&["runtimes"], "CONTAINER_RUNTIMES");

/// What a CRI-O was started with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flags {
    config: Option<String>,
    directory: Option<String>,
    default: Option<String>,
    runtimes: Vec<String>,
}

impl Flags {
    /// `line`: the words of its command line; `environment`: its variables as `NAME=VALUE`.
    #[must_use]
    pub fn of(line: &[String], environment: &[String]) -> Self {
        let all = |(names, variable): (&[&str], &str)| -> Vec<String> {
            let given = values(line, names);
            if !given.is_empty() {
                return given;
            }
            let assigned = environment.iter().filter_map(|pair| pair.split_once('='));
            assigned
                .filter(|(name, value)| *name == variable && !value.is_empty())
                .map(|(_, value)| value.to_owned())
                .collect()
        };
        let last = |setting| all(setting).pop();
        Self {
            config: last(CONFIG),
            directory: last(DIRECTORY).filter(|directory| !directory.is_empty()),
            default: last(DEFAULT),
            runtimes: all(RUNTIMES)
                .iter()
                .flat_map(|list| list.split(','))
                .map(str::to_owned)
                .collect(),
        }
    }

    /// Where its drop-ins are, if that was said.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref().map(Path::new)
    }

    /// Its main file, if that was said; empty for none.
    #[must_use]
    pub fn main(&self) -> Option<&str> {
        self.config.as_deref()
    }

    pub(super) fn default_runtime(&self) -> Option<&str> {
        self.default.as_deref()
    }

    /// Handlers, each with the flag by which it came. What has too few fields stops CRI-O, and is
    /// none.
    pub(super) fn handlers(&self) -> Vec<(Handler, String)> {
        let handler = |text: &String| {
            let mut fields = text.split(':');
            let (name, program, root) = (fields.next()?, fields.next()?, fields.next()?);
            let mut table = Map::new();
            let mut set = |key: &str, value: &str| {
                if !value.is_empty() {
                    table.insert(key.to_owned(), Value::from(value));
                }
            };
            set("runtime_path", program);
            set("runtime_root", root);
            set("runtime_type", fields.next().unwrap_or(""));
            if fields.next() == Some("true") {
                table.insert("privileged_without_host_devices".to_owned(), Value::from(true));
            }
            Some((Handler::of(name, &table, Origin::Nowhere), format!("--runtimes {text}")))
        };
        self.runtimes.iter().filter_map(handler).collect()
    }

    /// The same for another start of the program, but for where its files are.
    pub(super) fn arguments(&self) -> Vec<String> {
        let default = self.default.iter().flat_map(|name| ["--default-runtime", name]);
        let runtimes = self.runtimes.iter().flat_map(|text| ["--runtimes", text]);
        default.chain(runtimes).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_command_line_is_read_in_every_spelling_and_counts_more_than_the_environment() {
        let of = |line: &str, environment: &str| {
            let flags = Flags::of(&words(line), &words(environment));
            (
                flags.config.clone(),
                flags.directory.clone(),
                flags.default.clone(),
                flags.runtimes.join(" "),
            )
        };
        let some = |text: &str| Some(text.to_owned());
        for (line, environment, expected) in [
            ("crio", "PATH=/bin", (None, None, None, "")),
            ("crio --log-level info", "", (None, None, None, "")),
            (
                "crio -c /a --config-dir=/b --default-runtime x",
                "",
                (some("/a"), some("/b"), some("x"), ""),
            ),
            ("crio --config= -d /b", "", (some(""), some("/b"), None, "")),
            (
                "crio --runtimes a:/a:/r --runtimes b:/b:/r,c:/c:/r",
                "CONTAINER_RUNTIMES=z:/z:/z",
                (None, None, None, "a:/a:/r b:/b:/r c:/c:/r"),
            ),
            (
                "crio -default-runtime one -default-runtime=two",
                "CONTAINER_DEFAULT_RUNTIME=three CONTAINER_CONFIG_DIR=/e",
                (None, some("/e"), some("two"), ""),
            ),
            (
                "crio",
                "CONTAINER_CONFIG=/m CONTAINER_DEFAULT_RUNTIME=",
                (some("/m"), None, None, ""),
            ),
        ] {
            let expected = (expected.0, expected.1, expected.2, expected.3.to_owned());
            assert_eq!(of(line, environment), expected, "{line} {environment}");
        }
    }

    #[test]
    fn a_handler_of_the_command_line_has_its_program_root_and_type() {
        let flags = Flags::of(&words("crio --runtimes k:/k:/r:vm:true --runtimes short:/s"), &[]);
        let [(handler, flag)] = &flags.handlers()[..] else { panic!("one has enough fields") };
        assert_eq!(
            (&*handler.name, &*handler.program, &*handler.kind, &**flag),
            ("k", "/k", "vm", "--runtimes k:/k:/r:vm:true")
        );
        assert_eq!(handler.table.len(), 4);
    }
}
