//! The time that the machine itself takes, as a floor for the benchmark. `floors.py` loads this library.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

#[repr(align(128))]
struct Line(AtomicU32);

/// Told to the other thread instead of a round: there are no more.
const END: u32 = u32::MAX;
/// Threads that share a CPU need a time slice for each word: they do not finish their rounds, of which there are
/// ten thousand, for minutes.
const LONGEST: Duration = Duration::from_millis(500);
/// Failed checks after which the clock is read; with a CPU for each thread fewer are needed.
const LOOKS: u32 = 4096;

/// Lets two threads that spin pass a word back and forth `rounds` times, or fewer if each takes a time slice; nanoseconds
/// for one round trip.
// SAFETY: no other library of the process exports this name.
#[unsafe(no_mangle)]
pub extern "C" fn ping_pong(rounds: u32) -> f64 {
    let there = Line(AtomicU32::new(0));
    let back = Line(AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = 0;
            while seen != END {
                let word = there.0.load(Ordering::Acquire);
                if word == seen {
                    spin_loop();
                } else {
                    seen = word;
                    back.0.store(word, Ordering::Release);
                }
            }
        });
        let (start, mut done) = (Instant::now(), 0);
        'rounds: for round in 1..=rounds {
            there.0.store(round, Ordering::Release);
            let mut looks = 0_u32;
            while back.0.load(Ordering::Acquire) != round {
                spin_loop();
                looks = looks.wrapping_add(1);
                if looks % LOOKS == 0 && start.elapsed() > LONGEST {
                    break 'rounds;
                }
            }
            done = round;
        }
        let nanoseconds = start.elapsed().as_nanos() as f64 / f64::from(done.max(1));
        there.0.store(END, Ordering::Release);
        nanoseconds
    })
}
