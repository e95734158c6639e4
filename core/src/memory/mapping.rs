//! Mapped files, which stay mapped until they are dropped.

use crate::memory::sigbus::Guard;
use crate::os::check_syscall;
use crate::sync::{AtomicU32, AtomicU64};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Protection flags of readable and writable memory.
pub(crate) const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A range of mapped addresses.
#[derive(Debug)]
pub(crate) struct MappedRange {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and nothing here refers to its bytes.
unsafe impl Send for MappedRange {}
// SAFETY: as above; code that copies bytes or writes to `base` ensures that no other thread does.
unsafe impl Sync for MappedRange {}

impl MappedRange {
    /// Map `len` bytes, at least 1, of the file from `start` on, a multiple of a page, at an address of the kernel's
    /// choice. `access` has the PROT flags and `flags` the MAP flags of mmap(2), whose error is returned. The file may
    /// be closed afterwards. The caller ensures that the file has these bytes.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        start: usize,
        len: usize,
        access: libc::c_int,
        flags: libc::c_int,
    ) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice affects no existing one.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                flags,
                file.as_raw_fd(),
                start as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at null"))?;
        Ok(MappedRange { base, len })
    }

    /// Return the address of the first byte.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Return the length, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for MappedRange {
    /// Unmap the range, in a forked child too.
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference into it outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Return true if [`SharedMapping::populate`] works: since Linux 5.14.
pub(crate) fn can_populate() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    // SAFETY: an empty range involves no memory. An older kernel refuses the advice.
    *CAN.get_or_init(|| unsafe {
        libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) == 0
    })
}

/// The access to a part of a mapping that replaces another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Writable, and visible to all that map the file.
    Shared,
    /// Read-only; processes that map the file writable write it.
    ReadOnly,
    /// Writable, and visible to this process alone.
    Private,
}

/// The beginning of a file that a peer may write, and truncate, at any time. All access is atomic, and a truncated part
/// reads as zeros.
pub struct SharedMapping {
    // Before the span, because it must be dropped first.
    guard: Guard,
    span: MappedRange,
    /// Number of views that keep the file mapped, and the bit `RETIRED`.
    views: AtomicUsize,
}

/// Bit of `SharedMapping::views`: the mapping is retired.
const RETIRED: usize = 1 << (usize::BITS - 1);

/// A view of bytes of a mapping that a program has: the file stays mapped until the last view is dropped, even if the
/// mapping is retired meanwhile.
pub struct MappingView(Arc<SharedMapping>);

impl Drop for MappingView {
    /// Unmap the file if this was the last view of a retired mapping.
    fn drop(&mut self) {
        // AcqRel: the accesses of other views are before the file is unmapped.
        let before = self.0.views.fetch_sub(1, Ordering::AcqRel);
        if before == RETIRED + 1 {
            self.0.unmap_file();
        }
    }
}

impl SharedMapping {
    /// Map the first `len` bytes of `file`, which has them now, writable and shared. Its users must accept zeros like
    /// anything else that a peer may write. Fails if the system refuses the mapping. The file may be closed afterwards.
    pub fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let span = MappedRange::new(file, 0, len, WRITABLE, libc::MAP_SHARED)?;
        // SAFETY: mapped above and not accessed, and unmapped after the guard is dropped; memory that a peer shares may
        // contain anything, so also zeros.
        let guard = unsafe { Guard::new(span.base(), len) };
        Ok(SharedMapping {
            guard,
            span,
            views: AtomicUsize::new(0),
        })
    }

    /// Return a view, which keeps the file mapped; None if the mapping is retired.
    pub fn view(self: &Arc<Self>) -> Option<MappingView> {
        // Relaxed: pairs with the exchange on the same word in `retire`.
        let before = self.views.fetch_add(1, Ordering::Relaxed);
        let view = MappingView(self.clone());
        (before & RETIRED == 0).then_some(view)
    }

    /// Release the file's memory although threads may still access the mapping: zeros replace the file, at once or when
    /// the last view is dropped. The mapping counts as truncated from now on. Idempotent.
    pub fn retire(&self) {
        // First, so that a thread that reads one of the zeros can detect it.
        self.guard.mark_truncated();
        // AcqRel: the mark is before the zeros, and the accesses of views are before, too.
        if self.views.fetch_or(RETIRED, Ordering::AcqRel) & !RETIRED == 0 {
            self.unmap_file();
        }
    }

    /// Replace the file by zeros, which take no memory.
    fn unmap_file(&self) {
        // SAFETY: all of it is our mapping, which keeps its length; threads that access it find a page of the file or
        // zeros, which are as good as what a peer may write. After an error the file stays mapped until the drop.
        unsafe {
            libc::mmap(
                self.span.base().cast(),
                self.span.len(),
                WRITABLE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
    }

    /// Fail with ECANCELED if the mapping is retired, so that nothing is mapped in its place.
    fn check_in_use(&self) -> io::Result<()> {
        // Acquire: pairs with `retire`.
        match self.views.load(Ordering::Acquire) & RETIRED {
            0 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }

    /// Fail with ECANCELED if the mapping was retired while something was mapped in its place, and unmap that, unless
    /// views are left.
    fn check_still_in_use(&self) -> io::Result<()> {
        let checked = self.check_in_use();
        // Acquire: as in `check_in_use`. A view that is dropped later finds the mark, and unmaps the file itself.
        if checked.is_err() && self.views.load(Ordering::Acquire) == RETIRED {
            self.unmap_file();
        }
        checked
    }

    /// Return the size, in bytes.
    pub fn size(&self) -> usize {
        self.span.len()
    }

    /// Allocate memory for the pages of the `len` bytes from `start` on: they may have none, and an access would be a
    /// SIGBUS if none is left. After an error some of them may have it. Fails always if `can_populate` returns false.
    ///
    /// # Panics
    /// If they are not within the mapping.
    pub fn populate(&self, start: usize, len: usize) -> io::Result<()> {
        // SAFETY: no memory is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let before = start % page;
        let at = self.address(start - before, before + len).cast();
        // SAFETY: within our mapping, which keeps its content.
        check_syscall(unsafe { libc::madvise(at, before + len, libc::MADV_POPULATE_WRITE) })?;
        Ok(())
    }

    /// Replace the mapping from `start` on, a multiple of the page, by the same part of another file of this size.
    /// Addresses stay the same. Fails with ECANCELED if the mapping is retired, also meanwhile.
    ///
    /// # Panics
    /// If `start` is not within the mapping.
    pub fn exchange(&self, file: BorrowedFd<'_>, start: usize, access: Access) -> io::Result<()> {
        let (access, kind) = match access {
            Access::Shared => (WRITABLE, libc::MAP_SHARED),
            Access::ReadOnly => (libc::PROT_READ, libc::MAP_SHARED),
            Access::Private => (WRITABLE, libc::MAP_PRIVATE),
        };
        assert!(start < self.size());
        self.check_in_use()?;
        let at = self.address(start, self.size() - start);
        // SAFETY: all of it is within our mapping, which keeps its length; concurrent accesses tolerate any change, as
        // for memory that peers may change, and find a page of one file or the other.
        let mapped = unsafe {
            libc::mmap(
                at.cast(),
                self.size() - start,
                access,
                kind | libc::MAP_FIXED,
                file.as_raw_fd(),
                start as libc::off_t,
            )
        };
        match mapped == libc::MAP_FAILED {
            true => Err(io::Error::last_os_error()),
            false => self.check_still_in_use(),
        }
    }

    /// Replace the mapping from `start` on by the same part of another mapping of this size, as
    /// [`exchange`](Self::exchange) does, with the same errors, and unmap the rest of the other one: for a file that
    /// cannot be mapped in this way again. After an error the other mapping is gone, too.
    ///
    /// # Panics
    /// If `start` is not within the mapping, or the other mapping has another size.
    pub fn adopt(&self, other: SharedMapping, start: usize) -> io::Result<()> {
        assert!(start < self.size() && other.size() == self.size());
        self.check_in_use()?;
        let SharedMapping { guard, span, .. } = other;
        drop(guard);
        let (len, to) = (
            self.size() - start,
            self.address(start, self.size() - start),
        );
        // SAFETY: both parts are within mappings of ours; no other thread uses the one that moves, and for the other
        // see `exchange`.
        let moved = unsafe {
            libc::mremap(
                span.base().wrapping_add(start).cast(),
                len,
                len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                to,
            )
        };
        if moved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // The moved part no longer belongs to it, and its addresses may already be used for another mapping.
        let base = std::mem::ManuallyDrop::new(span).base();
        // SAFETY: this part of the mapping is left, if anything, and nothing refers to it.
        unsafe { libc::munmap(base.cast(), start) };
        self.check_still_in_use()
    }

    /// Return true if a peer has truncated the file, or the mapping is retired: bytes that were read before this call
    /// may never have been written.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        self.guard.is_truncated()
    }

    /// Mark the mapping as truncated, because another file of its connection was. Its bytes stay.
    pub fn mark_truncated(&self) {
        self.guard.mark_truncated();
    }

    /// Return the address of the `len` bytes from `offset` on, valid as long as `self`. A peer may write them at any
    /// time.
    ///
    /// # Panics
    /// If they are not within the mapping.
    pub fn address(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset
                .checked_add(len)
                .is_some_and(|end| end <= self.size())
        );
        self.span.base().wrapping_add(offset)
    }

    /// Return the eight bytes at `offset`, a multiple of eight within the layout.
    #[inline]
    pub(crate) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0 && offset + 8 <= self.size());
        // SAFETY: within the mapping (its size is that of the layout, and every offset used is of the layout), aligned
        // (the base is page-aligned), and in this process never accessed other than atomically.
        unsafe { AtomicU64::from_ptr(self.span.base().add(offset).cast()) }
    }

    /// Return the four bytes at `offset`, a multiple of four within the layout.
    #[inline]
    pub(crate) fn u32_at(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset % 4 == 0 && offset + 4 <= self.size());
        // SAFETY: as in `u64_at`.
        unsafe { AtomicU32::from_ptr(self.span.base().add(offset).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering::Relaxed;
    use crate::testing::file_in_memory;
    use std::os::fd::AsFd;

    const SIZE: usize = 1 << 16;

    #[test]
    fn a_view_keeps_the_file_mapped_when_the_mapping_is_retired() {
        let file = file_in_memory();
        file.set_len(SIZE as u64).unwrap();
        let mapping = Arc::new(SharedMapping::new(file.as_fd(), SIZE).unwrap());
        let view = mapping.view().unwrap();
        mapping.u64_at(64).store(7, Relaxed);
        mapping.retire();
        assert!(mapping.view().is_none());
        assert!(mapping.exchange(file.as_fd(), 0, Access::Shared).is_err());
        assert_eq!(mapping.u64_at(64).load(Relaxed), 7);
        // The same check as after a concurrent exchange.
        assert!(mapping.check_still_in_use().is_err());
        assert_eq!(mapping.u64_at(64).load(Relaxed), 7);
        drop(view);
        assert_eq!(mapping.u64_at(64).load(Relaxed), 0);
    }
}
