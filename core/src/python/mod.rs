//! The Python module `shmrpc._core`: thin, and the only place that knows PyO3.
//!
//! The GIL is let go around anything that can wait, and before anything is
//! published: in one process the peer needs it to answer.

mod block;
mod buffer;
mod calls;
mod channel;
mod claim;
mod coroutine;
mod descriptor;
mod encoder;
mod endpoint;
mod errors;
mod fields;
mod handing_on;
mod handler;
mod hold;
mod ids;
mod incoming;
mod isolation;
mod item_stream;
mod items;
mod loop_endpoint;
mod loop_sleeper;
mod message;
mod msgpack;
mod name;
mod numpy;
mod orphan;
mod overlap;
mod owner;
mod parcel;
mod payload;
mod poller;
mod progress;
mod queue;
mod records;
mod reservation;
mod running;
mod scratch;
mod segments;
mod short_call;
mod slice;
mod steps;
mod store;
mod stored;
mod stream_sender;
mod subscription;
mod thread_endpoint;
mod topic;
mod transaction;
mod turns;
mod values;

use pyo3::prelude::*;

/// The native core of shmrpc. What it does between two calls of Python's rests on the GIL, here and there; PyO3 tells a
/// free-threaded Python that it does not, unless that is said.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use super::block::Block;
    #[pymodule_export]
    use super::buffer::{Buffer, View, address_of, is_buffer};
    #[pymodule_export]
    use super::calls::{Calls, Pending};
    #[pymodule_export]
    use super::channel::Channel;
    #[pymodule_export]
    use super::claim::Claim;
    #[pymodule_export]
    use super::coroutine::CallCoroutine;
    #[pymodule_export]
    use super::descriptor::{Descriptor, receive_packet, send_packet};
    #[pymodule_export]
    use super::encoder::Encoder;
    #[pymodule_export]
    use super::endpoint::Endpoint;
    #[pymodule_export]
    use super::errors::{
        Backlog, ChannelError, NoMemory, Oversize, Overtaken, PeerLeft, Unheard, Unmapped,
    };
    #[pymodule_export]
    use super::fields::PostInit;
    #[pymodule_export]
    use super::handler::{Coroutines, Handler, Handlers, Serving};
    #[pymodule_export]
    use super::hold::Hold;
    #[pymodule_export]
    use super::ids::Ids;
    #[pymodule_export]
    use super::isolation::Isolation;
    #[pymodule_export]
    use super::item_stream::ItemStream;
    #[pymodule_export]
    use super::loop_endpoint::LoopEndpoint;
    #[pymodule_export]
    use super::loop_sleeper::LoopSleeper;
    #[pymodule_export]
    use super::msgpack::expected::Expected;
    #[pymodule_export]
    use super::name::{Bytes, Name, watch_for_names};
    #[pymodule_export]
    use super::orphan::die_with;
    #[pymodule_export]
    use super::parcel::Parcel;
    #[pymodule_export]
    use super::poller::Poller;
    #[pymodule_export]
    use super::progress::Progress;
    #[pymodule_export]
    use super::queue::{Items, Queue};
    #[pymodule_export]
    use super::records::Records;
    #[pymodule_export]
    use super::reservation::Reservation;
    #[pymodule_export]
    use super::running::Running;
    #[pymodule_export]
    use super::segments::{create_segment, create_semaphore, open_segment, segment_memory};
    #[pymodule_export]
    use super::short_call::ShortCall;
    #[pymodule_export]
    use super::slice::Slice;
    #[pymodule_export]
    use super::store::{
        Carrier, DictProxy, Field, ListProxy, Pinned, Proxy, Store, StructProxy, add_to,
    };
    #[pymodule_export]
    use super::stream_sender::StreamSender;
    #[pymodule_export]
    use super::subscription::Subscription;
    #[pymodule_export]
    use super::thread_endpoint::ThreadEndpoint;
    #[pymodule_export]
    use super::topic::{Attaching, Publisher};
    #[pymodule_export]
    use super::transaction::Transaction;
    #[pymodule_export]
    use super::turns::{Turn, Turns};

    #[cfg(feature = "crashpoints")]
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::coroutine::prepare(module.py())?;
        super::item_stream::prepare(module.py())?;
        super::stream_sender::prepare(module.py());
        module.add("Message", super::message::class(module.py())?)?;
        super::endpoint::prepare(module.py())
    }

    /// The points of Python's operations where this process can be made to die, and how often each was passed.
    #[cfg(feature = "crashpoints")]
    #[pyfunction]
    fn crash_points() -> Vec<(&'static str, u64)> {
        let names = &crate::crash::NAMES[..crate::crash::OF_PYTHON];
        let names = names.iter().copied();
        names.zip(crate::crash::passed()).collect()
    }

    /// Lets this process get a signal when it passes a point for the `times`th time from now on. The time of its death goes
    /// to `obituary`, a descriptor.
    #[cfg(feature = "crashpoints")]
    #[pyfunction]
    fn crash_at(name: &str, times: u64, signal: i32, obituary: i32) -> PyResult<()> {
        let number = crate::crash::NAMES.iter().position(|&each| each == name);
        let number = number.ok_or_else(|| PyValueError::new_err(name.to_owned()))?;
        crate::crash::arm(number, times, signal, obituary);
        Ok(())
    }

    /// Asks the kernel for turns of `nanoseconds` of CPU for this thread; true if they are shorter from now on.
    #[pyfunction]
    fn shorten_time_slice(nanoseconds: u64) -> std::io::Result<bool> {
        crate::scheduling::shorten(nanoseconds)
    }
}
