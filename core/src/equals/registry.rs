//! The names that this process is a member of: each once, however often it is opened.

use super::layout::Shape;
use super::lock_file::LockFile;
use super::members::Member;
use super::membership::{Membership, Memory, NameError, amount, is_poisoned};
use super::watcher::remove_doorbells;
use crate::crash;
use crate::memory::mapping::SharedMapping;
use crate::memory::named;
use crate::memory::region::{self, Kind, RegionError};
use crate::origin::PerProcess;
use crate::sync::{Ordering, lock};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long the door of a name may be held by another process.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that leaves: what it cannot take away is for the next one, or for the clean-up.
const PATIENCE_TO_LEAVE: Duration = Duration::from_secs(1);
/// Lock files that are opened for one name, each of which was removed before we came through its door.
const TRIES: usize = 100;

struct Open {
    membership: Arc<Membership>,
    handles: usize,
    memory: String,
}

/// By the path of their lock files.
type Names = Mutex<HashMap<PathBuf, Open>>;

/// Held while a name is opened or closed: a process must not have two descriptors of one lock file.
static NAMES: PerProcess<Names> = PerProcess::empty();

fn names() -> Result<&'static Names, NameError> {
    NAMES
        .get()
        .map_err(NameError::os("this process cannot be told from others"))
}

/// Where a name is met.
#[derive(Clone, Debug)]
pub struct Place {
    /// The name.
    pub name: String,
    /// Its lock file, whose path ends with `.lock`: those of its doorbells go on otherwise.
    pub lock_file: PathBuf,
}

/// A use of a name. Dropped, it is closed; with the last one this process leaves.
pub struct Handle {
    membership: Arc<Membership>,
    path: PathBuf,
}

impl Handle {
    /// What this process has of the name.
    #[inline]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let Some(mut names) = names().ok().map(lock) else {
            return;
        };
        let is_ours = |open: &&mut Open| Arc::ptr_eq(&open.membership, &self.membership);
        let Some(open) = names.get_mut(&self.path).filter(is_ours) else {
            return; // All were closed at once, or this is a forked child, which has not opened it.
        };
        open.handles -= 1;
        if open.handles == 0 {
            let open = names.remove(&self.path);
            open.inspect(|open| leave(open, &self.path));
        }
    }
}

fn leave(open: &Open, path: &Path) {
    let remove = || {
        remove_doorbells(&stem(path));
        named::remove(&open.memory)
    };
    open.membership.leave(&remove, PATIENCE_TO_LEAVE);
}

/// The beginning of the paths of a name's doorbells.
fn stem(lock_file: &Path) -> PathBuf {
    lock_file.with_extension("")
}

/// Leaves all names: at the end of the process.
pub fn leave_all() {
    let Some(mut names) = names().ok().map(lock) else {
        return;
    };
    for (path, open) in names.drain() {
        leave(&open, &path);
    }
}

/// Opens a name of this shape: makes it if it has no members, joins them if it has. Without a shape it only joins; None
/// if it has no members.
pub fn open(place: &Place, shape: Option<Shape>) -> Result<Option<Handle>, NameError> {
    let mut names = lock(names()?);
    let handle = |open: &Open| Handle {
        membership: open.membership.clone(),
        path: place.lock_file.clone(),
    };
    if let Some(open) = names.get_mut(&place.lock_file) {
        open.membership.check()?;
        agrees(open.membership.shape(), shape)?;
        open.handles += 1;
        return Ok(Some(handle(open)));
    }
    let Some((membership, memory)) = enter(place, shape)? else {
        return Ok(None);
    };
    let open = Open {
        membership,
        handles: 1,
        memory,
    };
    let handle = handle(&open);
    names.insert(place.lock_file.clone(), open);
    Ok(Some(handle))
}

/// What can be seen of a name without being its member.
#[derive(Debug)]
pub struct Report {
    /// What it is.
    pub shape: Shape,
    /// Bytes of its memory.
    pub size: usize,
    /// Its members that live, each with how many permits it has.
    pub members: Vec<(Member, usize)>,
    /// How many wait.
    pub waiters: usize,
}

/// Looks at a name without becoming its member; None if it has none.
pub fn look(place: &Place) -> Result<Option<Report>, NameError> {
    let mut names = lock(names()?);
    if let Some(open) = names.get_mut(&place.lock_file) {
        return open.membership.report().map(Some);
    }
    let failed = || NameError::os("its lock file cannot be read");
    let Some(lock_file) = LockFile::open(&place.lock_file, false).map_err(failed())? else {
        return Ok(None);
    };
    if !lock_file.has_others().map_err(failed())? {
        return Ok(None);
    }
    let Some(name) = lock_file.memory().map_err(failed())? else {
        return Ok(None);
    };
    Membership::visit(place.name.clone(), open_memory(&name)?, lock_file)?
        .report()
        .map(Some)
}

fn agrees(found: Shape, asked: Option<Shape>) -> Result<(), NameError> {
    match asked {
        Some(asked) if asked != found => Err(NameError::Mismatch {
            found: found.to_string(),
            asked: asked.to_string(),
        }),
        _ => Ok(()),
    }
}

type Entered = Option<(Arc<Membership>, String)>;

fn enter(place: &Place, shape: Option<Shape>) -> Result<Entered, NameError> {
    let failed = |what: &str| {
        NameError::os(format!(
            "its lock file {} {what}",
            place.lock_file.display()
        ))
    };
    for _ in 0..TRIES {
        let opened = LockFile::open(&place.lock_file, shape.is_some());
        let Some(lock_file) = opened.map_err(failed("cannot be opened"))? else {
            return Ok(None);
        };
        lock_file
            .is_current()
            .map_err(failed("is no regular file of this user"))?;
        let entered = lock_file
            .enter(PATIENCE)
            .map_err(failed("cannot be locked"))?;
        let seconds = PATIENCE.as_secs_f64();
        entered.map_err(|holder| NameError::Busy { holder, seconds })?;
        crash::point!(DoorEntered);
        if !lock_file
            .is_current()
            .map_err(failed("cannot be looked at"))?
        {
            continue; // Its last member has taken it away.
        }
        let has_members = lock_file.has_others().map_err(failed("cannot be read"))?;
        let found = lock_file.memory().map_err(failed("cannot be read"))?;
        let memory = match (has_members, shape) {
            (true, _) => {
                let name = found.ok_or_else(|| NameError::Foreign("has no name".to_owned()))?;
                let memory = open_memory(&name)?;
                agrees(memory.shape, shape)?;
                memory
            }
            (false, None) => return Ok(None),
            (false, Some(shape)) => match found.and_then(|name| taken_over(&name, shape)) {
                Some(memory) => memory,
                None => make(place, &lock_file, shape)?,
            },
        };
        let name = memory.name.clone();
        let membership = Membership::join(
            place.name.clone(),
            memory,
            lock_file,
            &stem(&place.lock_file),
        )?;
        let came_in = membership.come_in(!has_members);
        came_in.map_err(failed("cannot be unlocked or touched"))?;
        return Ok(Some((membership, name)));
    }
    Err(NameError::os(
        "its lock file was removed by other processes again and again",
    )(io::Error::from_raw_os_error(libc::EBUSY)))
}

/// The memory that members left who were all killed, if it is of this shape and sound. Else it is removed.
fn taken_over(name: &str, shape: Shape) -> Option<Memory> {
    let found = open_memory(name).ok();
    let found = found.filter(|memory| memory.shape == shape && !is_poisoned(&memory.mapping));
    if found.is_none() {
        let _ = named::remove(name);
    }
    found
}

fn make(place: &Place, lock_file: &LockFile, shape: Shape) -> Result<Memory, NameError> {
    let name = format!(
        "shmrpc.{}@{}.{:032x}",
        place.name,
        shape.kind.word(),
        random()?
    );
    // First the name, then the file: else one that dies between would leave a file that nobody knows.
    lock_file
        .set_memory(&name)
        .map_err(NameError::os("its lock file cannot be written"))?;
    crash::point!(MemoryNamed);
    let size = shape.layout().size;
    let made = named::create(&name, size).and_then(|file| file.ok_or_else(taken_by_a_clean_up));
    let file = made.map_err(|error| {
        let _ = named::remove(&name);
        let what = format!("there is no room for its {size} bytes in /dev/shm");
        NameError::os(what)(error)
    })?;
    crash::point!(MemoryMade);
    let made = region::create(file.as_fd(), shape.layout(), |mapping| {
        amount(mapping).store(shape.amount, Ordering::Relaxed);
    });
    let mapping = made.map_err(foreign)?;
    crash::point!(MemoryReady);
    shared(name, file.into(), mapping, shape)
}

fn open_memory(name: &str) -> Result<Memory, NameError> {
    let file: OwnedFd =
        named::open(name).map_err(NameError::os(format!("its memory {name} cannot be opened")))?;
    let failed = || NameError::os("its memory cannot be read");
    let file = File::from(file);
    let (kind, size) = region::kind_and_size(&file).map_err(failed())?;
    let kind = Kind::of(kind).ok_or_else(|| NameError::Foreign(format!("is of kind {kind}")))?;
    let shape = match kind {
        // What it says of itself is checked against its size.
        Kind::Memory | Kind::Semaphore => Shape::new(kind, read_amount(&file).map_err(failed())?),
        _ => Shape::new(kind, u64::from(kind == Kind::Lock)),
    };
    let shape =
        shape.ok_or_else(|| NameError::Foreign("is of no size that it may have".to_owned()))?;
    if shape.layout().size as u64 != size {
        let text = format!("has {size} bytes instead of {}", shape.layout().size);
        return Err(NameError::Foreign(text));
    }
    let mapping = region::open(file.as_fd(), shape.layout()).map_err(foreign)?;
    shared(name.to_owned(), file, mapping, shape)
}

/// The memory, of which a clean-up sees from now on that it is needed.
fn shared(
    name: String,
    file: File,
    mapping: SharedMapping,
    shape: Shape,
) -> Result<Memory, NameError> {
    let is_ours = named::share(&file).map_err(NameError::os("its memory cannot be locked"))?;
    if !is_ours {
        return Err(NameError::os("its memory was removed")(
            taken_by_a_clean_up(),
        ));
    }
    Ok(Memory {
        name,
        file,
        mapping,
        shape,
    })
}

fn taken_by_a_clean_up() -> io::Error {
    io::Error::from_raw_os_error(libc::EAGAIN)
}

fn read_amount(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut bytes, super::layout::AT_AMOUNT as u64)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn foreign(error: RegionError) -> NameError {
    match error {
        RegionError::Os(error) => NameError::os("its memory cannot be mapped")(error),
        other => NameError::Foreign(other.to_string()),
    }
}

fn random() -> Result<u128, NameError> {
    let mut bytes = [0u8; 16];
    // SAFETY: so many bytes are writable. So few come at once.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(NameError::os("the system has no random numbers")(
            io::Error::last_os_error(),
        ));
    }
    Ok(u128::from_ne_bytes(bytes))
}
