//! Slurm's words as a request: what a job was given of this node, and what Slurm thinks this node
//! has.
//!
//! ```text
//!  scontrol show job -d -o ID ─► given ─┐
//!  slurmd -G ──────────► devices ───────┴─► ask ─► which card, memory, compute
//! ```
//!
//! The forms are those of Slurm 22.05 (measured, `tests/hosts/slurm_facts.bats`). A job's owner
//! chooses texts that `scontrol` prints between Slurm's own: the name, the comment, paths. What is
//! read here stands between two fields that each have to be there once, in their order; so a text
//! that looks like a field makes the answer one that is refused, and gives nothing.

use mpsgate_model::{Code, ComputeShare, Mib, Refusal};

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

/// A line of `slurmd -G`: what Slurm may give of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Of what.
    pub gres: Gres,
    /// How Slurm counts the card among those that have some of it.
    pub index: u32,
    /// How many there are of it.
    pub count: u64,
    /// Minor of its node, `/dev/nvidiaN`.
    pub minor: u32,
}

/// What a job is to be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Minor of the card.
    pub minor: u32,
    /// How much of its memory.
    pub memory: Mib,
    /// How much of its compute.
    pub compute: Option<ComputeShare>,
}

/// What the job `id` was given on `node`, from the answer to `scontrol show job -d -o ID`; `None`
/// where that is nothing of a GPU.
///
/// # Errors
/// [`Code::Unconfirmed`] where the answer can be read in more than one way, or in none.
pub fn given(answer: &str, id: u32, node: &str) -> Result<Option<Given>, Refusal> {
    // All jobs of an array answer to the array's own number.
    let mut records = answer.lines().filter_map(|line| {
        let rest = line.strip_prefix("JobId=")?.split_once(' ')?;
        (rest.0.parse() == Ok(id)).then_some(line)
    });
    let (Some(record), None) = (records.next(), records.next()) else {
        return Err(unclear("Slurm tells of no such job, or of several"));
    };
    let once = |field: &str| {
        let mut found = record.match_indices(field);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(at),
            _ => Err(unclear(&format!("{:?} is not there once", field.trim()))),
        }
    };
    let (before, start, behind) = (once(BEFORE)?, once(RESOURCES)?, once(BEHIND)?);
    let Some(own) = record.get(start..behind).filter(|_| before < start) else {
        return Err(unclear("its fields are in another order"));
    };
    let mut of_node = Vec::new();
    let mut is_ours = false;
    let mut nodes = 0;
    for word in own.split_ascii_whitespace() {
        if let Some(names) = word.strip_prefix("Nodes=") {
            is_ours = has_node(names, node);
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
    for entry in entries(gres) {
        found.extend(read_entry(entry)?);
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => Err(unclear("a job has one kind of GPU resource on a node")),
    }
}

fn unclear(why: &str) -> Refusal {
    Refusal::new(
        Code::Unconfirmed,
        format!("what Slurm has given the job cannot be read from scontrol's answer: {why}"),
        "scontrol show job -d -o ID; a job's name and comment must not look like its fields (docs/slurm.md)",
    )
}

/// The parts of a list, but for commas in brackets.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    list.split(move |byte| {
        match byte {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        byte == ',' && depth == 0
    })
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

/// Whether a hostlist such as `node1,gpu[02-04,7]` names a node.
fn has_node(list: &str, node: &str) -> bool {
    entries(list).any(|entry| {
        let Some((prefix, rest)) = entry.split_once('[') else { return entry == node };
        let Some((ranges, suffix)) = rest.split_once(']') else { return false };
        // Several brackets in a name are of large machines without such cards.
        let Some(digits) = node.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(suffix))
        else {
            return false;
        };
        let number = |text: &str| text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse());
        let Some(Ok(own)) = number(digits) else { return false };
        let own: u64 = own;
        ranges.split(',').any(|range| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            // Numbers of a range are as wide as its first.
            let is_wide =
                digits.len() == from.len() || from.len() < digits.len() && !digits.starts_with('0');
            match (from.parse::<u64>(), to.parse::<u64>()) {
                (Ok(from), Ok(to)) => is_wide && (from..=to).contains(&own),
                _ => false,
            }
        })
    })
}

/// What `slurmd -G` says of this node's cards; other resources are left out. Its own `Index` is the
/// number of the file: a job's counts the lines.
#[must_use]
pub fn devices(text: &str) -> Vec<Device> {
    let mut found: Vec<Device> = Vec::new();
    for mut device in text.lines().filter_map(device) {
        let before = found.iter().filter(|other| other.gres == device.gres).count();
        device.index = u32::try_from(before).unwrap_or(u32::MAX);
        found.push(device);
    }
    found
}

fn device(line: &str) -> Option<Device> {
    let (_, fields) = line.split_once("Gres ")?;
    let field = |name: &str| {
        fields.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    Some(Device {
        gres: Gres::of(field("Name")?)?,
        index: 0,
        count: field("Count")?.parse().ok()?,
        minor: field("File")?.strip_prefix("/dev/nvidia")?.parse().ok()?,
    })
}

/// What a job is to be granted for what Slurm has given it; `memory_of` is the memory that may be
/// granted of a card by its minor, `shard` what a shard is worth.
///
/// # Errors
/// Where that is several cards, or none that mpsgate has.
pub fn ask(
    given: &Given,
    devices: &[Device],
    memory_of: impl Fn(u32) -> Option<Mib>,
    shard: Mib,
) -> Result<Asked, Refusal> {
    let [index] = given.devices.as_slice() else {
        return Err(Refusal::new(
            Code::MultiCard,
            format!(
                "Slurm has given the job parts of {} GPUs, and MPS gives one",
                given.devices.len()
            ),
            "ask for parts of one GPU: --gres=shard:7; jobs on several whole GPUs belong on a node whose GPUs \
             mpsgate does not manage",
        ));
    };
    let of_card = devices.iter().find(|d| d.gres == given.gres && d.index == *index);
    let Some(device) = of_card else {
        return Err(Refusal::new(
            Code::Unconfirmed,
            format!(
                "Slurm has given the job device {index}, of which slurmd -G tells nothing here"
            ),
            "slurmd -G; gres.conf has a File=/dev/nvidiaN for each GPU (docs/slurm.md)",
        ));
    };
    let Some(all) = memory_of(device.minor) else {
        return Err(Refusal::new(
            Code::Unconfirmed,
            format!(
                "Slurm has given the job /dev/nvidia{}, which mpsgate does not manage",
                device.minor
            ),
            "mpsgate status; mpsgate enable GPU",
        ));
    };
    let (memory, compute) = match given.gres {
        Gres::Gpu => (all, None),
        Gres::Shard => (Mib(given.count.saturating_mul(shard.0)), None),
        Gres::Mps => {
            let (count, of) = (u128::from(given.count), u128::from(device.count.max(1)));
            let memory = u64::try_from(u128::from(all.0) * count / of).unwrap_or(u64::MAX);
            let percent = u8::try_from((100 * count / of).clamp(1, 100)).unwrap_or(100);
            (Mib(memory), Some(ComputeShare(percent)))
        }
    };
    Ok(Asked { minor: device.minor, memory, compute })
}

/// What does not fit between Slurm's counts and the cards (minor, memory that may be granted), a
/// sentence each.
#[must_use]
pub fn differences(devices: &[Device], cards: &[(u32, Mib)], shard: Mib) -> Vec<String> {
    let mut found = Vec::new();
    for device in devices {
        let node = format!("/dev/nvidia{}", device.minor);
        let Some((_, memory)) = cards.iter().find(|(minor, _)| *minor == device.minor) else {
            if device.gres != Gres::Gpu {
                found.push(format!(
                    "Slurm shares {node}, which mpsgate does not manage: its jobs get no GPU memory there"
                ));
            }
            continue;
        };
        if device.gres != Gres::Shard {
            continue;
        }
        let right = memory.0 / shard.0.max(1);
        let (count, worth) = (device.count, Mib(device.count.saturating_mul(shard.0)));
        if count > right {
            found.push(format!(
                "Slurm has {count} shards of {shard} for {node}, which has {memory} to grant: jobs beyond that are \
                 refused; Count={right} in gres.conf, and the sum in slurm.conf"
            ));
        } else if count < right {
            found.push(format!(
                "Slurm has {count} shards of {shard} for {node}, which has {memory} to grant: {} are never given to \
                 a job; Count={right} in gres.conf, and the sum in slurm.conf",
                Mib(memory.0 - worth.0)
            ));
        }
    }
    for (minor, _) in cards {
        if devices.iter().all(|device| device.minor != *minor) {
            found.push(format!(
                "Slurm does not know /dev/nvidia{minor}: gres.conf has no File= of it"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests;
