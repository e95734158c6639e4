//! The parts of a membership, from which each kind of object completes its own.

use super::error::ObjectError;
use super::members::lock_file::{LockFile, ObjectMembers};
use super::memory::shape::Shape;
use super::memory::{ObjectAddress, ObjectMemory};
use crate::fork_guard::OriginProcess;
use crate::memory::mapping::SharedMapping;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// The parts of a membership, before it is complete.
pub struct Parts {
    pub(super) name: String,
    /// The name of the memory.
    pub(super) memory_name: String,
    pub(super) shape: Shape,
    pub(super) mapping: Arc<SharedMapping>,
    /// The file of the memory.
    pub(super) file: Arc<OwnedFd>,
    pub(super) members: Arc<ObjectMembers>,
    pub(super) lock_file: Arc<LockFile>,
    pub(super) doorbell_stem: PathBuf,
    pub(super) origin: OriginProcess,
}

impl Parts {
    /// Collects the parts. Raises `Os` if the kernel provides no page to identify this process by.
    pub(super) fn new(
        address: &ObjectAddress,
        memory: ObjectMemory,
        lock_file: Arc<LockFile>,
        members: ObjectMembers,
    ) -> Result<Self, ObjectError> {
        let origin = OriginProcess::current();
        let origin = origin.map_err(ObjectError::os("this process has no identity of its own"))?;
        Ok(Parts {
            name: address.name.clone(),
            memory_name: memory.name,
            shape: memory.shape,
            mapping: memory.mapping,
            file: Arc::new(OwnedFd::from(memory.file)),
            members: Arc::new(members),
            lock_file,
            doorbell_stem: address.doorbell_stem(),
            origin,
        })
    }
}
