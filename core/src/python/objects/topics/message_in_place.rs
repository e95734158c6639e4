//! `MessageInPlace`: a message whose block is read in place.

use crate::objects::registry::Handle;
use crate::objects::topic::{self, Pin};
use crate::sync::lock;
use std::sync::{Arc, Mutex};

/// A message's block that is read in place, until the last reference to it is dropped.
pub(super) struct MessageInPlace {
    subscription: Arc<topic::Subscription>,
    pin: Mutex<Box<Pin>>,
    /// The pin belongs to a member, so this process leaves the topic when the last message in place is dropped.
    _handle: Option<Arc<Handle>>,
}

impl MessageInPlace {
    /// Takes over a pin of the subscription, and a handle that keeps this process a member.
    pub(super) fn new(
        subscription: Arc<topic::Subscription>,
        pin: Box<Pin>,
        handle: Option<Arc<Handle>>,
    ) -> Self {
        MessageInPlace {
            subscription,
            pin: Mutex::new(pin),
            _handle: handle,
        }
    }

    /// Returns the address and the length of the block, which is mapped while this lives.
    pub(super) fn bytes(&self) -> (usize, u64) {
        let pin = lock(&self.pin);
        let from = pin.log().space().address(pin.at, pin.len);
        (from.addr(), pin.len)
    }
}

impl Drop for MessageInPlace {
    fn drop(&mut self) {
        self.subscription.unpin(&mut lock(&self.pin));
    }
}
