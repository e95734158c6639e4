//! The payload of an item that is a value with buffers.
//!
//! ```text
//!      0  body     u32   bytes of the body
//!      4  buffers  u32   number of buffers
//!      8  lengths  u64 each
//!         body
//!         buffers  each at the next multiple of 64, counted from the beginning of the payload
//! ```

/// Maximum number of buffers of a value.
pub const MOST_BUFFERS: usize = 1 << 16;
const ALIGNMENT: u64 = 64;

/// Positions of the parts of a payload, in bytes from its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Offset and length of the body, in bytes.
    pub body: (u64, u64),
    /// Offset and length of each buffer, in bytes.
    pub buffers: Vec<(u64, u64)>,
    /// Length of the payload, in bytes.
    pub len: u64,
}

impl Parts {
    /// Lay out a body of `body` bytes, less than 2^32, and at most [`MOST_BUFFERS`] buffers of these lengths. Return
    /// None if the total overflows.
    pub fn new(body: u64, lengths: impl ExactSizeIterator<Item = u64>) -> Option<Self> {
        let begin = 8 + 8 * lengths.len() as u64;
        let mut len = begin.checked_add(body)?;
        let mut buffers = Vec::with_capacity(lengths.len());
        for length in lengths {
            let at = len.checked_next_multiple_of(ALIGNMENT)?;
            len = at.checked_add(length)?;
            buffers.push((at, length));
        }
        Some(Parts {
            body: (begin, body),
            buffers,
            len,
        })
    }

    /// Return the bytes before the body: the two counts and the lengths of the buffers.
    pub fn head(&self) -> Vec<u8> {
        let counts = [self.body.1 as u32, self.buffers.len() as u32];
        let mut head: Vec<u8> = counts.iter().flat_map(|n| n.to_ne_bytes()).collect();
        for (_, length) in &self.buffers {
            head.extend_from_slice(&length.to_ne_bytes());
        }
        head
    }

    /// Parse the bytes before the body of a payload of `len` bytes; `read` fills a slice with the bytes from an offset
    /// on, which lie within the payload. Return None if the payload is malformed, or its parts do not end at `len`.
    pub fn read(len: u64, mut read: impl FnMut(u64, &mut [u8])) -> Option<Self> {
        let mut counts = [0; 8];
        if len < 8 {
            return None;
        }
        read(0, &mut counts);
        let [body, buffers] = [0, 4].map(|at| crate::bytes::u32_at(&counts, at));
        let buffers = buffers as usize;
        if buffers > MOST_BUFFERS || len < 8 + 8 * buffers as u64 {
            return None;
        }
        let mut lengths = vec![0; 8 * buffers];
        read(8, &mut lengths);
        let lengths = (0..buffers).map(|index| crate::bytes::u64_at(&lengths, 8 * index));
        Parts::new(u64::from(body), lengths).filter(|parts| parts.len == len)
    }
}
