//! What Slurm thinks this node has, and what of it a job is to be granted.

use mpsgate_model::{Code, ComputeShare, Mib, Refusal};

use super::{Given, Gres, hostlist};

/// How many devices a node may have.
const MOST: usize = 1024;
/// How the files of GPUs begin, and those of MIG's instances.
const CARD: &str = "/dev/nvidia";
const INSTANCE: &str = "/dev/nvidia-caps/";

/// What Slurm may give of one device, by a line of `slurmd -G`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Of what.
    pub gres: Gres,
    /// How Slurm counts it among those that have some of it.
    pub index: u32,
    /// How many there are of it.
    pub count: u64,
    /// Which files it has.
    pub place: Place,
}

/// Which files a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A whole card by its minor, `/dev/nvidiaN`.
    Card(u32),
    /// Several files together (`MultipleFiles=`), as an instance of MIG; the card that is first
    /// among them.
    Several(Option<u32>),
    /// None of NVIDIA's, or a list that cannot be read.
    Other,
}

impl Device {
    fn minor(&self) -> Option<u32> {
        match self.place {
            Place::Card(minor) => Some(minor),
            Place::Several(_) | Place::Other => None,
        }
    }
}

/// What a job is to be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Minor of the card.
    pub minor: u32,
    /// How much of its memory.
    pub memory: Mib,
    /// How much of its compute.
    pub compute: Option<ComputeShare>,
    /// What to do, where that is more than the card has.
    pub hint: Option<String>,
}

/// What `slurmd -G` says of this node's cards; other resources are left out. Its own `Index` is the
/// number of the file: a job's counts the files, and what has several at once as one.
#[must_use]
pub fn devices(text: &str) -> Vec<Device> {
    let mut found: Vec<Device> = Vec::new();
    for (gres, count, place) in text.lines().filter_map(line).flatten().take(MOST) {
        let before = found.iter().filter(|other| other.gres == gres).count();
        let index = u32::try_from(before).unwrap_or(u32::MAX);
        found.push(Device { gres, index, count, place });
    }
    found
}

/// The devices of a line: one, or all of a range such as `/dev/nvidia[0-3]`.
fn line(line: &str) -> Option<Vec<(Gres, u64, Place)>> {
    let (_, fields) = line.split_once("Gres ")?;
    let field = |name: &str| {
        fields.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
    };
    let gres = Gres::of(field("Name")?)?;
    let count: u64 = field("Count")?.parse().ok()?;
    let Some(files) = hostlist::names(field("File")?, MOST) else {
        return Some(vec![(gres, count, Place::Other)]);
    };
    let minors: Vec<Option<u32>> = files.iter().map(|file| minor(file)).collect();
    let length = u64::try_from(files.len()).unwrap_or(u64::MAX);
    let flags = field("Flags").unwrap_or_default();
    // Slurm up to 22.05 prints no flags. Of GPUs it wants as many files as it counts.
    let is_one = flags.split(',').any(|flag| matches!(flag, "HAS_MULT" | "MIG"))
        || files.iter().any(|file| file.starts_with(INSTANCE))
        || gres == Gres::Gpu && count != length;
    if is_one && length > 1 {
        return Some(vec![(gres, count, Place::Several(minors.into_iter().flatten().next()))]);
    }
    let of =
        |minor: Option<u32>| (gres, count / length.max(1), minor.map_or(Place::Other, Place::Card));
    Some(minors.into_iter().map(of).collect())
}

fn minor(file: &str) -> Option<u32> {
    let minor: u32 = file.strip_prefix(CARD)?.parse().ok()?;
    (file == format!("{CARD}{minor}")).then_some(minor)
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
    let (device, minor) = card(of_card, *index)?;
    let Some(all) = memory_of(minor) else {
        return Err(Refusal::new(
            Code::Unconfirmed,
            format!("Slurm has given the job /dev/nvidia{minor}, which mpsgate does not manage"),
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
    let is_too_much = given.gres == Gres::Shard && memory > all;
    let hint =
        is_too_much.then(|| fewer(device, minor, all, shard, worth(devices, memory_of, shard)));
    Ok(Asked { minor, memory, compute, hint: hint.flatten() })
}

/// What to do where a job's shards are more than all memory of the card.
fn fewer(device: &Device, minor: u32, all: Mib, shard: Mib, worth: Option<Mib>) -> Option<String> {
    let most = all.0 / shard.0.max(1);
    let fewer = (most > 0).then(|| format!("ask for at most --gres=shard:{most}"));
    let smaller = worth.map(|worth| {
        format!(
            "where the {} shards of /dev/nvidia{minor} are to be all of its memory: slurm.shard_mib = {} in \
             /etc/mpsgate/config.toml, then: mpsgate reload (docs/slurm.md)",
            device.count, worth.0
        )
    });
    let ways: Vec<String> = fewer.into_iter().chain(smaller).collect();
    (!ways.is_empty()).then(|| ways.join("; "))
}

/// The card of a device that Slurm has given a job.
fn card(device: Option<&Device>, index: u32) -> Result<(&Device, u32), Refusal> {
    let unknown = |what: &str| {
        Refusal::new(
            Code::Unconfirmed,
            format!("Slurm has given the job device {index}, {what}"),
            "slurmd -G; gres.conf has a File=/dev/nvidiaN for each GPU (docs/slurm.md)",
        )
    };
    let Some(device) = device else {
        return Err(unknown("of which slurmd -G tells nothing here"));
    };
    match device.place {
        Place::Card(minor) => Ok((device, minor)),
        Place::Several(card) => Err(Refusal::new(
            Code::GpuUnfit,
            format!(
                "Slurm has given the job device {index}, which has several files (MultipleFiles= in gres.conf), as an \
                 instance of MIG{}: MIG is not shared through MPS here",
                card.map(|minor| format!(" on /dev/nvidia{minor}")).unwrap_or_default()
            ),
            "ask for a part of a GPU without MIG: --gres=shard:7; jobs on instances of MIG belong on nodes without \
             mpsgate's TaskProlog (docs/slurm.md)",
        )),
        Place::Other => Err(unknown("whose File= is no /dev/nvidiaN")),
    }
}

/// What a shard has to be worth so that all shards of each card fit into its memory; `None` where
/// that is what it is worth, or nothing.
fn worth(devices: &[Device], memory_of: impl Fn(u32) -> Option<Mib>, shard: Mib) -> Option<Mib> {
    let shards = devices.iter().filter(|device| device.gres == Gres::Shard);
    let of_each =
        shards.filter_map(|device| memory_of(device.minor()?)?.0.checked_div(device.count));
    of_each.min().filter(|worth| *worth > 0 && *worth != shard.0).map(Mib)
}

/// What does not fit between Slurm's counts and the cards (minor, memory that may be granted), a
/// sentence each.
#[must_use]
pub fn differences(devices: &[Device], cards: &[(u32, Mib)], shard: Mib) -> Vec<String> {
    let memory_of =
        |minor: u32| cards.iter().find(|(of, _)| *of == minor).map(|(_, memory)| *memory);
    let mut found = Vec::new();
    let mut with_several = Vec::new();
    for device in devices {
        match device.place {
            Place::Card(minor) => {
                let worth = || worth(devices, memory_of, shard);
                found.extend(difference(device, minor, memory_of(minor), shard, worth));
            }
            // An instance each: told once of a card.
            Place::Several(card) if !with_several.contains(&card) => {
                with_several.push(card);
                let what =
                    card.map_or_else(|| "a GPU".to_owned(), |minor| format!("/dev/nvidia{minor}"));
                found.push(format!(
                    "Slurm gives out {what} by several files together (MultipleFiles= in gres.conf), as instances of \
                     MIG: MIG is not shared through MPS here, and jobs on them are refused"
                ));
            }
            Place::Several(_) | Place::Other => {}
        }
    }
    for (minor, _) in cards {
        let is_known = devices.iter().any(|device| device.minor() == Some(*minor));
        if !is_known && !with_several.contains(&Some(*minor)) {
            found.push(format!(
                "Slurm does not know /dev/nvidia{minor}: gres.conf has no File= of it"
            ));
        }
    }
    found
}

/// Of one device that is a card, with its memory where mpsgate manages it.
fn difference(
    device: &Device,
    minor: u32,
    memory: Option<Mib>,
    shard: Mib,
    worth: impl Fn() -> Option<Mib>,
) -> Option<String> {
    let node = format!("/dev/nvidia{minor}");
    let Some(memory) = memory else {
        return (device.gres != Gres::Gpu).then(|| {
            format!(
                "Slurm shares {node}, which mpsgate does not manage: its jobs get no GPU memory there"
            )
        });
    };
    let (count, right) = (device.count, memory.0 / shard.0.max(1));
    if device.gres != Gres::Shard || count == right {
        return None;
    }
    let what = if count > right {
        "jobs beyond that are refused".to_owned()
    } else {
        let left = memory.0.saturating_sub(count.saturating_mul(shard.0));
        format!("{} are never given to a job", Mib(left))
    };
    let smaller = worth().map(|worth| {
        format!(
            "; or, where these {count} are to be all of its memory, slurm.shard_mib = {} in /etc/mpsgate/config.toml",
            worth.0
        )
    });
    Some(format!(
        "Slurm has {count} shards of {shard} for {node}, which has {memory} to grant: {what}; Count={right} in \
         gres.conf, and the sum in slurm.conf{}",
        smaller.unwrap_or_default()
    ))
}
