//! Protection from SIGBUS: a peer may truncate a file of shared memory, and then an access to a page is a SIGBUS.
//!
//! Such memory is registered here. A handler finds the address of the fault among the registered ranges, marks the
//! range as truncated, replaces it by zeros, and lets the thread continue; the code that reads the mark ends that
//! connection. Any other SIGBUS goes to the previous handler.
//!
//! The handler may interrupt anything, in any thread. So it takes no lock and allocates no memory: the ranges are in
//! chunks that are never freed, each range in one atomic word.

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

/// Bytes of the unit in which a range is counted; no page is smaller.
const UNIT: usize = 4096;
/// Number of bits of a range's word with its length.
const LEN_BITS: u32 = 24;

/// The registration of one range.
struct Slot {
    taken: AtomicBool,
    /// Number of the first unit, and the number of units; 0: none. In one word, so that the handler never sees half of
    /// it.
    range: AtomicU64,
    truncated: AtomicBool,
}

impl Slot {
    /// Create a slot that is not in use.
    const fn new() -> Self {
        Slot {
            taken: AtomicBool::new(false),
            range: AtomicU64::new(0),
            truncated: AtomicBool::new(false),
        }
    }
}

const SLOTS: usize = 128;

/// A chunk of slots, and a link to the next one.
struct Chunk {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    /// Create a chunk of free slots without a next one.
    const fn new() -> Self {
        Chunk {
            slots: [const { Slot::new() }; SLOTS],
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// Return the chunk after this one.
    fn next(&self) -> Option<&'static Chunk> {
        // Acquire: pairs with the Release in `slot`: the chunk is complete.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a chunk that was leaked.
        unsafe { next.as_ref() }
    }
}

static FIRST: Chunk = Chunk::new();

/// Take a slot that is not in use, in a new chunk if there is none. Not called by the handler: it may allocate.
fn take_slot() -> &'static Slot {
    let mut chunk = &FIRST;
    loop {
        for slot in &chunk.slots {
            // Acquire: pairs with the Release in `drop`: the stores of the last owner are before ours.
            if !slot.taken.swap(true, Ordering::Acquire) {
                return slot;
            }
        }
        chunk = chunk.next().unwrap_or_else(|| {
            let fresh = Box::into_raw(Box::new(Chunk::new()));
            // Release: see `next`. Acquire: the chunk of another thread, if that was first.
            let put = chunk.next.compare_exchange(
                null_mut(),
                fresh,
                Ordering::Release,
                Ordering::Acquire,
            );
            match put {
                // SAFETY: leaked above, so valid forever.
                Ok(_) => unsafe { &*fresh },
                Err(theirs) => {
                    // SAFETY: no other thread has seen ours; theirs was leaked as ours would have been.
                    unsafe {
                        drop(Box::from_raw(fresh));
                        &*theirs
                    }
                }
            }
        });
    }
}

/// A registered range, until it is dropped, which must happen before the range is unmapped.
pub struct Guard(&'static Slot);

impl Guard {
    /// Register the pages of `len` bytes, less than 64 GiB, from `base` on, before their first access. The first call
    /// installs the handler of this process, for good.
    ///
    /// # Safety
    /// The memory is a mapping of its own, and `base` its beginning. Its users accept zeros in its place. It
    /// stays mapped until the guard is dropped.
    pub unsafe fn new(base: *mut u8, len: usize) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let slot = take_slot();
        // Relaxed: read only once the range is stored.
        slot.truncated.store(false, Ordering::Relaxed);
        let range = (base.addr() / UNIT) as u64;
        let range = range << LEN_BITS | len.div_ceil(UNIT) as u64;
        // Release: a handler that sees the range sees the mark of this owner. If another thread faults, what passed the
        // memory to it is after this store.
        slot.range.store(range, Ordering::Release);
        Guard(slot)
    }

    /// Return true if the range was truncated: bytes that were read before this call may be zeros that replace the
    /// content.
    #[inline]
    pub fn is_truncated(&self) -> bool {
        // Acquire: the mark is stored before the zeros are mapped, so a thread that has read one of them sees the mark
        // here.
        fence(Ordering::Acquire);
        self.0.truncated.load(Ordering::Relaxed)
    }

    /// Mark the range as truncated, because a related file was.
    pub fn mark_truncated(&self) {
        // Relaxed: a mark alone.
        self.0.truncated.store(true, Ordering::Relaxed);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Relaxed: only a thread that uses the memory can fault in it, and none does now.
        self.0.range.store(0, Ordering::Relaxed);
        // Release: see `slot`.
        self.0.taken.store(false, Ordering::Release);
    }
}

/// The previous action for SIGBUS.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Install the handler, and store the previous action.
fn install() {
    // SAFETY: all-zero bytes are a valid `sigaction`: integers, and an empty set.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    ours.sa_sigaction = on_sigbus as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are valid. The previous handler is stored before ours can need it.
    unsafe {
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before);
        PREVIOUS.store(Box::into_raw(Box::new(before)), Ordering::Release);
        libc::sigaction(libc::SIGBUS, &ours, null_mut());
    }
}

/// Replace the truncated range that contains the address of the fault by zeros, or call the previous handler.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel's, as SA_SIGINFO promises; `si_addr` is set if the code is positive.
    let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) };
    // SAFETY: errno belongs to this thread; the interrupted code finds it unchanged.
    let errno = unsafe { *libc::__errno_location() };
    let replaced = fault.is_some_and(replace_with_zeros);
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
    if !replaced {
        // SAFETY: the arguments that the kernel passed.
        unsafe { call_previous_handler(signal, info, context) };
    }
}

/// Replace each registered range that contains `address` by zeros. Return false if there is none.
fn replace_with_zeros(address: usize) -> bool {
    let mut replaced = false;
    let mut chunk = Some(&FIRST);
    while let Some(here) = chunk {
        for slot in &here.slots {
            // Acquire: pairs with the Release in `new`.
            let range = slot.range.load(Ordering::Acquire);
            let base = (range >> LEN_BITS) as usize * UNIT;
            let len = (range & ((1 << LEN_BITS) - 1)) as usize * UNIT;
            if address.wrapping_sub(base) >= len {
                continue;
            }
            // Release: before the zeros are mapped; see `is_truncated`.
            slot.truncated.store(true, Ordering::Release);
            // SAFETY: a mapping of its own, which stays mapped as long as a thread can fault in it (see `new`). mmap is
            // a bare system call.
            let zeros = unsafe {
                libc::mmap(
                    base as *mut libc::c_void,
                    len,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            replaced |= zeros != libc::MAP_FAILED;
        }
        chunk = here.next();
    }
    replaced
}

/// Call the previous handler, or do what the default action does.
///
/// # Safety
/// The arguments are those that the kernel passes to a handler.
unsafe fn call_previous_handler(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // Acquire: pairs with the Release in `install`.
    let before = PREVIOUS.load(Ordering::Acquire);
    // SAFETY: set before this handler was, and leaked.
    let before = unsafe { &*before };
    // SAFETY: the kernel's.
    let sent = unsafe { (*info).si_code <= 0 };
    match before.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: plain calls, allowed in a handler. The signal is blocked meanwhile and comes when the handler
            // returns.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: registered with SA_SIGINFO, so of this type.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: registered without SA_SIGINFO, so of this type.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extent::tests::memfd;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    /// A mapped file of two pages, which is never unmapped.
    struct Mapped {
        file: File,
        base: *mut u8,
    }

    impl Mapped {
        fn new() -> Self {
            let file = File::from(memfd(2 * UNIT, 0));
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a new mapping at an address of the kernel's choice.
            let base =
                unsafe { libc::mmap(null_mut(), 2 * UNIT, access, kind, file.as_raw_fd(), 0) };
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast();
            Mapped { file, base }
        }

        fn guard(&self) -> Guard {
            // SAFETY: a mapping of its own, which stays.
            unsafe { Guard::new(self.base, UNIT + 1) }
        }

        /// Return the byte at `offset`.
        fn read(&self, offset: usize) -> u8 {
            // SAFETY: within the mapping, and no thread writes.
            unsafe { self.base.add(offset).read_volatile() }
        }

        fn write(&self, offset: usize, value: u8) {
            // SAFETY: within the mapping, and no thread writes.
            unsafe { self.base.add(offset).write_volatile(value) };
        }
    }

    #[test]
    fn a_truncated_range_reads_as_zeros_and_is_marked() {
        let (mapped, other) = (Mapped::new(), Mapped::new());
        let (guard, again, others) = (mapped.guard(), mapped.guard(), other.guard());
        mapped.write(0, 7);
        other.write(0, 8);
        assert!(!guard.is_truncated());
        mapped.file.set_len(0).unwrap();
        assert_eq!(mapped.read(UNIT), 0);
        assert!(guard.is_truncated() && again.is_truncated());
        assert_eq!(mapped.read(0), 0, "the whole range is of one kind");
        mapped.write(1, 9);
        assert_eq!(mapped.read(1), 9);
        assert!(!others.is_truncated());
        assert_eq!(other.read(0), 8);
        drop((guard, again));
        assert!(!Mapped::new().guard().is_truncated(), "the next is as new");
    }

    #[test]
    fn any_thread_may_fault() {
        let mapped = Mapped::new();
        let guard = mapped.guard();
        mapped.file.set_len(0).unwrap();
        let base = mapped.base.addr();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(move || {
                    // SAFETY: within the mapping, and no thread writes.
                    unsafe { (base as *const u8).read_volatile() }
                })
            })
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 0);
        }
        assert!(guard.is_truncated());
    }

    #[test]
    fn the_number_of_ranges_is_unlimited() {
        let mapped: Vec<_> = (0..3 * SLOTS).map(|_| Mapped::new()).collect();
        let guards: Vec<_> = mapped.iter().map(Mapped::guard).collect();
        let (last, guard) = (mapped.last().unwrap(), guards.last().unwrap());
        last.file.set_len(0).unwrap();
        assert_eq!(last.read(0), 0);
        assert!(guard.is_truncated());
        assert_eq!(guards.iter().filter(|each| each.is_truncated()).count(), 1);
        for each in &mapped {
            // SAFETY: mapped in `new`; the guards are not used again.
            unsafe { libc::munmap(each.base.cast(), 2 * UNIT) };
        }
    }

    /// Return the exit status of a child that runs `act`.
    fn ended(act: impl FnOnce()) -> libc::c_int {
        let _alone = crate::FORK.lock();
        // SAFETY: the child does nothing that needs a lock of another thread, and exits.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                act();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        }
    }

    #[test]
    fn other_faults_end_the_process() {
        let (guarded, mapped) = (Mapped::new(), Mapped::new());
        let guard = guarded.guard();
        let dropped = mapped.guard();
        drop(dropped);
        mapped.file.set_len(0).unwrap();
        let status = ended(|| {
            mapped.read(0);
        });
        assert!(libc::WIFSIGNALED(status));
        assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
        guarded.file.set_len(0).unwrap();
        let status = ended(|| {
            guarded.read(0);
        });
        assert_eq!(status, 0, "a forked child is guarded, too");
        assert!(!guard.is_truncated());
    }
}
