//! Whether a program is linked statically, read from its ELF header.

/// `p_type` of the program header that names a dynamic loader (System V ABI).
const PT_INTERP: u32 = 3;
/// `p_type` of a program header that leads to notes (System V ABI).
const PT_NOTE: u32 = 4;
/// glibc's start files have this note, of owner GNU and type NT_GNU_ABI_TAG, and musl's have not
/// (Linux Standard Base 5, "Note Section"): length of the owner's name and of the tag, type, name.
const ABI_TAG: &[u8] = b"\x04\0\0\0\x10\0\0\0\x01\0\0\0GNU\0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Linking {
    /// With musl, as it is shipped.
    Static,
    /// With glibc, because Rust's musl target was not there when it was built.
    StaticGlibc,
    Dynamic,
    /// A script, or for another kind of machine.
    NotElf64,
}

struct Segment<'a> {
    kind: u32,
    bytes: &'a [u8],
}

/// Reads an ELF file's first bytes, which hold the header, the program headers and the notes of
/// every linker in use. A static position-independent program has a dynamic section but names no
/// loader.
pub(super) fn linking(bytes: &[u8]) -> Linking {
    let Some(segments) = segments(bytes) else { return Linking::NotElf64 };
    let is_glibc = |segment: &Segment<'_>| {
        segment.kind == PT_NOTE && segment.bytes.windows(ABI_TAG.len()).any(|note| note == ABI_TAG)
    };
    if segments.iter().any(|segment| segment.kind == PT_INTERP) {
        Linking::Dynamic
    } else if segments.iter().any(is_glibc) {
        Linking::StaticGlibc
    } else {
        Linking::Static
    }
}

fn segments(bytes: &[u8]) -> Option<Vec<Segment<'_>>> {
    // Magic, 64 bit, little endian: all that NVIDIA's driver for Linux supports.
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = usize::try_from(u64::from_le_bytes(array(bytes, 32)?)).ok()?;
    let size = usize::from(u16::from_le_bytes(array(bytes, 54)?));
    let count = usize::from(u16::from_le_bytes(array(bytes, 56)?));
    let segment = |i: usize| {
        let at = offset.checked_add(i.checked_mul(size)?)?;
        let kind = u32::from_le_bytes(array(bytes, at)?);
        // p_offset and p_filesz; what lies beyond the bytes that were read is no note.
        let number = |field: usize| {
            usize::try_from(u64::from_le_bytes(array(bytes, at.checked_add(field)?)?)).ok()
        };
        let content = number(8)
            .zip(number(32))
            .and_then(|(from, length)| bytes.get(from..from.checked_add(length)?));
        Some(Segment { kind, bytes: content.unwrap_or_default() })
    };
    (0..count).map(segment).collect()
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::disallowed_methods,
        reason = "test code fails by panicking"
    )]
    use super::*;

    #[test]
    fn this_test_is_linked_dynamically() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(linking(&own), Linking::Dynamic);
    }

    #[test]
    fn without_a_loader_it_is_static() {
        let mut bytes = vec![0; 64 + 2 * 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = 2;
        bytes[64] = 1;
        bytes[64 + 56] = 2;
        assert_eq!(linking(&bytes), Linking::Static);
        bytes[64 + 56] = 3;
        assert_eq!(linking(&bytes), Linking::Dynamic);
    }

    #[test]
    fn a_static_program_of_glibc_is_known_by_its_note() {
        let mut bytes = vec![0; 64 + 56];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        (bytes[32], bytes[54], bytes[56], bytes[64]) = (64, 56, 1, 4);
        let at = bytes.len();
        (bytes[64 + 8], bytes[64 + 32]) = (u8::try_from(at).unwrap(), 32);
        bytes.extend([ABI_TAG, &[0; 16]].concat());
        assert_eq!(linking(&bytes), Linking::StaticGlibc);
        bytes[at + 8] = 3;
        assert_eq!(linking(&bytes), Linking::Static, "a build id");
        bytes.truncate(at);
        assert_eq!(linking(&bytes), Linking::Static, "notes that were not read");
    }

    #[test]
    fn what_is_cut_off_or_no_program_is_neither() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x01\x01", own.get(..80).unwrap()] {
            assert_eq!(linking(bytes), Linking::NotElf64);
        }
        let mut far = own;
        far.get_mut(32..40).unwrap().fill(0xff);
        assert_eq!(linking(&far), Linking::NotElf64);
    }
}
