//! Reading numbers from bytes, in the byte order of the machine.

/// Return the number in the four bytes from `at` on. Panics if they do not exist.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Return the number in the eight bytes from `at` on. Panics if they do not exist.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
