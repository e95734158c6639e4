//! The errors of operations on a store.

use crate::objects::error::ObjectError;
use crate::store::StoreError;

/// Error raised when an operation on a store was not done.
#[derive(Debug)]
pub enum StoreRefused {
    /// The object cannot be used, or not now.
    Object(ObjectError),
    /// The store refuses the operation.
    Store(StoreError),
    /// There is no room: the bytes asked for, those in use, and the maximum.
    #[allow(missing_docs, reason = "the line above says what the fields hold")]
    Full { asked: u64, used: u64, limit: u64 },
    /// A transaction would change more words than this maximum.
    TooMany(usize),
    /// Others continue in a copy of the store; the operation must be tried there.
    Replaced,
}

impl StoreRefused {
    /// Returns true if the operation may succeed later, because another process changes the store or has replaced it.
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            StoreRefused::Object(ObjectError::Changing { .. } | ObjectError::Restless { .. })
                | StoreRefused::Replaced
        )
    }

    /// Converts the error into an error of the object. Any other error becomes EIO, with the text `what`.
    pub(super) fn into_object_error(self, what: &str) -> ObjectError {
        match self {
            StoreRefused::Object(error) => error,
            other => ObjectError::from_errno(format!("{what} ({other:?})"), libc::EIO),
        }
    }
}

impl From<ObjectError> for StoreRefused {
    fn from(error: ObjectError) -> Self {
        StoreRefused::Object(error)
    }
}
