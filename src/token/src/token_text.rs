//! A token's text: a key writes it, the keys read it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::{Key, KeyId, Keys, TokenId};

/// The word for this form of the text; another form gets another word.
const FORM: &str = "mpsgate1";
/// A longer text is not a token. Today's tokens have some 200 bytes.
const LENGTH_MAX: usize = 4096;

/// The claims of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
// A claim of a newer version may restrict the token, so a token with an unknown one is refused.
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The id of this token.
    pub id: TokenId,
    /// GPU memory that the container may have, MiB.
    pub memory_mib: u64,
    /// The resource of kubelet under which it was given out. Absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// UUID of the card whose devices kubelet chose: a hint at where the container might go, never
    /// capacity. Absent if they are of several cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The share of a claim, if the token belongs to one: then it belongs to that pod and to no
    /// single container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
}

/// The claim and the pod of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The claim's uid.
    pub claim: String,
    /// The request's name in it.
    pub request: String,
    /// The uid of the pod that the claim is reserved for.
    pub pod: String,
}

/// Why a text is not a token of this node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It does not have the form of a token.
    #[error("it is no token of mpsgate's device plugin")]
    Form,
    /// It is signed with a key that is not, or no longer, among the node's.
    #[error("it is signed with key {key}, which this node does not have")]
    Key {
        /// The key.
        key: KeyId,
    },
    /// The MAC does not fit.
    #[error("its signature is wrong")]
    Mac,
    /// The signature is right, but the claims cannot be read: a newer version signed it.
    #[error("a newer version of mpsgate has signed it")]
    Claims,
}

fn mac(key: &Key, signed: &str) -> Option<Hmac<Sha256>> {
    // HMAC accepts keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(key.secret()).ok()?;
    mac.update(signed.as_bytes());
    Some(mac)
}

/// Signs claims. `None` if they have no JSON form, for which there is no reason.
pub(crate) fn write(key: &Key, claims: &Claims) -> Option<String> {
    let claims = serde_json::to_vec(claims).ok()?;
    let signed = format!("{FORM}.{}.{}", key.id, URL_SAFE_NO_PAD.encode(claims));
    let mac = mac(key, &signed)?.finalize().into_bytes();
    Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac)))
}

/// Reads a token.
pub(crate) fn read(keys: &Keys, text: &str) -> Result<(KeyId, Claims), TokenError> {
    if text.len() > LENGTH_MAX {
        return Err(TokenError::Form);
    }
    let (signed, found) = text.rsplit_once('.').ok_or(TokenError::Form)?;
    let mut parts = signed.split('.');
    let (Some(FORM), Some(id), Some(claims), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(TokenError::Form);
    };
    let id = KeyId::parse(id).ok_or(TokenError::Form)?;
    let found = URL_SAFE_NO_PAD.decode(found).map_err(|_| TokenError::Form)?;
    let key = keys.get(id).ok_or(TokenError::Key { key: id })?;
    // Compares in constant time.
    mac(key, signed).ok_or(TokenError::Mac)?.verify_slice(&found).map_err(|_| TokenError::Mac)?;
    let claims = URL_SAFE_NO_PAD.decode(claims).map_err(|_| TokenError::Claims)?;
    let claims: Claims = serde_json::from_slice(&claims).map_err(|_| TokenError::Claims)?;
    // No version signs these amounts; as bytes they would be zero or overflow.
    if claims.memory_mib == 0 || claims.memory_mib.checked_mul(1 << 20).is_none() {
        return Err(TokenError::Claims);
    }
    Ok((id, claims))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests fail by panicking")]
    use proptest::prelude::*;

    use super::*;
    use crate::token_keys::tests::key;

    fn claims() -> Claims {
        let id = TokenId::from_bytes([0xab; 16]);
        Claims { id, memory_mib: 7168, resource: None, card: None, share: None }
    }

    /// Made with python3's hmac and base64, independently of this crate.
    const KNOWN: &str = "mpsgate1.0101010101010101.eyJpZCI6ImFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiIiwibWVtb3J5X21pYiI6NzE2OH0.uWmf2n2xbtGUWP6uMG324xcSj7LYP-8R_NOfVd-E6ms";

    #[test]
    fn another_implementation_of_hmac_makes_the_same_token() {
        assert_eq!(write(&key(1), &claims()).unwrap(), KNOWN);
        assert_eq!(read(&Keys::new(key(1)), KNOWN), Ok((key(1).id, claims())));
    }

    #[test]
    fn what_kubelet_chose_is_kept() {
        let (resource, card) = (Some("aliyun.com/gpu-mem".to_owned()), Some("GPU-1".to_owned()));
        let claims = Claims { resource, card, ..claims() };
        let token = write(&key(1), &claims).unwrap();
        assert_eq!(read(&Keys::new(key(1)), &token), Ok((key(1).id, claims)));
    }

    #[test]
    fn every_key_of_the_node_confirms_and_no_other() {
        let keys = Keys::new(key(1)).rotated(key(2));
        for signer in [key(1), key(2)] {
            let token = write(&signer, &claims()).unwrap();
            assert_eq!(read(&keys, &token), Ok((signer.id, claims())));
        }
        let strange = write(&key(3), &claims()).unwrap();
        assert_eq!(read(&keys, &strange), Err(TokenError::Key { key: key(3).id }));
        // Another node's key under one of this node's names.
        let alike = Key::new(key(1).id, [9; 32], 0);
        assert_eq!(read(&keys, &write(&alike, &claims()).unwrap()), Err(TokenError::Mac));
    }

    #[test]
    fn no_token_and_a_forged_token_are_different_errors() {
        let keys = Keys::new(key(1));
        let token = write(&key(1), &claims()).unwrap();
        let (signed, mac) = token.rsplit_once('.').unwrap();
        for bad in [
            "",
            "t",
            "...",
            "mpsgate1...",
            &token.replace("mpsgate1", "mpsgate2"),
            &format!("{token}."),
            &format!("{token}="),
            &format!("{signed}.{mac}.{mac}"),
            &format!(" {token}"),
            &token.to_uppercase(),
            &"a".repeat(LENGTH_MAX + 1),
        ] {
            assert_eq!(read(&keys, bad), Err(TokenError::Form), "{bad}");
        }
        // A part of the MAC is not enough.
        assert_eq!(read(&keys, &format!("{signed}.")), Err(TokenError::Mac));
        assert_eq!(read(&keys, &format!("{signed}.{}", &mac[..8])), Err(TokenError::Mac));
    }

    #[test]
    fn a_claim_that_this_version_does_not_know_is_not_passed_over() {
        let newer = r#"{"id":"abababababababababababababababab","memory_mib":7168,"only":"x"}"#;
        let signed = format!("{FORM}.{}.{}", key(1).id, URL_SAFE_NO_PAD.encode(newer));
        let mac = mac(&key(1), &signed).unwrap().finalize().into_bytes();
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac));
        assert_eq!(read(&Keys::new(key(1)), &token), Err(TokenError::Claims));
    }

    #[test]
    fn an_amount_that_is_none_is_not_taken() {
        for memory_mib in [0, 1 << 44] {
            let token = write(&key(1), &Claims { memory_mib, ..claims() }).unwrap();
            assert_eq!(read(&Keys::new(key(1)), &token), Err(TokenError::Claims), "{memory_mib}");
        }
    }

    proptest! {
        #[test]
        fn a_token_that_was_changed_anywhere_is_refused(at in 0usize..200, byte in 0x20u8..0x7f) {
            let token = write(&key(1), &claims()).unwrap();
            let mut changed = token.clone().into_bytes();
            let at = at % changed.len();
            changed[at] = byte;
            let changed = String::from_utf8(changed).unwrap();
            prop_assert_eq!(read(&Keys::new(key(1)), &changed).is_ok(), changed == token);
        }
    }
}
