//! Blocks for large records.

use super::Publisher;
use super::error::{Cause, Refused, Slowest};
use super::waiting::{Patience, Waiting};
use crate::shared_heap::Words;
use crate::topic::blocks::{Block, Run};
use crate::topic::directory::SEQ;
use crate::topic::log_memory::Space;

impl<L: Space, D: Words> Publisher<L, D> {
    /// A block for this many bytes, to be filled.
    pub fn reserve(&mut self, len: u64, patience: Patience) -> Result<Block, Refused> {
        let most = self.blocks.size();
        if len > most {
            return Err(Refused::TooLarge { asked: len, most });
        }
        loop {
            if let Some(run) = self.blocks.allocate(len) {
                if let Patience::Waits(waiter) = patience {
                    self.forget(waiter);
                }
                return self.backed(run);
            }
            let Err(slowest) = self.make_memory(len) else {
                continue;
            };
            match patience {
                Patience::Waits(waiter) if self.waits_for(waiter) != Some(Waiting::FOR_ANYBODY) => {
                    self.announce(waiter, Waiting::FOR_ANYBODY);
                }
                _ => return Err(Refused::Full(slowest)),
            }
        }
    }

    fn backed(&mut self, run: Run) -> Result<Block, Refused> {
        let first = self.log.blocks;
        if let Some(bare) = self.blocks.bare(run) {
            if let Err(error) = self.log.space().set_aside(first + bare.at, bare.len) {
                self.blocks.free(run);
                return Err(error.into());
            }
            self.blocks.has_memory(bare);
        }
        Ok(Block {
            at: first + run.at,
            len: run.len,
            run,
        })
    }

    /// Frees a block that is not wanted.
    pub fn give_back(&mut self, block: Block) {
        self.blocks.free(block.run);
    }

    /// Frees some memory, or says who has it.
    #[cold]
    fn make_memory(&mut self, len: u64) -> Result<(), Slowest> {
        if self.sweep_limbo() {
            return Ok(());
        }
        let Some(&(oldest, _)) = self.placed.front() else {
            return Err(self.holder_of_memory());
        };
        let mut heads = self.heads();
        self.cut_slow(&mut heads, oldest + 1);
        let slowest = heads.iter().min_by_key(|head| head.at).copied();
        let read = slowest.map_or(self.published, |slowest| slowest.at);
        if let Some(slowest) = slowest
            && read <= oldest
        {
            return Err(self.behind(&slowest, Cause::Memory));
        }
        if read <= oldest {
            return Err(self.holder_of_memory()); // Written, and not published so far.
        }
        // As much as is needed and a part of all, so that this is not done for each.
        let (mut freed, mut to) = (0, oldest + 1);
        for &(seq, run) in self.placed.iter().take_while(|&&(seq, _)| seq < read) {
            if freed >= len.max(self.blocks.size() / 8) {
                break;
            }
            (freed, to) = (freed + run.len, seq + 1);
        }
        let before = self.placed.len();
        self.give_up(to.max(self.kept));
        if self.placed.len() < before {
            return Ok(()); // If all of these are looked at, the next look finds others.
        }
        // One has joined meanwhile, and begins with the oldest.
        let heads = self.heads();
        let joined = heads.iter().min_by_key(|head| head.at);
        match joined {
            Some(joined) => Err(self.behind(joined, Cause::Memory)),
            None => Ok(()),
        }
    }

    fn holder_of_memory(&self) -> Slowest {
        let pinned = self.directory.pinned(self.listing);
        let holder = (self.limbo.iter())
            .find_map(|&(seq, _)| pinned.iter().find(|each| each.0 == seq & SEQ));
        Slowest {
            owner: holder.map(|&(_, seat)| self.directory.owner(seat)),
            lag: 0,
            cause: match holder {
                Some(_) => Cause::Memory,
                None => Cause::Filling,
            },
        }
    }
}
