//! Copies of many bytes, at the same speed for every alignment.
//!
//! On CPUs with the feature, C's memcpy copies many bytes by one instruction, `rep movsb`. Pieces that are too short
//! for it are copied by many loads and stores, which the CPU can predict, and that is faster here:
//!
//! * On AMD's Zen 3 and 4 the instruction takes ten times as long if the destination begins up to 31 bytes further
//!   within its page than the source: 2.9 GB/s instead of 30. glibc avoids this since 2.39 (its bug 30994). Copies from
//!   shared memory, where data begins with a page or a line, to a new Python object often have such an offset.
//! * If the lines are in the cache of another CPU, or pages are not yet mapped, the instruction took from 1.3 to 5
//!   times as long, measured between two processes. Otherwise both are equally fast.

/// Bytes of a piece: glibc uses the instruction from 2 KiB on, or from 4 or 8 with wider registers.
const PIECE: usize = 2048 - 64;

/// Copy `len` bytes by C's memcpy, in pieces that are too short for `rep movsb`. The compiler assumes nothing of the
/// bytes: others may read and write them meanwhile.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and the two do not overlap.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    let mut done = 0;
    while len - done > PIECE {
        // SAFETY: the caller's promise, of a part.
        unsafe { libc::memcpy(to.add(done).cast(), from.add(done).cast(), PIECE) };
        done += PIECE;
    }
    // SAFETY: the caller's promise, of the rest.
    unsafe { libc::memcpy(to.add(done).cast(), from.add(done).cast(), len - done) };
}

/// Append `len` bytes to a vector, as [`copy`] does.
///
/// # Safety
/// `from` is readable for `len` bytes, and none of them is in the spare capacity of `to`.
#[inline]
pub unsafe fn append_from(to: &mut Vec<u8>, from: *const u8, len: usize) {
    to.reserve(len);
    // SAFETY: the caller's promise; this many bytes are reserved behind those of `to`, and filled before the length
    // grows.
    unsafe {
        copy(to.as_mut_ptr().add(to.len()), from, len);
        to.set_len(to.len() + len);
    }
}

/// Append bytes to a vector.
#[inline]
pub fn append(to: &mut Vec<u8>, from: &[u8]) {
    // SAFETY: `from` is readable, and an exclusive reference has no aliases.
    unsafe { append_from(to, from.as_ptr(), from.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_whole_and_nothing_beside_it() {
        let from: Vec<u8> = (0..5 * PIECE).map(|number| (number % 251) as u8).collect();
        for len in [0, 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 5] {
            let mut to = vec![0xee; len + 2];
            // SAFETY: both have this length, and do not overlap.
            unsafe { copy(to.as_mut_ptr().add(1), from.as_ptr(), len) };
            assert_eq!(to[1..=len], from[..len]);
            assert_eq!((to[0], to[len + 1]), (0xee, 0xee));
            let mut more = vec![1, 2];
            append(&mut more, &from[..len]);
            assert_eq!((&more[..2], &more[2..]), (&[1, 2][..], &from[..len]));
        }
    }
}
