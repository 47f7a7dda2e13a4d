//! Whose processes take more of a card than was granted: one look at one card becomes what is to be
//! done.
//!
//! MPS limits each process. Here the memory of all processes of a container is added up, as NVML
//! tells it, and compared with the grant.
//!
//! ```text
//!  over (grant + tolerance)?  look 1: nothing ─► look 2: end it, or report it once ─► 30 looks later: again
//!  over twice that?           look 2 comes at once
//!  of no grant, or past MPS?  look 1: nothing ─► look 2: report it once
//!  listed, and nobody's pid?  look 1: nothing ─► look 2: report it once
//! ```
//!
//! One look proves nothing: memory of a process that is just ending, and a process that is just
//! being put into its cgroup, are seen where they do not belong.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mpsgate_config::Enforce;
use mpsgate_model::ledger::ProcessId;
use mpsgate_model::printable::few;
use mpsgate_model::{GrantKey, Mib};

/// Looks in a row that have to agree.
const LOOKS: u32 = 2;
/// Looks after which a container that should have ended, and is still over, is ended again.
const AGAIN: u32 = 30;
/// Processes that a sentence names.
const NAMED: usize = 6;

/// The live grant of a container on the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Which instance of which container.
    pub key: GrantKey,
    /// What it was granted.
    pub memory: Mib,
}

/// Whose a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// Of the container with this grant, in whose cgroup it is or was.
    Grant(GrantKey),
    /// An MPS server of the card: what it holds is nobody's.
    Server,
    /// In no container with a grant on this card.
    Nobody,
}

impl Whose {
    /// The grant, where it is one's.
    #[must_use]
    pub fn grant(&self) -> Option<&GrantKey> {
        match self {
            Self::Grant(key) => Some(key),
            Self::Server | Self::Nobody => None,
        }
    }
}

/// How it reached the card, as NVML lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only graphics: not looked at, but its memory counts where it has a grant.
    Graphics,
    /// A compute context past MPS.
    Compute,
    /// A client of an MPS server.
    Client,
}

/// A process with a context on the card. It may have ended: see [`holders`](crate::holders).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Pid and start time: another process with its pid later is another one.
    pub process: ProcessId,
    /// Bytes of device memory; `None` where the driver does not tell.
    pub used: Option<u64>,
    /// How it reached the card.
    pub kind: Kind,
    /// Whose it is.
    pub whose: Whose,
}

/// What NVML lists under a pid that nobody can name: its process has ended or cannot be seen, and
/// no door and no earlier look of a living grant has seen it. It is nobody's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unnamed {
    /// Another process may have it now, which has no part in this.
    pub pid: u32,
    /// See [`User::used`].
    pub used: Option<u64>,
    /// See [`User::kind`].
    pub kind: Kind,
    /// A container with a grant once had a process with this pid.
    pub was_granted: bool,
}

/// A card at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Its live grants.
    pub limits: Vec<Limit>,
    /// Its processes.
    pub users: Vec<User>,
    /// What is listed beside them.
    pub unnamed: Vec<Unnamed>,
    /// Whether the driver tells MPS clients from other processes.
    pub tells_clients: bool,
    /// Bytes in use on the card, whoever uses them; `None` where the driver does not tell.
    pub used: Option<u64>,
    /// It came at once after the one before, because somebody is over twice his grant: it is a look
    /// at nobody else.
    pub at_once: bool,
}

/// Something on a card that no grant has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Other {
    /// As it is listed.
    pub pid: u32,
    /// See [`User::used`].
    pub used: Option<u64>,
    /// See [`User::kind`].
    pub kind: Kind,
}

impl Look {
    /// Processes without a grant, and what nobody can name in its second look: an MPS server that
    /// ends is listed once. What once had a grant, and has ended, is left out. `seen`: what this
    /// look has led to.
    pub fn others(&self, seen: &Seen) -> impl Iterator<Item = Other> {
        let strangers = self.users.iter().filter(|user| user.whose == Whose::Nobody);
        let strangers =
            strangers.map(|user| Other { pid: user.process.pid, used: user.used, kind: user.kind });
        let is_there = move |listed: &&Unnamed| {
            let looks = seen.unnamed.get(&listed.pid);
            // Of what is only drawn no looks are counted.
            let stays = listed.kind == Kind::Graphics || looks.is_some_and(|looks| *looks >= LOOKS);
            stays && !listed.was_granted
        };
        let unnamed = self.unnamed.iter().filter(is_there);
        strangers.chain(unnamed.map(|listed| Other {
            pid: listed.pid,
            used: listed.used,
            kind: listed.kind,
        }))
    }
}

/// What the settings say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// `policy.tolerance_mib`.
    pub tolerance: Mib,
    /// `policy.enforce`.
    pub enforce: Enforce,
    /// The node has seen that the driver counts a client's memory as its own (`mpsgate qualify`).
    pub counts_clients: bool,
}

/// What the looks before have shown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Looks in a row in which a container was over.
    over: BTreeMap<GrantKey, u32>,
    /// Containers that were reported for it; they are not reported twice.
    told: BTreeSet<GrantKey>,
    /// Looks in which a process was where it should not be.
    strange: BTreeMap<ProcessId, u32>,
    /// Looks in a row in which nobody could name a pid.
    unnamed: BTreeMap<u32, u32>,
    /// Memory of a client was shown once.
    counts_clients: bool,
    /// Looks in a row in which clients were shown, and no memory of any.
    zeros: u32,
}

/// A container over its grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overrun {
    /// The container.
    pub key: GrantKey,
    /// What its processes use in sum, in whole MiB, rounded up.
    pub used: Mib,
    /// Its grant.
    pub memory: Mib,
    /// The tolerance above it.
    pub tolerance: Mib,
    /// Its processes that use memory, the largest first.
    pub processes: Vec<(ProcessId, Mib)>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// End the GPU work of the container's clients at the MPS server, and when that is done or has
    /// run out of time, all its processes. Nobody else's.
    End(Overrun),
    /// The same overrun, where the settings want it only said.
    Report(Overrun),
    /// A process that uses the card has no grant on it.
    Outsider {
        /// The process.
        process: ProcessId,
        /// What it uses, where the driver tells.
        used: Option<Mib>,
    },
    /// Memory is listed under a pid that nobody can name.
    Unnamed {
        /// The pid.
        pid: u32,
        /// How much, where the driver tells.
        used: Option<Mib>,
    },
    /// A process of a container with a grant bypassed MPS, so that no limit holds it.
    NoClient {
        /// The process.
        process: ProcessId,
        /// Its container.
        key: GrantKey,
    },
}

/// Why the sums cannot be trusted on this card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blind {
    /// The driver does not tell the memory of this process.
    Untold(ProcessId),
    /// It tells 0 bytes for an MPS client, and has never told more for one: it may count them
    /// elsewhere. A client that only attaches, and has no context yet, is shown so, too (measured
    /// on 580.159.04, on an H200): it proves nothing where memory of another was shown.
    Zero(ProcessId),
}

impl fmt::Display for Blind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untold(ProcessId { pid, .. }) => {
                write!(f, "the driver does not tell how much memory pid {pid} uses")
            }
            Self::Zero(ProcessId { pid, .. }) => write!(
                f,
                "the driver shows no memory for pid {pid}, an MPS client, nor for any other so far: \
                 it may count it elsewhere"
            ),
        }
    }
}

impl fmt::Display for Overrun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, memory, tolerance, processes, .. } = self;
        let list =
            processes.iter().map(|(process, used)| format!("pid {} {} MiB", process.pid, used.0));
        write!(f, "it used {} MiB of the card, {} MiB were granted", used.0, memory.0)?;
        if *tolerance > Mib(0) {
            write!(f, " and {} MiB tolerated", tolerance.0)?;
        }
        write!(f, ": {}", few(list, NAMED))
    }
}

/// What a look leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// For the next look.
    pub seen: Seen,
    /// In the order of the grants, then of the processes.
    pub actions: Vec<Action>,
    /// What each container uses in sum; absent where the driver does not tell.
    pub used: BTreeMap<GrantKey, Mib>,
    /// Why the sums may be too low.
    pub blind: Option<Blind>,
    /// A container uses more than a limit of MPS that holds could let it have, also while one
    /// process of it takes the place of another: the next look should come at once.
    pub is_urgent: bool,
}

/// Decides. `before` is the outcome of the look before at the same card.
#[must_use]
pub fn decide(before: &Seen, look: &Look, rules: Rules) -> Outcome {
    let mut out = Outcome {
        seen: Seen::default(),
        actions: Vec::new(),
        used: BTreeMap::new(),
        blind: None,
        is_urgent: false,
    };
    out.blind = blind(before, look, rules, &mut out.seen);
    for limit in &look.limits {
        add_up(before, look, limit, rules, &mut out);
    }
    for user in &look.users {
        look_for_strangers(before, look, user, &mut out);
    }
    for listed in look.unnamed.iter().filter(|listed| listed.kind != Kind::Graphics) {
        let pid = listed.pid;
        if count(&before.unnamed, &mut out.seen.unnamed, pid, look.at_once) {
            out.actions.push(Action::Unnamed { pid, used: listed.used.map(mib) });
        }
    }
    out
}

/// The memory of one container.
fn add_up(before: &Seen, look: &Look, limit: &Limit, rules: Rules, out: &mut Outcome) {
    let key = &limit.key;
    if before.told.contains(key) {
        out.seen.told.insert(key.clone());
    }
    let own = || look.users.iter().filter(|user| user.whose == Whose::Grant(key.clone()));
    // What is told is a lower bound where some of it is not told.
    let bytes = own().filter_map(|user| user.used).fold(0, u64::saturating_add);
    if own().all(|user| user.used.is_some()) {
        out.used.insert(key.clone(), mib(bytes));
    }
    if bytes <= bytes_of(limit.memory).saturating_add(bytes_of(rules.tolerance)) {
        return;
    }
    let seen = before.over.get(key).copied().unwrap_or(0);
    let twice = bytes_of(limit.memory).saturating_add(bytes_of(rules.tolerance)).saturating_mul(2);
    if look.at_once && bytes <= twice {
        out.seen.over.extend((seen > 0).then(|| (key.clone(), seen)));
        return;
    }
    let looks = seen.saturating_add(1);
    out.is_urgent |= looks < LOOKS && bytes > twice;
    // It should have ended: counted anew, for the case that it has not.
    out.seen.over.insert(key.clone(), if looks >= LOOKS + AGAIN { LOOKS } else { looks });
    let overrun = || {
        let mut processes: Vec<_> =
            own().filter_map(|user| Some((user.process, mib(user.used?)))).collect();
        processes.sort_by_key(|(process, used)| (std::cmp::Reverse(*used), *process));
        Overrun {
            key: key.clone(),
            used: mib(bytes),
            memory: limit.memory,
            tolerance: rules.tolerance,
            processes,
        }
    };
    match rules.enforce {
        // One that was only reported is ended once the settings want that.
        Enforce::Kill => {
            if out.seen.told.remove(key) || looks == LOOKS || looks >= LOOKS + AGAIN {
                out.actions.push(Action::End(overrun()));
            }
        }
        Enforce::Report => {
            if looks >= LOOKS && out.seen.told.insert(key.clone()) {
                out.actions.push(Action::Report(overrun()));
            }
        }
    }
}

/// A process that is where it should not be.
fn look_for_strangers(before: &Seen, look: &Look, user: &User, out: &mut Outcome) {
    let action = match (&user.whose, user.kind) {
        (Whose::Server, _) | (_, Kind::Graphics) | (Whose::Grant(_), Kind::Client) => return,
        (Whose::Nobody, _) => Action::Outsider { process: user.process, used: user.used.map(mib) },
        // Where the driver does not tell clients from others, all look like this.
        (Whose::Grant(_), Kind::Compute) if !look.tells_clients => return,
        (Whose::Grant(key), Kind::Compute) => {
            Action::NoClient { process: user.process, key: key.clone() }
        }
    };
    if count(&before.strange, &mut out.seen.strange, user.process, look.at_once) {
        out.actions.push(action);
    }
}

/// Counts one look more at something strange; whether it is the one at which that is said.
fn count<K: Ord>(
    before: &BTreeMap<K, u32>,
    now: &mut BTreeMap<K, u32>,
    of: K,
    at_once: bool,
) -> bool {
    let seen = before.get(&of).copied().unwrap_or(0);
    let looks = seen.saturating_add(u32::from(!at_once));
    // A list may have it twice.
    now.insert(of, looks).is_none() && looks == LOOKS && looks > seen
}

fn blind(before: &Seen, look: &Look, rules: Rules, seen: &mut Seen) -> Option<Blind> {
    let granted = || look.users.iter().filter(|user| matches!(user.whose, Whose::Grant(_)));
    let clients = || granted().filter(|user| user.kind == Kind::Client);
    let shown = clients().any(|user| user.used.is_some_and(|used| used > 0));
    seen.counts_clients = before.counts_clients || rules.counts_clients || shown;
    if let Some(user) = granted().find(|user| user.used.is_none()) {
        return Some(Blind::Untold(user.process));
    }
    let zero = clients().find(|user| user.used == Some(0)).filter(|_| !seen.counts_clients)?;
    seen.zeros = before.zeros.saturating_add(u32::from(!look.at_once));
    (seen.zeros >= LOOKS).then_some(Blind::Zero(zero.process))
}

fn bytes_of(mib: Mib) -> u64 {
    mib.0.saturating_mul(1 << 20)
}

fn mib(bytes: u64) -> Mib {
    Mib(bytes.div_ceil(1 << 20))
}
