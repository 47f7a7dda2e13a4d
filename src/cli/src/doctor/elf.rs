//! Whether a program is linked statically, read from its ELF header.

use super::facts::Linking;

/// `p_type` of the program header that names a dynamic loader (System V ABI).
const PT_INTERP: u32 = 3;

/// Reads an ELF file's first bytes, which hold the header and the program headers of every linker in
/// use. A static position-independent program has a dynamic section but names no loader.
pub(super) fn linking(bytes: &[u8]) -> Linking {
    program_header_types(bytes).map_or(Linking::NotElf64, |types| {
        if types.contains(&PT_INTERP) { Linking::Dynamic } else { Linking::Static }
    })
}

fn program_header_types(bytes: &[u8]) -> Option<Vec<u32>> {
    // Magic, 64 bit, little endian: all that NVIDIA's driver for Linux supports.
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = usize::try_from(u64::from_le_bytes(array(bytes, 32)?)).ok()?;
    let size = usize::from(u16::from_le_bytes(array(bytes, 54)?));
    let count = usize::from(u16::from_le_bytes(array(bytes, 56)?));
    let at = |i: usize| offset.checked_add(i.checked_mul(size)?);
    (0..count).map(|i| Some(u32::from_le_bytes(array(bytes, at(i)?)?))).collect()
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
