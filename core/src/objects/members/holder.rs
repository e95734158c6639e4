//! The process that holds a lock of an object's lock file, as the kernel reports it.

/// The process of a member, as far as this process can see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The process of this id.
    Process(i32),
    /// A process of another pid namespace.
    Elsewhere,
}

impl Holder {
    /// Returns this process.
    pub fn this_process() -> Self {
        Holder::Process(std::process::id() as libc::pid_t)
    }

    /// Describes the holder for an error message: by its process id, this process as another task or thread of it.
    #[cfg(not(loom))]
    pub(in crate::objects) fn describe(self) -> String {
        match self {
            holder if holder == Holder::this_process() => {
                "another task or thread of this process".to_owned()
            }
            Holder::Process(pid) => format!("process {pid}"),
            Holder::Elsewhere => "a process of another container".to_owned(),
        }
    }
}
