//! A member that uses a shared object whose memory another member overwrites.

use super::Script;
use _core::memory::mapping::SharedMapping;
use _core::memory::region::Kind;
use _core::objects::error::ObjectError;
use _core::objects::event::{EventMembership, WAITERS};
use _core::objects::kinds;
use _core::objects::memory::ObjectAddress;
use _core::objects::memory::shape::Shape;
use _core::objects::object::{Object, downcast_ref};
use _core::objects::semaphore::{PERMITS, SemaphoreMembership};
use _core::objects::signal::{self, SignalMembership};
use _core::objects::waiting::{self, WaitError, WaitOutcome};
use _core::shared_heap::Words;
use std::convert::Infallible;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest wait of a member.
const SOON: Duration = Duration::from_micros(50);

/// Opens an object and uses it as the bytes say, while its memory is overwritten as they say.
pub fn objects(bytes: &[u8]) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("fuzzed-{}-{number}", std::process::id());
    let lock_file = std::env::temp_dir().join(format!("{name}@shared.lock"));
    let address = ObjectAddress { name, lock_file };
    let mut script = Script::new(bytes);
    let kinds = [
        Kind::Memory,
        Kind::Semaphore,
        Kind::Lock,
        Kind::Event,
        Kind::Signal,
    ];
    let kind = kinds[script.byte() as usize % kinds.len()];
    let amount = match kind {
        Kind::Event | Kind::Signal => 0,
        Kind::Lock => 1,
        _ => u64::from(script.byte() % 3) + 1,
    };
    let shape = Shape::new(kind, amount).expect("a shape");
    for _ in 0..2 {
        match kinds::open(&address, Some(shape)) {
            Ok(handle) => {
                let handle = handle.expect("it is created");
                let path = memory_of(&address).expect("it has memory");
                let file = File::options().read(true).write(true).open(path);
                let file = file.expect("it is ours");
                use_object(&**handle.object(), &mut script, &file);
            }
            Err(error) => panic!("no other process has it open: {error}"),
        }
        assert_eq!(memory_of(&address), None, "the last member removes it");
        assert!(!address.lock_file.exists());
    }
}

/// Returns the path of the memory of an object.
fn memory_of(address: &ObjectAddress) -> Option<PathBuf> {
    let stem = format!("shmrpc.{}@", address.name);
    let mut files = fs::read_dir("/dev/shm").expect("a directory").flatten();
    files.find_map(|file| {
        let is_its = file.file_name().to_str()?.starts_with(&stem);
        is_its.then(|| file.path())
    })
}

fn use_object(object: &dyn Object, script: &mut Script, file: &File) {
    // ThreadSanitizer has a lock of its own around some atomic accesses. A fault within, whose handler uses atomics
    // too, would wait for itself.
    let may_cut_off = std::env::var_os("TSAN_OPTIONS").is_none();
    let semaphore = downcast_ref::<SemaphoreMembership>(object);
    let event = downcast_ref::<EventMembership>(object);
    let signal = downcast_ref::<SignalMembership>(object);
    let size = file.metadata().expect("a file").len();
    let words = SharedMapping::new(file.as_fd(), size as usize).expect("a mapping");
    while !script.is_over() {
        let done = match script.byte() % 12 {
            0..3 => {
                if let Some(word) = words.word(offset(script, size)) {
                    let value = corrupt(script, word.load(Ordering::Relaxed));
                    word.store(value, Ordering::Relaxed);
                }
                Ok(())
            }
            3 => try_take(object, wait_target(script)).map(drop),
            4 => {
                let none = || Ok::<(), Infallible>(());
                let (target, deadline) = (wait_target(script), Some(Instant::now() + SOON));
                match waiting::wait(
                    object,
                    target.set(),
                    deadline,
                    &AtomicBool::new(false),
                    |_| try_take(object, target),
                    none,
                ) {
                    Ok(WaitOutcome::Succeeded | WaitOutcome::TimedOut) => Ok(()),
                    Ok(WaitOutcome::Stopped) => unreachable!("no thread stops it"),
                    Err(WaitError::Object(error)) => Err(error),
                    Err(WaitError::Caller(never)) => match never {},
                }
            }
            5 => semaphore.map_or(Ok(()), SemaphoreMembership::release),
            6 => {
                let count = u64::from(script.u32());
                signal.map_or(Ok(()), |signal| signal.signal(count))
            }
            7 => signal.map_or(Ok(()), |signal| signal.drain().map(drop)),
            8 => event.map_or(Ok(()), EventMembership::set),
            9 => event.map_or(Ok(()), |event| {
                event.clear().and_then(|()| event.word().map(drop))
            }),
            10 if may_cut_off && script.byte() == 0 => {
                file.set_len(u64::from(script.byte()) << 8)
                    .expect("it is ours");
                Ok(())
            }
            _ => kinds::report(object).map(|report| assert!(report.members.len() <= 256)),
        };
        match done {
            Err(ObjectError::Poisoned(_)) => {
                let next = object.membership().check();
                assert!(matches!(next, Err(ObjectError::Poisoned(_))), "{next:?}");
                return;
            }
            Ok(()) | Err(ObjectError::NotHeld(_) | ObjectError::Crowded) => {}
            Err(other) => panic!("{other}"),
        }
    }
}

/// The target of a wait.
#[derive(Clone, Copy)]
enum WaitTarget {
    Permit,
    Signal,
    Event(u64),
}

impl WaitTarget {
    fn set(self) -> usize {
        match self {
            WaitTarget::Permit => PERMITS,
            WaitTarget::Signal => signal::WAITERS,
            WaitTarget::Event(_) => WAITERS,
        }
    }
}

/// Takes the target of a wait. Returns false if there is none, or the object has no such targets.
fn try_take(object: &dyn Object, target: WaitTarget) -> Result<bool, ObjectError> {
    let semaphore = downcast_ref::<SemaphoreMembership>(object);
    let event = downcast_ref::<EventMembership>(object);
    let signal = downcast_ref::<SignalMembership>(object);
    match (target, semaphore, signal, event) {
        (WaitTarget::Permit, Some(semaphore), ..) => semaphore.try_acquire(),
        (WaitTarget::Signal, _, Some(signal), _) => signal.try_take_signal(),
        (WaitTarget::Event(since), .., Some(event)) => event.was_set_since(since),
        _ => object.membership().check().map(|()| false),
    }
}

fn wait_target(script: &mut Script) -> WaitTarget {
    match script.byte() % 3 {
        0 => WaitTarget::Permit,
        1 => WaitTarget::Signal,
        _ => WaitTarget::Event(u64::from(script.byte())),
    }
}

/// Returns an offset, mostly of a field, or of the first of many equal ones.
fn offset(script: &mut Script, size: u64) -> u64 {
    let index = u64::from(script.byte()) * 8;
    match script.byte() {
        0..64 => index % 128,
        64..112 => 128 + index % 96,
        112..160 => 8320 + index % 192,
        160..192 => 12544 + index % 192,
        192..240 => 16832 + index % 32,
        _ => script.u64() % size / 8 * 8,
    }
}

/// Returns a value, often near the one found.
fn corrupt(script: &mut Script, found: u64) -> u64 {
    match script.byte() {
        0..32 => 0,
        32..64 => u64::MAX,
        64..96 => found.wrapping_add(1),
        96..128 => found ^ 1 << (script.byte() % 64),
        128..192 => u64::from(script.byte()),
        192..224 => u64::from(script.byte()) << 32 | u64::from(script.byte() % 9),
        _ => script.u64(),
    }
}
