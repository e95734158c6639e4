//! Topics of several processes, some of which are killed or stopped.
//!
//! The other processes run this program, too: the test `another_process`, whose role is in the environment.

use _core::objects::kinds;
use _core::objects::memory::ObjectAddress;
use _core::objects::memory::shape::Shape;
use _core::objects::object::downcast;
use _core::objects::registry::Handle;
use _core::objects::topic::{
    ITEMS, Message, Publication, ROOM, ReceiveOutcome, Subscription, TopicMembership,
};
use _core::objects::waiting::{self, WaitError, WaitOutcome};
use _core::topic::Policy;
use _core::topic::log_layout::PublisherLimits;
use _core::topic::publisher::{NoRoom, OnFull};
use _core::topic::subscriber::{History, Payload, PublisherId, Received};
use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// More time than any step takes.
const LONG: Duration = Duration::from_secs(60);
const ROLE: &str = "SHMRPC_TOPIC_ROLE";
const NAME: &str = "SHMRPC_TOPIC_NAME";
const LIMITS: PublisherLimits = PublisherLimits {
    high: 64,
    low: 32,
    memory: 1 << 20,
};

fn address(name: &str) -> ObjectAddress {
    let lock_file = std::env::temp_dir().join(format!("{name}@shared.lock"));
    ObjectAddress {
        name: name.to_owned(),
        lock_file,
    }
}

fn new_name() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("topics-{}-{count}", std::process::id())
}

/// A topic of this process, which is open as long as this exists.
struct Topic {
    _handle: Handle,
    membership: Arc<TopicMembership>,
}

impl Topic {
    fn membership(&self) -> &Arc<TopicMembership> {
        &self.membership
    }
}

fn opened(name: &str) -> Topic {
    let opened = kinds::open(&address(name), Some(Shape::of_topic(false)));
    let handle = opened.unwrap().expect("it is created");
    Topic {
        membership: downcast(handle.object()).expect("a topic"),
        _handle: handle,
    }
}

/// Returns the payload of the record of this number; some are large.
fn payload(seq: u64) -> Vec<u8> {
    let len = match seq % 50 {
        7 => 20_000 + (seq % 3) as usize * 10_000,
        _ => (seq * 13 % 200) as usize,
    };
    (0..len)
        .map(|index| (seq * 31 + index as u64 / 8) as u8)
        .collect()
}

/// Publishes a record, and waits for room. Returns the slowest subscriber if there is none within `limit`.
fn publish(publishing: &Arc<Publication>, seq: u64, limit: Duration) -> Result<(), NoRoom> {
    let bytes = payload(seq);
    let mut slowest = None;
    let mut act = |patience| {
        let record = std::iter::once((0, &bytes[..], false));
        slowest = publishing.publish(record, patience)?.refused;
        Ok(slowest.is_none())
    };
    if act(OnFull::Fail).unwrap() {
        return Ok(());
    }
    let waiting = publishing.wait();
    let (stop, deadline) = (AtomicBool::new(false), Some(Instant::now() + limit));
    let waited = waiting::wait(
        &**publishing.membership(),
        ROOM,
        deadline,
        &stop,
        |_| act(waiting.on_full()),
        || Ok::<(), Infallible>(()),
    );
    match waited {
        Ok(WaitOutcome::Succeeded) => Ok(()),
        Ok(_) => Err(slowest.expect("it was refused")),
        Err(WaitError::Object(error)) => panic!("{error}"),
    }
}

/// Takes what a subscription receives within `limit`, and checks the payloads. Returns None if nothing arrives.
fn take(
    subscription: &Subscription,
    limit: Duration,
) -> Option<(Received, Vec<(PublisherId, u64)>)> {
    let (stop, deadline) = (AtomicBool::new(false), Some(Instant::now() + limit));
    let (mut out, mut messages) = (Vec::new(), Vec::new());
    let mut received = Received::Empty;
    let waited = waiting::wait(
        &**subscription.membership(),
        ITEMS,
        deadline,
        &stop,
        |_| {
            received = loop {
                if let ReceiveOutcome::Received(received) =
                    subscription.receive(9, &mut out, &mut messages)?
                {
                    break received;
                }
            };
            Ok(received != Received::Empty)
        },
        || Ok::<(), Infallible>(()),
    );
    match waited {
        Ok(WaitOutcome::Succeeded) => {}
        Ok(_) => return None,
        Err(WaitError::Object(error)) => panic!("{error}"),
    }
    let checked = messages.into_iter().map(|message: Message| {
        let found = match &message.payload {
            Payload::Copied(at, len) => out[*at..at + len].to_vec(),
            Payload::Pinned(pin) => {
                let from = pin.log().space().address(pin.at, pin.len);
                // SAFETY: mapped, and pinned.
                unsafe { std::slice::from_raw_parts(from, pin.len as usize) }.to_vec()
            }
        };
        assert!(found == payload(message.seq), "record {}", message.seq);
        if let Payload::Pinned(mut pin) = message.payload {
            subscription.unpin(&mut pin);
        }
        (message.source, message.seq)
    });
    Some((received, checked.collect()))
}

/// A process with a role, killed when this is dropped.
struct Other {
    child: Child,
    /// Kept open, so that the process can write to it.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    /// Starts a process, and waits until it is ready.
    fn start(role: &str, name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["another_process", "--exact", "--ignored", "--nocapture"])
            .env(ROLE, role)
            .env(NAME, name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while lines.next().expect("it has ended").unwrap() != "ready" {}
        Other {
            child,
            _lines: lines,
        }
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: no memory is involved; the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    fn pid(&self) -> libc::pid_t {
        self.child.id() as libc::pid_t
    }

    fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let mut status = 0;
        // SAFETY: `status` is writable.
        unsafe { libc::waitpid(self.pid(), &raw mut status, libc::WUNTRACED) };
        assert!(libc::WIFSTOPPED(status));
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_ready() {
    let mut out = std::io::stdout();
    out.write_all(b"\nready\n").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "what the other tests start"]
fn another_process() {
    let (Ok(role), Ok(name)) = (std::env::var(ROLE), std::env::var(NAME)) else {
        return;
    };
    let topic = opened(&name);
    match &role[..] {
        "publishes" => {
            let publishing = topic.membership().publish(LIMITS).unwrap();
            is_ready();
            for seq in 0.. {
                publish(&publishing, seq, LONG).unwrap();
            }
        }
        // The other process computes, and never looks at its messages; its watcher attaches it.
        "publishes a few and ends" => {
            let publishing = topic.membership().publish(LIMITS).unwrap();
            while !publishing.is_attached_by_all(OnFull::Fail).unwrap() {
                std::thread::yield_now();
            }
            for seq in 0..20 {
                publish(&publishing, seq, LONG).unwrap();
            }
            is_ready();
        }
        "reads nothing" => {
            let subscribed = topic
                .membership()
                .subscribe((Policy::Block, 0), History::Oldest);
            let _subscription = subscribed.unwrap();
            is_ready();
            std::thread::sleep(LONG);
        }
        "reads" => {
            let subscribed = topic
                .membership()
                .subscribe((Policy::Block, 0), History::Oldest);
            let subscription = subscribed.unwrap();
            is_ready();
            while take(&subscription, LONG).is_some() {}
        }
        "reads the last" => {
            let policy = (Policy::KeepLast, 1);
            let subscription = topic
                .membership()
                .subscribe(policy, History::Oldest)
                .unwrap();
            is_ready();
            while take(&subscription, LONG).is_some() {}
        }
        other => panic!("{other}"),
    }
}

/// The number of records read of each publisher, from the first one on, without a gap.
#[derive(Default)]
struct Tally(HashMap<(usize, u64), u64>);

impl Tally {
    /// Reads what arrives. Returns the number of records, and how many a publisher had that is gone.
    fn read(&mut self, subscription: &Subscription) -> (usize, Option<u64>) {
        let (received, messages) = take(subscription, LONG).expect("something happens");
        for (source, seq) in &messages {
            let next = self
                .0
                .entry((source.listing, source.generation))
                .or_default();
            assert_eq!(*seq, *next, "{source:?}");
            *next += 1;
        }
        match received {
            Received::Messages(count) => (count, None),
            Received::PublisherGone(source) => {
                let read = self.0.remove(&(source.listing, source.generation));
                (0, Some(read.unwrap_or(0)))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Reads until `count` publishers are gone. Returns the number of records, and how many each publisher had.
    fn read_until_gone(&mut self, subscription: &Subscription, count: usize) -> (usize, Vec<u64>) {
        let (mut all, mut each) = (0, Vec::new());
        while each.len() < count {
            let (read, gone) = self.read(subscription);
            all += read;
            each.extend(gone);
        }
        (all, each)
    }
}

#[test]
fn records_of_a_killed_publisher_are_read_whole() {
    let name = new_name();
    let topic = opened(&name);
    let subscribed = topic
        .membership()
        .subscribe((Policy::Block, 0), History::Oldest);
    let subscription = subscribed.unwrap();
    let (mut tally, mut after) = (Tally::default(), 0);
    for round in 0..20 {
        let others = [(); 2].map(|()| Other::start("publishes", &name));
        let mut seen = 0;
        while seen < 200 + round * 37 {
            let (read, gone) = tally.read(&subscription);
            assert_eq!(gone, None);
            seen += read;
        }
        // In the middle of whatever they do.
        for other in others {
            other.kill();
        }
        after += tally.read_until_gone(&subscription, 2).0;
    }
    assert!(after > 0, "what was there is read after the death");
}

#[test]
fn a_busy_subscriber_is_attached_before_a_short_publisher_ends() {
    let name = new_name();
    let topic = opened(&name);
    let subscribed = topic
        .membership()
        .subscribe((Policy::Block, 0), History::Last(0));
    let subscription = subscribed.unwrap();
    for _ in 0..5 {
        let mut other = Other::start("publishes a few and ends", &name);
        assert!(other.child.wait().unwrap().success());
    }
    let (_, each) = Tally::default().read_until_gone(&subscription, 5);
    assert_eq!(each, [20; 5]);
}

#[test]
fn a_publisher_continues_when_the_subscriber_that_it_waits_for_is_killed() {
    let name = new_name();
    let topic = opened(&name);
    let publishing = topic.membership().publish(LIMITS).unwrap();
    for _ in 0..10 {
        let other = Other::start("reads nothing", &name);
        let from = publishing.stats().unwrap().0;
        let mut seq = from;
        while publish(&publishing, seq, Duration::ZERO).is_ok() {
            seq += 1;
        }
        std::thread::scope(|scope| {
            scope.spawn(|| publish(&publishing, seq, LONG).expect("it is dead"));
            // Asleep, or about to be.
            while topic.membership().count_sleepers(ROOM) == 0 {
                std::thread::yield_now();
            }
            other.kill();
        });
    }
    assert_eq!(publishing.subscribers().unwrap(), []);
}

/// A batch that has no room at once: what is written is published before the wait for room.
#[test]
fn a_batch_of_any_size_is_published_and_read() {
    let name = new_name();
    let topic = opened(&name);
    let publishing = topic.membership().publish(LIMITS).unwrap();
    let others = ["reads", "reads"].map(|role| Other::start(role, &name));
    let payloads: Vec<_> = (0..10_000).map(payload).collect();
    let (stop, mut done) = (AtomicBool::new(false), 0);
    let waiting = publishing.wait();
    let waited = waiting::wait(
        &**topic.membership(),
        ROOM,
        Some(Instant::now() + LONG),
        &stop,
        |_| {
            let records = payloads[done..].iter().map(|bytes| (0, &bytes[..], false));
            done += publishing.publish(records, waiting.on_full())?.count;
            Ok(done == payloads.len())
        },
        || Ok::<(), Infallible>(()),
    );
    assert!(matches!(waited, Ok(WaitOutcome::Succeeded)), "{waited:?}");
    while publishing
        .subscribers()
        .unwrap()
        .iter()
        .any(|each| each.lag != Some(0))
    {
        std::thread::yield_now();
    }
    drop(others);
}

#[test]
fn a_stopped_subscriber_is_named_if_its_policy_blocks_and_is_ignored_otherwise() {
    let name = new_name();
    let topic = opened(&name);
    let publishing = topic.membership().publish(LIMITS).unwrap();
    let chart = Other::start("reads the last", &name);
    let recorder = Other::start("reads", &name);
    let count = 5_000;
    for seq in 0..count {
        publish(&publishing, seq, LONG).unwrap();
    }
    chart.stop();
    for seq in count..2 * count {
        publish(&publishing, seq, LONG).unwrap();
    }
    recorder.stop();
    let mut seq = 2 * count;
    let slowest = loop {
        match publish(&publishing, seq, Duration::from_millis(10)) {
            Ok(()) => seq += 1,
            Err(slowest) => break slowest,
        }
    };
    let pid = |owner: Option<u64>| topic.membership().process_of(owner.unwrap());
    assert_eq!(pid(slowest.owner), recorder.pid());
    recorder.signal(libc::SIGCONT);
    for seq in seq..seq + count {
        publish(&publishing, seq, LONG).unwrap();
    }
    let seen = publishing.subscribers().unwrap();
    let pids: Vec<_> = seen.iter().map(|each| each.pid).collect();
    assert!(seen.len() == 2 && pids.contains(&chart.pid()) && pids.contains(&recorder.pid()));
}

#[test]
fn a_topic_whose_members_were_all_killed_begins_anew() {
    let name = new_name();
    for _ in 0..3 {
        let publisher = Other::start("publishes", &name);
        let reader = Other::start("reads", &name);
        publisher.kill();
        reader.kill();
        let topic = opened(&name);
        let subscribed = topic
            .membership()
            .subscribe((Policy::Block, 0), History::Oldest);
        assert_eq!(take(&subscribed.unwrap(), Duration::ZERO), None);
        assert_eq!(topic.membership().overview().unwrap().publishers, []);
    }
    assert!(!address(&name).lock_file.exists());
}
