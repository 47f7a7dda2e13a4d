//! Names of devices: `<card's UUID>-<number>`.
//!
//! The name has the UUID and not the index: kubelet's checkpoint keeps ids over reboots, and an
//! index belongs to another card as soon as one is added or removed. It has the whole UUID, because
//! a short one would have to be made unique among the cards of the moment. With it an id has 47
//! characters at most, of the 63 that the API allows.

use std::fmt;

use mpsgate_model::GpuUuid;

/// One unit of a resource on one card.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// The card.
    pub card: GpuUuid,
    /// Counts from zero on each card.
    pub number: u32,
}

/// The text is not an id of mpsgate; its beginning, for the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a device of mpsgate")]
pub struct BadId(String);

/// The most characters of a foreign text in messages.
const QUOTED: usize = 80;

impl DeviceId {
    /// Parses an id in the one spelling of [`fmt::Display`].
    ///
    /// # Errors
    /// Any other text, its beginning quoted.
    pub fn parse(text: &str) -> Result<Self, BadId> {
        let read = || {
            let (card, number) = text.rsplit_once('-')?;
            let id = Self { card: GpuUuid::parse(card).ok()?, number: number.parse().ok()? };
            // Upper case, `+1`, `01`: one device under two names would be counted twice.
            (id.to_string() == text).then_some(id)
        };
        read().ok_or_else(|| BadId(text.chars().take(QUOTED).collect()))
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.card, self.number)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing unwrap is the test's failure")]
    use proptest::prelude::*;

    use super::*;

    const UUID: &str = "GPU-0a1b2c3d-0000-4000-8000-00000000beef";

    #[test]
    fn only_its_own_text_is_an_id() {
        let id = DeviceId { card: GpuUuid::parse(UUID).unwrap(), number: 7 };
        assert_eq!(id.to_string(), format!("{UUID}-7"));
        assert_eq!(DeviceId::parse(&format!("{UUID}-7")), Ok(id));
        for bad in ["", "-", "7", UUID, "GPU-7"] {
            assert!(DeviceId::parse(bad).is_err(), "{bad}");
        }
        for bad in ["+7", "07", "-7", "7 ", "4294967296", "", "x"] {
            assert!(DeviceId::parse(&format!("{UUID}-{bad}")).is_err(), "{bad}");
        }
        assert!(DeviceId::parse(&format!("{}-7", UUID.replace('a', "A"))).is_err());
    }

    #[test]
    fn the_longest_id_fits_the_api() {
        let id = DeviceId { card: GpuUuid::parse(UUID).unwrap(), number: u32::MAX };
        assert!(id.to_string().len() <= 63, "{id}");
    }

    #[test]
    fn a_long_foreign_text_is_quoted_in_part() {
        let error = DeviceId::parse(&"é".repeat(4000)).unwrap_err();
        assert!(error.to_string().chars().count() < 120, "{error}");
    }

    proptest! {
        #[test]
        fn what_is_parsed_is_written_the_same(text in "(GPU-)?[0-9a-fA-F-]{0,48}-?[+0-9]{0,12}|\\PC*") {
            if let Ok(id) = DeviceId::parse(&text) {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn every_id_is_read_back(groups in "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", number: u32) {
            let id = DeviceId { card: GpuUuid::parse(&format!("GPU-{groups}")).unwrap(), number };
            prop_assert_eq!(DeviceId::parse(&id.to_string()), Ok(id));
        }
    }
}
