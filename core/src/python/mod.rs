//! The Python module `shmrpc._core`: thin, and the only place that knows PyO3.
//!
//! Functions release the GIL around each wait, and before they publish anything: a peer in the same process needs the
//! GIL to answer.

mod codec;
mod objects;
mod rpc;
mod support;
mod worker_progress;

use pyo3::prelude::*;

/// The native core of shmrpc.
///
/// The core relies on the GIL in several places, which `gil_used` declares to a free-threaded Python.
#[pymodule(gil_used = true)]
mod _core {
    #[pymodule_export]
    use super::codec::encoder::Encoder;
    #[pymodule_export]
    use super::codec::fields::PostInit;
    #[pymodule_export]
    use super::codec::msgpack::expected_type::ExpectedType;
    #[pymodule_export]
    use super::codec::parcel::Parcel;
    #[pymodule_export]
    use super::objects::loop_waiter::LoopWaiter;
    #[pymodule_export]
    use super::objects::permits::Permits;
    #[pymodule_export]
    use super::objects::queues::claim::Claim;
    #[pymodule_export]
    use super::objects::queues::pending_items::PendingItems;
    #[pymodule_export]
    use super::objects::queues::queue::Queue;
    #[pymodule_export]
    use super::objects::queues::reservation::Reservation;
    #[pymodule_export]
    use super::objects::shared_object::SharedObject;
    #[pymodule_export]
    use super::objects::signals::Signals;
    #[pymodule_export]
    use super::objects::stores::containers::{
        DictProxy, ListProxy, RecordField, StructProxy, add_to,
    };
    #[pymodule_export]
    use super::objects::stores::open_store::StoreRef;
    #[pymodule_export]
    use super::objects::stores::proxy::Proxy;
    #[pymodule_export]
    use super::objects::stores::store::Store;
    #[pymodule_export]
    use super::objects::stores::transaction::Transaction;
    #[pymodule_export]
    use super::objects::topics::publisher::{AttachWait, Publisher};
    #[pymodule_export]
    use super::objects::topics::records::PendingRecords;
    #[pymodule_export]
    use super::objects::topics::subscription::Subscription;
    #[pymodule_export]
    use super::objects::watch::watch_for_names;
    #[pymodule_export]
    use super::rpc::channel::Channel;
    #[pymodule_export]
    use super::rpc::client::call_ids::CallIds;
    #[pymodule_export]
    use super::rpc::client::endpoint::Endpoint;
    #[pymodule_export]
    use super::rpc::client::item_stream::ItemStream;
    #[pymodule_export]
    use super::rpc::client::loop_endpoint::{CallCoroutine, LoopEndpoint};
    #[pymodule_export]
    use super::rpc::client::native_call::NativeCall;
    #[pymodule_export]
    use super::rpc::client::thread_calls::{PendingCall, ThreadCalls};
    #[pymodule_export]
    use super::rpc::client::thread_endpoint::ThreadEndpoint;
    #[pymodule_export]
    use super::rpc::segments::{create_segment, create_semaphore, open_segment, segment_memory};
    #[pymodule_export]
    use super::rpc::server::call_contexts::CallContexts;
    #[pymodule_export]
    use super::rpc::server::client_requests::ClientRequests;
    #[pymodule_export]
    use super::rpc::server::current_call::CurrentCall;
    #[pymodule_export]
    use super::rpc::server::handler::{CoroutineRunner, Handler};
    #[pymodule_export]
    use super::rpc::server::handler_table::HandlerTable;
    #[pymodule_export]
    use super::rpc::server::poller::Poller;
    #[pymodule_export]
    use super::rpc::stream_sender::StreamSender;
    #[pymodule_export]
    use super::support::buffer::{Buffer, View, address_of, is_buffer};
    #[pymodule_export]
    use super::support::descriptor::{Descriptor, receive_packet, send_packet};
    #[pymodule_export]
    use super::support::errors::{
        Backlog, ChannelError, NoMemory, Oversize, Overtaken, PeerLeft, Unheard, Unmapped,
    };
    #[pymodule_export]
    use super::support::in_place_bytes::InPlaceBytes;
    #[pymodule_export]
    use super::support::mapped_bytes::MappedBytes;
    #[pymodule_export]
    use super::support::parent_death::die_with;
    #[pymodule_export]
    use super::support::reentrant_lock::{LockGuard, ReentrantLock};
    #[pymodule_export]
    use super::support::yield_budget::YieldBudget;
    #[pymodule_export]
    use super::worker_progress::WorkerProgress;

    use super::{objects, rpc};
    #[cfg(feature = "crashpoints")]
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;

    /// Completes the module: registers classes with the interpreter, and adds `Message`.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        rpc::client::loop_endpoint::register(py)?;
        rpc::client::item_stream::register(py)?;
        rpc::stream_sender::register(py);
        module.add("Message", objects::topics::message::class(py)?)?;
        rpc::client::endpoint::document::<Endpoint>(py)?;
        rpc::client::endpoint::document::<LoopEndpoint>(py)?;
        rpc::client::endpoint::document::<ThreadEndpoint>(py)
    }

    /// Returns the crash points of operations that Python calls, each with the number of times that it was passed.
    #[cfg(feature = "crashpoints")]
    #[pyfunction]
    fn crash_points() -> Vec<(&'static str, u64)> {
        let names = &crate::crash::NAMES[..crate::crash::OF_PYTHON];
        let names = names.iter().copied();
        names.zip(crate::crash::passed()).collect()
    }

    /// Arms a crash point: this process sends itself the signal when it passes the point for the `times`th time from
    /// now on, and writes the time of its death to the descriptor `obituary`. Raises ValueError for an unknown name.
    #[cfg(feature = "crashpoints")]
    #[pyfunction]
    fn crash_at(name: &str, times: u64, signal: i32, obituary: i32) -> PyResult<()> {
        let number = crate::crash::NAMES.iter().position(|&each| each == name);
        let number = number.ok_or_else(|| PyValueError::new_err(name.to_owned()))?;
        crate::crash::arm(number, times, signal, obituary);
        Ok(())
    }

    /// Asks the kernel for CPU time slices of `nanoseconds` for this thread. Returns True if its slices are shorter
    /// from now on.
    #[pyfunction]
    fn shorten_time_slice(nanoseconds: u64) -> std::io::Result<bool> {
        crate::scheduling::shorten_time_slice(nanoseconds)
    }
}
