//! Queues: values in and out, claims and reservations.

pub(crate) mod claim;
mod claimed_item;
mod inbox;
pub(crate) mod pending_items;
pub(crate) mod queue;
pub(crate) mod reservation;
mod waiting;
