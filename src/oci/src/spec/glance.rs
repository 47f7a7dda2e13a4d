//! What a document shows at a glance, whatever its size, depth and spelling. No tree is built,
//! because every container of a node is read like this, and nearly all of them ask for nothing of
//! mpsgate.
//!
//! It shows what any runtime would read. [`places`](super::places) says how keys are read. Both
//! values of a duplicate key are shown. If the fields of one part could come from two places (Go
//! reads a duplicate list into the elements that it already has), that is shown as
//! [`Seen::Unclear`]. Otherwise it is as lenient as [`View`](super::View): a part of another type
//! than expected is absent.

use std::io::Read;

use super::device::{Device, DeviceRule, Number, device_of, rule_of};
use super::error::SpecError;
use super::json_stream::{Scalar, Text};
use super::layers::Layers;
use super::mount_entry::Shows;
use super::places::{Key, Place, is};
use super::spec_view::Mount;

#[cfg(test)]
mod tests;

/// One thing in a document that can matter to a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<'a> {
    /// Name of an annotation.
    Annotation(&'a str),
    /// Name of a variable of `process.env`.
    Variable(&'a str),
    /// Entry of `linux.devices`.
    Device(Device<'a>),
    /// Entry of `linux.resources.devices`.
    Rule(DeviceRule<'a>),
    /// Entry of `mounts`.
    Mount(Mount<'a>),
    /// A directory of the host that an overlay shows.
    Layer {
        /// The directory, as the options of the mount have it.
        path: &'a str,
        /// Path inside the container.
        destination: &'a str,
    },
    /// `root.path`, which runtimes bind with all mounts below it.
    Root(&'a str),
    /// A procfs in which, as far as can be seen, nothing covers `/proc/sys` or `/proc/bus` or makes
    /// it read-only.
    OpenProcSys,
    /// A device, rule or mount that runtimes may read differently.
    Unclear,
    /// The list of rules, or an object above it, is there twice or in another spelling: a runtime
    /// may read another list, or none.
    OtherRules,
}

/// Engines make these read-only in a procfs, because writing them reaches the whole host.
const CLOSED: [&str; 2] = ["/proc/sys", "/proc/bus"];
/// The longest name of an annotation or variable that is shown whole, in bytes. No known name is
/// near it.
const NAME: usize = 4 << 10;
/// The longest text of a device, rule or mount, in bytes. A path has 4 KiB at most.
const TEXT: usize = 64 << 10;
const NUMBER: usize = 32;

/// Reads the document once and shows each part that can matter, in the document's order.
///
/// # Errors
/// If the bytes are no JSON object, so that no runtime makes a container of them, or cannot be
/// read. The caller must then ignore what was shown.
pub fn glance(from: &mut dyn Read, see: &mut dyn FnMut(Seen<'_>)) -> Result<(), SpecError> {
    let (lists, to_rules) = ([0; 3], [false; 3]);
    let (has_procfs, has_another, is_closed) = (false, false, [false; CLOSED.len()]);
    let text = Text::new(from);
    let mut walk = Walk { text, see, lists, to_rules, has_procfs, has_another, is_closed };
    match walk.text.look()? {
        None => return Err(SpecError::Empty),
        Some(b'{') => {
            walk.members(Place::Root)?;
            if walk.has_another || (walk.has_procfs && walk.is_closed.contains(&false)) {
                (walk.see)(Seen::OpenProcSys);
            }
        }
        Some(first) => {
            walk.text.skip()?;
            return Err(SpecError::NotAnObject { found: type_by(first) });
        }
    }
    walk.text.ends_here()
}

fn type_by(first: u8) -> &'static str {
    match first {
        b'[' => "a list",
        b'"' => "text",
        b'n' => "null",
        b't' | b'f' => "true or false",
        _ => "a number",
    }
}

struct Walk<'r, 's> {
    text: Text<'r>,
    see: &'s mut dyn FnMut(Seen<'_>),
    /// How many lists of devices, rules and mounts have begun.
    lists: [u32; 3],
    /// Which parts on the way to the rules have been seen: `linux`, its `resources`, their
    /// `devices`.
    to_rules: [bool; 3],
    /// Whether a procfs at `/proc` has been seen.
    has_procfs: bool,
    /// Whether a procfs at another place has been seen.
    has_another: bool,
    /// Which paths of [`CLOSED`] are covered or read-only.
    is_closed: [bool; CLOSED.len()],
}

impl Walk<'_, '_> {
    fn members(&mut self, place: Place) -> Result<(), SpecError> {
        self.text.expect(b'{')?;
        let mut first = true;
        while self.text.follows(b'}', &mut first)? {
            self.text.key(NAME)?;
            let key = self.text.kept();
            if place == Place::Annotations {
                // crun looks for its names among C strings.
                (self.see)(Seen::Annotation(key.split('\0').next().unwrap_or_default()));
                self.text.skip()?;
                continue;
            }
            let known = place.key(key);
            let below = known.place();
            let on_the_way = [Place::Linux, Place::Resources, Place::Rules];
            if let Some(at) = on_the_way.iter().position(|part| *part == below) {
                let met = self.to_rules.get_mut(at).is_some_and(|met| std::mem::replace(met, true));
                if met || !matches!(known, Key::Known(_)) {
                    (self.see)(Seen::OtherRules);
                }
            }
            match (below, self.text.look()?) {
                (
                    Place::Annotations | Place::Process | Place::Linux | Place::Resources,
                    Some(b'{'),
                ) => self.members(below)?,
                (Place::RootFs, Some(b'{')) => self.root()?,
                (Place::Env, Some(b'[')) => self.variables()?,
                (Place::Closed, Some(b'[')) if matches!(known, Key::Known(_)) => self.closed()?,
                (Place::Devices, Some(b'[')) => self.entries(below, 0)?,
                (Place::Rules, Some(b'[')) => self.entries(below, 1)?,
                (Place::Mounts, Some(b'[')) => self.entries(below, 2)?,
                _ => self.text.skip()?,
            }
        }
        Ok(())
    }

    fn root(&mut self) -> Result<(), SpecError> {
        self.text.expect(b'{')?;
        let mut first = true;
        while self.text.follows(b'}', &mut first)? {
            self.text.key(NUMBER)?;
            if !is(self.text.kept(), "path") {
                self.text.skip()?;
            } else if self.text.scalar(TEXT)? == Scalar::Text {
                if self.text.kept().contains('\0') {
                    (self.see)(Seen::Unclear);
                }
                (self.see)(Seen::Root(self.text.kept()));
            }
        }
        Ok(())
    }

    fn variables(&mut self) -> Result<(), SpecError> {
        self.text.expect(b'[')?;
        let mut first = true;
        while self.text.follows(b']', &mut first)? {
            if self.text.scalar(NAME)? == Scalar::Text {
                let entry = self.text.kept();
                (self.see)(Seen::Variable(entry.split(['=', '\0']).next().unwrap_or_default()));
            }
        }
        Ok(())
    }

    fn closed(&mut self) -> Result<(), SpecError> {
        self.text.expect(b'[')?;
        let mut first = true;
        while self.text.follows(b']', &mut first)? {
            if self.text.scalar(NAME)? == Scalar::Text {
                let path = self.text.kept();
                for (is_closed, place) in self.is_closed.iter_mut().zip(CLOSED) {
                    *is_closed |= path == place || path == "/proc";
                }
            }
        }
        Ok(())
    }

    fn entries(&mut self, place: Place, list: usize) -> Result<(), SpecError> {
        let again = self.lists.get(list).is_some_and(|lists| *lists > 0);
        if let Some(lists) = self.lists.get_mut(list) {
            *lists += 1;
        }
        self.text.expect(b'[')?;
        let mut first = true;
        while self.text.follows(b']', &mut first)? {
            if self.text.look()? != Some(b'{') {
                self.text.skip()?;
                continue;
            }
            let entry = Entry::read(&mut self.text)?;
            if place == Place::Mounts && entry.is_procfs() {
                let is_usual = entry.destination.as_deref() == Some("/proc");
                self.has_procfs |= is_usual;
                self.has_another |= !is_usual;
            }
            let mut unclear = entry.unclear || (again && entry.has_gaps(place));
            if place == Place::Rules && (entry.unclear || entry.is_spelled) {
                if !(entry.may_allow || (again && entry.allow.is_none())) {
                    // It denies to every process, and what it denies is not clear: it is ignored.
                    continue;
                }
                // A reader that knows one spelling alone reads less of it, and so a wider rule.
                unclear = true;
            }
            if unclear {
                (self.see)(Seen::Unclear);
            }
            if let Some(seen) = entry.seen(place, again) {
                (self.see)(seen);
            }
            if place == Place::Mounts && (again || entry.shows() == Shows::Layers) {
                let destination = entry.destination.as_deref().unwrap_or_default();
                let paths = entry.options.iter().flat_map(|option| Layers::of(option).paths);
                paths.for_each(|path| (self.see)(Seen::Layer { path: &path, destination }));
            }
        }
        Ok(())
    }
}

/// The fields of devices, rules and mounts together.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "facts of which none follows from another")]
struct Entry {
    path: Option<String>,
    kind: Option<String>,
    access: Option<String>,
    source: Option<String>,
    destination: Option<String>,
    major: Number,
    minor: Number,
    allow: Option<bool>,
    bind: bool,
    /// The options of a mount that may name a layer.
    options: Vec<String>,
    /// Whether a field is there twice with different values, or runtimes read it differently.
    unclear: bool,
    /// Whether a field is in another spelling.
    is_spelled: bool,
    /// Whether some `allow` is true.
    may_allow: bool,
}

const FIELDS: [&str; 9] =
    ["destination", "type", "source", "options", "allow", "major", "minor", "access", "path"];

impl Entry {
    fn read(text: &mut Text<'_>) -> Result<Self, SpecError> {
        let mut entry = Self::default();
        let mut given = [false; FIELDS.len()];
        text.expect(b'{')?;
        let mut first = true;
        while text.follows(b'}', &mut first)? {
            text.key(NUMBER)?;
            let key = text.kept();
            let Some(at) = FIELDS.iter().position(|name| name.len() <= key.len() && is(key, name))
            else {
                text.skip()?;
                continue;
            };
            entry.is_spelled |= FIELDS.get(at) != Some(&key);
            let again = given.get_mut(at).is_some_and(|given| std::mem::replace(given, true));
            entry.field(at, again, text)?;
        }
        Ok(entry)
    }

    fn field(&mut self, at: usize, again: bool, text: &mut Text<'_>) -> Result<(), SpecError> {
        match at {
            3 => self.options(text)?,
            4 => {
                let allow = match text.scalar(0)? {
                    Scalar::Bool(allow) => Some(allow),
                    _ => None,
                };
                self.unclear |= again && self.allow != allow;
                self.may_allow |= allow == Some(true);
                self.allow = allow;
            }
            5 | 6 => {
                let number = match text.scalar(NUMBER)? {
                    Scalar::Null => Number::Absent,
                    // `-0`, which other readers take for a fraction.
                    Scalar::Number if text.kept().starts_with("-0") => Number::Odd,
                    Scalar::Number => text.kept().parse().map_or(Number::Odd, Number::Is),
                    _ => Number::Odd,
                };
                let slot = if at == 5 { &mut self.major } else { &mut self.minor };
                self.unclear |= again && *slot != number;
                *slot = number;
            }
            _ => {
                let value = match text.scalar(TEXT)? {
                    Scalar::Text => Some(text.kept().to_owned()),
                    _ => None,
                };
                self.unclear |= value.as_ref().is_some_and(|v| text.is_cut || v.contains('\0'));
                let slot = match at {
                    0 => &mut self.destination,
                    1 => &mut self.kind,
                    2 => &mut self.source,
                    7 => &mut self.access,
                    _ => &mut self.path,
                };
                self.unclear |= again && *slot != value;
                *slot = value;
            }
        }
        Ok(())
    }

    /// Whether a field is missing that runc would take from an earlier list's entry. Such a rule is
    /// read as the widest one that it could become.
    fn has_gaps(&self, place: Place) -> bool {
        match place {
            Place::Devices => {
                let absent = Number::Absent;
                self.path.is_none()
                    || self.kind.is_none()
                    || self.major == absent
                    || self.minor == absent
            }
            Place::Mounts => self.source.is_none() || self.destination.is_none(),
            _ => false,
        }
    }

    fn seen(&self, place: Place, again: bool) -> Option<Seen<'_>> {
        let kind = self.kind.as_deref();
        Some(match place {
            Place::Devices => {
                Seen::Device(device_of(self.path.as_deref()?, kind?, self.major, self.minor))
            }
            Place::Rules => Seen::Rule(rule_of(
                self.allow.or_else(|| again.then_some(true))?,
                kind.unwrap_or_default(),
                (self.major, self.minor),
                self.access.as_deref().unwrap_or_default(),
            )?),
            _ => Seen::Mount(Mount {
                destination: self.destination.as_deref().unwrap_or_default(),
                source: self.source.as_deref().unwrap_or_default(),
                shows: if again { Shows::Source } else { self.shows() },
            }),
        })
    }

    /// Whether the mount is a procfs of its own.
    fn is_procfs(&self) -> bool {
        !self.bind && self.kind.as_deref() == Some("proc")
    }

    /// What a mount shows.
    fn shows(&self) -> Shows {
        let is_open = self.options.iter().any(|option| Layers::of(option).is_open);
        Shows::of(self.kind.as_deref().unwrap_or_default(), self.bind, is_open)
    }

    /// Reads the options of a mount that are about its source and its layers.
    fn options(&mut self, text: &mut Text<'_>) -> Result<(), SpecError> {
        if text.look()? != Some(b'[') {
            return text.skip();
        }
        text.expect(b'[')?;
        let mut first = true;
        while text.follows(b']', &mut first)? {
            if text.scalar(TEXT)? != Scalar::Text {
                continue;
            }
            self.unclear |= text.is_cut;
            // crun's strings end at a NUL.
            let option = text.kept().split('\0').next().unwrap_or_default();
            self.bind |= matches!(option, "bind" | "rbind");
            // Every option that names a layer contains this. A backslash at the end joins the next
            // option.
            if option.contains("dir") || option.ends_with('\\') {
                self.options.push(option.to_owned());
            }
        }
        Ok(())
    }
}
