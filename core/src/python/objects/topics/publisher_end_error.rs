//! `PublisherEndError`: the end of a publisher, as a subscriber notices it.

use crate::topic::log::CutReason;
use crate::topic::subscriber::PublisherId;
use pyo3::prelude::*;

/// A publisher that is no longer read, and its process.
#[derive(Clone, Copy)]
pub(super) struct EndedPublisher {
    pub(super) source: PublisherId,
    pub(super) pid: libc::pid_t,
}

/// The reason for which a publisher is no longer read.
pub(super) struct PublisherEndError {
    /// The class of the exception, in `shmrpc.errors`.
    class: &'static str,
    publisher: EndedPublisher,
    why: String,
}

impl PublisherEndError {
    /// Returns an end whose exception is of this class of `shmrpc.errors`. `why` continues the sentence that begins
    /// with the publisher.
    pub(super) fn new(
        class: &'static str,
        publisher: EndedPublisher,
        why: impl Into<String>,
    ) -> Self {
        let why = why.into();
        PublisherEndError {
            class,
            publisher,
            why,
        }
    }

    /// Returns the end of a publisher that has cut off this subscriber.
    pub(super) fn cut_off(publisher: EndedPublisher, reason: CutReason) -> Self {
        let why = match reason {
            CutReason::Lag => {
                "has cut this subscriber off, which was too slow, and sends it nothing more: subscribe again and \
                 read faster, or with a larger Disconnect(n), or with KeepLast(n)"
            }
            CutReason::Corruption => {
                "has cut this subscriber off: a member has written where it must not"
            }
        };
        PublisherEndError::new("SlowConsumer", publisher, why)
    }

    /// Returns the exception, which names the publisher and the topic; or the exception that its making has raised.
    #[cold]
    pub(super) fn into_error(self, py: Python<'_>, topic: &str) -> PyErr {
        let PublisherEndError {
            class,
            publisher,
            why,
        } = self;
        let (number, pid) = (publisher.source.number(), publisher.pid);
        let text = format!("topic '{topic}': publisher {number} of process {pid} {why}");
        let raised = || {
            let made = py.import("shmrpc.errors")?.getattr(class)?;
            match class {
                "SharedMemoryError" => made.call1((libc::EACCES, text)),
                "PublisherGone" | "SlowConsumer" => made.call1((text, pid, number)),
                _ => made.call1((text,)),
            }
        };
        raised().map_or_else(|error| error, PyErr::from_value)
    }
}
