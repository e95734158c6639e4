//! What a side has of its peer's memory: the extents that it was told of, and its leases in them.

use crate::connection::parcel::{self, Entry, Location, RELEASE_SIZE};
use crate::crash;
use crate::memory::arena::{BlockRef, GRANULE};
use crate::memory::extent::{self, Extent, ExtentError, Extents, MAX_EXTENTS};
use crate::memory::extent_update::{self, ExtentUpdate, UpdateError};
use crate::own_fd::OwnFd;
use crate::sync::lock;
use crate::violation::Violation;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, Weak};

/// Carries the ends of leases from one side to the other.
pub trait ReleaseSender: Send + Sync {
    /// Tells the peer that a lease has ended, if it can still be told.
    fn send_release(&self, payload: &[u8; RELEASE_SIZE]);
    /// Takes the ends of leases that have come since: there may be memory again.
    fn collect_releases(&self) -> Result<(), Violation>;
}

/// The peer's extents, and our leases in them.
pub(super) struct PeerExtents {
    /// What tells the peer of the ends of leases.
    sender: Weak<dyn ReleaseSender>,
    /// The process that has the leases: a forked child has copies of them, and no right to end one.
    process: u32,
    known: Mutex<ExtentTable>,
}

struct ExtentTable {
    /// Those that are mapped.
    extents: Extents,
    /// Those that the peer has told of, and that are not mapped for lack of room: bytes, and the file.
    updates: BTreeMap<u32, (u64, Arc<OwnFd>)>,
    /// The lowest number that a new one may have: they rise. None after the last.
    next: Option<u32>,
    /// Those that are gone, and may still be mapped for our leases in them.
    gone: Vec<Weak<Extent>>,
    /// Bytes that all of these may take together.
    limit: u64,
    /// By extent and block: our leases, and how far into the extent they reach.
    leases: BTreeMap<BlockRef, (u32, u64)>,
}

impl PeerExtents {
    /// One without extents, which may take `limit` bytes.
    pub(super) fn new(sender: Weak<dyn ReleaseSender>, limit: u64) -> Arc<Self> {
        Arc::new(PeerExtents {
            sender,
            process: std::process::id(),
            known: Mutex::new(ExtentTable {
                extents: Extents::new(),
                updates: BTreeMap::new(),
                next: Some(0),
                gone: Vec::new(),
                limit,
                leases: BTreeMap::new(),
            }),
        })
    }

    /// What tells the peer of the ends of leases, while the connection lasts.
    pub(super) fn sender(&self) -> Option<Arc<dyn ReleaseSender>> {
        self.sender.upgrade()
    }

    /// Refers to the block of the peer's that these bytes lie in.
    pub(super) fn entry_for(&self, address: usize, len: usize) -> Option<Entry> {
        let known = lock(&self.known);
        let (extent, offset) = extent::find(&known.extents, address, len)?;
        let first = BlockRef { extent, offset: 0 };
        let (&place, &(_, end)) = known
            .leases
            .range(first..=BlockRef { extent, offset })
            .next_back()?;
        (offset + len as u64 <= end).then_some(Entry {
            location: Location::AtReceiver(place),
            start: offset - place.offset,
            len: len as u64,
        })
    }

    /// Begins a lease of the block at `place`, in which the buffer `entry` lies. News come out of `socket`.
    pub(super) fn open_loan(
        self: &Arc<Self>,
        socket: BorrowedFd<'_>,
        place: BlockRef,
        entry: &Entry,
    ) -> Result<Loan, Violation> {
        let mut known = lock(&self.known);
        let number = place.extent;
        let mut unknown = Violation::Extent { number };
        if !known.extents.contains_key(&number) && !known.updates.contains_key(&number) {
            // Its owner told us before it named it.
            if let Some(error) = known.receive_updates(socket)? {
                unknown = Violation::DescriptorRefused { number, error };
            }
        }
        let extent = known.extent(number)?.ok_or(unknown)?.clone();
        // All of the block is in the extent: so that it can be mapped by itself, it ends with a granule.
        let start = place.offset.checked_add(entry.start);
        let end = start.and_then(|start| start.checked_add(entry.len));
        let whole = end.and_then(|end| end.checked_next_multiple_of(GRANULE));
        let (Some(end), Some(..)) = (end, whole.filter(|&end| end <= extent.size() as u64)) else {
            return Err(unknown_block(place));
        };
        if place.offset % GRANULE != 0 {
            return Err(Violation::Unaligned {
                extent: number,
                offset: place.offset,
                granule: GRANULE,
            });
        }
        let lease = known.leases.entry(place).or_insert((0, 0));
        *lease = (lease.0 + 1, lease.1.max(end));
        crash::point!(LeaseOpened);
        drop(known);
        let ledger = self.clone();
        Ok(Loan {
            extent,
            place,
            ledger,
        })
    }

    /// No lease begins any more: unmaps the extents in which we have none.
    pub(super) fn forget(&self) {
        lock(&self.known).extents.clear();
    }
}

/// A lease of a block of the peer's. When it is dropped, the peer is told.
pub struct Loan {
    pub(super) extent: Arc<Extent>,
    pub(super) place: BlockRef,
    ledger: Arc<PeerExtents>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.ledger.process != std::process::id() {
            return;
        }
        lock(&self.ledger.known).end_loan(self.place);
        crash::point!(LeaseEnded);
        if let Some(sender) = self.ledger.sender() {
            sender.send_release(&parcel::release(self.place));
            crash::point!(LeaseTold);
        }
    }
}

impl ExtentTable {
    /// Bytes of the extents that are mapped, or would be if there were room.
    fn taken(&mut self) -> u64 {
        self.gone.retain(|extent| extent.strong_count() > 0);
        let gone = self.gone.iter().filter_map(Weak::upgrade);
        let gone: u64 = gone.map(|extent| extent.size() as u64).sum();
        let here = self.extents.values().map(|extent| extent.size() as u64);
        let updates = self.updates.values().map(|&(size, _)| size);
        gone + here.sum::<u64>() + updates.sum::<u64>()
    }

    /// The extent of this number, mapped by now. One that cannot be used is as if it had not been told of; one for
    /// which this process has no room is tried again at the next time.
    fn extent(&mut self, number: u32) -> Result<Option<&Arc<Extent>>, Violation> {
        if let Some((size, file)) = self.updates.get(&number) {
            let size = *size;
            match Extent::open_shared(number, size as usize, file.clone()) {
                Ok(opened) => {
                    crash::point!(ExtentMapped);
                    self.extents.insert(number, Arc::new(opened));
                }
                Err(ExtentError::Os(error)) if is_own_limit(&error) => {
                    let error = errno(&error);
                    return Err(Violation::Unmapped {
                        number,
                        size,
                        error,
                    });
                }
                Err(_) => {}
            }
            self.updates.remove(&number);
        }
        Ok(self.extents.get(&number))
    }

    /// Takes all the news that there are. The `errno` if this process could not take the next: it is there still, and
    /// is tried again with the next frame that names what is not known.
    fn receive_updates(&mut self, socket: BorrowedFd<'_>) -> Result<Option<i32>, Violation> {
        loop {
            match extent_update::receive(socket) {
                Ok(None) => return Ok(None),
                Ok(Some(ExtentUpdate::Removed { number })) => {
                    self.updates.remove(&number);
                    if let Some(extent) = self.extents.remove(&number) {
                        self.gone.push(Arc::downgrade(&extent));
                    }
                }
                Ok(Some(ExtentUpdate::Added { number, size, file })) => {
                    let refused = Violation::Extent { number };
                    let many = self.extents.len() + self.updates.len() >= MAX_EXTENTS;
                    if many || self.next.is_none_or(|n| number < n) {
                        return Err(refused);
                    }
                    let (size_of_all, limit) = (size.saturating_add(self.taken()), self.limit);
                    if size_of_all > limit {
                        return Err(Violation::Memory {
                            size: size_of_all,
                            limit,
                        });
                    }
                    self.next = number.checked_add(1);
                    crash::point!(ExtentHeard);
                    self.updates
                        .insert(number, (size, Arc::new(OwnFd::from(file))));
                    // One that cannot be used counts as unknown once a frame names it. It may be that none will: the
                    // news that it is gone may be next.
                    let _ = self.extent(number);
                }
                Err(UpdateError::Os(error)) => return Ok(Some(errno(&error))),
                Err(UpdateError::Malformed(_)) => return Err(Violation::ExtentUpdate),
            }
        }
    }

    /// A lease has ended.
    fn end_loan(&mut self, place: BlockRef) {
        if let Some((count, _)) = self.leases.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.leases.remove(&place);
            }
        }
    }
}

/// Whether this process, or its system, has refused a mapping: no more address space, mappings, locked memory or files,
/// or a rule forbids it. Whether the peer's file can be mapped at all was looked at before.
fn is_own_limit(error: &io::Error) -> bool {
    matches!(
        errno(error),
        libc::EACCES | libc::EAGAIN | libc::ENFILE | libc::ENOMEM
    )
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

pub(super) fn unknown_block(place: BlockRef) -> Violation {
    Violation::Block {
        extent: place.extent,
        offset: place.offset,
    }
}
