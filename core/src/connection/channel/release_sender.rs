//! Releases of loans, sent and received over a channel.

use super::Channel;
use crate::connection::parcel::{RELEASE, RELEASE_SIZE};
use crate::connection::peer_extents::ReleaseSender;
use crate::sync::lock;
use crate::violation::Violation;

impl ReleaseSender for Channel {
    /// Send a release, or queue it. A sleeping peer is not woken: it receives releases before it allocates memory, and
    /// at each sweep. Drop the release if the channel is closed. A violation is stored as the channel's fault.
    fn send_release(&self, payload: &[u8; RELEASE_SIZE]) {
        if self.shutdown.is_closed() {
            return;
        }
        let mut writer = lock(&self.writer);
        if let Ok(false) = self.note_fault(writer.send(RELEASE, 0, payload)) {
            let _ = self.keep_frame(&mut writer, RELEASE, 0, Box::new(payload.to_vec()));
            drop(writer);
            let _ = self.await_room();
        }
    }

    /// Process the releases that come before the next other frame, which stays, and wake a peer that waits for room.
    /// Does nothing while another thread has the receiving end.
    fn collect_releases(&self) -> Result<(), Violation> {
        match self.receiver.try_lock() {
            Ok(mut receiver) => {
                receiver.peek()?;
                self.release(&receiver);
                Ok(())
            }
            Err(_) => Ok(()), // Another thread processes them now.
        }
    }
}
