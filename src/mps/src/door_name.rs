//! The name of a container's door: the container's instance.

/// Characters of a name: 32 hexadecimal digits.
const LENGTH: usize = 32;

/// Whether `text` is the name of a door.
pub(crate) fn is_door(text: &str) -> bool {
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.len() == LENGTH && text.bytes().all(digit)
}
