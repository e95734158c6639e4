//! The heads of the subscribers that a publisher waits for, and cutting off those that are too slow.

use super::Publisher;
use super::error::{NoRoom, NoRoomCause};
use super::subscriber_state::{SubscriberHead, SubscriberState};
use crate::crash;
use crate::shared_heap::Words;
use crate::sync::Ordering;
use crate::topic::directory::{READS_NOTHING, SeatState, SeatWord};
use crate::topic::log::CutReason;
use crate::topic::log_memory::LogMemory;
use crate::topic::policy::Policy;

impl<L: LogMemory, D: Words> Publisher<L, D> {
    /// Return the error details for a record that finds no room before the subscriber with this head has read.
    pub(super) fn no_room_behind(&self, head: &SubscriberHead, cause: NoRoomCause) -> NoRoom {
        NoRoom {
            owner: Some(self.directory.owner(head.seat)),
            lag: self.next - head.at,
            cause,
        }
    }

    /// Return the record before which the publisher may write without loading the heads again. `heads` has all
    /// subscribers whose records are kept.
    pub(super) fn write_limit(&self, heads: &[SubscriberHead]) -> u64 {
        let may_lag = |head: &SubscriberHead| match head.word.policy() {
            Some(Policy::Disconnect) => self.allowed_lag(head),
            _ => self.limits.high,
        };
        let limits = heads
            .iter()
            .map(|head| head.at.saturating_add(may_lag(head)));
        let limit = limits.min().unwrap_or(u64::MAX);
        // A subscriber that joins is seen after this many records at the latest.
        limit.min(self.next + self.limits.high)
    }

    /// Return the number of records that a subscriber with [`Policy::Disconnect`] may be behind before it is cut off:
    /// as many as it has asked for, and at most the publisher's `high`.
    pub(super) fn allowed_lag(&self, head: &SubscriberHead) -> u64 {
        match self.directory.lag(head.seat) {
            0 => self.limits.high,
            lag => lag.min(self.limits.high),
        }
    }

    /// Load and return the heads of the subscribers whose unread records are kept, none below the first kept record.
    /// Cut off each subscriber whose head is impossible.
    pub(super) fn respected_heads(&mut self) -> Vec<SubscriberHead> {
        let seats = 0..self.directory.capacity().seats;
        seats.filter_map(|seat| self.read_head(seat)).collect()
    }

    /// Return the head of the subscriber of a seat if its unread records are kept; None if there is no subscriber, if
    /// it has [`Policy::KeepLast`] or reads nothing of this publisher, or if it is cut off. Cut the subscriber off if
    /// its head is impossible.
    pub(super) fn read_head(&mut self, seat: usize) -> Option<SubscriberHead> {
        let word = self.directory.seat_word(seat);
        let state = word.state();
        if !matches!(state, SeatState::Joining | SeatState::Active)
            || !word.policy().is_some_and(Policy::is_respected)
            || self.known[seat].cut == Some(word.generation())
        {
            return None;
        }
        let progress = self.directory.progress(seat, self.listing, self.generation);
        let at = match (state, progress) {
            // The subscriber has found this publisher's listing, or will, and then attaches itself at the first kept
            // record.
            (SeatState::Active, None) => self.kept,
            // The subscriber reads the listings, and then the floor.
            (_, None) => return None,
            (_, Some(progress)) if progress.head == READS_NOTHING => return None,
            (_, Some(progress)) => {
                let known = self.known[seat];
                let is_back = known.word == word.0 && progress.head < known.head;
                if is_back || progress.head > self.published {
                    self.cut_off(seat, word, CutReason::Corruption);
                    return None;
                }
                if state == SeatState::Active {
                    self.known[seat] = SubscriberState {
                        word: word.0,
                        head: progress.head,
                        cut: None,
                    };
                }
                // The head of a joining subscriber may be below the first kept record: it then loads the floor and
                // raises its head.
                progress.head.max(self.kept)
            }
        };
        Some(SubscriberHead { seat, word, at })
    }

    /// Cut off the subscribers with [`Policy::Disconnect`] that are further behind than they have asked for, or whose
    /// head is below the record `needed`, and remove them from `heads`.
    pub(super) fn cut_off_slow(&mut self, heads: &mut Vec<SubscriberHead>, needed: u64) {
        heads.retain(|head| {
            let is_slow = head.word.policy() == Some(Policy::Disconnect)
                && (self.next - head.at >= self.allowed_lag(head) || head.at < needed);
            if is_slow {
                self.cut_off(head.seat, head.word, CutReason::Lag);
            }
            !is_slow
        });
    }

    /// Stop waiting for a subscriber, and store the reason for it, which the subscriber finds before it trusts what it
    /// has read. The caller has a fence before it overwrites anything. The subscriber is not woken.
    pub(super) fn cut_off(&mut self, seat: usize, word: SeatWord, why: CutReason) {
        self.known[seat].cut = Some(word.generation());
        let word = u64::from(word.generation()) << 32 | why as u64;
        // Relaxed: before the fence of `reclaim_up_to`, and so before anything is overwritten.
        self.log.cut(seat).store(word, Ordering::Relaxed);
        crash::point!(CutOff);
    }
}
