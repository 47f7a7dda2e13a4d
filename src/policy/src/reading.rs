//! From bytes to what can be decided: the one way by which the runtime, the hooks and `explain`
//! read a document.
//!
//! ```text
//!   glance ── no JSON object ─► error: no runtime makes a container of it
//!      │ nothing matters, no mount of ours ─► Nothing: as it is
//!      │
//!    parse ── every runtime reads it alike ─► Clean ─► decide
//!      └───── too large, too deep, a key twice … ─► Unclean ─► decide_unclean
//! ```

use std::io::Read;

use mpsgate_config::{Policy, Unallocated};
use mpsgate_model::printable::chain;
use mpsgate_model::{Code, Refusal, is_claim_env, is_request_annotation, is_request_env};
use mpsgate_oci::spec::{self, Document, Mount, Seen, Shows, SpecError};

use crate::{Decision, Held, MountFact, MountKind, Node, Note, NoteAction, ToolkitNames, Verdict};

/// Largest document that is parsed, in bytes. runc's own tests stay below 100 KiB; a Kubernetes
/// pod's annotations add 256 KiB at most. A larger one is read in pieces.
pub const DOCUMENT_MAX: u64 = 16 << 20;
/// Where the root file system is bound.
pub const ROOT: &str = "/";
/// Bytes of bind mounts that are remembered of one document.
const BINDS_MAX: usize = 32 << 20;

/// The bytes of a document.
pub enum Bytes<'a> {
    /// All of them.
    Whole(&'a [u8]),
    /// In pieces, where there are more than [`DOCUMENT_MAX`].
    Pieces(&'a mut dyn Read),
}

/// What one look over a document showed.
#[derive(Debug, Default)]
pub struct Glimpse {
    /// The first thing that may matter, in words.
    found: Option<String>,
    asks_by_annotation: bool,
    asks_by_env: bool,
    asks_by_claim: bool,
    binds: Vec<(String, String)>,
    size_of_binds: usize,
    denies_all: bool,
    has_other_rules: bool,
    /// It is to be noted, and refuses nobody whose document cannot be evaluated.
    opens_proc_sys: bool,
}

impl Glimpse {
    fn of(bytes: Bytes<'_>, names: &ToolkitNames) -> Result<Self, SpecError> {
        let mut glimpse = Self::default();
        let mut see = |seen: Seen<'_>| glimpse.see(&seen, names);
        match bytes {
            Bytes::Whole(mut bytes) => spec::glance(&mut bytes, &mut see),
            Bytes::Pieces(from) => spec::glance(from, &mut see),
        }?;
        Ok(glimpse)
    }

    fn see(&mut self, seen: &Seen<'_>, names: &ToolkitNames) {
        if self.found.is_none() && (crate::may_matter(seen) || names.have(seen)) {
            self.found = Some(words(seen));
        }
        match seen {
            Seen::Annotation(name) => self.asks_by_annotation |= is_request_annotation(name),
            Seen::Variable(name) => {
                self.asks_by_env |= is_request_env(name);
                self.asks_by_claim |= is_claim_env(name);
            }
            Seen::Rule(rule) => self.denies_all |= rule.denies_all(),
            Seen::OtherRules => self.has_other_rules = true,
            Seen::OpenProcSys => self.opens_proc_sys = true,
            Seen::Mount(mount) if mount.is_bind() => self.bind(mount.source, mount.destination),
            Seen::Layer { path, destination } => self.bind(path, destination),
            Seen::Root(path) => self.bind(path, ROOT),
            _ => {}
        }
    }

    fn bind(&mut self, source: &str, destination: &str) {
        if source.is_empty() {
            return;
        }
        self.size_of_binds += source.len() + destination.len();
        if self.size_of_binds < BINDS_MAX {
            self.binds.push((source.to_owned(), destination.to_owned()));
        } else {
            self.found.get_or_insert_with(|| "more bind mounts than can be looked at".to_owned());
        }
    }

    /// Whether a device rule denies everything, as engines begin, in the one list that every
    /// runtime reads. Where none does, it is the runtime's what is open.
    #[must_use]
    pub fn denies_all(&self) -> bool {
        self.denies_all && !self.has_other_rules
    }

    /// Its bind mounts, and each layer of an overlay as one; that of its root has the destination
    /// [`ROOT`].
    pub fn binds(&self) -> impl Iterator<Item = Mount<'_>> {
        let binds = self.binds.iter();
        binds.map(|(source, destination)| Mount { source, destination, shows: Shows::Source })
    }
}

/// What was found, for a sentence.
fn words(seen: &Seen<'_>) -> String {
    match seen {
        Seen::Annotation(name) => format!("the annotation {name}"),
        Seen::Variable(name) => format!("the variable {name}"),
        Seen::Device(d) => format!("the device {} ({}:{})", d.path, d.major, d.minor),
        Seen::Rule(r) => {
            let or_all = |n: Option<u32>| n.map_or_else(|| "*".to_owned(), |n| n.to_string());
            let kind = if r.kind.is_empty() { "a" } else { r.kind };
            format!("the device rule {kind} {}:{}", or_all(r.major), or_all(r.minor))
        }
        Seen::Mount(m) => format!("the mount of {} at {}", m.source, m.destination),
        Seen::Layer { path, destination } => format!("the layer {path} at {destination}"),
        Seen::Root(path) => format!("the root {path}"),
        Seen::OpenProcSys => "a procfs that is not closed".to_owned(),
        Seen::Unclear | Seen::OtherRules => {
            "a device, rule or mount that runtimes read differently".to_owned()
        }
    }
}

/// A document that not every runtime reads alike, and what it shows.
#[derive(Debug)]
pub struct Unclean {
    why: SpecError,
    glimpse: Glimpse,
    mounts: Vec<MountFact>,
    /// The runtime leaves devices open to it that no rule is about.
    is_open: bool,
}

/// What was read.
#[derive(Debug)]
pub enum Reading {
    /// Nothing of ours and no signal.
    Nothing,
    /// A document to be decided about.
    Clean(Box<Document>),
    /// One that can only be let through or refused.
    Unclean(Box<Unclean>),
}

/// What is known of the node about a document that was looked over.
#[derive(Debug, Default)]
pub struct Facts {
    /// Its mounts that touch our directories.
    pub mounts: Vec<MountFact>,
    /// The runtime leaves devices open to it that no rule is about, so that it matters whatever it
    /// shows.
    pub is_open: bool,
}

/// Reads a document, whatever its size, depth and spelling. `names`: what the toolkit's settings
/// add.
///
/// # Errors
/// Where no runtime makes a container of it, or it cannot be read.
pub fn read(
    bytes: Bytes<'_>,
    names: &ToolkitNames,
    facts: impl FnOnce(&Glimpse) -> Facts,
) -> Result<Reading, SpecError> {
    let whole = if let Bytes::Whole(bytes) = &bytes { Some(*bytes) } else { None };
    let glimpse = Glimpse::of(bytes, names)?;
    let Facts { mounts, is_open } = facts(&glimpse);
    let shows_nothing = glimpse.found.is_none() && !glimpse.opens_proc_sys;
    if shows_nothing && mounts.is_empty() && !is_open {
        return Ok(Reading::Nothing);
    }
    let parsed = match whole.filter(|bytes| bytes.len() as u64 <= DOCUMENT_MAX) {
        Some(bytes) => spec::parse(bytes),
        None => Err(SpecError::TooLarge { limit: DOCUMENT_MAX }),
    };
    Ok(match parsed {
        Ok(document) => Reading::Clean(Box::new(document)),
        Err(why) => Reading::Unclean(Box::new(Unclean { why, glimpse, mounts, is_open })),
    })
}

impl Decision {
    /// About a container that shows nothing.
    #[must_use]
    pub fn pass() -> Self {
        Self { verdict: Verdict::Pass, signals: Vec::new(), notes: Vec::new(), held: Held::Nothing }
    }
}

impl Unclean {
    /// Whether it asks for GPU memory.
    #[must_use]
    pub fn asks(&self, from_env: bool) -> bool {
        let Glimpse { asks_by_annotation, asks_by_env, asks_by_claim, .. } = self.glimpse;
        asks_by_annotation || asks_by_claim || (from_env && asks_by_env)
    }

    /// Refuses one that asks: of an engine that is not root's nothing else is refused.
    ///
    /// # Errors
    /// The refusal.
    pub fn asked(&self, from_env: bool) -> Result<(), Refusal> {
        match self.found().filter(|_| self.asks(from_env)) {
            Some(found) => Err(self.refusal(&found)),
            None => Ok(()),
        }
    }

    fn found(&self) -> Option<String> {
        let ours = self.mounts.iter().find(|mount| mount.kind == MountKind::Ours);
        let ours = ours.map(|mount| format!("a mount of {}, which is mpsgate's own", mount.source));
        let open = || "no rule that closes what the runtime leaves open".to_owned();
        ours.or_else(|| self.glimpse.found.clone()).or_else(|| self.is_open.then(open))
    }

    fn refusal(&self, found: &str) -> Refusal {
        let why = chain(&self.why);
        Refusal::new(
            Code::Bundle,
            format!("its config.json shows {found} and cannot be evaluated: {why}"),
            "recreate the container; if an engine wrote this file, report it to the engine's maintainers",
        )
    }
}

/// Decides about a document that not every runtime reads alike: it cannot be edited, so whatever
/// [`may_matter`](crate::may_matter) says of it refuses it.
#[must_use]
pub fn decide_unclean(unclean: &Unclean, node: &Node, policy: &Policy, from_env: bool) -> Decision {
    let decision = |verdict, notes| Decision { verdict, notes, ..Decision::pass() };
    let Some(found) = unclean.found() else { return Decision::pass() };
    let refusal = unclean.refusal(&found);
    if unclean.asks(from_env) {
        return decision(Verdict::Refuse(refusal), Vec::new());
    }
    if node.manages_nothing() {
        return Decision::pass();
    }
    if policy.unallocated == Unallocated::Warn {
        let text = format!("{}; let through by policy.unallocated = \"warn\"", refusal.sentence);
        return decision(Verdict::Pass, vec![Note::new(NoteAction::Warned, Code::Bundle, text)]);
    }
    decision(Verdict::Refuse(refusal), Vec::new())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, clippy::unwrap_used, reason = "test code fails by panicking")]
    use super::*;
    use crate::Cards;

    const RULE: &str =
        r#""linux":{"resources":{"devices":[{"allow":true,"type":"c","major":195}]}}"#;
    const TWICE: &str = r#""x":1,"x":2"#;

    fn reading(members: &[&str], facts: Facts) -> Reading {
        let text = format!("{{{}}}", members.join(","));
        read(Bytes::Whole(text.as_bytes()), &ToolkitNames::default(), |_| facts).unwrap()
    }

    fn unclean(members: &[&str], facts: Facts) -> Unclean {
        match reading(members, facts) {
            Reading::Unclean(unclean) => *unclean,
            other => panic!("{other:?}"),
        }
    }

    fn mount(kind: MountKind) -> Facts {
        let (source, destination) = ("/run/mpsgate".to_owned(), "/x".to_owned());
        Facts { mounts: vec![MountFact { source, destination, kind }], ..Facts::default() }
    }

    #[test]
    fn a_document_is_nothing_clean_or_unclean() {
        let is = |members: &[&str]| match reading(members, Facts::default()) {
            Reading::Nothing => "nothing",
            Reading::Clean(_) => "clean",
            Reading::Unclean(_) => "unclean",
        };
        let names = ToolkitNames::default();
        assert_eq!(is(&[]), "nothing");
        assert_eq!(is(&[TWICE]), "nothing");
        assert_eq!(is(&[RULE]), "clean");
        let procfs = r#""mounts":[{"destination":"/proc","type":"proc"}]"#;
        assert_eq!(is(&[procfs]), "clean", "its /proc/sys is open");
        for (linux, reading) in [
            (r#"{"readonlyPaths":["/proc/bus"],"maskedPaths":["/proc/sys"]}"#, "nothing"),
            (r#"{"maskedPaths":["/proc"]}"#, "nothing"),
            (r#"{"readonlyPaths":["/proc/sys","/proc/bus/pci"]}"#, "clean"),
            (r#"{"readonlyPaths":["/proc/bus","/proc/sys/fs"]}"#, "clean"),
        ] {
            assert_eq!(is(&[procfs, &format!("\"linux\":{linux}")]), reading, "{linux}");
        }
        assert_eq!(is(&[RULE, TWICE]), "unclean");
        assert_eq!(is(&[RULE, r#""Hooks":{}"#]), "unclean");
        assert!(matches!(reading(&[], mount(MountKind::Ours)), Reading::Clean(_)));
        for broken in ["", "[]", "{} {}", "{"] {
            let read = read(Bytes::Whole(broken.as_bytes()), &names, |_| Facts::default());
            assert!(read.is_err());
        }
        let long = format!("{{{RULE}}}");
        let in_pieces = read(Bytes::Pieces(&mut long.as_bytes()), &names, |_| Facts::default());
        assert!(
            matches!(in_pieces, Ok(Reading::Unclean(_))),
            "what is not in memory is not parsed"
        );
    }

    #[test]
    fn what_the_toolkits_settings_name_is_a_signal_and_its_like_is_not() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let names = ToolkitNames::of(&Node {
            swarm_resources: words(&["DOCKER_RESOURCE_GPU", "MY_GPUS"]),
            annotation_prefixes: words(&["cdi.k8s.io/", "example.com/"]),
            ..Node::unknown()
        });
        let is_seen = |text: &str| {
            let read = read(Bytes::Whole(text.as_bytes()), &names, |_| Facts::default());
            !matches!(read.unwrap(), Reading::Nothing)
        };
        assert!(is_seen(r#"{"process":{"env":["MY_GPUS=0"]}}"#));
        assert!(is_seen(r#"{"annotations":{"example.com/x":"0"}}"#));
        assert!(!is_seen(r#"{"process":{"env":["MY_GPUS2=0"]}}"#));
        assert!(!is_seen(r#"{"annotations":{"example.org/x":"0","example.com":"0"}}"#));
        let known = Node { annotation_prefixes: words(&["cdi.k8s.io/a."]), ..Node::unknown() };
        assert!(ToolkitNames::of(&known).is_empty() && !names.is_empty());
    }

    #[test]
    fn an_unclean_document_is_refused_for_what_it_shows() {
        let managed = Node::unknown();
        let none = Node { cards: Cards::Known(Vec::new()), ..Node::unknown() };
        let policy = Policy::default();
        let warn = Policy { unallocated: Unallocated::Warn, ..Policy::default() };
        let refuses = |members: &[&str], facts: Facts, node: &Node, policy: &Policy| {
            let decision = decide_unclean(&unclean(members, facts), node, policy, true);
            assert!(policy.unallocated != Unallocated::Warn || decision.notes.len() <= 1);
            matches!(decision.verdict, Verdict::Refuse(refusal) if refusal.code == Code::Bundle)
        };
        let plain = Facts::default;
        assert!(refuses(&[RULE, TWICE], plain(), &managed, &policy));
        assert!(!refuses(&[RULE, TWICE], plain(), &none, &policy));
        assert!(!refuses(&[RULE, TWICE], plain(), &managed, &warn));
        let request = r#""annotations":{"mpsgate.io/gpu-mem":"1Gi"}"#;
        for (node, policy) in [(&managed, &policy), (&none, &policy), (&managed, &warn)] {
            assert!(
                refuses(&[request, TWICE], plain(), node, policy),
                "who asks is not let through"
            );
        }
        assert!(refuses(&[TWICE], mount(MountKind::Ours), &managed, &policy));
        assert!(!refuses(&[TWICE], mount(MountKind::Ancestor), &managed, &policy));
        let procfs = r#""mounts":[{"destination":"/proc","type":"proc"}]"#;
        assert!(!refuses(&[procfs, TWICE], plain(), &managed, &policy));
        let open = Facts { is_open: true, ..Facts::default() };
        assert!(refuses(&[TWICE], open, &managed, &policy));
    }
}
