//! Memory that a peer can cut off: what it shares with us lies in files that it may shorten, and then a look at a page
//! is a SIGBUS.
//!
//! Such memory is registered here. A handler finds the address of the fault among the registered ranges, marks the
//! range as cut off, puts zeros in its place, and lets the thread go on; the code that looks at the mark ends that
//! connection. Any other SIGBUS goes to the handler that was there before.
//!
//! The handler may interrupt anything, in any thread. So it takes no lock and no memory: the ranges stand in chunks
//! that are never freed, each range in one atomic word.

use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

/// Bytes of the unit in which a range is counted; no page is smaller.
const UNIT: usize = 4096;
/// Bits of a range's word that hold its length.
const LEN_BITS: u32 = 24;

/// A place for one range.
struct Slot {
    taken: AtomicBool,
    /// Number of the first unit, and how many; 0: none. In one word, so that no handler sees half of it.
    range: AtomicU64,
    cut_off: AtomicBool,
}

impl Slot {
    const fn new() -> Self {
        Slot {
            taken: AtomicBool::new(false),
            range: AtomicU64::new(0),
            cut_off: AtomicBool::new(false),
        }
    }
}

const SLOTS: usize = 128;

/// Slots, and where there are more.
struct Chunk {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Self {
        Chunk {
            slots: [const { Slot::new() }; SLOTS],
            next: AtomicPtr::new(null_mut()),
        }
    }

    /// The chunk after this one.
    fn next(&self) -> Option<&'static Chunk> {
        // Acquire: pairs with the Release in `slot`; the chunk is complete.
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: null, or a chunk that was leaked.
        unsafe { next.as_ref() }
    }
}

static FIRST: Chunk = Chunk::new();

/// Takes a slot that is not in use.
fn slot() -> &'static Slot {
    let mut chunk = &FIRST;
    loop {
        for slot in &chunk.slots {
            // Acquire: pairs with the Release in `drop`; what the last owner stored is before what we do.
            if !slot.taken.swap(true, Ordering::Acquire) {
                return slot;
            }
        }
        chunk = chunk.next().unwrap_or_else(|| {
            let fresh = Box::into_raw(Box::new(Chunk::new()));
            // Release: see `next`. Acquire: the other's chunk, if another thread was first.
            let put = chunk.next.compare_exchange(
                null_mut(),
                fresh,
                Ordering::Release,
                Ordering::Acquire,
            );
            match put {
                // SAFETY: leaked above, so it is there for ever.
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

/// A range that is registered, until it is dropped: before it is unmapped.
pub struct Guard(&'static Slot);

impl Guard {
    /// Registers the pages of `len` bytes from `base` on. They must not have been touched yet.
    ///
    /// # Safety
    /// The memory is a mapping of its own, `base` its beginning. Nothing is lost if zeros take its place. It stays
    /// mapped until the guard is dropped.
    pub unsafe fn new(base: *mut u8, len: usize) -> Self {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let slot = slot();
        // Relaxed: it is read only once the range is there.
        slot.cut_off.store(false, Ordering::Relaxed);
        let range = (base.addr() / UNIT) as u64;
        let range = range << LEN_BITS | len.div_ceil(UNIT) as u64;
        // Release: a handler that sees the range sees the mark of this owner. For a fault of a thread to which the
        // memory was handed, what handed it over is after this store.
        slot.range.store(range, Ordering::Release);
        Guard(slot)
    }

    /// Whether it was cut off: what was read before this question may be zeros in the place of what was there.
    #[inline]
    pub fn is_cut_off(&self) -> bool {
        // Acquire: the mark is stored before the zeros are mapped, so a thread that has read one of them sees it here.
        fence(Ordering::Acquire);
        self.0.cut_off.load(Ordering::Relaxed)
    }

    /// Marks it as cut off, since what belongs to it was.
    pub fn cut_off(&self) {
        // Relaxed: a mark alone.
        self.0.cut_off.store(true, Ordering::Relaxed);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Relaxed: only a thread that uses the memory can fault in it, and none does any more.
        self.0.range.store(0, Ordering::Relaxed);
        // Release: see `slot`.
        self.0.taken.store(false, Ordering::Release);
    }
}

/// What was done about SIGBUS before us.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

fn install() {
    // SAFETY: all-zero bytes are a valid `sigaction`: integers, and an empty set.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    ours.sa_sigaction = on_sigbus as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are valid. The handler of before is known before ours can need it.
    unsafe {
        libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before);
        BEFORE.store(Box::into_raw(Box::new(before)), Ordering::Release);
        libc::sigaction(libc::SIGBUS, &ours, null_mut());
    }
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel's, as SA_SIGINFO promises; `si_addr` is set if the code is positive.
    let fault = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) };
    // SAFETY: errno is the thread's own; whom we interrupt finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let mended = fault.is_some_and(mend);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !mended {
        // SAFETY: what we were given.
        unsafe { pass_on(signal, info, context) };
    }
}

/// Puts zeros in the place of each registered range in which `address` lies. False if there is none.
fn mend(address: usize) -> bool {
    let mut mended = false;
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
            // Release: before the zeros are there; see `is_cut_off`.
            slot.cut_off.store(true, Ordering::Release);
            // SAFETY: a mapping of its own, and mapped as long as somebody can fault in it (see `new`). mmap is a bare
            // system call.
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
            mended |= zeros != libc::MAP_FAILED;
        }
        chunk = here.next();
    }
    mended
}

/// Does what would have been done without us.
///
/// # Safety
/// As given to a handler by the kernel.
unsafe fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // Acquire: pairs with the Release in `install`.
    let before = BEFORE.load(Ordering::Acquire);
    // SAFETY: set before this handler was, and leaked.
    let before = unsafe { &*before };
    // SAFETY: the kernel's.
    let sent = unsafe { (*info).si_code <= 0 };
    match before.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: plain calls, allowed in a handler. The signal is blocked meanwhile and comes when we return.
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

    /// A file of two pages, mapped; unmapped never.
    struct Mapped {
        file: File,
        base: *mut u8,
    }

    impl Mapped {
        fn new() -> Self {
            let file = File::from(memfd(2 * UNIT, 0));
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            // SAFETY: a fresh mapping at an address of the kernel's choice.
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

        /// The byte at `offset`.
        fn read(&self, offset: usize) -> u8 {
            // SAFETY: within the mapping, and no thread writes.
            unsafe { self.base.add(offset).read_volatile() }
        }

        fn write(&self, offset: usize, value: u8) {
            // SAFETY: as above.
            unsafe { self.base.add(offset).write_volatile(value) };
        }
    }

    #[test]
    fn what_is_cut_off_reads_as_zeros_and_is_known() {
        let (mapped, other) = (Mapped::new(), Mapped::new());
        let (guard, again, others) = (mapped.guard(), mapped.guard(), other.guard());
        mapped.write(0, 7);
        other.write(0, 8);
        assert!(!guard.is_cut_off());
        mapped.file.set_len(0).unwrap();
        assert_eq!(mapped.read(UNIT), 0);
        assert!(guard.is_cut_off() && again.is_cut_off());
        assert_eq!(mapped.read(0), 0, "the whole range is of one kind");
        mapped.write(1, 9);
        assert_eq!(mapped.read(1), 9);
        assert!(!others.is_cut_off());
        assert_eq!(other.read(0), 8);
        drop((guard, again));
        assert!(!Mapped::new().guard().is_cut_off(), "the next is as new");
    }

    #[test]
    fn any_thread_may_be_the_one_that_faults() {
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
        assert!(guard.is_cut_off());
    }

    #[test]
    fn there_are_as_many_as_are_wanted() {
        let mapped: Vec<_> = (0..3 * SLOTS).map(|_| Mapped::new()).collect();
        let guards: Vec<_> = mapped.iter().map(Mapped::guard).collect();
        let (last, guard) = (mapped.last().unwrap(), guards.last().unwrap());
        last.file.set_len(0).unwrap();
        assert_eq!(last.read(0), 0);
        assert!(guard.is_cut_off());
        assert_eq!(guards.iter().filter(|each| each.is_cut_off()).count(), 1);
        for each in &mapped {
            // SAFETY: mapped in `new`; the guards are not asked again.
            unsafe { libc::munmap(each.base.cast(), 2 * UNIT) };
        }
    }

    /// How a child ends that does this.
    fn ended(act: impl FnOnce()) -> libc::c_int {
        let _alone = crate::FORK.lock();
        // SAFETY: the child does nothing that needs what another thread may hold, and ends.
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
    fn any_other_fault_ends_the_process_as_ever() {
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
        assert!(!guard.is_cut_off());
    }
}
