//! A publisher, as messages name it.

use crate::topic::directory::{LISTINGS, ListingInfo};

/// A publisher, as its messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublisherId {
    /// Its listing.
    pub listing: usize,
    /// Whose turn in that it is.
    pub generation: u64,
    /// The member that publishes, or did.
    pub owner: u64,
}

impl PublisherId {
    pub(super) fn of(listed: ListingInfo) -> Self {
        PublisherId {
            listing: listed.listing,
            generation: listed.generation,
            owner: listed.owner,
        }
    }

    /// A number that no other publisher of the topic has.
    pub fn number(self) -> u64 {
        const { assert!(LISTINGS <= 1 << 7) };
        (self.generation << 7) + self.listing as u64
    }
}
