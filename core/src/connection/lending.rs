//! What the two sides of a connection lend each other: blocks of memory, by reference.
//!
//! Each side has an arena of its own. A buffer that is sent is copied into a block of it, or lies in
//! one already; the peer gets a lease and reads the block where it is. A lease that ends is told by
//! a frame of its own, [`parcel::RELEASE`]. A buffer that is sent back goes by reference too: its owner
//! holds the block then as if it had never been away.

use crate::connection::ledger::{Ledger, MAX_EXTENTS, no_block, range_in};
use crate::connection::parcel::{self, Entry, Lies, RELEASE_SIZE};
use crate::connection::sweeper::{self, Swept};
use crate::crash;
use crate::memory::arena::{Arena, GRANULE, Place};
use crate::memory::extent::Extent;
use crate::memory::news;
use crate::memory::view::{Mode, View};
use crate::sync::lock;
use crate::violation::Violation;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Why there is no block.
#[derive(Debug)]
pub enum NoMemory {
    /// The arena may not grow any more.
    Limit {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes in live blocks.
        used: u64,
        /// Bytes that the arena may have.
        limit: u64,
    },
    /// The system refused.
    System {
        /// Bytes that were asked for.
        asked: u64,
        /// Its error.
        error: io::Error,
    },
    /// The peer cannot be told of new memory: it has closed its end of the socket for that, or is gone.
    Unheard {
        /// Bytes that were asked for.
        asked: u64,
    },
}

impl fmt::Display for NoMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoMemory::Limit { asked, used, limit } => write!(
                out,
                "{asked} bytes were asked for, {used} of this connection's max_memory of {limit} are in use"
            ),
            NoMemory::System { asked, error } => {
                write!(
                    out,
                    "{asked} bytes were asked for, and the system refused: {error}"
                )
            }
            NoMemory::Unheard { asked } => {
                write!(
                    out,
                    "{asked} bytes were asked for, and the peer does not hear of new memory any more"
                )
            }
        }
    }
}

impl std::error::Error for NoMemory {}

struct Own {
    arena: Arena,
    extents: BTreeMap<u32, Arc<Extent>>,
    /// The number of the next extent. None is used twice.
    next: u32,
    /// Leases that the peer has ended.
    returned: u64,
}

/// Carries the ends of leases from one side to the other.
pub trait Carrier: Send + Sync {
    /// Tells the peer that a lease has ended. A peer that cannot be told any more does not care.
    fn send_release(&self, payload: &[u8; RELEASE_SIZE]);
    /// Takes the ends of leases that have come and that nobody has looked at yet: there may be memory again.
    fn collect(&self) -> Result<(), Violation>;
}

/// Both sides' memory, as one of them sees it.
pub struct Lending {
    /// News of extents go through it, both ways.
    socket: OwnedFd,
    carrier: Weak<dyn Carrier>,
    /// Held while an extent is made or given back. Those that the peer is still to be told are gone.
    growing: Mutex<Vec<u32>>,
    /// Held for moments only.
    own: Mutex<Own>,
    /// The process that uses it: a forked child has copies of what is lent, and no right to give it back.
    process: u32,
    /// Whether we have extents, for who must not wait for the lock.
    has_extents: AtomicBool,
    /// Whether the peer does not hear of extents any more.
    is_unheard: AtomicBool,
    theirs: Mutex<Ledger>,
}

impl Lending {
    /// What two sides lend each other. `limit`: bytes of either's arena.
    pub fn new(carrier: Weak<dyn Carrier>, socket: OwnedFd, limit: u64) -> Arc<Self> {
        Arc::new(Lending {
            socket,
            carrier,
            growing: Mutex::new(Vec::new()),
            process: std::process::id(),
            own: Mutex::new(Own {
                arena: Arena::new(limit),
                extents: BTreeMap::new(),
                next: 0,
                returned: 0,
            }),
            has_extents: AtomicBool::new(false),
            is_unheard: AtomicBool::new(false),
            theirs: Mutex::new(Ledger::new(limit)),
        })
    }

    /// Bytes of our extents, and those of them in live blocks.
    pub fn usage(&self) -> (u64, u64) {
        let own = lock(&self.own);
        (own.arena.size(), own.arena.used())
    }

    /// Bytes of our blocks that the peer alone has, and how many leases it has ended.
    pub fn away(&self) -> (u64, u64) {
        let own = lock(&self.own);
        (own.arena.away(), own.returned)
    }

    /// A block of ours, to be written. Not with the GIL: an extent takes a while to be made.
    pub fn allocate(self: &Arc<Self>, len: u64) -> Result<Owned, NoMemory> {
        if let Some(block) = self.allocate_here(len) {
            return Ok(block);
        }
        // One at a time grows the arena; those who only use it meanwhile do not wait.
        let mut untold = lock(&self.growing);
        if let Some(block) = self.allocate_here(len) {
            return Ok(block);
        }
        loop {
            self.grow(len, &mut untold)?;
            if let Some(block) = self.allocate_here(len) {
                return Ok(block);
            }
        }
    }

    /// A block in the extents that there are.
    fn allocate_here(self: &Arc<Self>, len: u64) -> Option<Owned> {
        let mut own = lock(&self.own);
        let place = own.arena.allocate(len)?;
        crash::point!(BlockAllocated);
        Some(Owned {
            extent: own.extents[&place.extent].clone(),
            lending: self.clone(),
            place,
            start: 0,
            len,
        })
    }

    fn full(&self, asked: u64) -> NoMemory {
        let own = lock(&self.own);
        NoMemory::Limit {
            asked,
            used: own.arena.used(),
            limit: own.arena.limit(),
        }
    }

    fn grow(self: &Arc<Self>, len: u64, untold: &mut Vec<u32>) -> Result<(), NoMemory> {
        // Relaxed, here and below: hints.
        if self.is_unheard.load(Ordering::Relaxed) {
            return Err(NoMemory::Unheard { asked: len });
        }
        let (number, size) = {
            let own = lock(&self.own);
            let full = own.extents.len() >= MAX_EXTENTS;
            let size = own.arena.growth(len).filter(|_| !full);
            (own.next, size)
        };
        let Some(size) = size else {
            return Err(self.full(len));
        };
        let refused = |error| NoMemory::System { asked: len, error };
        let untellable = |error: io::Error| match error.kind() {
            // Its end is closed, and stays so.
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.is_unheard.store(true, Ordering::Relaxed);
                NoMemory::Unheard { asked: len }
            }
            // It may hear of the next one: it was slow to listen, or a system was short of something.
            _ => refused(error),
        };
        // First what is gone: the peer counts what we have.
        self.tell_gone(untold).map_err(untellable)?;
        let extent = Extent::create(number, size as usize).map_err(refused)?;
        crash::point!(ExtentMade);
        news::send_extent(self.socket.as_fd(), &extent).map_err(untellable)?;
        crash::point!(ExtentTold);
        let mut own = lock(&self.own);
        own.next += 1;
        own.arena.add(number, extent.size() as u64);
        own.extents.insert(number, Arc::new(extent));
        crash::point!(ExtentAdded);
        drop(own);
        if !self.has_extents.swap(true, Ordering::Relaxed) {
            let us: Weak<Self> = Arc::downgrade(self);
            sweeper::watch(us);
        }
        Ok(())
    }

    /// Whether this is the process that uses it. In a forked child a lock may be held for ever.
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Tells the peer of extents that are gone, as far as it listens.
    fn tell_gone(&self, untold: &mut Vec<u32>) -> io::Result<()> {
        while let Some(&number) = untold.last() {
            news::send_gone(self.socket.as_fd(), number)?;
            untold.pop();
            crash::point!(ExtentGone);
        }
        Ok(())
    }

    /// Makes these bytes travel: lends the block that they lie in, or copies them into one. None if
    /// there is no memory for that: they have to go in the frame.
    ///
    /// The lease is the peer's once the frame is sent; one that is not sent is to be taken back by
    /// [`Lending::unlend`].
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    pub unsafe fn place(self: &Arc<Self>, from: *const u8, len: usize) -> Option<Entry> {
        if let Some(entry) = self
            .lend(from.addr(), len)
            .or_else(|| lock(&self.theirs).refer(from.addr(), len))
        {
            return Some(entry);
        }
        let block = self.allocate(len as u64).ok()?;
        // SAFETY: the caller's promise, and the block is of this length and nobody else's yet.
        unsafe { block.extent.write(block.place.offset, from, len) };
        crash::point!(BlockWritten);
        let place = block.place;
        lock(&self.own).arena.lend(place);
        crash::point!(BlockLent);
        Some(Entry {
            lies: Lies::AtSender(place),
            start: 0,
            len: len as u64,
        })
    }

    /// Lends the block of ours that these bytes lie in.
    fn lend(&self, address: usize, len: usize) -> Option<Entry> {
        let mut own = lock(&self.own);
        let (extent, offset) = range_in(&own.extents, address, len)?;
        let (place, _) = own.arena.find(extent, offset, len as u64)?;
        own.arena.lend(place);
        crash::point!(BlockLent);
        Some(Entry {
            lies: Lies::AtSender(place),
            start: offset - place.offset,
            len: len as u64,
        })
    }

    /// Takes back what was lent for a frame that was not sent.
    pub fn unlend(&self, entry: &Entry) {
        if let Lies::AtSender(place) = entry.lies {
            lock(&self.own).arena.give_back(place);
        }
    }

    /// The peer ends a lease.
    pub fn give_back(&self, payload: &[u8; RELEASE_SIZE]) -> Result<(), Violation> {
        let place = parcel::released(payload);
        let mut own = lock(&self.own);
        if !own.arena.give_back(place) {
            return Err(no_block(place));
        }
        own.returned += 1;
        crash::point!(ReleaseTaken);
        Ok(())
    }

    /// The memory that an entry of a frame names; None if its bytes lie in the frame.
    pub fn open(self: &Arc<Self>, entry: &Entry) -> Result<Option<Memory>, Violation> {
        match entry.lies {
            Lies::Here => Ok(None),
            Lies::AtSender(place) => {
                let extent = lock(&self.theirs).lease(self.socket.as_fd(), place, entry)?;
                Ok(Some(Memory::Leased(Lease {
                    extent,
                    lending: self.clone(),
                    place,
                    start: entry.start,
                    len: entry.len,
                })))
            }
            Lies::AtReceiver(place) => Ok(Some(Memory::Owned(self.regain(place, entry)?))),
        }
    }

    fn regain(self: &Arc<Self>, place: Place, entry: &Entry) -> Result<Owned, Violation> {
        let mut own = lock(&self.own);
        let found = place
            .offset
            .checked_add(entry.start)
            .and_then(|offset| own.arena.find(place.extent, offset, entry.len));
        if found.is_none_or(|(block, _)| block != place) || !own.arena.is_lent(place) {
            return Err(no_block(place));
        }
        own.arena.hold(place);
        crash::point!(BlockRegained);
        Ok(Owned {
            extent: own.extents[&place.extent].clone(),
            lending: self.clone(),
            place,
            start: entry.start,
            len: entry.len,
        })
    }
}

impl Swept for Lending {
    fn sweep(&self, now: u64, patience: u64) {
        let Some(carrier) = self.carrier.upgrade() else {
            return;
        };
        // A violation is remembered, for those who receive.
        let _ = carrier.collect();
        let mut untold = lock(&self.growing);
        let mut own = lock(&self.own);
        let numbers = own.arena.sweep(now, patience);
        let gone = numbers
            .iter()
            .filter_map(|number| own.extents.remove(number));
        let gone: Vec<_> = gone.collect();
        if own.extents.is_empty() {
            self.has_extents.store(false, Ordering::Relaxed);
        }
        drop(own);
        for extent in gone {
            crash::point!(ExtentIdle);
            extent.punch();
            crash::point!(ExtentPunched);
            untold.push(extent.number());
        }
        // A peer that is not told keeps an address range and no memory.
        let _ = self.tell_gone(&mut untold);
    }

    fn is_swept(&self) -> bool {
        // Relaxed: a hint.
        self.carrier.strong_count() > 0 && self.has_extents.load(Ordering::Relaxed)
    }
}

/// A buffer in a block that is ours. The block is free once nobody holds it and the peer has no lease.
pub struct Owned {
    extent: Arc<Extent>,
    lending: Arc<Lending>,
    place: Place,
    start: u64,
    len: u64,
}

impl Drop for Owned {
    fn drop(&mut self) {
        if self.lending.is_ours() {
            lock(&self.lending.own).arena.drop_hold(self.place);
        }
    }
}

/// A buffer in a block that is the peer's. When it is dropped, the peer is told.
pub struct Lease {
    extent: Arc<Extent>,
    lending: Arc<Lending>,
    place: Place,
    start: u64,
    len: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.lending.is_ours() {
            return;
        }
        lock(&self.lending.theirs).end(self.place);
        crash::point!(LeaseEnded);
        if let Some(carrier) = self.lending.carrier.upgrade() {
            carrier.send_release(&parcel::release(self.place));
            crash::point!(LeaseTold);
        }
    }
}

/// A buffer in shared memory. It stays mapped and unused by others for as long as this lives.
pub enum Memory {
    /// In a block of ours.
    Owned(Owned),
    /// In a block of the peer's.
    Leased(Lease),
}

impl Memory {
    /// The mapping that it lies in.
    pub fn extent(&self) -> &Arc<Extent> {
        match self {
            Memory::Owned(owned) => &owned.extent,
            Memory::Leased(lease) => &lease.extent,
        }
    }

    /// Where it begins in its extent, in bytes.
    fn offset(&self) -> u64 {
        match self {
            Memory::Owned(owned) => owned.place.offset + owned.start,
            Memory::Leased(lease) => lease.place.offset + lease.start,
        }
    }

    /// Its length, in bytes.
    pub fn len(&self) -> usize {
        match self {
            Memory::Owned(owned) => owned.len as usize,
            Memory::Leased(lease) => lease.len as usize,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it is mapped. Writable only if it is ours.
    pub fn address(&self) -> *mut u8 {
        // Within the mapping: checked when it was opened.
        self.extent().base().wrapping_add(self.offset() as usize)
    }

    /// Copies all of it.
    ///
    /// # Safety
    /// `to` is writable for `len()` bytes.
    pub unsafe fn read(&self, to: *mut u8) {
        // SAFETY: the caller's promise; the range was checked when it was opened.
        unsafe { self.extent().read(self.offset(), to, self.len()) };
    }

    /// Another mapping of it, writable; and where in that it begins.
    pub fn map(&self, mode: Mode) -> io::Result<(View, usize)> {
        let into = self.offset() % GRANULE;
        let len = (into as usize + self.len()).next_multiple_of(GRANULE as usize);
        let mapping = self.extent().map(self.offset() - into, len, mode)?;
        Ok((mapping, into as usize))
    }
}
