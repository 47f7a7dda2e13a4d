//! Slurm's words as a request: what a job was given of this node, and what Slurm thinks this node
//! has.
//!
//! ```text
//!  scontrol show job -d -o NAME ─► given ─┐
//!  slurmd -G ────────────► devices ───────┴─► ask ─► which card, memory, compute
//! ```
//!
//! The forms are those of Slurm 22.05 to 26.05 (`tests/hosts`: `slurm_facts.bats` and
//! `slurm_newer.bats`). A job's owner chooses texts that `scontrol` prints between Slurm's own: the
//! name, the comment, paths. `scontrol` prints them as they are, with line breaks too. So what is
//! read here is the only line of an answer, and stands between two fields that Slurm prints of each
//! job, each of them there once and in their order: a text that looks like a field or a job makes
//! the answer one that is refused, and gives nothing.

mod cards;
mod hostlist;
mod named;

use mpsgate_model::{Code, Refusal};

pub use self::cards::{Asked, Device, Place, ask, devices, differences};
pub use self::named::{Named, Sluid};

/// Before a job's SLUID, which Slurm prints from 25.11 on.
const SLUID: &str = " SLUID=";
/// The fields around a job's resources on its nodes, in their order.
const BEFORE: &str = " Socks/Node=";
const RESOURCES: &str = " JOB_GRES=";
const BEHIND: &str = " MinCPUsNode=";

/// What of a card is Slurm's to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gres {
    /// `gpu`: the whole card.
    Gpu,
    /// `shard`: so many equal parts of its memory.
    Shard,
    /// `mps`: so many equal parts of its memory and compute.
    Mps,
}

impl Gres {
    fn of(name: &str) -> Option<Self> {
        match name {
            "gpu" => Some(Self::Gpu),
            "shard" => Some(Self::Shard),
            "mps" => Some(Self::Mps),
            _ => None,
        }
    }
}

/// What a job has of one kind on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Of what.
    pub gres: Gres,
    /// How many.
    pub count: u64,
    /// Of which devices, as Slurm counts them.
    pub devices: Vec<u32>,
}

/// What an answer of `scontrol` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// What the job was given on this node.
    Job {
        /// The job's number.
        id: u32,
        /// `None` where that is nothing of a GPU.
        given: Option<Given>,
    },
    /// Several jobs: all of an array, or all parts of a heterogeneous job. Ask for this one.
    Several(String),
}

/// What a job was given on `node`, from the answer to `scontrol show job -d -o NAME`, or to the
/// question that [`Told::Several`] names.
///
/// # Errors
/// [`Code::Unconfirmed`] where the answer can be read in more than one way, or in none, and where
/// it is about another job.
pub fn given(answer: &str, job: &Named, node: &str) -> Result<Told, Refusal> {
    let lines: Vec<&str> = answer.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.as_slice() {
        [] => Err(unclear("Slurm tells of no such job")),
        [record] => read(record, job, node),
        // A line break in a text of the owner's makes two lines of a job.
        [first, ..] => alone(first, &lines, job).map(Told::Several).ok_or_else(|| {
            unclear(
                "it has several lines; a name, comment or path of the job may have a line break",
            )
        }),
    }
}

/// How `scontrol` is asked for one job of those that it tells of. What stands before the first
/// job's name is Slurm's word; of the lines behind it that is not sure, so the answer is read as
/// any other.
fn alone(first: &str, lines: &[&str], job: &Named) -> Option<String> {
    let number = |word: Option<&str>, field: &str| -> Option<u32> {
        word?.strip_prefix(field)?.parse().ok()
    };
    // Those parts of a heterogeneous job that are no leader are told of alone.
    if let Some(leader) = number(first.split(' ').nth(1), "HetJobId=") {
        return Some(format!("{leader}+0"));
    }
    lines.iter().find_map(|line| {
        let mut words = line.split(' ');
        let id = number(words.next(), "JobId=")?;
        let array = number(words.next(), "ArrayJobId=")?;
        let task = number(words.next(), "ArrayTaskId=")?;
        (*job == Named::Id(id)).then(|| format!("{array}_{task}"))
    })
}

/// One job's line.
fn read(record: &str, job: &Named, node: &str) -> Result<Told, Refusal> {
    let once = |field: &str| {
        let mut found = record.match_indices(field);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(at),
            _ => Err(unclear(&format!("{:?} is not there once", field.trim()))),
        }
    };
    let id = record.strip_prefix("JobId=").and_then(|rest| rest.split_once(' ')?.0.parse().ok());
    let id: u32 = id.ok_or_else(|| unclear("it begins with no job's number"))?;
    let (before, start, behind) = (once(BEFORE)?, once(RESOURCES)?, once(BEHIND)?);
    let Some(own) = record.get(start..behind).filter(|_| before < start) else {
        return Err(unclear("its fields are in another order"));
    };
    match job {
        Named::Id(asked) if *asked != id => {
            return Err(unclear(&format!("it is about job {id}, and job {asked} asks")));
        }
        Named::Id(_) => {}
        Named::Sluid(sluid) => {
            let at = once(SLUID)?;
            let value = record.get(at + SLUID.len()..before).unwrap_or_default();
            let value = value.split(' ').next().unwrap_or_default();
            if !sluid.is(value) {
                return Err(unclear(&format!(
                    "job {id} has the SLUID {value:?}, and the cgroup of who asks is named {job}; a job that is                      requeued gets another one"
                )));
            }
        }
    }
    resources(own, node).map(|given| Told::Job { id, given })
}

/// What of a GPU is on this node, from the fields of a job's resources.
fn resources(own: &str, node: &str) -> Result<Option<Given>, Refusal> {
    let mut of_node = Vec::new();
    let mut is_ours = false;
    let mut nodes = 0;
    for word in own.split_ascii_whitespace() {
        if let Some(names) = word.strip_prefix("Nodes=") {
            is_ours = hostlist::has(names, node);
            nodes += 1;
        } else if let Some(gres) = word.strip_prefix("GRES=") {
            of_node.push((is_ours, gres));
        }
    }
    let gres = match of_node.as_slice() {
        // The caller is one of its processes: where there is one list it is this node's.
        [(_, gres)] if nodes == 1 => Some(*gres),
        all => all.iter().find(|(is_ours, _)| *is_ours).map(|(_, gres)| *gres),
    };
    let gres = gres.ok_or_else(|| unclear(&format!("it names no resources on node {node:?}")))?;
    let mut found = Vec::new();
    for entry in hostlist::entries(gres) {
        found.extend(read_entry(entry)?);
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(unclear("a job has one kind of GPU resource on a node")),
    }
}

/// That an answer of `scontrol` cannot be read, and why.
#[must_use]
pub fn unclear(why: &str) -> Refusal {
    Refusal::new(
        Code::Unconfirmed,
        format!("what Slurm has given the job cannot be read from scontrol's answer: {why}"),
        "scontrol show job -d -o ID; a job's name and comment must not look like its fields, and have no line break \
         (docs/slurm.md)",
    )
}

/// `shard:7(IDX:1)`, `gpu:tesla:1(IDX:0)`, `shard:7(0/15,7/15)`; `None` for what is of no GPU, or
/// for none of it.
fn read_entry(entry: &str) -> Result<Option<Given>, Refusal> {
    let wrong = || unclear(&format!("{entry:?}"));
    let (words, place) = match entry.split_once('(') {
        Some((words, place)) => (words, place.strip_suffix(')').ok_or_else(wrong)?),
        None => (entry, ""),
    };
    let mut words = words.split(':');
    let Some(gres) = words.next().and_then(Gres::of) else { return Ok(None) };
    let count: u64 = words.next_back().and_then(|count| count.parse().ok()).ok_or_else(wrong)?;
    if count == 0 {
        return Ok(None);
    }
    let devices = match place.strip_prefix("IDX:") {
        Some(list) => numbers(list).ok_or_else(wrong)?,
        None => used(place).ok_or_else(wrong)?,
    };
    if devices.is_empty() {
        return Err(wrong());
    }
    Ok(Some(Given { gres, count, devices }))
}

/// Numbers of a list such as `0,2-3`.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for part in list.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if to < from || to - from > 1024 {
            return None;
        }
        found.extend(from..=to);
    }
    Some(found)
}

/// Where `0/15,7/15` is not zero.
fn used(list: &str) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for (at, part) in (0_u32..).zip(list.split(',')) {
        let used: u64 = part.split_once('/')?.0.parse().ok()?;
        if used > 0 {
            found.push(at);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests;
