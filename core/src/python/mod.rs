//! The Python module `shmrpc._core`: thin, and the only place that knows PyO3.
//!
//! The GIL is let go around anything that can wait, and before anything is
//! published: in one process the peer needs it to answer.

mod block;
mod calls;
mod channel;
mod descriptor;
mod encoder;
mod errors;
mod fields;
mod incoming;
mod isolation;
mod outgoing;
mod parcel;
mod poller;
mod sender;

use pyo3::prelude::*;

/// The native core of shmrpc. What it does between two calls of Python's rests on the GIL, here and there; PyO3 tells a
/// free-threaded Python that it does not, unless that is said.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use super::block::{Block, View};
    #[pymodule_export]
    use super::calls::{Calls, Pending, Turn, Turns};
    #[pymodule_export]
    use super::channel::Channel;
    #[pymodule_export]
    use super::descriptor::{Descriptor, receive_packet};
    #[pymodule_export]
    use super::encoder::Encoder;
    #[pymodule_export]
    use super::errors::{
        Backlog, ChannelError, NoMemory, Oversize, Overtaken, PeerLeft, Unheard, Unmapped,
    };
    #[pymodule_export]
    use super::fields::PostInit;
    #[pymodule_export]
    use super::isolation::Isolation;
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
        crate::connection::segment::size_for(capacity)
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

    /// Lets this thread ask the kernel for so many nanoseconds of CPU at a time; whether it does so now.
    #[pyfunction]
    fn shorten_time_slice(nanoseconds: u64) -> std::io::Result<bool> {
        crate::scheduling::shorten(nanoseconds)
    }

    /// Lets two threads pass a word back and forth `rounds` times, or fewer if each takes a time slice; nanoseconds for
    /// one round trip.
    #[pyfunction]
    fn ping_pong(py: Python<'_>, rounds: u32) -> f64 {
        py.detach(|| super::floor::ping_pong(rounds))
    }
}

mod floor {
    //! What the machine itself takes, for the benchmark to hold the rest against.

    use std::hint::spin_loop;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    #[repr(align(128))]
    struct Line(AtomicU32);

    /// Told to the other thread instead of a round: there are no more.
    const END: u32 = u32::MAX;
    /// Threads that share a CPU need a time slice for each word: they do not finish their rounds, of which there are
    /// ten thousand, for minutes.
    const LONGEST: Duration = Duration::from_millis(500);
    /// Looks in vain after which there is one at the clock; both threads having a CPU, it takes fewer.
    const LOOKS: u32 = 4096;

    /// Nanoseconds for a word there and back between two spinning threads.
    pub(super) fn ping_pong(rounds: u32) -> f64 {
        let there = Line(AtomicU32::new(0));
        let back = Line(AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut seen = 0;
                while seen != END {
                    let word = there.0.load(Ordering::Acquire);
                    if word == seen {
                        spin_loop();
                    } else {
                        seen = word;
                        back.0.store(word, Ordering::Release);
                    }
                }
            });
            let (start, mut done) = (Instant::now(), 0);
            'rounds: for round in 1..=rounds {
                there.0.store(round, Ordering::Release);
                let mut looks = 0_u32;
                while back.0.load(Ordering::Acquire) != round {
                    spin_loop();
                    looks = looks.wrapping_add(1);
                    if looks % LOOKS == 0 && start.elapsed() > LONGEST {
                        break 'rounds;
                    }
                }
                done = round;
            }
            let nanoseconds = start.elapsed().as_nanos() as f64 / f64::from(done.max(1));
            there.0.store(END, Ordering::Release);
            nanoseconds
        })
    }
}
