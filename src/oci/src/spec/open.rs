//! Which devices of some majors a spec's rules leave open, in one pass over the rules.
//!
//! A device is open if any runtime leaves it open. They differ in the effect of a deny rule:
//! - The kernel's cgroup v1, to which crun writes each rule, and runc's own list of them for v1 and
//!   v2 remove letters only from an earlier rule with the same numbers: `c 195:0 rw` survives a
//!   later deny of `c 195:* rwm`, and `c 195:* rwm` less `w` still reads.
//! - In the program that crun writes for v2, the last rule counts that has every letter which the
//!   open needs. So opening for reading and writing at once survives a rule that denies one of
//!   them.
//! - For runc and v1 a rule of type `a` applies to everything, whatever its numbers and letters,
//!   and replaces all rules before it; for crun on v2 its numbers and letters count.

use std::collections::HashMap;

use super::device::DeviceRule;
use super::spec_view::View;

const READ: u8 = 1;
const WRITE: u8 = 2;
const BOTH: u8 = READ | WRITE;

type Numbers = (Option<u32>, Option<u32>);

/// The character devices of some majors that a container may read or write.
#[derive(Debug, Clone)]
pub struct OpenDevices {
    majors: Vec<u32>,
    /// The rule of the list since which a rule for every device is in force.
    all: Option<usize>,
    /// How many rules were read.
    taken: usize,
    /// The effect of rules with numbers.
    some: HashMap<Numbers, Effect>,
}

/// The effect of all rules with the same numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Effect {
    /// The allowed letters.
    allowed: u8,
    /// The last rule that takes them away from a rule for every device.
    but: usize,
}

impl OpenDevices {
    /// Reads the rules in order. `before`: whether a device is open that no rule names.
    #[must_use]
    pub fn of(view: View<'_>, majors: impl IntoIterator<Item = u32>, before: bool) -> Self {
        let mut open = Self {
            majors: majors.into_iter().collect(),
            all: before.then_some(0),
            taken: 0,
            some: HashMap::new(),
        };
        view.device_rules().for_each(|rule| open.apply(&rule));
        open
    }

    fn apply(&mut self, rule: &DeviceRule<'_>) {
        self.taken += 1;
        let letters = if rule.reads() { READ } else { 0 } | if rule.writes() { WRITE } else { 0 };
        if rule.is_for_all() {
            if rule.allow {
                self.all = Some(self.taken);
            } else if rule.has_no_numbers() && letters == BOTH {
                self.all = None;
                self.some.clear();
            }
            return;
        }
        let is_asked = rule.major.is_none_or(|major| self.majors.contains(&major));
        if !rule.is_for_characters() || !is_asked || letters == 0 {
            return;
        }
        let effect = self.some.entry((rule.major, rule.minor)).or_default();
        if rule.allow {
            effect.allowed |= letters;
            return;
        }
        if letters == BOTH {
            effect.but = self.taken;
        }
        if effect.allowed & !letters == 0 {
            effect.allowed = 0;
        }
    }

    /// Whether the rule for every device holds, despite what these deny.
    fn all_but(&self, effects: &[Effect]) -> bool {
        self.all.is_some_and(|since| effects.iter().all(|effect| effect.but <= since))
    }

    fn effect(&self, numbers: Numbers) -> Effect {
        self.some.get(&numbers).copied().unwrap_or_default()
    }

    /// Whether one device is open; a device of a major that was not asked for is not.
    #[must_use]
    pub fn is_open(&self, major: u32, minor: u32) -> bool {
        let about =
            [(None, None), (None, Some(minor)), (Some(major), None), (Some(major), Some(minor))];
        let effects = about.map(|numbers| self.effect(numbers));
        self.majors.contains(&major)
            && (effects.iter().any(|effect| effect.allowed != 0) || self.all_but(&effects))
    }

    /// Whether any device of a major with a minor that counts is open.
    #[must_use]
    pub fn is_any_open(&self, major: u32, counts: impl Fn(u32) -> bool) -> bool {
        let by_all = self.all_but(&[self.effect((None, None)), self.effect((Some(major), None))]);
        let mut allowed = self.some.iter().filter(|(_, effect)| effect.allowed != 0);
        self.majors.contains(&major)
            && (by_all
                || allowed.any(|((of, minor), _)| {
                    of.is_none_or(|of| of == major) && minor.is_none_or(&counts)
                }))
    }
}

impl View<'_> {
    /// Whether the rules, taken in order, let the container read or write a character device. A
    /// minor of `None` asks for any device of the major.
    ///
    /// True if this holds for any runtime: see [`OpenDevices`].
    #[must_use]
    pub fn rules_open(&self, major: u32, minor: Option<u32>) -> bool {
        let open = OpenDevices::of(*self, [major], false);
        minor.map_or_else(|| open.is_any_open(major, |_| true), |minor| open.is_open(major, minor))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules(text: &str) -> Value {
        let rule = |line: &str| {
            let mut words = line.split_whitespace();
            let allow = words.next() == Some("allow");
            let mut rule = json!({ "allow": allow });
            let (kind, numbers) = (words.next().unwrap_or("-"), words.next().unwrap_or("*:*"));
            let access = words.next().unwrap_or("-");
            for (key, value) in [("type", kind), ("access", access)] {
                if value != "-" {
                    rule[key] = json!(value);
                }
            }
            let (major, minor) = numbers.split_once(':').unwrap_or(("*", "*"));
            for (key, value) in [("major", major), ("minor", minor)] {
                if let Ok(number) = value.parse::<i64>() {
                    rule[key] = json!(number);
                }
            }
            rule
        };
        let list: Vec<Value> = text.split(',').map(rule).collect();
        json!({ "linux": { "resources": { "devices": list } } })
    }

    #[test]
    fn open_is_what_any_runtime_leaves_open() {
        for (text, open) in [
            ("deny", false),
            ("allow", true),
            ("deny, allow c 195:* rwm", true),
            ("deny, allow c 195:1 r", true),
            ("deny, allow c 195:2 rwm", false),
            ("allow c *:1 w", true),
            ("allow c *:2 w", false),
            ("allow b 195:1 rwm", false),
            ("allow b *:* rw", false),
            ("allow c 195:* m", false),
            ("allow c *:* m", false),
            ("allow c -1:-1 rw", true),
            // Each letter counts by itself.
            ("allow c 195:* rwm, deny c 195:* w", true),
            ("allow c 195:* rwm, deny c 195:* r", true),
            ("allow c 195:* rwm, deny c 195:* rw", false),
            ("allow c 195:* rwm, deny c 195:*", false),
            ("allow c 195:* r, deny c 195:* r", false),
            ("allow c 195:* rw, deny c 195:* r, deny c 195:* w", true),
            ("allow c 195:* rwm, deny c 195:* m", true),
            // A deny rule affects only rules with the same numbers.
            ("allow c 195:1 rwm, deny c 195:* rwm", true),
            ("allow c 195:1 rwm, deny c *:* rwm", true),
            ("allow c *:* rwm, deny c 195:* rwm", true),
            ("allow c 195:* rwm, deny c 195:1 rwm", true),
            ("allow c 195:1 rwm, deny c 195:1 rwm", false),
            // Any deny rule affects a rule for everything.
            ("allow, deny c 195:* rwm", false),
            ("allow, deny c 195:1 rwm", false),
            ("allow, deny c 195:2 rwm", true),
            ("allow, deny c 195:1 w", true),
            ("allow, deny b 195:1", true),
            ("allow, deny c 195:1, allow c 195:1 r", true),
            ("allow, deny c 195:1, allow", true),
            // Type a applies to everything, and replaces what was before.
            ("allow a 1:3 r", true),
            ("allow a *:* m", true),
            ("allow - 1:3 m", true),
            ("allow c 195:1 rw, deny a", false),
            ("allow c 195:1 rw, deny a *:* w", true),
            ("allow c 195:1 rw, deny a 5:* rwm", true),
            ("allow, deny", false),
            // Numbers that no device has.
            ("allow c 4294967491:1 rw", true),
            ("allow c 195:1 rw, deny c 4294967491:1 rwm", true),
            ("allow c *:* rw, deny c 4294967491:* rwm", true),
        ] {
            let spec = rules(text);
            let view = View::new(&spec);
            assert_eq!(OpenDevices::of(view, [195], false).is_open(195, 1), open, "{text}");
            assert_eq!(view.rules_open(195, Some(1)), open, "{text}");
        }
    }

    #[test]
    fn any_device_of_a_major_may_be_asked_for() {
        for (text, any, first) in [
            ("allow c 195:7", true, false),
            ("allow c *:7", true, false),
            ("allow c 195:*", true, true),
            ("allow, deny c 195:7", true, true),
            ("allow, deny c 195:*", false, false),
            ("allow c 7:*", false, false),
        ] {
            let spec = rules(text);
            let open = OpenDevices::of(View::new(&spec), [195], false);
            assert_eq!(open.is_any_open(195, |_| true), any, "{text}");
            assert_eq!(open.is_any_open(195, |minor| minor == 0), first, "{text}");
            assert!(!open.is_any_open(7, |_| true) && !open.is_open(7, 0), "not asked for");
        }
    }

    #[test]
    fn what_no_rule_speaks_of_is_as_it_was_before() {
        let spec = rules("deny c 195:0");
        let open = OpenDevices::of(View::new(&spec), [195], true);
        assert!(!open.is_open(195, 0) && open.is_open(195, 1));
        assert!(open.is_any_open(195, |_| false), "minors that no rule names");
    }
}
