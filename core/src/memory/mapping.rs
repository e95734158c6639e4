//! Files in our memory: mapped until they are dropped.

use crate::memory::sigbus::Guard;
use crate::os::done;
use crate::sync::{AtomicU32, AtomicU64};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Readable and writable.
pub(crate) const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;

/// Mapped addresses.
#[derive(Debug)]
pub(crate) struct Span {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and nothing here refers to its bytes.
unsafe impl Send for Span {}
// SAFETY: as above; code that copies bytes or writes to `base` ensures that no other thread does.
unsafe impl Sync for Span {}

impl Span {
    /// Maps `len` bytes of the file from `start` on, where the kernel has room.
    pub(crate) fn new(
        file: BorrowedFd<'_>,
        start: usize,
        len: usize,
        access: libc::c_int,
        flags: libc::c_int,
    ) -> io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing of ours.
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
        Ok(Span { base, len })
    }

    /// Where it begins.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Its bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference into it outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Whether [`SharedMapping::set_aside`] works: the kernel knows how since Linux 5.14.
pub(crate) fn can_set_aside() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    // SAFETY: no memory is involved: it is asked for none. A kernel that does not know the advice says so.
    *CAN.get_or_init(|| unsafe {
        libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) == 0
    })
}

/// How a part of a mapping that is put in the place of another one can be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Written, by all who map it.
    Shared,
    /// Read alone; whoever has it writable writes it.
    ReadOnly,
    /// Written, and what is written is seen by nobody else.
    Private,
}

/// The beginning of a file that a peer may write, and cut off, at any time. All access is atomic, and what is cut off
/// reads as zeros.
pub struct SharedMapping {
    // Before the span: it goes first.
    guard: Guard,
    span: Span,
    /// The number of views that keep the file mapped, and `RETIRED`.
    views: AtomicUsize,
}

/// The bit of `SharedMapping::views` that says that the mapping is retired.
const RETIRED: usize = 1 << (usize::BITS - 1);

/// A view of a mapping by bytes that a program was given: the file stays mapped until the last view is dropped, also if the
/// mapping is retired meanwhile.
pub struct MappingView(Arc<SharedMapping>);

impl Drop for MappingView {
    fn drop(&mut self) {
        // AcqRel: what other views have read and written is before the file goes.
        let before = self.0.views.fetch_sub(1, Ordering::AcqRel);
        if before == RETIRED + 1 {
            self.0.unmap_file();
        }
    }
}

impl SharedMapping {
    /// Maps the first `len` bytes of `file`, which has them now. Zeros must be as good as anything else that a peer may
    /// have written there.
    pub fn new(file: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        let span = Span::new(file, 0, len, WRITABLE, libc::MAP_SHARED)?;
        // SAFETY: mapped above and not yet touched, and unmapped after the guard is dropped; what a peer shares with us
        // may be anything, so also zeros.
        let guard = unsafe { Guard::new(span.base(), len) };
        Ok(SharedMapping {
            guard,
            span,
            views: AtomicUsize::new(0),
        })
    }

    /// Returns a view, which keeps the file mapped; None if the mapping is retired.
    pub fn view(self: &Arc<Self>) -> Option<MappingView> {
        // Relaxed: pairs with the exchange on the same word in `retire`.
        let before = self.views.fetch_add(1, Ordering::Relaxed);
        let view = MappingView(self.clone());
        (before & RETIRED == 0).then_some(view)
    }

    /// Gives the file's memory back although threads may still look at the mapping: zeros take the place of the file, at once
    /// or when the last view is dropped. The mapping counts as cut off from now on. Idempotent.
    pub fn retire(&self) {
        // First: a thread that reads one of the zeros then knows.
        self.guard.cut_off();
        // AcqRel: the mark is before the zeros, and what views have done is before, too.
        if self.views.fetch_or(RETIRED, Ordering::AcqRel) & !RETIRED == 0 {
            self.unmap_file();
        }
    }

    /// Puts zeros, which take no memory, in the place of the file.
    fn unmap_file(&self) {
        // SAFETY: all of it is our mapping, which stays one of this length; threads that look at it find a page of the file
        // or zeros, which are as good as what a peer may write. After an error the file stays mapped until the drop.
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

    /// Fails if the mapping is retired: nothing is to be mapped in its place.
    fn check_in_use(&self) -> io::Result<()> {
        // Acquire: pairs with `retire`.
        match self.views.load(Ordering::Acquire) & RETIRED {
            0 => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
        }
    }

    /// The same after something was mapped there, which goes again then: with the last view, if there are some.
    fn check_still_in_use(&self) -> io::Result<()> {
        let checked = self.check_in_use();
        // Acquire: as in `check_in_use`. A view that is dropped later finds the mark, and unmaps the file itself.
        if checked.is_err() && self.views.load(Ordering::Acquire) == RETIRED {
            self.unmap_file();
        }
        checked
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        self.span.len()
    }

    /// Sets memory aside for the pages of the `len` bytes from `start` on: what is mapped there may have none, and a look at
    /// it would be a SIGBUS if there is none left. After an error some of them may have it.
    ///
    /// # Panics
    /// If they are not within the mapping.
    pub fn set_aside(&self, start: usize, len: usize) -> io::Result<()> {
        // SAFETY: no memory is involved.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let before = start % page;
        let at = self.address(start - before, before + len).cast();
        // SAFETY: within our mapping; what is there keeps its content.
        done(unsafe { libc::madvise(at, before + len, libc::MADV_POPULATE_WRITE) })?;
        Ok(())
    }

    /// Puts what another file of this size has from `start` on, a multiple of the page, in the place of what is mapped there.
    /// Addresses stay what they are.
    ///
    /// # Panics
    /// If it does not begin within the mapping.
    pub fn exchange(&self, file: BorrowedFd<'_>, start: usize, access: Access) -> io::Result<()> {
        let (access, kind) = match access {
            Access::Shared => (WRITABLE, libc::MAP_SHARED),
            Access::ReadOnly => (libc::PROT_READ, libc::MAP_SHARED),
            Access::Private => (WRITABLE, libc::MAP_PRIVATE),
        };
        assert!(start < self.size());
        self.check_in_use()?;
        let at = self.address(start, self.size() - start);
        // SAFETY: all of it lies within our mapping, which stays one of this length; those that look at it meanwhile do so
        // as at what peers may change at any time, and find a page of the one file or of the other.
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

    /// Puts what another mapping of this size has from `start` on in the place of what is mapped there, as
    /// [`exchange`](Self::exchange) does, and gives the rest of it back: for a file that cannot be mapped so again.
    ///
    /// # Panics
    /// If it does not begin within the mapping, or the other one has another size.
    pub fn adopt(&self, other: SharedMapping, start: usize) -> io::Result<()> {
        assert!(start < self.size() && other.size() == self.size());
        self.check_in_use()?;
        let SharedMapping { guard, span, .. } = other;
        drop(guard);
        let (len, to) = (
            self.size() - start,
            self.address(start, self.size() - start),
        );
        // SAFETY: both parts lie within mappings of ours; the one that moves is nobody else's, and for the other see
        // `exchange`.
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
        // What has moved is no part of it any more, and its addresses may be somebody else's by now.
        let base = std::mem::ManuallyDrop::new(span).base();
        // SAFETY: so much of it is left, if anything, and nothing refers to it.
        unsafe { libc::munmap(base.cast(), start) };
        self.check_still_in_use()
    }

    /// Whether a peer has cut it off: what was read before this question may never have been written.
    #[inline]
    pub fn is_cut_off(&self) -> bool {
        self.guard.is_cut_off()
    }

    /// Marks it as cut off, since something else of its connection was.
    pub fn cut_off(&self) {
        self.guard.cut_off();
    }

    /// Where the `len` bytes from `offset` on lie in our memory, for as long as this lives. A peer may write them at any
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

    /// The eight bytes from `offset` on, a multiple of eight that the layout has.
    #[inline]
    pub(crate) fn u64_at(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0 && offset + 8 <= self.size());
        // SAFETY: within the mapping (its size is that of the layout, and every offset used is of the layout), aligned
        // (the base is page-aligned), and in this process never accessed other than atomically.
        unsafe { AtomicU64::from_ptr(self.span.base().add(offset).cast()) }
    }

    /// The four bytes from `offset` on, a multiple of four that the layout has.
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
        // As one finds it that has mapped something there just before.
        assert!(mapping.check_still_in_use().is_err());
        assert_eq!(mapping.u64_at(64).load(Relaxed), 7);
        drop(view);
        assert_eq!(mapping.u64_at(64).load(Relaxed), 0);
    }
}
