//! `OutgoingBody`: a body that is written, with the buffers beside it.

use crate::python::codec::parcel::ByteView;
use crate::python::support::scratch::Scratch;

/// A written body, and the buffers beside it. It is dropped with the GIL.
pub(crate) struct OutgoingBody {
    pub(crate) bytes: Scratch,
    pub(crate) buffers: Vec<ByteView>,
}

impl OutgoingBody {
    #[inline]
    pub(crate) fn new() -> Self {
        OutgoingBody {
            bytes: Scratch::new(),
            buffers: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.buffers.clear();
    }
}
