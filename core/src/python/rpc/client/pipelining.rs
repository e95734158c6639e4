//! `Overlap`: the calls of a loop that are under way while their tasks wait for their turn.
//!
//! Where both sides take turns on one CPU, to look for one call's answer costs two switches. So while others have calls
//! under way, a call is sent and its task lets the loop turn once; by then the peer has worked on all of them, and what has
//! come was maybe taken out of the ring by another one, and lies here. No future is made for it, and the loop is not woken.

use crate::python::rpc::incoming::{Arrival, Frame};
use crate::sync::{lock, this_thread};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How far a call is whose task waits for its turn.
pub(crate) enum Early {
    /// It was sent.
    Sent,
    /// It was sent, and its answer was looked for for as long as it pays.
    Looked,
    /// The payload of a short frame has come.
    Short(u32, Vec<u8>),
    /// A frame has come.
    Whole(Frame),
}

/// By id, the calls that are under way.
pub(crate) struct Overlap {
    calls: Mutex<BTreeMap<u64, Early>>,
    /// How many these are, for whoever asks on the way of each call.
    count: AtomicUsize,
    /// The thread of the loop.
    home: usize,
}

impl Overlap {
    /// Those of a loop in this thread.
    pub(crate) fn new() -> Self {
        Overlap {
            calls: Mutex::default(),
            count: AtomicUsize::new(0),
            home: this_thread(),
        }
    }

    /// Whether this thread is that of the loop.
    #[inline]
    pub(crate) fn is_home(&self) -> bool {
        self.home == this_thread()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Relaxed: the loop's thread has added them, and it is a hint to all others.
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether a call is one of these.
    #[inline]
    pub(crate) fn expects(&self, id: u64) -> bool {
        !self.is_empty() && lock(&self.calls).contains_key(&id)
    }

    #[inline]
    pub(crate) fn add(&self, id: u64, early: Early) {
        let mut calls = lock(&self.calls);
        calls.insert(id, early);
        self.count.store(calls.len(), Ordering::Relaxed);
    }

    /// How far a call is, which is one of these no longer; None if it was none.
    #[inline]
    pub(crate) fn remove(&self, id: u64) -> Option<Early> {
        let mut calls = lock(&self.calls);
        let early = calls.remove(&id);
        self.count.store(calls.len(), Ordering::Relaxed);
        early
    }

    /// Keeps what has come, if it is for one of these. Else it goes back. `body`: the payload of a short frame.
    #[inline]
    pub(crate) fn keep(&self, arrival: Arrival, body: &[u8]) -> Option<Arrival> {
        if self.is_empty() {
            return Some(arrival);
        }
        let mut calls = lock(&self.calls);
        let Some(early) = calls.get_mut(&arrival.id()) else {
            return Some(arrival);
        };
        if !early.has_come() {
            *early = Early::of(arrival, body);
        }
        None // A peer that answers twice: the first one counts.
    }
}

impl Early {
    #[inline]
    pub(crate) fn of(arrival: Arrival, body: &[u8]) -> Self {
        match arrival {
            Arrival::Short { opcode, .. } => Early::Short(opcode, body.to_vec()),
            Arrival::Whole(frame) => Early::Whole(frame),
        }
    }

    pub(crate) fn has_come(&self) -> bool {
        matches!(self, Early::Short(..) | Early::Whole(_))
    }

    /// What has come for the call `id`, as it had arrived.
    #[inline]
    pub(crate) fn into_arrival(self, id: u64, body: &mut Vec<u8>) -> Option<Arrival> {
        match self {
            Early::Short(opcode, payload) => {
                *body = payload;
                Some(Arrival::Short { opcode, id })
            }
            Early::Whole(frame) => Some(Arrival::Whole(frame)),
            Early::Sent | Early::Looked => None,
        }
    }

    /// The frame that has come for the call `id`, with an object for its payload.
    pub(crate) fn into_frame(self, py: Python<'_>, id: u64) -> Option<Frame> {
        let mut body = Vec::new();
        let arrival = self.into_arrival(id, &mut body)?;
        Some(arrival.into_frame(py, &body))
    }
}
