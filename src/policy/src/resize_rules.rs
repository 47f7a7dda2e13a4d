//! `mpsgate resize`: whether a container that runs may have more or less, and what that means for
//! the processes that it has.
//!
//! ```text
//!            more                                     less
//!  cgroup    the driver's limit rises at once         it falls, not below what is in use
//!  mps…      for what attaches from now on            refused: MPS changes no process's limit
//!  none      by agreement                             refused: nothing holds the container to it
//! ```

use mpsgate_model::{Code, Guarantee, Mib, Refusal};

use crate::grant_edits::{MPS_LIMIT, mps_limit};

/// What is asked, and of whom. Amounts are those on each of its cards.
#[derive(Debug, Clone)]
pub struct Resize<'a> {
    /// Its id.
    pub container: &'a str,
    /// Its cards, for people.
    pub cards: &'a str,
    /// How firmly its memory is held now.
    pub level: Guarantee,
    /// Whether its CUDA processes are clients of MPS.
    pub uses_mps: bool,
    /// What it has.
    pub has: Mib,
    /// What it is to have.
    pub wants: Mib,
    /// The most that it may have: what kubelet counts for its pod.
    pub pod_limit: Option<Mib>,
    /// All memory of its smallest card that can be granted.
    pub total: Mib,
    /// What the fullest of its cards has for it, with what it has.
    pub room: Mib,
    /// What it uses of the card on which that is most, where that is seen.
    pub uses: Option<Mib>,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    /// It has that already.
    Same,
    /// More.
    Up,
    /// Less.
    Down,
}

/// Decides.
///
/// # Errors
/// Where it cannot have that, or nothing would hold it to less.
pub fn resize(asked: &Resize<'_>) -> Result<Resized, Refusal> {
    let Resize { container, cards, has, wants, .. } = *asked;
    let refuse = |code: Code, why: String, hint: String| {
        Err(Refusal::new(code, format!("container {container} stays at {has}: {why}"), hint))
    };
    if wants == has {
        return Ok(Resized::Same);
    }
    if wants > has {
        if let Some(limit) = asked.pod_limit.filter(|limit| wants > *limit) {
            return refuse(
                Code::Resize,
                format!("its pod's limits give it {limit}, and kubelet counts no more than that"),
                "raise the container's resources.limits, with which its pod is created anew"
                    .to_owned(),
            );
        }
        if wants > asked.total {
            return refuse(
                Code::TooLarge,
                format!("{cards} has {} in all", asked.total),
                format!("mpsgate resize {container} {}", amount(asked.room)),
            );
        }
        if wants > asked.room {
            let left = asked.room.saturating_sub(has);
            return refuse(
                Code::NoCapacity,
                format!("{cards} has {left} left, and it would take {}", wants.saturating_sub(has)),
                format!("mpsgate status; mpsgate resize {container} {}", amount(asked.room)),
            );
        }
        return Ok(Resized::Up);
    }
    let anew = format!("end the container, and create it anew with {wants}");
    let why = match asked.level {
        Guarantee::Cgroup => match asked.uses.filter(|uses| *uses > wants) {
            None => return Ok(Resized::Down),
            Some(uses) => {
                let why = format!("it uses {uses}, and the driver takes no limit below that");
                return refuse(Code::Resize, why, "end what uses the memory".to_owned());
            }
        },
        Guarantee::None => {
            "nothing holds it to its memory (level none), so it could go on using what others get"
        }
        Guarantee::Mps | Guarantee::MpsWatchdog => {
            "MPS takes a process's limit when that attaches, and lowers none afterwards"
        }
        // A level of tomorrow is not known to hold it.
        _ => "its level is not known to hold it to less",
    };
    refuse(Code::Resize, why.to_owned(), anew)
}

/// What it means for the container's processes that it has more or less now, in lines.
#[must_use]
pub fn resized(asked: &Resize<'_>) -> Vec<String> {
    let Resize { container, cards, has, wants, level, uses_mps, .. } = *asked;
    if wants == has {
        return vec![format!("container {container} has {has} of {cards} already")];
    }
    let mut lines =
        vec![format!("container {container} has {wants} of {cards} now, and had {has}")];
    let by_cgroup = level == Guarantee::Cgroup;
    if by_cgroup {
        lines.push(format!("the driver holds all its processes together to {wants} from now on"));
    }
    match (wants > has, uses_mps) {
        (true, true) => lines.extend([
            format!(
                "a process that has attached to MPS keeps its limit; one that an engine's exec starts gets {wants}"
            ),
            format!(
                "what the container starts itself keeps the limit of who starts it, unless it starts with \
                 {MPS_LIMIT}={}",
                mps_limit(wants)
            ),
        ]),
        (true, false) if !by_cgroup => lines
            .push("it has that by agreement: nothing holds the container to it (level none)".to_owned()),
        _ => {}
    }
    lines.push("once the container is created anew, it gets what its request says".to_owned());
    lines
}

/// As the command takes it.
fn amount(memory: Mib) -> String {
    if memory.0.is_multiple_of(1024) {
        format!("{}Gi", memory.0 / 1024)
    } else {
        format!("{}Mi", memory.0)
    }
}
