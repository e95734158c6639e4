//! The identity of a publisher.

use crate::topic::directory::{LISTINGS, ListingInfo};

/// The identity of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherId {
    /// Number of its listing.
    pub listing: usize,
    /// Generation of the listing.
    pub generation: u64,
    /// Member that publishes, or did.
    pub owner: u64,
}

impl PublisherId {
    /// Return the identity of the publisher of a listing.
    pub(super) fn of(listed: ListingInfo) -> Self {
        PublisherId {
            listing: listed.listing,
            generation: listed.generation,
            owner: listed.owner,
        }
    }

    /// Return a number that no other publisher of the topic has, past ones included.
    pub fn number(self) -> u64 {
        const { assert!(LISTINGS <= 1 << 7) };
        (self.generation << 7) + self.listing as u64
    }
}
