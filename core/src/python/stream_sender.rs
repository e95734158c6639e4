//! `StreamSender`: the sending end of a stream.

use super::channel::Channel;
use super::errors::unsent;
use super::payload::Payload;
use crate::clock;
use crate::connection::channel;
use crate::connection::channel::SLICE;
use pyo3::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// The sending end of a stream: its frames, its credit, and its slice of the loop's time.
#[pyclass(frozen, module = "shmrpc._core")]
pub struct StreamSender {
    channel: Arc<channel::Channel>,
    opcode: u32,
    id: u64,
    /// Bytes that may still be sent.
    credit: AtomicI64,
    /// What an item costs besides its bytes.
    overhead: i64,
    /// When the loop last had its turn, in nanoseconds.
    slice: AtomicU64,
    /// Items sent since.
    sent: AtomicU32,
}

/// Items between two looks at the clock.
const ITEMS_PER_LOOK: u32 = 16;

#[pymethods]
impl StreamSender {
    #[new]
    fn new(channel: &Channel, opcode: u32, id: u64, credit: i64, overhead: i64) -> PyResult<Self> {
        Ok(StreamSender {
            channel: channel.open()?,
            opcode,
            id,
            credit: AtomicI64::new(credit),
            overhead,
            slice: AtomicU64::new(clock::now()),
            sent: AtomicU32::new(0),
        })
    }

    /// Sends an item. False if the sender has to pause before the next one: for credit, or for the loop.
    ///
    /// The GIL is kept for a small one: a sender waits for no answer.
    fn send(&self, py: Python<'_>, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut payload = Payload::new(item)?;
        let weight = payload.weight();
        let is_large = payload.is_large();
        let mut send = || payload.send_or_keep(&self.channel, self.opcode, self.id, false);
        let sent = if is_large { py.detach(send) } else { send() };
        sent.map_err(unsent)?;
        let size = weight as i64 + self.overhead;
        // Relaxed, here and below: the GIL orders them; they are atomic to be shared at all.
        let left = self.credit.fetch_sub(size, Ordering::Relaxed) - size;
        let looks = self.sent.fetch_add(1, Ordering::Relaxed) % ITEMS_PER_LOOK == 0;
        let over = looks && clock::now() - self.slice.load(Ordering::Relaxed) > SLICE;
        Ok(left > 0 && !over)
    }

    /// Adds credit: the receiver has consumed `size` bytes.
    fn grant(&self, size: i64) {
        self.credit.fetch_add(size, Ordering::Relaxed);
    }

    /// Whether there is credit. The loop has just had its turn.
    fn resume(&self) -> bool {
        self.slice.store(clock::now(), Ordering::Relaxed);
        self.credit.load(Ordering::Relaxed) > 0
    }
}
