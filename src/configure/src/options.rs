//! What the operator wants, and what it says of a handler and its program.

use std::collections::BTreeMap;

use crate::ConfigureError;

/// What the operator wants.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Name of our handler (containerd, CRI-O) or runtime (Docker, Podman).
    pub name: String,
    /// The program that engines shall call.
    pub shim: String,
    /// The real runtime, `runtime.path` of mpsgate's settings: all that passes mpsgate is run by
    /// it.
    pub runtime: String,
    /// Only add our handler; default and other handlers stay.
    pub keep_default: bool,
    /// Lead those handlers through mpsgate too whose program is not the real runtime.
    pub all_handlers: bool,
    /// The engine's version, where it is known.
    pub engine: Option<Version>,
    /// What the handlers ran before mpsgate wrote anything here, where that is known.
    pub before: Option<Before>,
}

/// An engine's handlers as they were before mpsgate led any of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Before {
    /// The default handler's name.
    pub default: String,
    /// The program of each handler that the settings name.
    pub programs: BTreeMap<String, String>,
}

/// Major and minor of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// The first `N.N` in what a program says of its version, as
    /// `containerd github.com/… v2.1.4 …`.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let word = word.trim_start_matches('v');
            let mut parts = word.splitn(3, '.');
            let major = parts.next()?.parse().ok()?;
            let digits = |s: &str| s.chars().take_while(char::is_ascii_digit).collect::<String>();
            Some(Self(major, digits(parts.next()?).parse().ok()?))
        })
    }
}

/// The last part of a program's path.
pub(crate) fn base(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

impl Options {
    /// For reading files where nothing is decided.
    pub(crate) fn reading() -> Self {
        Self { keep_default: true, ..Self::default() }
    }

    /// The program of a handler that was led through mpsgate and may not be any more:
    /// `runtime.path` was changed, and containers would lose what that program does.
    pub(crate) fn lost(&self, handler: &str) -> Option<&str> {
        let program = self.before.as_ref()?.programs.get(handler)?;
        (!self.is_shim(program) && !self.may_lead(program)).then_some(program)
    }

    /// Whether a handler that runs `program` may run the real runtime through mpsgate instead
    /// without that anybody asked: it is the same, or plain runc, whose place every real runtime
    /// can take.
    pub(crate) fn may_lead(&self, program: &str) -> bool {
        self.all_handlers || matches!(base(program), "" | "runc") || self.is_real(program)
    }

    pub(crate) fn is_real(&self, program: &str) -> bool {
        base(program) == base(&self.runtime)
    }

    pub(crate) fn is_shim(&self, program: &str) -> bool {
        program == self.shim || base(program) == base(&self.shim)
    }

    /// What is said of a handler that does not run mpsgate.
    pub(crate) fn bypasses(&self, handler: &str, program: &str) -> String {
        if self.may_lead(program) {
            format!("{handler}: runs {program} and bypasses mpsgate")
        } else {
            self.stays(handler, program)
        }
    }

    /// What to say of a handler that stays as it is because its program is another.
    pub(crate) fn stays(&self, handler: &str, program: &str) -> String {
        format!(
            "{handler} runs {program} and bypasses mpsgate. To change that: path = \"{program}\" below [runtime] in \
             /etc/mpsgate/config.toml (all containers then run through it), or --all-handlers (this one then runs {})",
            self.runtime
        )
    }

    /// What is noted of a handler that ran another program until now.
    pub(crate) fn ran(&self, handler: &str, program: &str) -> String {
        format!("{handler} ran {program} and now runs {} through mpsgate", self.runtime)
    }

    /// Why a default handler cannot be led through mpsgate.
    pub(crate) fn other_runtime(&self, handler: &str, program: &str) -> ConfigureError {
        ConfigureError::OtherRuntime {
            handler: handler.to_owned(),
            program: program.to_owned(),
            runtime: self.runtime.clone(),
        }
    }

    /// The default that ours stands for was fit when it was first written, and need not be now.
    pub(crate) fn check_default_before(&self) -> Result<(), ConfigureError> {
        let Some(before) = &self.before else { return Ok(()) };
        let lost = self.lost(&before.default);
        lost.map_or(Ok(()), |program| Err(self.other_runtime(&before.default, program)))
    }
}
