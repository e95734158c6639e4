//! Loans: the two sides of a connection lend each other blocks of memory, by reference.
//!
//! Each side has an allocator of its own, and the other side is a holder of its blocks. A buffer that is sent is copied
//! into a block, or lies in one already; the peer gets a loan and reads the block in place. A frame of its own,
//! [`parcel::RELEASE`], ends a loan. A buffer that is sent back goes by reference too: its owner then holds the block
//! as if it had never been lent.

use crate::connection::buffer::{Buffer, BufferOwner};
use crate::connection::parcel::{self, Entry, Location, RELEASE_SIZE};
use crate::connection::peer_extents::{PeerExtents, ReleaseSender, unknown_block};
use crate::connection::sweeper::{self, Swept};
use crate::crash;
use crate::memory::arena::Holder;
use crate::memory::buffer_allocator::{AllocError, BlockHold, BufferAllocator};
use crate::memory::copier::Copier;
use crate::memory::extent_update;
use crate::own_fd::OwnFd;
use crate::sync::lock;
use crate::violation::Violation;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

/// Extent updates that the peer has not received.
#[derive(Default)]
struct PeerUpdates {
    /// Numbers of removed extents that were not sent.
    gone: Vec<u32>,
    /// True if the peer no longer receives updates.
    is_closed: bool,
}

/// The memory of both sides of a connection, as one side has it.
pub struct Loans {
    /// Socket for extent updates, in both directions.
    socket: OwnFd,
    ours: Arc<BufferAllocator>,
    /// The peer as a holder of blocks of this side.
    peer: Holder,
    /// Lock that is held while an extent of this side is added or removed.
    updates: Mutex<PeerUpdates>,
    /// Copier into blocks of this side, which the peer reads.
    copier: Copier,
    theirs: Arc<PeerExtents>,
}

impl Loans {
    /// Create the loans of a connection, without extents. `sender` sends the releases, `socket` is for extent updates,
    /// and `limit` is the maximum size of the memory of either side, in bytes.
    pub fn new(sender: Weak<dyn ReleaseSender>, socket: OwnedFd, limit: u64) -> Arc<Self> {
        let ours = BufferAllocator::new(limit);
        Arc::new(Loans {
            socket: socket.into(),
            peer: ours.add_holder(),
            ours,
            updates: Mutex::default(),
            copier: Copier::default(),
            theirs: PeerExtents::new(sender, limit),
        })
    }

    /// Return the allocator of this side's blocks.
    pub fn allocator(&self) -> &BufferAllocator {
        &self.ours
    }

    /// Allocate a writable buffer of `len` bytes, whose contents are undefined. Called without the GIL, because the
    /// creation of an extent takes a while. Fails with `Limit` if the memory is full, with `System` if the system has
    /// none or the socket for extent updates is full, and with `PeerClosed` if the peer no longer receives updates.
    pub fn allocate(self: &Arc<Self>, len: u64) -> Result<Buffer, AllocError> {
        self.allocate_block(len)
            .map(|hold| Buffer::new(BufferOwner::Own(hold), 0, len))
    }

    /// Allocate a block, in a new extent if the existing ones have no room. Fails as [`allocate`](Self::allocate) does.
    fn allocate_block(self: &Arc<Self>, len: u64) -> Result<BlockHold, AllocError> {
        if let Some(block) = self.ours.allocate(len) {
            return Ok(block);
        }
        // One thread at a time adds an extent; threads that find a free block do not wait meanwhile.
        let mut updates = lock(&self.updates);
        loop {
            if let Some(block) = self.ours.allocate(len) {
                return Ok(block);
            }
            self.grow(len, &mut updates)?;
        }
    }

    /// Create an extent with room for `len` bytes, announce it to the peer, and add it to the allocator. `updates` is
    /// locked. Fails as [`allocate`](Self::allocate) does; nothing is added then. First sends the pending removals,
    /// whose error ends the call. Makes the sweeper watch this object after the first extent.
    fn grow(self: &Arc<Self>, len: u64, updates: &mut PeerUpdates) -> Result<(), AllocError> {
        if updates.is_closed {
            return Err(AllocError::PeerClosed { asked: len });
        }
        // Removals first, because the peer counts the extents that this side has.
        self.send_removals(updates)
            .map_err(|error| updates.send_error(len, error))?;
        let extent = self.ours.make_extent(len)?;
        crash::point!(ExtentMade);
        extent_update::send_added(self.socket.as_fd(), &extent)
            .map_err(|error| updates.send_error(len, error))?;
        crash::point!(ExtentSent);
        let is_first = self.ours.add_extent(extent);
        crash::point!(ExtentAdded);
        if is_first {
            let loans: Weak<Self> = Arc::downgrade(self);
            sweeper::watch(loans);
        }
        Ok(())
    }

    /// Send the pending removals of extents. Those that could not be sent, after an error, stay pending.
    fn send_removals(&self, updates: &mut PeerUpdates) -> io::Result<()> {
        while let Some(&number) = updates.gone.last() {
            extent_update::send_removed(self.socket.as_fd(), number)?;
            updates.gone.pop();
            crash::point!(ExtentRemoved);
        }
        Ok(())
    }

    /// Lend the block that contains these bytes, or copy them into a block and lend that. Return None if no block could
    /// be allocated, for whatever reason: the bytes then go in the frame. Bytes within a block that the peer has lent
    /// go back by reference, without a new loan or an allocation.
    ///
    /// The loan belongs to the peer once the frame is sent; without that, [`Loans::cancel`] ends it.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    pub unsafe fn lend(self: &Arc<Self>, from: *const u8, len: usize) -> Option<Entry> {
        let address = from.addr();
        let lent = |(place, start)| Entry {
            location: Location::AtSender(place),
            start,
            len: len as u64,
        };
        if let Some(found) = self.ours.lend(address, len, self.peer) {
            return Some(lent(found));
        }
        if let Some(entry) = self.theirs.entry_for(address, len) {
            return Some(entry);
        }
        let block = self.allocate_block(len as u64).ok()?;
        // SAFETY: the caller's promise; the block has this length, and no other thread knows it.
        unsafe {
            block
                .extent
                .write(block.place.offset, from, len, &self.copier)
        };
        crash::point!(BlockWritten);
        Some(lent((self.ours.lend_held(&block, self.peer), 0)))
    }

    /// End the loan that was made for a frame that was not sent, once for each such loan. Does nothing for bytes in the
    /// frame, and for a block of the peer.
    pub fn cancel(&self, entry: &Entry) {
        if let Location::AtSender(place) = entry.location {
            self.ours.cancel_loan(place, self.peer);
        }
    }

    /// End a loan to the peer, as the payload of its release frame says. Fails with [`Violation::Block`] if the peer
    /// has no such loan.
    pub fn release(&self, payload: &[u8; RELEASE_SIZE]) -> Result<(), Violation> {
        let place = parcel::released(payload);
        if !self.ours.end_loan(place, self.peer) {
            return Err(unknown_block(place));
        }
        crash::point!(ReleaseTaken);
        Ok(())
    }

    /// Open the buffer in shared memory that an entry of a frame names: as a loan, or as a hold on a block of this
    /// side. Return None if its bytes are in the frame. Fails with a violation if the peer must not name the block.
    pub fn open(&self, entry: &Entry) -> Result<Option<Buffer>, Violation> {
        let &Entry {
            location,
            start,
            len,
        } = entry;
        let owner = match location {
            Location::InFrame => return Ok(None),
            Location::AtSender(place) => {
                BufferOwner::Loan(self.theirs.open_loan(self.socket.as_fd(), place, entry)?)
            }
            Location::AtReceiver(place) => {
                let hold = self.ours.reclaim(place, start, len, self.peer);
                BufferOwner::Own(hold.ok_or(unknown_block(place))?)
            }
        };
        Ok(Some(Buffer::new(owner, start, len)))
    }
}

impl Drop for Loans {
    /// End all loans to the peer, because the connection is over. There are no more allocations here, so the blocks
    /// that the peer still reads keep their content. Extents without blocks in use are unmapped. Does nothing in a
    /// forked child.
    fn drop(&mut self) {
        if self.ours.is_ours() {
            self.theirs.unmap_idle();
            self.ours.remove_holder(self.peer);
            for _call in 0..2 {
                self.ours.sweep(u64::MAX, 0);
            }
        }
    }
}

impl PeerUpdates {
    /// Return the error for an update that could not be sent, and record if the peer no longer receives updates.
    fn send_error(&mut self, asked: u64, error: io::Error) -> AllocError {
        match error.kind() {
            // The peer's end is closed, and stays so.
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                self.is_closed = true;
                AllocError::PeerClosed { asked }
            }
            // A later update may succeed: the peer was slow to read, or the system lacked memory.
            _ => AllocError::System { asked, error },
        }
    }
}

impl Swept for Loans {
    /// Process the releases that have come, remove the idle extents, give their memory back to the system, and tell the
    /// peer. Does nothing after the end of the connection. Removals that could not be sent are sent later.
    fn sweep(&self, now: u64, patience: u64) {
        let Some(sender) = self.theirs.sender() else {
            return;
        };
        // A violation is stored for the receiving thread.
        let _ = sender.collect_releases();
        let mut updates = lock(&self.updates);
        for extent in self.ours.sweep(now, patience) {
            crash::point!(ExtentIdle);
            extent.punch();
            crash::point!(ExtentPunched);
            updates.gone.push(extent.number());
        }
        // A peer without the update keeps an address range and no memory.
        let _ = self.send_removals(&mut updates);
    }

    /// Return true while the connection exists and this side has extents.
    fn is_swept(&self) -> bool {
        self.theirs.sender().is_some() && self.ours.has_extents()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::channel::Channel;
    use crate::memory::extent::tests::{inode, traces};
    use crate::packet;

    #[test]
    fn the_end_of_a_connection_frees_all_but_held_blocks() {
        const LEN: usize = 1 << 20;
        let [ours, theirs] = packet::pair()
            .unwrap()
            .map(|socket| Loans::new(Weak::<Channel>::new(), socket, 1 << 26));
        let held = ours.allocate(LEN as u64).unwrap();
        let sent = vec![7; LEN];
        // SAFETY: a vector is readable.
        let entry = unsafe { ours.lend(sent.as_ptr(), LEN) }.unwrap();
        let lent = theirs.open(&entry).unwrap().unwrap();
        let [held_in, lent_in] = [&held, &lent].map(|buffer| inode(buffer.extent().file()));
        assert_eq!((traces(held_in), traces(lent_in)), ((2, 2), (2, 2)));
        drop(ours);
        assert_eq!(traces(held_in), (2, 2), "it is held here");
        assert_eq!(traces(lent_in), (1, 1), "it is mapped by the peer alone");
        let mut seen = vec![0; LEN];
        // SAFETY: `seen` is as long as the buffer.
        unsafe { lent.read(seen.as_mut_ptr()) };
        assert!(seen == sent, "what the peer has is as it was");
        drop((held, theirs));
        assert_eq!(traces(held_in), (0, 0));
        assert_eq!(traces(lent_in), (1, 1), "a loan outlives its connection");
    }
}
