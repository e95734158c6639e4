//! The list of crash points.

macro_rules! points {
    (
        $($(#[doc = $doc:literal])+ $name:ident,)+ ;
        $($(#[doc = $shared_doc:literal])+ $shared:ident,)+
    ) => {
        /// The points at which a process can be killed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        #[cfg_attr(not(feature = "python"), allow(dead_code))]
        pub enum Point {
            $($(#[doc = $doc])+ $name,)+
            $($(#[doc = $shared_doc])+ $shared,)+
        }

        /// Names of the points, by number.
        pub const NAMES: &[&str] = &[$(stringify!($name),)+ $(stringify!($shared),)+];
        /// Number of points, the first ones, that the Python tests count. The others belong to `shared_heap/tests`
        /// and `topic/tests`.
        #[cfg_attr(not(feature = "python"), allow(dead_code))]
        pub const OF_PYTHON: usize = [$(stringify!($name),)+].len();
    };
}

points! {
    /// There is room for a frame, and nothing of it is written.
    FrameBegun,
    /// The header of a frame is written, its payload is not.
    FrameHeaded,
    /// A frame is written, and not published.
    FrameWritten,
    /// A frame is published, and its reader is not woken.
    FramePublished,
    /// There is memory for a ring to grow, and the reader does not know.
    RingGrows,
    /// The growth of a ring is published.
    RingGrown,
    /// A frame without room is queued.
    FrameKept,
    /// A piece of a frame is written, and not published.
    PieceWritten,
    /// A piece of a frame is published.
    PiecePublished,
    /// A frame is found, and not taken.
    FrameFound,
    /// The payload of a frame is copied, its room is not freed.
    FrameCopied,
    /// The room of a frame is freed, and the writer is not woken.
    FrameTaken,
    /// The header of a frame in pieces is taken.
    PiecesBegun,
    /// A piece is copied, its room is not freed.
    PieceCopied,
    /// The room of a piece is freed.
    PieceTaken,
    /// A sleep is announced, and the sleeper has not checked again.
    SleepAnnounced,
    /// The announcement of a sleep is withdrawn.
    SleepWithdrawn,
    /// The wake token of the peer is taken, and the peer is not woken.
    WakeTokenTaken,
    /// The peer is woken.
    PeerWoken,
    /// A side has announced a sleep and checked again, and is about to sleep.
    Parked,
    /// A thread has slept.
    Woken,
    /// A channel of a server is hot again.
    ChannelWoken,
    /// A server has found a frame, and has not taken it.
    ChannelFound,
    /// A channel is added to a server's poller.
    ChannelAdded,
    /// A channel is removed from a server's poller.
    ChannelRemoved,
    /// The memory of an extent is allocated and sealed, and not mapped.
    ExtentSealed,
    /// An extent is created, and the peer does not know it.
    ExtentMade,
    /// An extent is sent to the peer, and is not in the arena.
    ExtentSent,
    /// An extent is in the arena, and no block of it is in use.
    ExtentAdded,
    /// An extent of the peer is announced, and not mapped.
    ExtentAnnounced,
    /// An extent of the peer is mapped, and not registered.
    ExtentMapped,
    /// A block is allocated, and not written.
    BlockAllocated,
    /// A block is written, and not lent.
    BlockWritten,
    /// A block is lent for a frame that is not sent.
    BlockLent,
    /// A frame with blocks is sent; the loans belong to the peer.
    ParcelSent,
    /// A loan of a block that a frame names is opened.
    LoanOpened,
    /// A block of this side has come back in a frame.
    BlockReclaimed,
    /// A loan has ended here, and the peer does not know.
    LoanEnded,
    /// The release of a loan is sent, or queued.
    LoanReleased,
    /// A release is read, and its block is not free.
    ReleaseRead,
    /// A release is processed, and its block is free.
    ReleaseTaken,
    /// A sweep of idle memory has begun.
    SweepBegun,
    /// An idle extent is out of the arena, and still has its memory.
    ExtentIdle,
    /// The memory of an idle extent is given back, and the peer does not know.
    ExtentPunched,
    /// The removal of an extent is sent to the peer; the extent is still mapped here.
    ExtentRemoved,
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
    /// One of the calls in a frame is done.
    OneOfManyDone,
    /// A reply is read, and its caller has not received it.
    ReplyRead,
    /// The entry lock of an object is held, and nothing of the object is read.
    EntryLockHeld,
    /// The memory of a new object has a name, and no file.
    MemoryNamed,
    /// The memory of a new object has a file, and no header.
    MemoryMade,
    /// The memory of a new object is ready, and it has no member.
    MemoryReady,
    /// A new member has its byte, and no entry.
    MemberLocked,
    /// A new member has its entry, and the watchers are not woken.
    MemberEntered,
    /// A permit is taken.
    PermitTaken,
    /// A permit is free, and no waiter is woken.
    PermitFreed,
    /// A signal is counted, and no waiter is woken.
    Signalled,
    /// A signal is taken.
    SignalTaken,
    /// An event is set, and no waiter is woken.
    EventSet,
    /// A sleeper's slot is in the state woken, and the sleeper is not woken.
    SlotWoken,
    /// The recovery of a dead member has begun.
    RecoveryBegun,
    /// A permit of a dead member is free.
    PermitRecovered,
    /// All that a dead member had is free, and its slot is not.
    Recovered,
    /// Items are written behind the end of a queue, which has not moved.
    ItemsWritten,
    /// Items are in a queue, and no reader is woken.
    ItemsPut,
    /// Items are popped from a queue, and their reader has not received them.
    ItemsTaken,
    /// An item is claimed, and its claimant has not received it.
    ItemClaimed,
    /// A claim has ended, and no waiter is woken.
    ClaimEnded,
    /// A claim of a dead member has ended.
    ClaimRecovered,
    /// A member that leaves has released its permits.
    LeaveBegun,
    /// A member that leaves has no entry.
    MemberLeft,
    /// The memory of an object is removed, and its lock file is not.
    MemoryRemoved,
    /// A store has its initial contents.
    StoreInitialized,
    /// A change that others wait for is committed, and none is woken.
    StoreChanged,
    /// A program's transaction has the owner lock, and looks like a single operation.
    TransactionBegun,
    /// A program's transaction has the owner lock, and is marked as a transaction.
    TransactionMarked,
    /// A program's transaction has ended, and no waiter is woken.
    TransactionEnded,
    /// A message is taken, and its receiver has not received it.
    MessageTaken,
    /// A buffer is pinned, and its reader has not received it.
    BufferPinned,
    /// A buffer is unpinned.
    BufferUnpinned,
    /// A container is watched, and the watcher does not wait.
    WatchBegun,
    /// A container is no longer watched.
    WatchEnded,
    /// The pins and watches of dead members of a store are released.
    StoreRecovered,
    /// The memory of a store announces that a copy replaces it, and there is no copy.
    ReplaceBegun,
    /// There is a copy of a store, and no member knows it.
    CopyMade,
    /// A copy of a store has replaced it, and no member uses it.
    CopyFound,
    /// This process uses the copy, and the others are not woken.
    CopyUsed,
    /// The ownership of a store is taken, and nothing is created.
    OwnerBegun,
    /// The contents of a store with an owner exist, and are not announced.
    ContentsMade,
    /// The contents of a store with an owner are announced, and no reader is woken.
    ContentsFound,
    /// The readers of a store are woken, and the owner has not waited for them.
    ReadersWoken,
    /// A reader has mapped the contents of an owner, and has not announced that.
    ReaderFollows,
    /// A reader has mapped a dead owner's partial commit privately, and has not completed it.
    MendBegun,
    /// A change of a store with an owner is committed, and its readers are not woken.
    OwnerChangeCommitted,
    /// A reader has pinned a buffer, and has not checked that it is still there.
    ReaderPinned,
    /// A reader watches a container, and does not wait.
    ReaderWatches,
    /// The only word of a transaction is stored, and the sequence is as before.
    OnlyWordStored,
    /// The number of a container is used, and nothing else is done.
    NumberTaken,
    /// The entries of a log are written, and do not count.
    LogWritten,
    /// The entries of a log count, and no word is stored.
    LogCounted,
    /// One word of a log is stored, and others are not.
    LogWordStored,
    /// All words of a log are stored, and the sequence is odd.
    LogEnded,
    /// A transaction with a log is over, and the owner lock is held.
    LogSettled,
    /// The commit of a dead member is found, and no word is stored again.
    RedoBegun,
    /// A word of that commit is stored again.
    RedoWordStored,
    /// All words of that commit are stored again, and the sequence is odd.
    RedoDone,
    /// Memory of a heap is allocated, and nothing of that is committed.
    HeapGrown,
    /// A commit is complete, and memory is still to be given back.
    HeapFreed,
    /// The memory of the previous point is given back, and the owner lock is held.
    HeapPunched,
    /// The containers that a dead member had begun are removed, and their memory is not given back.
    DeadContainersRemoved,
    /// Memory of a dead member is given back, perhaps not all of it.
    RepairPunched,
    ; // The points behind this one are counted in shared_heap/tests and topic/tests alone.
    /// The owner lock is acquired, and nothing else is read.
    LockAcquired,
    /// The owner lock of a dead member, or of one that did not identify itself in time, is taken over.
    LockTakenOver,
    /// The word of the owner lock announces a sleeper, which does not sleep.
    LockAwaited,
    /// The owner lock is released, and no sleeper is woken.
    LockReleased,
    /// The sequence is odd, and nothing is changed.
    SequenceOdd,
    /// An entry of the undo log is written, and does not count.
    EntryWritten,
    /// An entry of the undo log counts, and its word is not changed.
    EntryCounted,
    /// A word is changed.
    WordChanged,
    /// All changes are committed, and the sequence is odd.
    Committed,
    /// A transaction is over, and its owner lock is held.
    SequenceEven,
    /// The undo log of the last holder counts, and nothing is restored.
    RollbackBegun,
    /// A word is restored.
    WordRestored,
    /// All words are restored, and the sequence is odd.
    RollbackDone,
    /// Pages without memory are reserved.
    GrowthBegun,
    /// The reserved pages have memory, and the map does not record that.
    GrowthDone,
    /// Unused pages with memory are reserved.
    ShrinkingBegun,
    /// Their memory is given back, and the map does not record that.
    ShrinkingDone,
    /// A block is reserved, and not filled.
    BlockReserved,
    /// A block, or pages, of a dead member are found.
    DeadAllocationFound,
    /// A publisher has a listing, which is not open.
    ListingTaken,
    /// A publisher's listing is open, and the version is the old one.
    ListingOpened,
    /// A record is written, and not published.
    RecordWritten,
    /// Records are published, and no subscriber is woken.
    RecordsPublished,
    /// A publisher's floor is raised, and no head is loaded.
    FloorRaised,
    /// Records are reclaimed, and not overwritten.
    RecordsGivenUp,
    /// A subscriber is cut off.
    CutOff,
    /// A publisher's listing is closed, and not released.
    ListingClosed,
    /// A subscriber has a seat, and does not use it.
    SeatTaken,
    /// A subscriber joins, and is attached to no publisher.
    SeatJoining,
    /// A subscriber is attached to a publisher.
    Attached,
    /// A subscriber's seat is active.
    SeatActive,
    /// Records are copied or pinned, and the head is below them.
    RecordsCopied,
    /// A record is pinned, and the subscriber has not checked that it is still there.
    RecordPinned,
    /// A subscriber's head is above what it has read, and the publisher is not woken.
    HeadMoved,
    /// A pin is removed, and the publisher is not woken.
    PinCleared,
}
