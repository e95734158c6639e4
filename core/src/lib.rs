//! The native core of shmrpc: how frames cross from one process to another
//! through memory that both have mapped, and how either side waits for them.
//!
//! It knows nothing of RPC. A *frame* is an opcode, an id and a payload, and
//! all three are opaque here, but for two opcodes of its own: the bit that says
//! that a payload is a parcel's, and the end of a lease.
//!
//! # The contract
//!
//! * A [`memory::region`] is mapped memory of any kind, with a header that says which. All access to it is
//!   atomic, so a peer that scribbles over it can make us read wrong values but cannot make the program
//!   undefined. A [`connection::segment`] is one that holds two rings, one in each direction.
//! * A [`ring`] has one writer and one reader. Each index has one writer, which
//!   keeps the true value in private memory; what stands in the segment is only
//!   an announcement. What the *peer* announces is a claim: it is checked, and
//!   a false one is a [`Violation`], after which the ring must not be used.
//! * A [`ring::frame`] larger than the ring flows through it in pieces. Order is kept.
//! * A [`memory::buffer_allocator`] is the memory that a process lends: its [`memory::arena`] says which parts of its
//!   [`memory::extent`]s are free, and how many leases each holder has. [`connection::loans`] makes the peer such a
//!   holder, by the table of a [`connection::parcel`]. What a holder says of a block is a claim like an index.
//! * [`wait::flags`] tell when a sleeper must be woken. A wake-up is a hint: whoever
//!   wakes looks again. No lock lives in the segment, so no death can hold one.
//! * [`wait::shutdown_flag`] ends a channel from this side: nobody sleeps on it any more.
//! * A [`wait::wait_set`] has many sleepers, threads and loops of many processes, and wakes one of them or all.
//! * [`objects`] are the names that have members instead of two sides: semaphores, locks, events, memory.
//! * [`shared_heap`] has what equals change together: a lease that no death keeps, transactions, and blocks in a file that
//!   grows and shrinks.
//! * A [`queue`] is a chain of items in such a file, for many who put and many who take.
//! * A [`topic`] has a log for each publisher, which others can read and not write, and a head for each subscriber.
//! * A [`pool`] shares with each of its workers how far that is with its tasks.
//! * [`wait::parker`] is where a thread sleeps that another one of its process wakes.
//! * [`wait::spin`] tells when it pays to look again instead of sleeping.
//! * [`packet`] takes a packet out of a socket, with the descriptors that come along and its sender.
//! * [`scheduling`] asks the kernel for short turns, so that they come soon.
//! * [`connection::channel`] puts these together for one connection, [`connection::poller`] for many.
//!
//! ```
//! use _core::ring::frame::{FrameReader, FrameWriter};
//! use _core::ring::{HeapMemory, Consumer, Producer};
//! use std::sync::Arc;
//!
//! let memory = Arc::new(HeapMemory::new(1024));
//! let mut writer = FrameWriter::new(Producer::new(memory.clone()));
//! let mut reader = FrameReader::new(Consumer::new(memory), 64);
//!
//! assert!(writer.send(7, 1, b"hello").unwrap());
//! let frame = reader.peek().unwrap().expect("a whole frame is there");
//! assert_eq!((frame.opcode, frame.id, frame.len), (7, 1, 5));
//! let mut payload = [0; 5];
//! reader.take(&mut payload);
//! assert_eq!(&payload, b"hello");
//! assert!(reader.peek().unwrap().is_none());
//! ```

mod bytes;
mod clock;
mod crash;
#[cfg(not(loom))]
pub mod fork_guard;
#[cfg(not(loom))]
mod os;
#[cfg(not(loom))]
pub mod own_fd;
mod sync;
#[cfg(all(test, not(loom)))]
mod testing;
mod violation;

pub mod connection;
pub mod memory;
pub mod objects;
#[cfg(not(loom))]
pub mod packet;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod queue;
pub mod ring;
#[cfg(not(loom))]
pub mod scheduling;
pub mod shared_heap;
#[cfg(not(loom))]
pub mod store;
pub mod topic;
pub mod wait;

#[cfg(all(feature = "python", not(loom)))]
mod python;

pub use violation::Violation;

/// Held by the tests that fork, and by those that wait for the end of a socket: until it executes something else, or
/// ends, a child has the sockets of all tests open too, and none of them ends.
#[cfg(all(test, not(loom)))]
static FORK: std::sync::Mutex<()> = std::sync::Mutex::new(());
