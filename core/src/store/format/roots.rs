//! The containers that a store begins with.

/// A container that a store begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Root {
    /// The dict that a program sees as the store.
    Store = 0,
    /// The dict of the classes of records.
    Classes = 1,
    /// The list of messages.
    Inbox = 2,
}

impl Root {
    pub(in crate::store) const ALL: [Root; 3] = [Root::Store, Root::Classes, Root::Inbox];
}
