//! Where a test lets a process die: at nothing at all, unless the feature `crashpoints` is on.
//!
//! A point stands between two steps of which the peer may have seen the first alone. With the feature, and in the unit
//! tests, each counts how often it is passed, and one that is armed kills its process there, as `kill -9` would, or stops
//! it. Without
//! it the macro is empty, so that what is released is what it was.

/// Marks a point. Without the feature it is nothing.
macro_rules! point {
    ($name:ident) => {
        #[cfg(any(test, feature = "crashpoints"))]
        crate::crash::pass(crate::crash::Point::$name);
    };
}

pub(crate) use point;

#[cfg(any(test, feature = "crashpoints"))]
pub use enabled::*;

#[cfg(any(test, feature = "crashpoints"))]
mod enabled {
    use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

    macro_rules! points {
        (
            $($(#[doc = $doc:literal])+ $name:ident,)+ ;
            $($(#[doc = $shared_doc:literal])+ $shared:ident,)+
        ) => {
            /// Where a process can be made to die.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(usize)]
            #[cfg_attr(not(feature = "python"), allow(dead_code))]
            pub enum Point {
                $($(#[doc = $doc])+ $name,)+
                $($(#[doc = $shared_doc])+ $shared,)+
            }

            /// Their names, by number.
            pub const NAMES: &[&str] = &[$(stringify!($name),)+ $(stringify!($shared),)+];
            /// How many of them, the first ones, the tests in Python count. The others are for `shared_heap/tests` and `topic/tests`.
            #[cfg_attr(not(feature = "python"), allow(dead_code))]
            pub const OF_PYTHON: usize = [$(stringify!($name),)+].len();
        };
    }

    points! {
        /// There is room for a frame, and nothing of it is written.
        FrameBegun,
        /// Its header is written, its payload is not.
        FrameHeaded,
        /// All of it is written, and not yet published.
        FrameWritten,
        /// It is published, and no sleeper was woken.
        FramePublished,
        /// There is memory for a ring to grow into, and the reader is not told.
        RingGrows,
        /// The reader is told that the ring has grown.
        RingGrown,
        /// A frame for which there is no room is kept.
        FrameKept,
        /// A piece of a frame is written, and not yet published.
        PieceWritten,
        /// A piece of a frame is published.
        PiecePublished,
        /// A frame was found, and is not yet taken.
        FrameFound,
        /// A frame's payload is copied out, its room not given back.
        FrameCopied,
        /// A frame's room is given back, and the writer was not told.
        FrameTaken,
        /// A frame in pieces has begun: its header is taken.
        PiecesBegun,
        /// A piece is copied out, its room not given back.
        PieceCopied,
        /// A piece's room is given back.
        PieceTaken,
        /// The flag of a sleeper is set, and it has not looked again.
        SleepAnnounced,
        /// The flag of a sleeper is taken back.
        SleepWithdrawn,
        /// The flag of the peer is taken: no other thread will ring, and we have not yet.
        WakeClaimed,
        /// The peer's bell was rung.
        BellRung,
        /// This side has said that it sleeps, has looked, and is about to sleep.
        Parked,
        /// A thread has slept.
        Woken,
        /// A channel of a server is looked at again.
        ChannelWoken,
        /// A server has found a frame, and has not taken it.
        ChannelFound,
        /// A server's poller knows a new channel.
        ChannelAdded,
        /// A server's poller has forgotten a channel.
        ChannelRemoved,
        /// The memory of an extent is made, and sealed, and not mapped.
        ExtentSealed,
        /// An extent is made, and the peer was not told.
        ExtentMade,
        /// The peer was told of an extent that is not yet in the arena.
        ExtentTold,
        /// An extent is in the arena, and nothing of it in use.
        ExtentAdded,
        /// The peer's extent was heard of, and is not mapped.
        ExtentHeard,
        /// The peer's extent is mapped, and not yet known.
        ExtentMapped,
        /// A block is in use, and nothing is written.
        BlockAllocated,
        /// A block is written, and not lent.
        BlockWritten,
        /// A block is lent for a frame that is not sent.
        BlockLent,
        /// A frame is sent that names blocks; they are the peer's.
        ParcelSent,
        /// A lease is opened of a block that a frame names.
        LeaseOpened,
        /// A block of ours has come back by a frame.
        BlockRegained,
        /// A lease has ended here, and the peer was not told.
        LeaseEnded,
        /// The peer was told of the end of a lease, unless there was no room.
        LeaseTold,
        /// The end of a lease was read, and its block is not free yet.
        ReleaseRead,
        /// The end of a lease was taken, and its block is free.
        ReleaseTaken,
        /// The thread that gives memory back has begun.
        SweepBegun,
        /// An idle extent is out of the arena, and still has its memory.
        ExtentIdle,
        /// An idle extent's memory is given back, and the peer was not told.
        ExtentPunched,
        /// The peer was told of an extent that is gone; it is still mapped here.
        ExtentGone,
        /// A channel is closed by its owner.
        ChannelClosed,
        /// In `src/python`: a request is written, and nothing of it is sent.
        RequestWritten,
        /// The arguments of a request are read, and its function is not called.
        RequestRead,
        /// The function has returned, and its result is not written.
        FunctionCalled,
        /// A result is written, and nothing of it is sent.
        ResultWritten,
        /// Of many calls in a frame one is done.
        OneOfManyDone,
        /// An answer is read, and whoever waits for it has not got it.
        AnswerRead,
        /// The door of a name is held, and nothing is known of the name.
        DoorEntered,
        /// The memory of a new name has a name, and no file.
        MemoryNamed,
        /// The memory of a new name has a file, and no header.
        MemoryMade,
        /// The memory of a new name is ready, and nobody is its member.
        MemoryReady,
        /// A new member has its byte, and no entry.
        MemberLocked,
        /// A new member has its entry, and the watchers were not told.
        MemberEntered,
        /// A permit is taken.
        PermitTaken,
        /// A permit is free, and nobody was woken.
        PermitFreed,
        /// A signal is counted, and nobody was woken.
        Signalled,
        /// A signal is taken.
        SignalTaken,
        /// An event is set, and nobody was woken.
        EventSet,
        /// A sleeper's slot says that it was woken, and nobody has rung for it.
        SlotWoken,
        /// A dead member is ours to recover.
        RecoveryBegun,
        /// A permit of a dead member is free.
        PermitRecovered,
        /// All that a dead member had is free, and its slot is not.
        Recovered,
        /// Items are written behind the end of a queue, which has not moved.
        ItemsWritten,
        /// Items are in a queue, and nobody was woken.
        ItemsPut,
        /// Items are out of a queue, and whoever takes them has not got them.
        ItemsTaken,
        /// An item is claimed, and whoever claims it has not got it.
        ItemClaimed,
        /// A claim has ended, and nobody was woken.
        ClaimEnded,
        /// A claim of a dead member has ended.
        ClaimRecovered,
        /// A member that leaves has given back its permits.
        LeaveBegun,
        /// A member that leaves has no entry any more.
        MemberLeft,
        /// The memory of a name is removed, and its lock file is not.
        MemoryRemoved,
        /// A store has what it begins with.
        StoreFounded,
        /// Something that others wait for is committed, and nobody was told.
        StoreChanged,
        /// A transaction of a program has the lease, and looks as that of a single operation.
        TransactionBegun,
        /// The same, and others can tell it from one.
        TransactionMarked,
        /// A transaction of a program has ended, and nobody was woken.
        TransactionEnded,
        /// A message is taken, and whoever takes it has not got it.
        MessageTaken,
        /// A buffer is pinned, and whoever looks at it has not got it.
        BufferPinned,
        /// A buffer is not looked at any more.
        BufferUnpinned,
        /// A container is watched, and nobody waits.
        WatchBegun,
        /// It is not watched any more.
        WatchEnded,
        /// What dead members of a store looked at and watched is given back.
        StoreRecovered,
        /// The memory of a store says that a copy is to take its place, and there is none.
        ReplaceBegun,
        /// There is a copy of a store, and nobody knows of it.
        CopyMade,
        /// A copy of a store has taken its place, and nobody uses it.
        CopyFound,
        /// This process uses the copy, and the others were not woken.
        CopyUsed,
        /// The right to be the owner of a store is taken, and nothing is made.
        OwnerBegun,
        /// The contents of a store with an owner are there, and are not said to be.
        ContentsMade,
        /// They are, and nobody was told.
        ContentsFound,
        /// The readers of a store were told of them, and not waited for.
        OwnerTold,
        /// A reader has mapped the contents of an owner, and has not said so.
        ReaderFollows,
        /// A reader has mapped a dead owner's half commit privately, and has not ended it.
        MendBegun,
        /// A change of such a store is committed, and its readers were not told.
        ChangeUntold,
        /// A reader has pinned a buffer, and has not looked whether it is there.
        ReaderPinned,
        /// A reader watches a container, and does not wait.
        ReaderWatches,
        /// The only word of a transaction is stored, and the sequence is as before.
        OnlyWordStored,
        /// The number of a container is used up, and nothing else was done.
        NumberTaken,
        /// The entries of a log are written, and do not count.
        LogWritten,
        /// They count, and no word is stored.
        LogCounted,
        /// A word is stored, and others are not.
        LogWordStored,
        /// All are stored, and the sequence is odd.
        LogEnded,
        /// All is over, and the lease is held.
        LogSettled,
        /// What a dead member had committed is found, and no word is stored again.
        RedoBegun,
        /// A word of it is stored again.
        RedoWordStored,
        /// All of it is, and the sequence is odd.
        RedoDone,
        /// Memory is fetched, and nothing of that is committed.
        HeapGrown,
        /// All is committed, and memory is still to be given back.
        HeapFreed,
        /// It is given back, and the lease is held.
        HeapPunched,
        /// The containers that a dead member had begun to make are gone, and their memory is not given back.
        LeftContainersGone,
        /// Memory of a dead member is given back, and perhaps not all of it.
        RepairPunched,
        ; // Those that are counted in shared/tests and topic/tests alone.
        /// The lease is taken, and nothing else was looked at.
        LockAcquired,
        /// The lease of a dead member, or of nobody who said so in time, is taken.
        LockTakenOver,
        /// The word of the lease says that somebody sleeps, and nobody does so far.
        LockAwaited,
        /// The lease is given back, and nobody was woken.
        LockReleased,
        /// The sequence is odd, and nothing was changed.
        SequenceOdd,
        /// An entry of the journal is written, and does not count.
        EntryWritten,
        /// An entry counts, and its word is not changed.
        EntryCounted,
        /// A word is changed.
        WordChanged,
        /// All changes stay, and the sequence is odd.
        Committed,
        /// A transaction is over, and its lease is held.
        SequenceEven,
        /// The last holder's journal counts, and nothing is restored.
        RollbackBegun,
        /// A word is restored.
        WordRestored,
        /// All words are restored, and the sequence is odd.
        RollbackDone,
        /// Pages are set aside that have no memory.
        GrowthBegun,
        /// They have memory, and the map does not say so.
        GrowthDone,
        /// Pages are set aside that nobody uses, and have their memory.
        ShrinkingBegun,
        /// Their memory is given back, and the map does not say so.
        ShrinkingDone,
        /// A block is reserved, and not filled.
        BlockReserved,
        /// A dead member's block, or pages, are found.
        RemainsFound,
        /// A publisher has a listing, which is not open.
        ListingTaken,
        /// A publisher's listing is open, and its number of changes is the old one.
        ListingOpened,
        /// A record is written, and not published.
        RecordWritten,
        /// Records are published, and nobody was woken.
        RecordsPublished,
        /// A publisher's floor is higher, and it has looked at nobody.
        FloorRaised,
        /// Records are given up, and nothing is written over.
        RecordsGivenUp,
        /// A subscriber is cut off.
        CutOff,
        /// A publisher's listing is closed, and somebody's.
        ListingClosed,
        /// A subscriber has a seat, and does not use it.
        SeatTaken,
        /// A subscriber joins, and is attached to nobody.
        SeatJoining,
        /// A subscriber is attached to a publisher.
        Attached,
        /// A subscriber's seat is active.
        SeatActive,
        /// Records are copied or pinned, and its head is below them.
        RecordsCopied,
        /// A record is pinned, and nobody has looked whether it is there still.
        RecordPinned,
        /// A subscriber's head is above what it has read, and nobody was woken.
        HeadMoved,
        /// A pin is taken back, and nobody was woken.
        PinCleared,
    }

    /// No point.
    const NONE: u64 = u64::MAX;

    static PASSED: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
    static ARMED: AtomicU64 = AtomicU64::new(NONE);
    static LEFT: AtomicU64 = AtomicU64::new(0);
    static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGKILL);
    static OBITUARY: AtomicI32 = AtomicI32::new(-1);

    /// This point is passed; the process dies if that was what it was armed for.
    pub(crate) fn pass(point: Point) {
        // Relaxed, here and below: they are counters, and the test arms before it goes on.
        PASSED[point as usize].fetch_add(1, Ordering::Relaxed);
        if ARMED.load(Ordering::Relaxed) == point as u64
            && LEFT.fetch_sub(1, Ordering::Relaxed) == 1
        {
            match SIGNAL.load(Ordering::Relaxed) {
                libc::SIGKILL => die(),
                // SAFETY: no memory is involved. It goes on after SIGCONT.
                other => drop(unsafe { libc::raise(other) }),
            }
        }
    }

    /// The process gets this signal when it passes this point for the `times`th time from now on. Of SIGKILL it dies, and
    /// writes the time of that, in nanoseconds of CLOCK_MONOTONIC, to `obituary`.
    pub fn arm(point: usize, times: u64, signal: i32, obituary: i32) {
        // Relaxed, all: see `pass`.
        LEFT.store(times, Ordering::Relaxed);
        SIGNAL.store(signal, Ordering::Relaxed);
        OBITUARY.store(obituary, Ordering::Relaxed);
        ARMED.store(point as u64, Ordering::Relaxed);
    }

    /// How often each point was passed, by number.
    #[cfg_attr(not(feature = "python"), allow(dead_code))]
    pub fn passed() -> Vec<u64> {
        // Relaxed: see `pass`.
        let counts = PASSED.iter().map(|count| count.load(Ordering::Relaxed));
        counts.collect()
    }

    fn die() -> ! {
        // Relaxed: see `pass`.
        let obituary = OBITUARY.load(Ordering::Relaxed);
        let now = crate::clock::now();
        // SAFETY: eight bytes of `now` are readable; an invalid descriptor is an error, which is ignored.
        unsafe { libc::write(obituary, (&raw const now).cast(), 8) };
        // SAFETY: no memory is involved.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        loop {
            std::thread::park(); // The signal comes before the call returns, but to another thread perhaps.
        }
    }
}
