//! The fork guard distinguishes the process that created a value from its forked children, which have copies but no
//! right to use them.

use crate::clock;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

const PAGE: usize = 4096;

/// A page that the kernel wipes in each forked child; null before the first use.
static STAMP_PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// The identity of the process that created a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginProcess(u64);

impl OriginProcess {
    /// Return the identity of this process. Fails if the kernel provides no page to identify it by.
    pub fn current() -> io::Result<Self> {
        let stamp = stamp()?;
        // Relaxed, both: a forked child begins with one thread, which sees zeros or its own store.
        let found = stamp.load(Ordering::Relaxed);
        if found != 0 {
            return Ok(OriginProcess(found));
        }
        // Unique: no two related processes take their stamps at the same moment with the same id.
        let fresh = (clock::now() << 16 | u64::from(std::process::id() & 0xffff)).max(1);
        let put = stamp.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed);
        Ok(OriginProcess(put.err().unwrap_or(fresh)))
    }

    /// Return true in the process whose identity this is; false in its forked children. Makes no system call.
    #[inline]
    pub fn is_current(self) -> bool {
        // Acquire: pairs with the exchange in `stamp`.
        let page = STAMP_PAGE.load(Ordering::Acquire);
        // SAFETY: the page is mapped, because an origin exists, and stays so; all access is atomic. Relaxed: see
        // `current`.
        !page.is_null() && unsafe { &*page }.load(Ordering::Relaxed) == self.0
    }
}

/// A value that each process has for itself. A forked child gets a new one, because a lock in its parent's value may be
/// held forever.
pub struct PerProcess<T>(AtomicPtr<(OriginProcess, T)>);

impl<T> PerProcess<T> {
    /// Create a holder without a value.
    pub const fn empty() -> Self {
        PerProcess(AtomicPtr::new(null_mut()))
    }
}

impl<T: Default> PerProcess<T> {
    /// Return the value of this process, created on first use and never dropped. A forked child gets a value of its
    /// own. Fails if the kernel provides no page to identify the process by.
    pub fn get(&'static self) -> io::Result<&'static T> {
        let here = OriginProcess::current()?;
        loop {
            // Acquire: pairs with the exchange below: the value is complete.
            let current = self.0.load(Ordering::Acquire);
            // SAFETY: null, or leaked below and so valid forever.
            if let Some((origin, found)) = unsafe { current.as_ref() }
                && *origin == here
            {
                return Ok(found);
            }
            let fresh = Box::into_raw(Box::new((here, T::default())));
            // AcqRel: publishes the new value, and sees the value of another thread.
            if self
                .0
                .compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire)
                .is_err()
            {
                // SAFETY: created above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}

/// Return the word that identifies this process, 0 until it is set. The first call maps its page, for good, and may
/// fail.
fn stamp() -> io::Result<&'static AtomicU64> {
    // Acquire: pairs with the exchange below.
    let mut page = STAMP_PAGE.load(Ordering::Acquire);
    if page.is_null() {
        let fresh = wiped_page()?;
        // AcqRel: publishes the page, or sees that of another thread.
        page = match STAMP_PAGE.compare_exchange(
            null_mut(),
            fresh,
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => fresh,
            Err(theirs) => {
                // SAFETY: mapped above, and no other thread has seen it.
                unsafe { libc::munmap(fresh.cast(), PAGE) };
                theirs
            }
        };
    }
    // SAFETY: a page that stays mapped, and is only accessed atomically.
    Ok(unsafe { &*page })
}

/// Map a page that the kernel wipes in each forked child, and that the caller owns. Fails if the kernel cannot do so.
fn wiped_page() -> io::Result<*mut AtomicU64> {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping at an address of the kernel's choice affects no existing one.
    let page = unsafe { libc::mmap(null_mut(), PAGE, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page was mapped above.
    if unsafe { libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) } != 0 {
        let error = io::Error::last_os_error();
        // SAFETY: mapped above, and unused.
        unsafe { libc::munmap(page, PAGE) };
        return Err(error);
    }
    Ok(page.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_another_process() {
        let _alone = crate::FORK.lock();
        let here = OriginProcess::current().unwrap();
        assert!(here.is_current());
        assert_eq!(OriginProcess::current().unwrap(), here);
        // SAFETY: the child makes system calls only.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let child = OriginProcess::current();
            let right =
                !here.is_current() && child.is_ok_and(|child| child != here && child.is_current());
            // SAFETY: no memory is involved.
            unsafe { libc::_exit(i32::from(!right)) };
        }
        let mut status = 1;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert_eq!(status, 0);
        assert!(here.is_current());
    }
}
