//! A copier to memory that another process reads next, which chooses the faster of two methods.
//!
//! Ordinary stores leave bytes in the cache of this CPU, and must take each line from the reader's cache, because the
//! reader has read its previous content. Between CPUs that share a cache that is fast, and nothing is faster. Between
//! others it takes five times as long as *streaming* the bytes past all caches to the memory, from where the reader
//! gets them as fast as from another CPU. On a virtual machine the distance of CPUs is unknown, and the host moves them
//! at run time. So copies are timed, and the other method is tried now and then.

use super::bytes;
use crate::clock;
use crate::sync::lock;
use std::sync::Mutex;

/// Minimum length of a copy that is timed, in bytes.
const MIN_TIMED_LEN: usize = 8 << 10;
/// Streamed bytes take the reader about as long as the writer, because they come from the memory. So streaming pays if
/// it is this many times as fast for the writer.
const MIN_SPEEDUP: u64 = 2;
/// Number of copies after which the slower method is tried again: the ordinary one, and streaming. Streaming costs the
/// same wherever the reader is, so the cost of the ordinary method is the one that changes.
const RETRY_PLAIN: u32 = 64;
const RETRY_STREAM: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    Plain,
    Stream,
}

/// The cost of each method for the writer, in picoseconds per byte; 0 before the first try.
#[derive(Debug, Default)]
struct CopyCosts {
    plain: u64,
    stream: u64,
    copies: u32,
}

impl CopyCosts {
    /// Choose the method for the next copy, and count the copy: the method that pays, or now and then the other one, to
    /// time it again.
    fn choose(&mut self) -> Method {
        self.copies = self.copies.wrapping_add(1);
        let streams = self.plain > MIN_SPEEDUP * self.stream;
        let retry = if streams { RETRY_PLAIN } else { RETRY_STREAM };
        if streams != (self.copies % retry == 0) {
            Method::Stream
        } else {
            Method::Plain
        }
    }

    /// Record a copy of `len` bytes, at least 1, that took `took` nanoseconds, in the average cost of its method.
    fn record(&mut self, method: Method, len: usize, took: u64) {
        let cost = match method {
            Method::Plain => &mut self.plain,
            Method::Stream => &mut self.stream,
        };
        let now = (took * 1000 / len as u64).max(1);
        *cost = match *cost {
            0 => now,
            // A low cost can only come from the copy itself.
            before if now < before => before.midpoint(now),
            // A high cost may also come from another process that had the CPU meanwhile.
            before => before + (now.min(4 * before) - before) / 4,
        };
    }
}

/// A copier to memory that one peer reads.
#[derive(Debug, Default)]
pub struct Copier {
    costs: Mutex<CopyCosts>,
}

impl Copier {
    /// Copy `len` bytes. A later release makes them visible. On x86-64, a copy of at least `MIN_TIMED_LEN` bytes goes
    /// by the method of the recorded costs, and is timed; every other copy goes by ordinary stores. Several threads may
    /// copy at once.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for `len` bytes, and the two do not overlap. Peers may read and
    /// write either meanwhile: the compiler assumes nothing of their bytes.
    pub unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) {
        if len < MIN_TIMED_LEN || cfg!(not(target_arch = "x86_64")) {
            // SAFETY: the caller's promise.
            return unsafe { plain(to, from, len) };
        }
        let method = lock(&self.costs).choose();
        let start = clock::now();
        match method {
            // SAFETY: the caller's promise.
            Method::Plain => unsafe { plain(to, from, len) },
            // SAFETY: the caller's promise.
            Method::Stream => unsafe { stream(to, from, len) },
        }
        let took = clock::now() - start;
        lock(&self.costs).record(method, len, took);
    }
}

/// Copy by ordinary stores.
///
/// # Safety
/// The same as [`Copier::copy`].
unsafe fn plain(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { bytes::copy(to, from, len) };
}

/// Copy by stores past all caches.
///
/// # Safety
/// The same as [`Copier::copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(to: *mut u8, from: *const u8, len: usize) {
    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let body = lines * LINE;
    // SAFETY: the caller's promise. `plain` and the instructions leave the compiler no assumptions; they touch `lines`
    // whole lines, aligned at `to`, and the last instruction makes their stores visible before any later store, which
    // no release does by itself.
    unsafe {
        plain(to, from, head);
        plain(
            to.add(head + body),
            from.add(head + body),
            len - head - body,
        );
        if lines > 0 {
            std::arch::asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movntps [{to}], {a}",
                "movntps [{to} + 16], {b}",
                "movntps [{to} + 32], {c}",
                "movntps [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {lines}",
                "jnz 2b",
                "sfence",
                from = inout(reg) from.add(head) => _,
                to = inout(reg) to.add(head) => _,
                lines = inout(reg) lines => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
use plain as stream;

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100_000;
    /// Duration of a copy in nanoseconds, measured on a Zen 3: streamed, and ordinary between CPUs with and without a
    /// common cache.
    const STREAM: u64 = 4_500;
    const NEAR: u64 = 2_500;
    const FAR: u64 = 22_000;

    /// Return the number of streamed copies, if an ordinary one takes `plain` nanoseconds.
    fn streamed(costs: &mut CopyCosts, copies: u32, plain: u64) -> u32 {
        let mut streamed = 0;
        for _ in 0..copies {
            let method = costs.choose();
            streamed += u32::from(method == Method::Stream);
            costs.record(
                method,
                LEN,
                if method == Method::Stream {
                    STREAM
                } else {
                    plain
                },
            );
        }
        streamed
    }

    #[test]
    fn copies_are_streamed_only_while_the_reader_is_far() {
        let mut costs = CopyCosts::default();
        assert!(streamed(&mut costs, 1000, FAR) > 950);
        streamed(&mut costs, 3 * RETRY_PLAIN, NEAR);
        assert!(streamed(&mut costs, 1000, NEAR) < 10, "it came near");
        streamed(&mut costs, 10, FAR);
        assert!(streamed(&mut costs, 1000, FAR) > 950, "it went away");
    }

    #[test]
    fn one_preempted_copy_does_not_change_the_method() {
        let mut costs = CopyCosts::default();
        streamed(&mut costs, 100, NEAR);
        costs.record(Method::Plain, LEN, 4_000_000);
        assert_eq!(costs.choose(), Method::Plain);
        streamed(&mut costs, 1000, FAR);
        costs.record(Method::Stream, LEN, 4_000_000);
        assert_eq!(costs.choose(), Method::Stream);
    }

    #[test]
    fn a_stream_writes_its_bytes_and_no_others_however_they_lie() {
        for (start, len) in [
            (0, 0),
            (3, 1),
            (0, 64),
            (1, 63),
            (5, 64),
            (60, 200),
            (64, 4096),
            (63, 10_001),
        ] {
            let from: Vec<u8> = (0..len + 7).map(|i| i as u8 | 1).collect();
            let mut to = vec![0u8; start + len + 100];
            // SAFETY: both have room for the bytes, and do not overlap.
            unsafe { stream(to.as_mut_ptr().add(start), from.as_ptr().add(7), len) };
            assert!(
                to[start..start + len] == from[7..],
                "{len} bytes at {start}"
            );
            let beside = to[..start].iter().chain(&to[start + len..]);
            assert!(
                beside.copied().all(|byte| byte == 0),
                "{len} bytes at {start}"
            );
        }
    }
}
