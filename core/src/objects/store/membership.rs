//! The membership of this process in a store: the contents that it has mapped, and the transaction that it has begun.

use super::copies::map_current_copy;
use super::error::StoreRefused;
use super::local_transaction::LocalTransaction;
use crate::memory::mapping::SharedMapping;
use crate::memory::named;
use crate::objects::error::ObjectError;
use crate::objects::members::Holder;
use crate::objects::members::MemberId;
use crate::objects::members::lock_file::ObjectMembers;
use crate::objects::members::watcher::Watched;
use crate::objects::membership::Membership;
use crate::objects::memory::layout::AT_CONTENTS;
use crate::objects::parts::Parts;
use crate::shared_heap::HeapError;
use crate::store::{Store, StoreError};
use crate::sync::lock;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// The wait set of members that wait for the owner lock, because a transaction holds it for long.
pub const TRANSACTIONS: usize = 0;
/// The wait set of members that wait for a change.
pub const CHANGES: usize = 1;
/// The wait set of members that wait for a message.
pub const MESSAGES: usize = 2;

/// The store of an object, in memory.
pub type ObjectStore = Store<Arc<SharedMapping>, Arc<ObjectMembers>>;

/// The membership of this process in a store.
pub struct StoreMembership {
    membership: Membership,
    store: ObjectStore,
    /// The file of the contents; None once this process has left.
    file: Mutex<Option<Arc<OwnedFd>>>,
    /// The number of the contents that are mapped: 0 for the object's memory itself. Of a single-writer store: their
    /// mark.
    pub(super) current: AtomicU64,
    /// Of a single-writer store: the mark in the object's memory when this process last checked for new contents.
    pub(super) seen_mark: AtomicU64,
    /// Held while this process moves to other contents, or leaves.
    moving: Mutex<()>,
    pub(super) transaction: LocalTransaction,
    /// Unpinned blocks that are still pinned in the store, because the owner lock was not free.
    pub(super) unpinned: Mutex<Vec<u64>>,
}

impl Deref for StoreMembership {
    type Target = Membership;

    fn deref(&self) -> &Membership {
        &self.membership
    }
}

impl StoreMembership {
    /// Builds the membership from its parts. The contents of a single-writer store are mapped later, as this process
    /// joins. Raises `Os` if the memory cannot be used, and the errors of `map_current_copy`.
    pub fn build(parts: Parts) -> Result<Arc<Self>, ObjectError> {
        let (shape, mapping) = (parts.shape, &parts.mapping);
        let failed = || ObjectError::os("its memory cannot be had");
        let file: Arc<OwnedFd> = Arc::new(parts.file.try_clone().map_err(failed())?);
        let current = match shape.has_single_writer() {
            true => 0,
            false => map_current_copy(mapping, &file, shape, &parts.memory_name)?,
        };
        let (words, members) = (mapping.clone(), parts.members.clone());
        let (start, readers_at) = (shape.contents_at() as u64, shape.readers_at() as u64);
        let store = match shape.has_single_writer() {
            true => Store::open_read_only(words, &file, start, shape.amount, members, readers_at),
            false => Store::new(words, &file, start, shape.amount, members),
        };
        let store = store.map_err(failed())?;
        Ok(Arc::new_cyclic(|weak: &Weak<Self>| {
            let weak: Weak<dyn Watched> = weak.clone();
            StoreMembership {
                membership: Membership::new(parts, weak),
                store,
                file: Mutex::new(Some(file)),
                current: AtomicU64::new(current),
                seen_mark: AtomicU64::new(0),
                moving: Mutex::default(),
                transaction: LocalTransaction::default(),
                unpinned: Mutex::default(),
            }
        }))
    }

    /// Returns the store. Raises what `Membership::check` raises.
    #[inline]
    pub(super) fn store(&self) -> Result<&ObjectStore, StoreRefused> {
        self.check()?;
        Ok(&self.store)
    }

    /// Returns the store, without a check that it can be used.
    #[inline]
    pub(super) fn unchecked_store(&self) -> &ObjectStore {
        &self.store
    }

    /// Returns the file of the contents. Raises EBADF once this process has left.
    pub(super) fn contents_file(&self) -> io::Result<Arc<OwnedFd>> {
        let file = lock(&self.file).clone();
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Closes the file of the contents, because this process has left. Also releases the lock on the file, because a
    /// view may keep the file open through its mapping. Idempotent.
    pub(super) fn close_contents_file(&self) {
        let file = lock(&self.file).take();
        if let Some(file) = file {
            named::unlock(&*file); // A view may keep it mapped, and so open.
        }
    }

    /// Keeps other threads of this process from moving to other contents, until the guard is dropped. Blocks while
    /// another thread has it.
    pub(super) fn lock_contents(&self) -> MutexGuard<'_, ()> {
        lock(&self.moving)
    }

    // --- the single writer ---

    /// Returns the owner of a single-writer store; None if no living process is the owner, or if that cannot be known.
    pub fn owner(&self) -> Option<Holder> {
        match self.may_write() {
            _ if !self.shape().has_single_writer() => None,
            true => Some(Holder::this_process()),
            false => self.lock_file().owner().ok().flatten(),
        }
    }

    /// Returns true if this process can change the store: the store can be used, and has no single writer or is owned
    /// by this process.
    pub fn may_write(&self) -> bool {
        self.check().is_ok() && !self.store.is_read_only()
    }

    /// Returns the mark of the current contents in the object's memory, an untrusted value.
    pub(super) fn mark(&self) -> u64 {
        // Acquire: pairs with the release of the owner.
        self.mapping().u64_at(AT_CONTENTS).load(Acquire)
    }

    /// Returns true if a single-writer store has newer contents than those that this process reads.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        // Relaxed: changed by a thread that has locked the contents.
        self.store.is_read_only() && self.mark() != self.seen_mark.load(Relaxed)
    }

    // --- errors ---

    /// Converts the error of an operation that has changed nothing. Corruption poisons the object. If the contents are
    /// replaced, returns `Fenced` in the member that is fenced off, and `Replaced` in others. A limit becomes `Full`,
    /// too many changes `TooMany`, `ReadOnly` and `NeverStable` become `ReadOnly` and `Restless` with the owner, and
    /// errors of the store itself `Store`; all others are as in `map_shared_error`.
    #[cold]
    pub fn map_error(&self, error: StoreError) -> StoreRefused {
        let error = match error {
            StoreError::Heap(error) => error,
            other => return StoreRefused::Store(other),
        };
        match error {
            HeapError::Replaced { fenced } => match fenced == self.members().self_id().0 {
                true => ObjectError::Fenced.into(),
                false => StoreRefused::Replaced,
            },
            HeapError::Limit { asked, used, limit } => StoreRefused::Full { asked, used, limit },
            HeapError::TransactionTooLarge { most } => StoreRefused::TooMany(most),
            HeapError::ReadOnly => {
                let owner = self.owner();
                ObjectError::ReadOnly { owner }.into()
            }
            HeapError::NeverStable => {
                let owner = self.owner();
                ObjectError::Restless { owner }.into()
            }
            error => self.map_shared_error(error).into(),
        }
    }

    /// Returns the id of the process that holds the owner lock now; 0 if no process does or the store cannot be used,
    /// -1 if it is in another container.
    pub fn holder_pid(&self) -> i64 {
        if self.check().is_err() {
            return 0;
        }
        match self.store.holder() {
            0 => 0,
            member => match self.members().holder_of(MemberId(member)) {
                Some(Holder::Process(pid)) => i64::from(pid),
                Some(Holder::Elsewhere) => -1,
                None => 0,
            },
        }
    }

    /// Returns the address of `len` bytes at offset `at`, which belong to a buffer that this process has pinned. Panics
    /// if they are outside of the memory.
    pub fn address_of(&self, at: u64, len: u64) -> *mut u8 {
        self.mapping().address(at as usize, len as usize)
    }
}
