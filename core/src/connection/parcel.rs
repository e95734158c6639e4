//! The frame of a parcel: a table of buffers, a body, and the buffers that are not in shared memory.
//!
//! ```text
//!   u32      number of buffers
//!   u32      1: the first buffer is the body; 0: the body follows the table
//!   32 each  a buffer: u32 location, u32 extent, u64 block, u64 start, u64 length
//!   …        the body
//!   …        the bytes of the buffers in the frame, one after the other
//! ```
//!
//! `block` is the offset of the block in its extent, which identifies it; `start` the offset of the buffer in the
//! block. All numbers are in the byte order of the machine, offsets and lengths in bytes.

use crate::bytes::{u32_at, u64_at};
use crate::memory::arena::BlockRef;
use crate::violation::Violation;
use std::ops::Range;

/// Bit of an opcode: the payload is that of a parcel.
pub const PARCEL: u32 = 0x80;
/// Opcode of the frame that ends a loan. Payload: u32 extent, u32 0, u64 block.
pub const RELEASE: u32 = 0xFF;
/// Bytes of the payload of a release.
pub const RELEASE_SIZE: usize = 16;

const HEADER: usize = 8;
const ENTRY: usize = 32;
const BODY_IS_A_BUFFER: u32 = 1;

/// The location of a buffer's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the frame.
    InFrame,
    /// In a block of the sender, lent to the receiver.
    AtSender(BlockRef),
    /// In a block of the receiver, which was lent to the sender.
    AtReceiver(BlockRef),
}

/// A buffer that travels with a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Location of the bytes.
    pub location: Location,
    /// Offset in the block, in bytes; 0 if the bytes are in the frame.
    pub start: u64,
    /// Length, in bytes.
    pub len: u64,
}

/// Create a payload with the table, and with room for `room` more bytes. The caller appends the body, unless the first
/// buffer is the body, and the buffers in the frame.
pub fn begin(entries: &[Entry], body_is_a_buffer: bool, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + entries.len() * ENTRY + room);
    out.extend_from_slice(&(entries.len() as u32).to_ne_bytes());
    out.extend_from_slice(&u32::from(body_is_a_buffer).to_ne_bytes());
    for entry in entries {
        let (whose, place) = match entry.location {
            Location::InFrame => (
                0u32,
                BlockRef {
                    extent: 0,
                    offset: 0,
                },
            ),
            Location::AtSender(place) => (1, place),
            Location::AtReceiver(place) => (2, place),
        };
        out.extend_from_slice(&whose.to_ne_bytes());
        out.extend_from_slice(&place.extent.to_ne_bytes());
        for number in [place.offset, entry.start, entry.len] {
            out.extend_from_slice(&number.to_ne_bytes());
        }
    }
    out
}

/// Return the payload of the frame that ends a loan of the block at `place`.
pub fn release(place: BlockRef) -> [u8; RELEASE_SIZE] {
    let mut payload = [0; RELEASE_SIZE];
    payload[..4].copy_from_slice(&place.extent.to_ne_bytes());
    payload[8..].copy_from_slice(&place.offset.to_ne_bytes());
    payload
}

/// Return the block that the payload of a release names, an untrusted value.
pub fn released(payload: &[u8; RELEASE_SIZE]) -> BlockRef {
    BlockRef {
        extent: u32_at(payload, 0),
        offset: u64_at(payload, 8),
    }
}

/// The parts of a parcel's payload.
#[derive(Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Buffers, in order, including the body if it is one.
    pub entries: Vec<Entry>,
    /// Range of the body in the payload; None: the first buffer is the body.
    pub body: Option<Range<usize>>,
    /// Offset in the payload of the buffers in the frame, which lie one after the other up to its end.
    pub here: usize,
}

/// Parse a payload, which is private memory. Fails with [`Violation::Table`] if it is malformed. The blocks that it
/// names are not checked.
pub fn parse(payload: &[u8]) -> Result<Parsed, Violation> {
    if payload.len() < HEADER {
        return Err(Violation::Table);
    }
    let count = u32_at(payload, 0) as usize;
    let first_is_body = match u32_at(payload, 4) {
        0 => false,
        BODY_IS_A_BUFFER if count > 0 => true,
        _ => return Err(Violation::Table),
    };
    let rest = &payload[HEADER..];
    if count > rest.len() / ENTRY {
        return Err(Violation::Table);
    }
    let (table, rest) = rest.split_at(count * ENTRY);
    let mut here = 0u64;
    let mut entries = Vec::with_capacity(count);
    for raw in table.chunks_exact(ENTRY) {
        let place = BlockRef {
            extent: u32_at(raw, 4),
            offset: u64_at(raw, 8),
        };
        let (start, len) = (u64_at(raw, 16), u64_at(raw, 24));
        let location = match u32_at(raw, 0) {
            0 => {
                here = here.checked_add(len).ok_or(Violation::Table)?;
                Location::InFrame
            }
            1 => Location::AtSender(place),
            2 => Location::AtReceiver(place),
            _ => return Err(Violation::Table),
        };
        entries.push(Entry {
            location,
            start,
            len,
        });
    }
    let body_len = (rest.len() as u64)
        .checked_sub(here)
        .ok_or(Violation::Table)?;
    if first_is_body && body_len > 0 {
        return Err(Violation::Table);
    }
    let begin = payload.len() - rest.len();
    let here = begin + body_len as usize;
    Ok(Parsed {
        entries,
        body: (!first_is_body).then_some(begin..here),
        here,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(location: Location, start: u64, len: u64) -> Entry {
        Entry {
            location,
            start,
            len,
        }
    }

    #[test]
    fn a_table_round_trips() {
        let place = BlockRef {
            extent: 3,
            offset: 8192,
        };
        let entries = [
            entry(Location::AtSender(place), 16, 100),
            entry(Location::InFrame, 0, 3),
            entry(Location::AtReceiver(place), 0, 4096),
            entry(Location::InFrame, 0, 2),
        ];
        let mut payload = begin(&entries, false, 0);
        payload.extend_from_slice(b"bodyabcde");
        let parsed = parse(&payload).unwrap();
        assert_eq!(parsed.entries, entries);
        assert_eq!(&payload[parsed.body.unwrap()], b"body");
        assert_eq!(&payload[parsed.here..], b"abcde");
    }

    #[test]
    fn a_body_may_be_the_first_buffer() {
        let place = BlockRef {
            extent: 0,
            offset: 0,
        };
        let payload = begin(&[entry(Location::AtSender(place), 0, 9)], true, 0);
        assert_eq!(parse(&payload).unwrap().body, None);
    }

    #[test]
    fn a_malformed_table_is_refused() {
        let place = BlockRef {
            extent: 0,
            offset: 0,
        };
        let good = begin(&[entry(Location::AtSender(place), 0, 9)], true, 0);
        let with = |at: usize, value: u32| {
            let mut bytes = good.clone();
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            bytes
        };
        let mut trailing = good.clone();
        trailing.push(0);
        let mut missing = begin(&[entry(Location::InFrame, 0, 5)], false, 0);
        missing.extend_from_slice(b"abcd");
        let endless = begin(
            &[
                entry(Location::InFrame, 0, u64::MAX),
                entry(Location::InFrame, 0, 2),
            ],
            false,
            0,
        );
        let bad = [
            vec![],
            good[..7].to_vec(),
            good[..good.len() - 1].to_vec(),
            with(0, 2),
            with(0, u32::MAX),
            with(4, 2),
            with(8, 3),
            begin(&[], true, 0),
            trailing,
            missing,
            endless,
        ];
        for payload in bad {
            assert_eq!(parse(&payload), Err(Violation::Table), "{payload:?}");
        }
    }
}
