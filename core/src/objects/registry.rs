//! The names that this process is a member of: each once, however often it is opened.

use super::layout::{AT_AMOUNT, AT_BOUNDS, LEAST_BYTES, OWNED, RAW, Shape};
use super::lock_file::LockFile;
use super::members::Member;
use super::membership::{Membership, Memory, NameError, corruption_in, store_shape};
use super::queueing::Contents;
use super::replacing;
use super::topics::Overview;
use super::watcher::remove_doorbells;
use crate::crash;
use crate::fork_guard::PerProcess;
use crate::memory::mapping::SharedMapping;
use crate::memory::named;
use crate::memory::region::{self, Kind, RegionError};
use crate::queue::Limits;
use crate::sync::lock;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// How long the door of a name may be held by another process.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same for one that leaves: what it cannot take away is for the next one, or for the clean-up.
const PATIENCE_TO_LEAVE: Duration = Duration::from_secs(1);
/// How often one name is tried, of which a clean-up removes the lock file or takes the memory before we have locked it.
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

/// A use of a name. Dropped, it is closed. With the last one this process leaves, unless that was only dropped, and
/// permits of such a one are kept.
pub struct Handle {
    membership: Arc<Membership>,
    path: PathBuf,
    is_closed: AtomicBool,
}

impl Handle {
    /// What this process has of the name.
    #[inline]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// It is closed by its user, and not only dropped.
    pub fn close(&self) {
        // Relaxed: released by what drops it, and read under the lock of the registry.
        self.is_closed.store(true, Relaxed);
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
        if open.handles == 0 && (*self.is_closed.get_mut() || !open.membership.keeps_permits()) {
            if let Some(open) = names.remove(&self.path) {
                leave(&open, &self.path);
                open.membership.release_memory();
            }
        }
    }
}

/// Queues that went with items in them when this process left as the last member, and how many items those were.
static DROPPED: PerProcess<Mutex<Vec<(String, u64)>>> = PerProcess::empty();

/// The queues that went with items in them since the last call.
pub fn take_dropped() -> Vec<(String, u64)> {
    let dropped = DROPPED
        .get()
        .map(|dropped| std::mem::take(&mut *lock(dropped)));
    dropped.unwrap_or_default()
}

/// Notes the items that go with a queue.
fn note_dropped(membership: &Membership) {
    let items = membership.queue.as_ref().map_or(0, Contents::depth);
    if items > 0
        && let Ok(dropped) = DROPPED.get()
    {
        lock(dropped).push((membership.name().to_owned(), items));
    }
}

fn leave(open: &Open, path: &Path) {
    let remove = |lock_file: &LockFile| {
        let membership = &open.membership;
        note_dropped(membership);
        let _ = named::remove(&open.memory);
        if let Some(copy) =
            replacing::copy_in(membership.mapping(), membership.shape(), &open.memory)
        {
            let _ = named::remove(&copy);
        }
        crash::point!(MemoryRemoved);
        // Else what is there now is somebody else's.
        if let Ok(true) = lock_file.is_current() {
            remove_doorbells(&stem(path));
            let _ = lock_file.remove();
        }
    };
    open.membership.leave(&remove, PATIENCE_TO_LEAVE);
}

/// The beginning of the paths of a name's doorbells.
fn stem(lock_file: &Path) -> PathBuf {
    lock_file.with_extension("")
}

/// The thread in which this process leaves all names, since it ends.
static ENDING: OnceLock<ThreadId> = OnceLock::new();

/// Whether this process ends, in another thread than this one: nobody is told what becomes of its waits.
pub fn ends_elsewhere() -> bool {
    let ending = ENDING.get();
    ending.is_some_and(|&ending| ending != thread::current().id())
}

/// Leaves all names: at the end of the process.
pub fn leave_all() {
    let _ = ENDING.set(thread::current().id());
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
        is_closed: AtomicBool::new(false),
    };
    if let Some(open) = names.get_mut(&place.lock_file) {
        open.membership.check()?;
        agrees(open.membership.shape(), shape)?;
        if shape.is_some_and(Shape::is_owned) {
            open.membership.own_store()?;
        }
        open.handles += 1;
        return Ok(Some(handle(open)));
    }
    let Some((membership, memory)) = enter(place, shape, &names)? else {
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
    /// Bytes of its memory; of a queue or a topic, those that it has now.
    pub size: u64,
    /// Items that wait, if it is a queue.
    pub depth: Option<u64>,
    /// Who publishes and subscribes, if it is a topic.
    pub topic: Option<Overview>,
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
    let mut before: Option<(Vec<u8>, NameError)> = None;
    for _ in 0..TRIES {
        let Some(lock_file) = open_lock_file(place, false, &names)? else {
            return Ok(None);
        };
        if !lock_file.has_others().map_err(failed())? {
            return Ok(None);
        }
        let text = lock_file.text().map_err(failed())?;
        let visited = open_memory(place, &text).and_then(|memory| {
            Membership::visit(
                place.name.clone(),
                memory,
                Arc::new(lock_file),
                &stem(&place.lock_file),
            )
        });
        match (visited, before) {
            (Ok(visitor), _) => return visitor.report().map(Some),
            (Err(error), Some((seen, _))) if seen == text => return Err(error),
            // The last of them may have taken the memory away meanwhile, or there is another one in its place.
            (Err(error), _) => before = Some((text, error)),
        }
    }
    before.map_or(Ok(None), |(_, error)| Err(error))
}

/// Opens the lock file of a name that is not open here; None if there is none.
fn open_lock_file(
    place: &Place,
    make: bool,
    names: &HashMap<PathBuf, Open>,
) -> Result<Option<LockFile>, NameError> {
    let path = place.lock_file.display();
    let is_open = |file| names.values().any(|open| open.membership.is_at(file));
    LockFile::open(&place.lock_file, make, is_open).map_err(|error| {
        // SAFETY: it cannot fail, and no memory is involved.
        let user = unsafe { libc::geteuid() };
        if error.raw_os_error() == Some(libc::EPERM)
            && let Ok(found) = fs::symlink_metadata(&place.lock_file)
            && found.is_file()
            && found.uid() != user
        {
            return NameError::OfUser(found.uid());
        }
        let what = match error.raw_os_error() {
            Some(libc::EMLINK) => format!("its lock file {path} is that of another name"),
            Some(libc::EPERM) => format!("its lock file {path} is no regular file of this user"),
            _ => format!("its lock file {path} cannot be opened"),
        };
        NameError::os(what)(error)
    })
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

fn enter(
    place: &Place,
    shape: Option<Shape>,
    names: &HashMap<PathBuf, Open>,
) -> Result<Entered, NameError> {
    let failed = |what: &str| {
        NameError::os(format!(
            "its lock file {} {what}",
            place.lock_file.display()
        ))
    };
    for _ in 0..TRIES {
        let Some(lock_file) = open_lock_file(place, shape.is_some(), names)? else {
            return Ok(None);
        };
        let lock_file = Arc::new(lock_file);
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
        let text = lock_file.text().map_err(failed("cannot be read"))?;
        let Some(shape) = shape else {
            return match has_members {
                true => come_in(place, &lock_file, &text, None).map(Some),
                false => Ok(None),
            };
        };
        if has_members {
            return come_in(place, &lock_file, &text, Some(shape)).map(Some);
        }
        let begun = begin(place, &lock_file, &text, shape);
        return begun.map(Some);
    }
    Err(NameError::os(
        "its lock file was removed by other processes again and again",
    )(io::Error::from_raw_os_error(libc::EBUSY)))
}

/// Joins the members of a name, whose door is held; `text`: what the lock file says.
fn come_in(
    place: &Place,
    lock_file: &Arc<LockFile>,
    text: &[u8],
    shape: Option<Shape>,
) -> Result<(Arc<Membership>, String), NameError> {
    let memory = open_memory(place, text)?;
    agrees(memory.shape, shape)?;
    if let Some(corruption) = corruption_in(&memory.mapping) {
        return Err(corruption.into());
    }
    join(place, lock_file, memory, shape.is_some(), |membership| {
        membership.come_in(false)
    })
}

/// Becomes the first member of a name, whose door is held, in memory that dead members have left or in new memory. After an
/// error nothing is left of what was made.
fn begin(
    place: &Place,
    lock_file: &Arc<LockFile>,
    text: &[u8],
    shape: Shape,
) -> Result<(Arc<Membership>, String), NameError> {
    let mut lost = 0;
    let come_in = |lost| {
        move |membership: &Membership| {
            if let Some(queue) = &membership.queue {
                queue.has_lost(lost);
            }
            membership.come_in(true)
        }
    };
    if let Some(memory) = taken_over(place, text, shape, &mut lost)? {
        return join(place, lock_file, memory, true, come_in(lost));
    }
    let made = make(place, lock_file, shape);
    made.and_then(|memory| {
        let name = memory.name.clone();
        let joined = join(place, lock_file, memory, true, come_in(lost));
        joined.inspect_err(|_| {
            let _ = named::remove(&name);
        })
    })
    .inspect_err(|_| {
        // The door is held still: those that wait for it look for another lock file then.
        if let Ok(true) = lock_file.is_current() {
            remove_doorbells(&stem(&place.lock_file));
            let _ = lock_file.remove();
        }
    })
}

/// Joins in this memory, and lets others through the door by `come_in`.
fn join(
    place: &Place,
    lock_file: &Arc<LockFile>,
    memory: Memory,
    wants: bool,
    come_in: impl FnOnce(&Membership) -> io::Result<()>,
) -> Result<(Arc<Membership>, String), NameError> {
    let name = memory.name.clone();
    let membership = Membership::join(
        place.name.clone(),
        memory,
        lock_file.clone(),
        &stem(&place.lock_file),
        wants,
    )?;
    let path = place.lock_file.display();
    let what = format!("its lock file {path} cannot be unlocked or touched");
    come_in(&membership).map_err(NameError::os(what))?;
    Ok((membership, name))
}

/// The name of the memory that a lock file has in its text, if it can be one of this name.
fn memory_in<'a>(place: &Place, text: &'a [u8]) -> Option<&'a str> {
    let text = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
    let stem = format!("shmrpc.{}@", place.name);
    let (kind, random) = text.strip_prefix(&stem)?.split_once('.')?;
    let is_one = Kind::OF_MEMBERS.iter().any(|each| each.word() == kind)
        && random.len() == 32
        && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_one.then_some(text)
}

/// The memory that members left who were all killed, if it is of this shape and sound. Else it is removed, and so is a
/// topic's, and a queue's: what was in that counts as `lost`. An error if the next ones of its own shape would go on with
/// what is in it, as those of a store and a memory do.
fn taken_over(
    place: &Place,
    text: &[u8],
    shape: Shape,
    lost: &mut u64,
) -> Result<Option<Memory>, NameError> {
    let Some(name) = memory_in(place, text) else {
        return Ok(None);
    };
    let found = open_memory(place, text).ok();
    let queue = found
        .as_ref()
        .filter(|memory| memory.shape.kind == Kind::Queue);
    *lost = queue.map_or(0, Contents::items_in);
    let copy = found
        .as_ref()
        .filter(|memory| memory.shape.kind == Kind::Store)
        .and_then(|memory| replacing::copy_in(&memory.mapping, memory.shape, name));
    let is_whole = copy.as_ref().is_none_or(|copy| named::open(copy).is_ok());
    if let Some(memory) = &found
        && memory.shape != shape
        && matches!(memory.shape.kind, Kind::Store | Kind::Memory)
        && !memory.shape.is_owned()
        && is_whole
        && corruption_in(&memory.mapping).is_none()
    {
        return Err(NameError::LeftOver {
            found: memory.shape.to_string(),
            asked: shape.to_string(),
        });
    }
    let found = found.filter(|memory| {
        // Nobody has the contents of a store with an owner any more.
        let is_gone = matches!(shape.kind, Kind::Queue | Kind::Topic) || shape.is_owned();
        let is_kept = memory.shape == shape && !is_gone;
        is_kept && is_whole && corruption_in(&memory.mapping).is_none()
    });
    if found.is_none() {
        let _ = named::remove(name);
        let _ = copy.map(|copy| named::remove(&copy));
    }
    Ok(found)
}

fn make(place: &Place, lock_file: &LockFile, shape: Shape) -> Result<Memory, NameError> {
    for _ in 0..TRIES {
        if let Some(memory) = try_make(place, lock_file, shape)? {
            return Ok(memory);
        }
    }
    let what = format!(
        "each of {TRIES} memories for it was locked or removed by another process as it was made; stop what cleans \
         /dev/shm all the time"
    );
    Err(NameError::os(what)(io::Error::from_raw_os_error(
        libc::EBUSY,
    )))
}

/// Makes the memory. None if a clean-up took it for dead before it was locked, if only to look.
fn try_make(
    place: &Place,
    lock_file: &LockFile,
    shape: Shape,
) -> Result<Option<Memory>, NameError> {
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
    let used = shape.used();
    let remove = || {
        let _ = named::remove(&name);
    };
    let made = named::create(&name, shape.layout().size, std::slice::from_ref(&(0..used)))
        .map_err(|error| {
            remove();
            NameError::no_memory(&format!("its {used} bytes"))(error)
        })?;
    let Some(file) = made else {
        remove();
        return Ok(None);
    };
    crash::point!(MemoryMade);
    let made = region::create(file.as_fd(), shape.layout(), |mapping| {
        store_shape(mapping, shape);
    });
    let made = made.map_err(foreign).and_then(|mapping| {
        crash::point!(MemoryReady);
        shared(name.clone(), file.into(), mapping, shape)
    });
    if !matches!(made, Ok(Some(_))) {
        remove();
    }
    made
}

/// The memory that a lock file has in its text.
fn open_memory(place: &Place, text: &[u8]) -> Result<Memory, NameError> {
    let foreign_text = |text: String| NameError::Foreign(text);
    let name = memory_in(place, text).ok_or_else(|| {
        let text = text.escape_ascii();
        foreign_text(format!(
            "has no name: its lock file {} says '{text}'",
            place.lock_file.display()
        ))
    })?;
    let file: OwnedFd =
        named::open(name).map_err(NameError::os(format!("its memory {name} cannot be opened")))?;
    let failed = || NameError::os("its memory cannot be read");
    let file = File::from(file);
    let status = file.metadata().map_err(failed())?;
    // SAFETY: it cannot fail, and no memory is involved.
    let user = unsafe { libc::geteuid() };
    if !status.is_file() || status.uid() != user {
        return Err(foreign_text(format!(
            "{name} is no regular file of this user"
        )));
    }
    let size = status.len();
    if size < LEAST_BYTES {
        return Err(foreign_text(format!(
            "has {size} bytes, and each has at least {LEAST_BYTES}"
        )));
    }
    let kind = region::kind(&file).map_err(failed())?;
    let kind = Kind::of_members(kind).ok_or_else(|| foreign_text(format!("is of kind {kind}")))?;
    let shape = match kind {
        // What it says of itself is checked against its size.
        Kind::Memory | Kind::Semaphore => {
            Shape::new(kind, read_word(&file, AT_AMOUNT).map_err(failed())?)
        }
        Kind::Store => {
            let word = |at| read_word(&file, at).map_err(failed());
            Shape::of_store(word(AT_AMOUNT)?, word(AT_BOUNDS)? == OWNED)
        }
        Kind::Queue => {
            let word = |at| read_word(&file, at).map_err(failed());
            let limits = Limits {
                memory: word(AT_AMOUNT)?,
                items: word(AT_BOUNDS)?,
                deliveries: word(AT_BOUNDS + 8)? & !RAW,
            };
            Shape::of_queue(limits, word(AT_BOUNDS + 8)? & RAW != 0)
        }
        Kind::Topic => {
            let bounds = read_word(&file, AT_BOUNDS + 8).map_err(failed())?;
            Some(Shape::of_topic(bounds & RAW != 0))
        }
        _ => Shape::new(kind, u64::from(kind == Kind::Lock)),
    };
    let shape = shape.ok_or_else(|| foreign_text("is of no size that it may have".to_owned()))?;
    if shape.layout().size as u64 != size {
        let text = format!("has {size} bytes instead of {}", shape.layout().size);
        return Err(foreign_text(text));
    }
    let mapping = region::open(file.as_fd(), shape.layout()).map_err(foreign)?;
    shared(name.to_owned(), file, mapping, shape)?.ok_or_else(|| {
        NameError::os("its memory was removed")(io::Error::from_raw_os_error(libc::EAGAIN))
    })
}

/// The memory, of which a clean-up sees from now on that it is needed. None if one has it, or has removed it.
fn shared(
    name: String,
    file: File,
    mapping: SharedMapping,
    shape: Shape,
) -> Result<Option<Memory>, NameError> {
    let is_ours = named::share(&file).map_err(NameError::os("its memory cannot be locked"))?;
    Ok(is_ours.then(|| Memory {
        name,
        file,
        mapping: Arc::new(mapping),
        shape,
    }))
}

fn read_word(file: &File, at: usize) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at as u64)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn foreign(error: RegionError) -> NameError {
    match error {
        RegionError::Os(error) => NameError::os("its memory cannot be mapped")(error),
        other => NameError::Foreign(other.to_string()),
    }
}

pub(super) fn random() -> Result<u128, NameError> {
    let mut bytes = [0u8; 16];
    // SAFETY: the buffer has this many writable bytes. So few come at once.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != bytes.len() as isize {
        return Err(NameError::os("the system has no random numbers")(
            io::Error::last_os_error(),
        ));
    }
    Ok(u128::from_ne_bytes(bytes))
}
