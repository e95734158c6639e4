//! What a commit has changed, as far as others wait for it.

use super::format::mutator::Kept;

/// What members may wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// A container was changed that somebody watches, or one has gone.
    pub changes: bool,
    /// This many more messages are there.
    pub messages: u32,
    /// The lease is free, which was held for long.
    pub lease: bool,
}

/// Of what others are to be told at the end of a transaction, and this process is to know.
#[derive(Default)]
pub(super) struct Tidings {
    pub(super) news: News,
    /// The contents of removed containers of which this process has proxies.
    pub(super) kept: Vec<Kept>,
    /// Of a store with an owner: the containers that it has changed, if readers may watch some; and how many watches readers
    /// had begun before it.
    pub(super) touched: Vec<u64>,
    pub(super) begun: u64,
}

/// The amount of news at some moment.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) news: News,
    pub(super) kept: usize,
    pub(super) touched: usize,
}

impl Tidings {
    pub(in crate::store) fn seen(&self) -> Seen {
        Seen {
            news: self.news,
            kept: self.kept.len(),
            touched: self.touched.len(),
        }
    }

    /// Forgets what has come since.
    pub(in crate::store) fn go_back(&mut self, seen: Seen) {
        self.news = seen.news;
        self.kept.truncate(seen.kept);
        self.touched.truncate(seen.touched);
    }
}
