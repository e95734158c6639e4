//! Reading frames from a ring that may contain anything.

use _core::Violation;
use _core::ring::RingMemory;
use _core::ring::frame::{FrameReader, HEADER, Header};

/// Return the next frame, if it is there.
pub fn receive<M: RingMemory>(
    reader: &mut FrameReader<M>,
    max_frame: usize,
) -> Result<Option<(Header, Vec<u8>)>, Violation> {
    let Some(header) = reader.peek()? else {
        return Ok(None);
    };
    assert!(
        header.len <= max_frame,
        "a frame of {} bytes was let through",
        header.len
    );
    let mut payload = vec![0; header.len];
    reader.take(&mut payload);
    Ok(Some((header, payload)))
}

/// Read all frames, and return their number. A ring without a writer is read to its end.
pub fn drain<M: RingMemory>(
    reader: &mut FrameReader<M>,
    max_frame: usize,
    capacity: usize,
    mut each: impl FnMut(Header, &[u8]),
) -> Result<usize, Violation> {
    let mut count = 0;
    while let Some((header, payload)) = receive(reader, max_frame)? {
        each(header, &payload);
        count += 1;
        assert!(
            count <= capacity / HEADER + 1,
            "more frames than the ring can hold"
        );
    }
    Ok(count)
}
