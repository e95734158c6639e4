//! How a thread waits for what a name has.

use super::membership::{Membership, NameError, Want};
use crate::clock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nanoseconds for which a thread looks again before it sleeps.
const SPIN: u64 = 10_000;
/// Sleeps without a deadline end after this, and begin again.
const LONG: Duration = Duration::from_secs(1 << 20);

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It has what it waited for.
    Taken,
    /// Its time is over.
    TimedOut,
    /// This process does not wait any more, see [`Membership::stop`].
    Stopped,
}

/// Why a wait was given up.
#[derive(Debug)]
pub enum Interrupted<E> {
    /// The name cannot be used.
    Name(NameError),
    /// What the caller's look after a signal has raised.
    Caller(E),
}

impl<E> From<NameError> for Interrupted<E> {
    fn from(error: NameError) -> Self {
        Interrupted::Name(error)
    }
}

impl Membership {
    /// Blocks this thread until it has what it wants, or `deadline` has passed. `interrupted` is asked after each wake-up
    /// whether to go on.
    pub fn wait<E>(
        self: &Arc<Self>,
        want: Want,
        deadline: Option<Instant>,
        mut interrupted: impl FnMut() -> Result<(), E>,
    ) -> Result<Waited, Interrupted<E>> {
        if self.spin(want, deadline)? {
            return Ok(Waited::Taken);
        }
        self.prepare_to_sleep()?;
        let mut sleeper = self.sleeper(want.set())?;
        sleeper.line_up();
        let ended = loop {
            if self.is_stopped() {
                break Ok(Waited::Stopped);
            }
            let limit = deadline.map_or(LONG, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if limit.is_zero() {
                break Ok(Waited::TimedOut);
            }
            let slept = sleeper.sleep(limit, || {
                self.is_stopped() || self.has_left() || self.try_now(want)
            });
            match slept {
                // It may have found that it is to end.
                Ok(true) if !self.is_stopped() && !self.has_left() => break Ok(Waited::Taken),
                Ok(_) => {}
                Err(error) => break Err(self.no_place(error).into()),
            }
            if let Err(error) = self.check() {
                break Err(error.into());
            }
            if let Err(error) = interrupted() {
                break Err(Interrupted::Caller(error));
            }
        };
        self.keep(want.set(), sleeper);
        ended
    }

    /// What every wait does before it sleeps: gives back what the dead have, and watches the living.
    pub fn prepare_to_sleep(self: &Arc<Self>) -> Result<(), NameError> {
        self.watch()?;
        self.recover_dead();
        self.check_permits()
    }

    fn try_now(&self, want: Want) -> bool {
        self.try_take(want).unwrap_or(false) // What is wrong is found after the sleep.
    }

    fn spin(&self, want: Want, deadline: Option<Instant>) -> Result<bool, NameError> {
        let mut end = clock::now() + SPIN;
        if let Some(deadline) = deadline {
            let left = deadline
                .saturating_duration_since(Instant::now())
                .as_nanos();
            end = end.min(clock::now().saturating_add(left.min(u128::from(u64::MAX)) as u64));
        }
        loop {
            if self.try_take(want)? {
                return Ok(true);
            }
            if clock::now() >= end || self.is_stopped() {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
    }
}
