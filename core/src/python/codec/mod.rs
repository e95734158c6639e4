//! Values of Python's to bytes and back.

pub(crate) mod encoder;
pub(crate) mod fields;
pub(crate) mod items;
pub(crate) mod msgpack;
pub(crate) mod numpy;
pub(crate) mod parcel;
mod plain_checker;
pub(crate) mod values;
