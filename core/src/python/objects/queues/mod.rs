//! Queues, claims and reservations.

pub(crate) mod claim;
pub(crate) mod queue;
pub(crate) mod reservation;
