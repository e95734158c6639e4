//! Blocks for large records.

use super::Publisher;
use super::error::{NoRoom, NoRoomCause, PublishError};
use super::waiting::{OnFull, WakeCondition};
use crate::shared_heap::Words;
use crate::topic::blocks::{Block, PageRun};
use crate::topic::directory::SEQ;
use crate::topic::log_memory::LogMemory;

impl<L: LogMemory, D: Words> Publisher<L, D> {
    /// Reserve a block for `len` bytes, which the caller fills and then appends or frees. Reclaims read records and
    /// cuts off slow subscribers if needed. Does not wait. Fails with `TooLarge` if it can never fit, with `System` if
    /// the system has no memory, and with `Full` if no block is free now; a caller that waits is then announced in the
    /// listing, until [`cancel_wait`](Self::cancel_wait) or its success.
    pub fn reserve(&mut self, len: u64, on_full: OnFull) -> Result<Block, PublishError> {
        let most = self.blocks.size();
        if len > most {
            return Err(PublishError::TooLarge { asked: len, most });
        }
        loop {
            if let Some(run) = self.blocks.allocate(len) {
                if let OnFull::Wait(waiter) = on_full {
                    self.cancel_wait(waiter);
                }
                return self.back_run(run);
            }
            let Err(slowest) = self.free_memory_for(len) else {
                continue;
            };
            match on_full {
                OnFull::Wait(waiter)
                    if self.condition_of(waiter) != Some(WakeCondition::ANY_CHANGE) =>
                {
                    self.announce(waiter, WakeCondition::ANY_CHANGE);
                }
                _ => return Err(PublishError::Full(slowest)),
            }
        }
    }

    /// Allocate memory for the part of a run that has none, and return the run as a block. If that fails, free the run
    /// and return `System`.
    fn back_run(&mut self, run: PageRun) -> Result<Block, PublishError> {
        let first = self.log.blocks;
        if let Some(bare) = self.blocks.unbacked_part(run) {
            if let Err(error) = self.log.space().populate(first + bare.at, bare.len) {
                self.blocks.free(run);
                return Err(error.into());
            }
            self.blocks.mark_backed(bare);
        }
        Ok(Block {
            at: first + run.at,
            len: run.len,
            run,
        })
    }

    /// Free a reserved block that was not appended. The caller wakes its other waiters, which may have room now.
    pub fn free_block(&mut self, block: Block) {
        self.blocks.free(block.run);
    }

    /// Free memory for `len` bytes, or a part of it: the caller then tries to allocate again. Cuts off slow
    /// subscribers. Return the error details if there is none to free before a subscriber reads or unpins.
    #[cold]
    fn free_memory_for(&mut self, len: u64) -> Result<(), NoRoom> {
        if self.free_unpinned() {
            return Ok(());
        }
        let Some(&(oldest, _)) = self.record_blocks.front() else {
            return Err(self.memory_holder());
        };
        let mut heads = self.respected_heads();
        self.cut_off_slow(&mut heads, oldest + 1);
        let slowest = heads.iter().min_by_key(|head| head.at).copied();
        let read = slowest.map_or(self.published, |slowest| slowest.at);
        if let Some(slowest) = slowest
            && read <= oldest
        {
            return Err(self.no_room_behind(&slowest, NoRoomCause::Memory));
        }
        if read <= oldest {
            return Err(self.memory_holder()); // Written, and not published.
        }
        // The needed bytes and an eighth of all blocks, so that the next records need no reclaiming.
        let (mut freed, mut to) = (0, oldest + 1);
        for &(seq, run) in self
            .record_blocks
            .iter()
            .take_while(|&&(seq, _)| seq < read)
        {
            if freed >= len.max(self.blocks.size() / 8) {
                break;
            }
            (freed, to) = (freed + run.len, seq + 1);
        }
        let before = self.record_blocks.len();
        self.reclaim_up_to(to.max(self.kept));
        if self.record_blocks.len() < before {
            return Ok(()); // If all of these are pinned, the next call finds others.
        }
        // A subscriber has joined meanwhile, and begins with the oldest record.
        let heads = self.respected_heads();
        let joined = heads.iter().min_by_key(|head| head.at);
        match joined {
            Some(joined) => Err(self.no_room_behind(joined, NoRoomCause::Memory)),
            None => Ok(()),
        }
    }

    /// Return the error details for memory that no unread record takes: a subscriber has pinned a block, or the blocks
    /// are being filled.
    fn memory_holder(&self) -> NoRoom {
        let pinned = self.directory.pinned(self.listing);
        let holder = (self.pinned_blocks.iter())
            .find_map(|&(seq, _)| pinned.iter().find(|each| each.0 == seq & SEQ));
        NoRoom {
            owner: holder.map(|&(_, seat)| self.directory.owner(seat)),
            lag: 0,
            cause: match holder {
                Some(_) => NoRoomCause::Memory,
                None => NoRoomCause::Filling,
            },
        }
    }
}
