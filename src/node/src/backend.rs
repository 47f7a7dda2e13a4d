//! What differs between a node that shares its cards under MPS and one where the driver alone does.

use mpsgate_config::{Enforce, Schedule};
use mpsgate_model::{ComputeShare, GrantKey, Guarantee};
use mpsgate_policy::Conclusion;

use crate::card::Card;

/// How the schedule in force shares cards. A schedule of another kind is one more arm of each.
pub trait Backend: Copy {
    /// The level that a grant has by itself.
    fn guarantee(self) -> Guarantee;
    /// The most compute of what a scheduler has counted: without MPS nothing holds to that.
    fn compute(self, counted: Option<ComputeShare>) -> Option<ComputeShare>;
    /// The directory of a container's door on its cards; empty where it has none.
    fn door(self, cards: &[&Card], key: &GrantKey) -> String;
    /// Clients that a card takes, where that is limited.
    fn max_clients(self, card: &Card) -> Option<u32>;
    /// Whether clients of several uids may use a card at once. Without a server none is in
    /// anybody's way.
    fn serves_any_uid(self, card: &Card) -> bool;
    /// Whether a server has to be started for a client of `uid`.
    fn needs_server(self, cards: &[&Card], uid: u32) -> bool;
    /// What follows from a card's answers, all of which are about MPS.
    fn conclusion(self, card: &Card) -> Option<&Conclusion>;
    /// What becomes of who takes more than its grant. Without MPS nobody was promised that a
    /// neighbour is held to his own.
    fn enforce(self, wanted: Enforce) -> Enforce;
    /// Whether a process on the card that is no client bypasses something.
    fn tells_clients(self) -> bool;
}

impl Backend for Schedule {
    fn guarantee(self) -> Guarantee {
        match self {
            Self::Mps => Guarantee::Mps,
            Self::Share => Guarantee::None,
        }
    }

    fn compute(self, counted: Option<ComputeShare>) -> Option<ComputeShare> {
        match self {
            Self::Mps => counted,
            Self::Share => None,
        }
    }

    fn door(self, cards: &[&Card], key: &GrantKey) -> String {
        match self {
            Self::Mps => cards.first().map(|card| card.ends().of(key)).unwrap_or_default(),
            Self::Share => String::new(),
        }
    }

    fn max_clients(self, card: &Card) -> Option<u32> {
        match self {
            Self::Mps => Some(card.max_clients()),
            Self::Share => None,
        }
    }

    fn serves_any_uid(self, card: &Card) -> bool {
        match self {
            Self::Mps => card.serves_any_uid(),
            Self::Share => true,
        }
    }

    fn needs_server(self, cards: &[&Card], uid: u32) -> bool {
        match self {
            Self::Mps => !cards.iter().all(|card| card.has_server_for(uid)),
            Self::Share => false,
        }
    }

    fn conclusion(self, card: &Card) -> Option<&Conclusion> {
        match self {
            Self::Mps => card.is_managed().then_some(&card.qualified().conclusion),
            Self::Share => None,
        }
    }

    fn enforce(self, wanted: Enforce) -> Enforce {
        match self {
            Self::Mps => wanted,
            Self::Share => Enforce::Report,
        }
    }

    fn tells_clients(self) -> bool {
        self == Self::Mps
    }
}
