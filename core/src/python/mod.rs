//! The Python module `shmrpc._core`: thin, and the only place that knows PyO3.
//!
//! The GIL is let go around anything that can wait, and before anything is
//! published: in one process the peer needs it to answer.

mod block;
mod channel;
mod encoder;
mod parcel;
mod poller;
mod sender;

use pyo3::prelude::*;

/// The native core of shmrpc.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::block::{Block, View};
    #[pymodule_export]
    use super::channel::{Backlog, Channel, ChannelError, NoMemory, Oversize, Unheard};
    #[pymodule_export]
    use super::encoder::Encoder;
    #[pymodule_export]
    use super::parcel::Parcel;
    #[pymodule_export]
    use super::poller::Poller;
    #[pymodule_export]
    use super::sender::Sender;

    #[cfg(feature = "crashpoints")]
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    /// Bytes of a segment whose rings hold `capacity` bytes each.
    #[pyfunction]
    fn segment_size(capacity: usize) -> usize {
        crate::region::size_for(capacity)
    }

    /// The points where this process can be made to die, and how often each was passed.
    #[cfg(feature = "crashpoints")]
    #[pyfunction]
    fn crash_points() -> Vec<(&'static str, u64)> {
        let names = crate::crash::NAMES.iter().copied();
        names.zip(crate::crash::passed()).collect()
    }

    /// Lets this process die when it passes a point for the `times`th time from now on. The time of its death goes
    /// to `obituary`, a descriptor.
    #[cfg(feature = "crashpoints")]
    #[pyfunction]
    fn crash_at(name: &str, times: u64, obituary: i32) -> PyResult<()> {
        let number = crate::crash::NAMES.iter().position(|&each| each == name);
        let number = number.ok_or_else(|| PyValueError::new_err(name.to_owned()))?;
        crate::crash::arm(number, times, obituary);
        Ok(())
    }

    /// Lets two threads pass a word back and forth `rounds` times; nanoseconds for one round trip.
    #[pyfunction]
    fn ping_pong(py: Python<'_>, rounds: u32) -> f64 {
        py.detach(|| super::floor::ping_pong(rounds))
    }
}

mod floor {
    //! What the machine itself takes, for the benchmark to hold the rest against.

    use std::hint::spin_loop;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    #[repr(align(128))]
    struct Line(AtomicU32);

    /// Nanoseconds for a word there and back between two spinning threads.
    pub(super) fn ping_pong(rounds: u32) -> f64 {
        let there = Line(AtomicU32::new(0));
        let back = Line(AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    while there.0.load(Ordering::Acquire) != round {
                        spin_loop();
                    }
                    back.0.store(round, Ordering::Release);
                }
            });
            let start = Instant::now();
            for round in 1..=rounds {
                there.0.store(round, Ordering::Release);
                while back.0.load(Ordering::Acquire) != round {
                    spin_loop();
                }
            }
            start.elapsed().as_nanos() as f64 / f64::from(rounds.max(1))
        })
    }
}
