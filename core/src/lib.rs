//! The native core of shmrpc: frames between processes over shared memory, and the waiting of either side for them.
//!
//! The core knows nothing of RPC. A *frame* is an opcode, an id and a payload, and all three are opaque here, except
//! for two parts of the opcode: the bit of a parcel's payload, and the release of a loan.
//!
//! # The contract
//!
//! * A [`memory::region`] is mapped memory of any kind, with a header that contains the kind. All access to it is
//!   atomic, so a peer that overwrites it can cause wrong values but no undefined behaviour. A [`connection::segment`]
//!   is a region with two rings, one in each direction.
//! * A [`ring`] has one writer and one reader. Each index has one writer, which keeps the true value in private memory;
//!   the value in the segment is only an announcement. The value of the *peer* is untrusted: it is checked, and an
//!   impossible one is a [`Violation`], after which the ring must not be used.
//! * A [`ring::frame`] larger than the ring goes through it in pieces. Order is kept.
//! * A [`memory::buffer_allocator`] has the memory that a process lends: its [`memory::arena`] records which parts of
//!   its [`memory::extent`]s are free, and the number of loans of each holder. [`connection::loans`] makes the peer
//!   such a holder, by the table of a [`connection::parcel`]. What a holder sends about a block is untrusted like an
//!   index.
//! * [`wait::flags`] tell when a sleeper must be woken. A wake-up is a hint: the sleeper checks again. No lock lies in
//!   the segment, so no death can hold one.
//! * [`wait::shutdown_flag`] closes a channel from this side: no thread sleeps on it afterwards.
//! * A [`wait::wait_set`] has many sleepers, threads and event loops of many processes, and wakes one of them or all.
//! * [`objects`] are the shared objects, which have members instead of two sides: semaphores, locks, events, signals,
//!   memory, queues, topics and stores.
//! * [`shared_heap`] has what shared objects change together: an owner lock that no death keeps, transactions, and
//!   blocks in a file that grows and shrinks.
//! * A [`queue`] is a list of items in such a file, for many producers and many consumers.
//! * A [`topic`] has a log for each publisher, which others can read and not write, and a head for each subscriber.
//! * A [`pool`] shares with each of its workers the progress of its tasks.
//! * [`wait::parker`] is the sleep of a thread that another thread of its process wakes.
//! * [`wait::spin`] decides when spinning pays more than sleeping.
//! * [`packet`] receives a packet from a socket, with its descriptors and its sender.
//! * [`scheduling`] requests short time slices from the kernel, so that they come soon.
//! * [`connection::channel`] combines these for one connection, [`connection::poller`] for many.
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
//! let frame = reader.peek().unwrap().expect("a whole frame");
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

/// Lock of the tests that fork, and of those that wait for the end of a socket: a forked child has the sockets of all
/// tests open, so none of them ends before the child does.
#[cfg(all(test, not(loom)))]
static FORK: std::sync::Mutex<()> = std::sync::Mutex::new(());
