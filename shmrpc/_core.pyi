"""The native core: see core/src/lib.rs for its contract."""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextvars import Context
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, final

from shmrpc.errors import DecodeError
from shmrpc.topics.subscription_base import Publisher as _PublishedBy

class ChannelError(Exception):
    """Error of a channel that is closed, or whose peer broke the rules. The channel must no longer be used."""

class PeerLeft(ChannelError):
    """Error of a channel whose peer has left and closed its end of the doorbell. Nothing was sent."""

class Overtaken(Exception):
    """Error of a request after another thread has begun a call with a higher id.

    Nothing was sent: send the request again with a new id.
    """

class Oversize(Exception):
    """Error of a payload that exceeds the channel's limit. Nothing was sent."""

class Backlog(Exception):
    """Error of a frame while too many frames wait for the peer to read them. Nothing was sent."""

class NoMemory(Exception):
    """Error of a request for shared memory that does not exist. The text gives what was requested and what there is."""

    #: The system's reason, None for any other reason.
    errno: int | None

class Unheard(NoMemory):
    """Error of a message about new shared memory that cannot reach the peer, which has closed its end or has ended."""

class Unmapped(Exception):
    """Error of a frame whose body or buffers this process has no room to map."""

    #: The limit that this process has reached.
    errno: int

@final
class Buffer:
    """A buffer in shared memory. While the buffer or a view of it exists, the memory has no other use."""

    def to_bytes(self) -> bytes:
        """Return a copy of the bytes."""

    def private(self) -> View:
        """Return a writable view whose changes stay in this process. Raises Unmapped if there is no room for it."""

    def shared(self) -> View:
        """Return a writable view whose changes the sender of the buffer sees.

        Raises Unmapped if there is no room for it.
        """

    def release(self) -> None:
        """Return the memory to its owner now.

        Views of it must no longer be used, because their contents may change.
        """

    @property
    def released(self) -> bool:
        """True once the memory was returned."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class View:
    """A writable mapping of a buffer."""

    def detach(self) -> None:
        """Keep later changes in this process."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Parcel:
    """A body and the buffers that it refers to by their indices. By the buffer protocol, a parcel is its body."""

    def __new__(cls, body: bytes, buffers: Iterable[Any], /) -> Parcel: ...
    @property
    def body(self) -> bytes:
        """The body in MessagePack."""

    @property
    def buffers(self) -> tuple[Any, ...]:
        """The buffers; none once they were dropped. Raises Unmapped if this process has no room for them."""

    @property
    def weight(self) -> int:
        """Size in bytes for which a stream's credit charges the parcel: the body, and a small part of the buffers."""

    def with_body(self, body: bytes, /) -> Parcel:
        """Return a parcel with another body and the same buffers."""

    def drop_buffers(self) -> None:
        """Drop the buffers. Values that were decoded from the parcel keep the buffers that they need."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Descriptor:
    """An open file of this process, which is closed when this object is dropped."""

    @staticmethod
    def pair() -> tuple[Descriptor, Descriptor]:
        """Return the two ends of a pair of local packet sockets."""

    def fileno(self) -> int:
        """Return the number of the descriptor; -1 once it is closed."""

    def close(self) -> None:
        """Close the file. Idempotent."""

@final
class CallContexts:
    """Copies of a context, which a thread enters one after the other, until the next ``renew`` or ``leave``."""

    def __new__(cls, base: Context, /) -> CallContexts: ...
    def rebase(self, base: Context, /) -> None:
        """Make further copies of this context from now on."""

    def call_each(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], results: list[Any], until: int, /
    ) -> None:
        """Call a function with each tuple of arguments from index ``len(results)`` on, and append the results.

        Each call runs in a new copy of the context. Stops at the time ``until``, in nanoseconds. Raises the errors of a
        call.
        """

    def renew(self) -> None:
        """Leave the last copy, if the thread has entered one, and enter a new one."""

    def current(self) -> Context | None:
        """Return the copy that the thread has entered; None if it has entered none."""

    def leave(self) -> None:
        """Leave the last copy, if the thread has entered one."""

@final
class Encoder:
    """Encoder of values.

    Encodes MessagePack's own types natively, unless ``reference`` is set, and other types by the given functions.
    """

    def __new__(
        cls,
        *,
        encode_plain: Callable[[Any], bytes],
        encode_value: Callable[[Any], bytes | Parcel],
        encode_values: Callable[[Sequence[Any]], bytes | Parcel],
        is_plain: Callable[[type], bool | tuple[tuple[str, ...], tuple[str, ...]] | None],
        large: int,
        large_array: int,
        reference: bool,
        whole: bool,
    ) -> Encoder: ...
    def encode(self, value: Any, /) -> bytes | Parcel:
        """Return one value as bytes, or as a parcel if it has buffers."""

    def encode_all(self, values: Sequence[Any], /) -> bytes | Parcel:
        """Return an array of values as bytes, or as a parcel if it has buffers. The array itself is not a value."""

    def forget(self) -> None:
        """Forget the results of ``is_plain`` for all types, because a class was registered."""

@final
class ExpectedType:
    """A declared type that the core can read; see core/src/python/codec/msgpack/expected_type.rs."""

    def __new__(
        cls,
        scalars: Sequence[str],
        *,
        dtypes: Sequence[str] | None = None,
        each: ExpectedType | None = None,
        is_tuple: bool = False,
        items: Sequence[ExpectedType] | None = None,
        keys: ExpectedType | None = None,
        values: ExpectedType | None = None,
    ) -> ExpectedType: ...
    def read(self, body: bytes | Parcel, /) -> Any:
        """Decode bytes or a parcel. Raises ValueError if the value does not fit, or the core cannot decode it."""

@final
class CallIds:
    """A counter. Each call of it returns the next number, from 1 on."""

    def __new__(cls) -> CallIds: ...
    def __call__(self) -> int: ...

@final
class NativeCall:
    """An endpoint of a connection on the native path; see core/src/python/rpc/client/native_call.rs."""

    def __new__(
        cls,
        *,
        encoder: Encoder,
        ids: CallIds,
        expected: ExpectedType | None,
        read: Callable[[bytes | Parcel], Any],
        positional: int,
        keywords: int,
        timed: int,
        timeout: int | None,
        clock_ahead: int,
        inheriting: list[bool] | None,
        nearest: Callable[[int | None], int | None],
    ) -> NativeCall: ...

@final
class CallCoroutine:
    """A call of a LoopEndpoint; a collections.abc.Coroutine."""

@final
class ItemStream:
    """An asynchronous generator of single items, made from a generator of lists of items."""

    def __new__(cls, batches: AsyncGenerator[list[Any]], /) -> AsyncGenerator[Any]: ...  # type: ignore[misc]

class Endpoint:
    """A callable that calls an endpoint and looks like a Python function."""

@final
class LoopEndpoint(Endpoint):
    """A function that calls an endpoint and returns a coroutine; see core/src/python/rpc/client/loop_endpoint.rs."""

    def __new__(
        cls,
        channel: Channel,
        native: NativeCall,
        function: Callable[..., Coroutine[Any, Any, Any]],
        finish: Callable[[Sequence[Any], Mapping[str, Any], int, Any, int | None], Coroutine[Any, Any, Any]],
        interrupted: Callable[[BaseException], None],
        cancel: Callable[[int], object],
        home: tuple[asyncio.AbstractEventLoop, Callable[[], None]],
        /,
    ) -> LoopEndpoint: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...

@final
class ThreadEndpoint(Endpoint):
    """A function that calls an endpoint and waits; see core/src/python/rpc/client/thread_endpoint.rs."""

    def __new__(
        cls,
        calls: ThreadCalls,
        native: NativeCall,
        function: Callable[..., Any],
        finish: Callable[[Sequence[Any], Mapping[str, Any], int, Any, int | None], Any],
        stopped: list[bool],
        reconnector: object,
        session: object,
        /,
    ) -> ThreadEndpoint: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class CoroutineRunner:
    """Runner of coroutines, each in its first step and then as a task; see core/src/python/rpc/server/handler.rs."""

    def __new__(
        cls,
        *,
        is_full: Callable[[Any], bool],
        start: Callable[[Coroutine[Any, Any, Any], Any, str, int, int | None, int], Any],
        later: object,
    ) -> CoroutineRunner: ...

@final
class Handler:
    """A function, and the types of its parameters; see core/src/python/rpc/server/handler.rs."""

    def __new__(
        cls,
        name: str,
        function: Callable[..., Any],
        *,
        by_count: Sequence[ExpectedType | None],
        parameters: Sequence[tuple[str, ExpectedType, bool]],
        places: int,
        coroutines: CoroutineRunner | None,
    ) -> Handler: ...

@final
class HandlerTable:
    """The handlers that the core calls, by endpoint number; see core/src/python/rpc/server/handler_table.rs."""

    def __new__(
        cls,
        handlers: Sequence[Handler | None],
        *,
        encoder: Encoder,
        contexts: CallContexts,
        current_call: CurrentCall,
        inheriting: list[bool],
        clock_ahead: int,
        encode: Callable[[str, Any], bytes | Parcel],
        fail: Callable[[Any, int, BaseException], None],
        note: Callable[[Any, str, BaseException], None],
        positional: int,
        keywords: int,
        timed: int,
        headed: int,
    ) -> HandlerTable: ...

@final
class ClientRequests:
    """The requests of a client that the core may run, until this is closed."""

    def __new__(cls, handlers: HandlerTable, running: dict[int, Any], waiting: dict[int, Any], /) -> ClientRequests: ...
    def close(self) -> None:
        """Leave all further requests to Python."""

@final
class CurrentCall:
    """The call that a thread's event loop runs, from its frame to its reply."""

    #: (key, opcode, id, deadline) of a request that the core runs, else the object that was set; None between frames.
    frame: Any
    def __new__(cls) -> CurrentCall: ...

@final
class PostInit:
    """A ``__post_init__``: calls ``complete`` if an instance lacks fields of ``names``, and then ``own``."""

    def __new__(
        cls, names: Sequence[str], complete: Callable[[Any], None], own: Callable[[Any], object] | None
    ) -> PostInit: ...
    def __call__(self, instance: Any, /) -> None: ...

@final
class Channel:
    """One side of a connection: frames to the peer and from it.

    The caller stays the owner of ``bell``. The channel becomes the owner of ``loans``.
    """

    def __new__(
        cls,
        *,
        segment: Descriptor,
        capacity: int,
        server: bool,
        bell: Descriptor,
        semaphores: tuple[str, str] | None,
        owner: int,
        loans: Descriptor,
        blocking: bool,
        max_frame: int,
        max_memory: int,
        spin: float,
        reply_opcode: int,
    ) -> Channel: ...
    def send(self, opcode: int, id: int, payload: bytes | Parcel, /) -> bool:
        """Send a frame. Returns False if there is no room: the channel keeps it, and sends it as the peer reads."""

    def begin(self, opcode: int, id: int, payload: bytes | Parcel, /) -> bool:
        """Send a request, without a wait for its reply.

        Returns False if there is no room: the channel keeps the request, and sends it as the peer reads. Raises
        PeerLeft and Overtaken.
        """

    def receive_run(self, opcode: int, id: int, max_items: int, head: bytes, /) -> tuple[int, bytes] | None:
        """Receive up to ``max_items`` small frames with this opcode and id that have arrived next to each other.

        Returns their number, and one body: ``head``, the number as four bytes, and the payloads. Returns None if there
        are none.
        """

    def exchange(
        self, opcode: int, id: int, payload: bytes | Parcel, /
    ) -> bytes | tuple[int, int, bytes | Parcel] | None:
        """Send a request, and spin for its reply as long as that pays.

        Returns the body of a reply with ``reply_opcode``, any other frame as (opcode, id, payload), and None if none
        has arrived.
        """

    def receive(self) -> tuple[int, int, bytes | Parcel] | None:
        """Return the next frame that has arrived as (opcode, id, payload), or None."""

    def has_pipelined_calls(self) -> bool:
        """Return True if calls are in flight whose tasks have yielded to the event loop."""

    def wake(self) -> bool:
        """Silence the bell of this side, which has rung, and send kept frames as far as there is room.

        Returns False if the bell will never ring again, because the peer has closed it.
        """

    def is_at_end(self) -> bool:
        """Return True if every frame was received that had arrived at the last check."""

    def settle(self) -> bool:
        """Do what ``is_at_end`` does, and wake a peer that waits for room."""

    def park(self, patient: bool = ...) -> bool:
        """Announce that this side sleeps, so that the peer rings the bell.

        With ``patient``, the peer does not ring for an item of a stream. Returns False if there is work to do first.
        """

    def unpark(self) -> None:
        """Withdraw the announcement of a sleep: this side polls, and the peer need not ring."""

    def is_stalled(self) -> bool:
        """Return True if the channel keeps frames for which there is no room."""

    def is_awaited(self) -> bool:
        """Return True if a kept frame has a waiter."""

    def is_behind(self) -> bool:
        """Return True if so much waits for the peer to read that this side should send no further requests now."""

    def untaken(self) -> tuple[int, int, int, int]:
        """Return how far the peer has read.

        Returns the bytes that it has read so far, the bytes in the ring, and the number and the bytes of the kept
        frames.
        """

    def take_back(self, id: int, kinds: bytes, /) -> bool:
        """Withdraw the kept frame that began the call ``id`` with an opcode of one of these kinds.

        Returns False if any part of the frame was sent.
        """

    def take_back_all(self, id: int, /) -> None:
        """Withdraw all kept frames of the call ``id``, except a frame that was sent in part."""

    def has_frame(self) -> bool:
        """Return True if a frame has arrived."""

    def reached(self) -> int:
        """Return the highest id of a received frame; 0 before the first one, and once the channel is closed."""

    def allocate(self, len: int, /) -> Buffer:
        """Allocate a block of shared memory to write and then send. Raises NoMemory and Unheard."""

    def memory(self) -> tuple[int, int]:
        """Return the bytes of shared memory that this side has allocated for the channel, and the bytes in use."""

    def close(self) -> None:
        """Close the channel, and wake a thread that waits for a frame."""

@final
class ThreadCalls:
    """Calls in flight of the threads that share a channel. One of the threads receives for all."""

    def __new__(
        cls,
        channel: Channel,
        *,
        replies: list[int],
        others: bytes,
        item: int,
        requests: bytes,
        cancel: int,
        cancel_body: bytes,
        window: int,
        overhead: int,
        check_interval: float,
    ) -> ThreadCalls: ...
    def __len__(self) -> int: ...
    def exchange(self, opcode: int, id: int, payload: bytes | Parcel, /) -> bytes | Parcel | PendingCall:
        """Send a request, and spin for its reply as long as that pays.

        Returns the body of a reply with the channel's ``reply_opcode``, otherwise the call in flight.
        """

    def begin(self, opcode: int, id: int, payload: bytes | Parcel, /) -> PendingCall:
        """Send a request, and return the call in flight."""

    def close(self, id: int, /) -> None:
        """End a call for which no thread waits. Cancel it unless the server has replied or the request was not sent."""

    def drive(self, limit: float, /) -> bool:
        """Receive the frames that have arrived for all threads; if there are none, wait for up to ``limit`` seconds.

        Returns False if another thread does so.
        """

    def interrupt(self) -> None:
        """Wake all threads that wait. Each returns without a frame."""

@final
class PendingCall:
    """A call in flight. Dropping the object closes the call."""

    @property
    def id(self) -> int:
        """The id of the call."""

    def next(self, limit: float, /) -> tuple[int, int, bytes | Parcel] | None:
        """Return the next frame of the call as (opcode, id, body), and wait for it for up to ``limit`` seconds.

        This thread receives for all threads if no other thread does. Returns None if no frame came or the call was
        interrupted.
        """

    def take_back(self) -> bool:
        """Withdraw the request. Returns True if no part of it was sent: the call is then never made."""

    def close(self) -> None:
        """End the call, and cancel it unless the server has replied or the request was not sent."""

@final
class ReentrantLock:
    """A lock that the thread that holds it can acquire again, and for which no thread waits."""

    def try_acquire(self) -> LockGuard | None:
        """Acquire the lock until the guard is released or dropped. Returns None if another thread holds the lock."""

@final
class LockGuard:
    """One acquisition of a lock, until it is released or dropped."""

    def release(self) -> None:
        """Release the lock. Idempotent."""

@final
class WorkerProgress:
    """Progress of a pool's worker in its tasks: memory that the pool and the worker share, a file of ``SIZE`` bytes.

    A chunk has one of ``SLOTS`` slots, and a coroutine one of ``COROUTINES`` numbers. Methods raise IndexError for any
    other one. The constructor raises OSError if the memory cannot be mapped.
    """

    SLOTS: Final[int]
    COROUTINES: Final[int]
    SIZE: Final[int]

    def __new__(cls, file: int) -> WorkerProgress: ...
    def open(self, slot: int, count: int) -> None:
        """By the pool: announce a chunk of ``count`` tasks in this slot, none of which has begun."""

    def begin(self, slot: int) -> bool:
        """By the worker: begin the next task. Return False if the chunk has ended."""

    def shorten(self, slot: int, keep: int) -> int:
        """By the pool: end the chunk before task ``keep``, or the first task that has not begun. Return its new end."""

    def count_begun(self, slot: int) -> int:
        """Return the number of tasks that have begun."""

    def record_duration(self, slot: int, nanoseconds: int) -> None:
        """By the worker: record the duration of the last task."""

    def last_duration(self, slot: int) -> int:
        """By the pool: return the duration of the last task that the worker has recorded, in nanoseconds."""

    def clear_coroutine(self, coroutine: int) -> None:
        """By the pool: announce a coroutine with this number, which has not begun."""

    def take_coroutine(self, coroutine: int) -> bool:
        """By the worker: begin the coroutine. By the pool: take it back. Return False if the other side was first."""

    def is_coroutine_taken(self, coroutine: int) -> bool:
        """Return True if the coroutine was begun, or taken back."""

    def stop(self, slot: int) -> bool:
        """By the pool: request a stop of the current task, and then send a signal. Return False if there is no task."""

    def is_stopped(self, slot: int) -> bool:
        """By the worker: return True if the pool has requested a stop of the current task."""

@final
class StreamSender:
    """The sending end of a stream, with its credit and its yield budget."""

    def __new__(cls, channel: Channel, opcode: int, id: int, credit: int, overhead: int, /) -> StreamSender: ...
    def send(self, item: bytes | Parcel, /) -> bool:
        """Send an item. Returns False if the sender must pause before the next, for credit or for the event loop."""

    def send_all(
        self,
        items: Iterator[Any],
        encode: Encoder | Callable[[Any], bytes | Parcel],
        explain: Callable[[Any, Exception], Exception],
        /,
    ) -> bool:
        """Send the items of an iterator. Returns True if the sender must pause before the next item, False at the end.

        Raises what ``explain`` returns for an item that ``encode`` cannot encode.
        """

    def send_each(
        self,
        items: AsyncIterator[Any],
        encode: Encoder | Callable[[Any], bytes | Parcel],
        explain: Callable[[Any, Exception], Exception],
        /,
    ) -> Awaitable[bool]:
        """Send the items of an asynchronous iterator. The awaitable returns as ``send_all`` does."""

    def grant(self, size: int, /) -> None:
        """Add credit: the receiver has consumed ``size`` bytes."""

    def resume(self) -> bool:
        """Begin a new slice of time, after the event loop has run. Returns True if there is credit."""

@final
class Poller:
    """Receiver of a server: returns the next frame of any of its channels."""

    def __new__(cls, *, spin: float, fault: int, reply_opcode: int) -> Poller: ...
    def add(self, channel: Channel, key: Any, requests: ClientRequests | None, /) -> int:
        """Add a channel, and return its number.

        ``key`` is returned with each frame of the channel, except requests that the core runs.
        """

    def remove(self, index: int, /) -> None:
        """Remove the channel of this number."""

    def wake(self, index: int, /) -> bool:
        """Handle a ring of this channel's bell.

        Returns False if the bell will never ring again, because the peer has closed it.
        """

    def expect(self, socket: int | None = None, /) -> None:
        """Announce a frame, or a packet from ``socket``: the next poll spins for as long as a sleep would cost."""

    def set_spinning(self, spinning: bool, /) -> None:
        """Set whether the poller spins when no frame is there."""

    def next(self) -> tuple[Any, int, int, Any] | None:
        """Return the next frame as (key, opcode, id, payload), or None when the event loop should go on.

        The core runs and answers requests on the native path meanwhile. A channel whose peer broke the rules gives
        (key, fault, 0, ChannelError).
        """

    def send_next(
        self, channel: Channel, opcode: int, id: int, payload: bytes | Parcel, /
    ) -> tuple[Any, int, int, Any] | Literal[True] | None:
        """Send a frame on ``channel``, then do what ``next`` does.

        After a large frame, returns True at once, so that the caller can do other work while the peer reads the frame.
        The caller then calls ``next``.
        """

    def rest(self) -> bool:
        """Prepare for the event loop to go on.

        Returns True if a bell will ring for the next frame, False if the loop must call ``next`` again on its next
        iteration.
        """

def segment_memory(capacity: int, /) -> int:
    """Return the bytes that are allocated at first for a segment whose rings hold ``capacity`` bytes each."""

def create_segment(name: str, capacity: int, /) -> Descriptor | None:
    """Create and lock the file of a segment whose rings hold ``capacity`` bytes each.

    Allocates the memory with which the rings begin. Returns None if a clean-up removed the file before it was locked.
    """

def create_semaphore(name: str, /) -> None:
    """Create a semaphore of this name, which contains no slash."""

def open_segment(name: str, /) -> tuple[Descriptor, int]:
    """Open the file of a segment that another process has created. Returns the file and the user id of its owner."""

def watch_for_names(directories: list[str], /) -> Descriptor:
    """Watch directories for new shared objects.

    Returns a descriptor that is readable once an object may have appeared; check then, and watch again. Raises OSError
    if the system refuses.
    """

def receive_packet(
    socket: int, size: int, timeout: int = 0, spin: int = 0, /
) -> tuple[bytes, list[Descriptor], bool, int]:
    """Receive the next packet of up to ``size`` bytes from a socket; a longer one is truncated without notice.

    Raises OSError with EAGAIN if no packet comes in time, or a signal ends the wait. The caller keeps ``socket`` open.
    """

def send_packet(socket: int, bytes: bytes, files: Sequence[Descriptor], /) -> None:
    """Send a packet with descriptors, without waiting: all of it, or nothing. ``files``: different objects.

    Raises OSError with EBADF, and sends nothing, if one of them is closed. The caller keeps ``socket`` open.
    """

def die_with(master: int, first: int | None = None, life: int | None = None) -> None:
    """Kill this process as soon as the process of the pidfd ``master`` has ended, also while a thread holds the GIL.

    The process of the pidfd ``first`` is killed before this one. The end of the pipe ``life`` counts as the end of the
    master. Raises OSError if they cannot be watched.
    """

def is_buffer(value: object, /) -> bool:
    """Return True if a value supports the buffer protocol."""

def address_of(view: memoryview, /) -> int:
    """Return the address of a view's memory. For read-only memory, Python has no such function."""

def shorten_time_slice(nanoseconds: int, /) -> bool:
    """Request time slices of ``nanoseconds`` for this thread from the kernel. Returns True if they are shorter now."""

@final
class SharedObject:
    """A handle of a shared object."""

    def __new__(
        cls, name: str, lock_file: str, kind: str, amount: int, bounds: tuple[int, int] = (0, 0), raw: bool = False
    ) -> SharedObject: ...
    @staticmethod
    def attach(name: str, lock_file: str, /) -> SharedObject | None:
        """Open an object that has members; return None if it has none."""

    @staticmethod
    def inspect(name: str, lock_file: str, /) -> dict[str, Any] | None:
        """Return the state of an object without opening it, as ``report`` does; None if it has no members."""

    @staticmethod
    def leave_all() -> None:
        """Leave all objects of this process."""

    @staticmethod
    def take_dropped() -> list[tuple[str, int]]:
        """Return the names of queues that were lost with items since the last call, and the numbers of these items.

        A queue is lost when this process was its last member.
        """

    def duplicate(self) -> SharedObject:
        """Return a further use of the same object, which is closed separately."""

    def has_same_membership(self, other: SharedObject, /) -> bool:
        """Return True if both are uses by the same membership of this process."""

    def close(self) -> None:
        """Close this use.

        This process leaves the object with the last of its uses, and releases all that it holds. Idempotent.
        """

    @property
    def is_closed(self) -> bool:
        """True once this use is closed."""

    @property
    def kind(self) -> str:
        """The kind: "memory", "semaphore", "lock", "event", "signal", "queue", "topic" or "store"."""

    @property
    def name(self) -> str:
        """The name of the object."""

    @property
    def amount(self) -> int:
        """Permits of a semaphore, or bytes of a memory or for the items of a queue."""

    @property
    def bounds(self) -> tuple[int, int]:
        """Maximum numbers of waiting items of a queue, and of deliveries of an item."""

    @property
    def is_raw(self) -> bool:
        """True if the items of a queue, or the records of a topic, are bytes."""

    def report(self) -> dict[str, Any]:
        """Return the members, what each holds, and the number of waiters."""

    def event(self) -> int:
        """Return the word of the event, which is odd while the event is set."""

    def has_passed(self, since: int, /) -> bool:
        """Return True if the event is set, or was set since its word was ``since``."""

    def wait_event(self, timeout: float | None, /) -> bool | None:
        """Wait until the event is set: returns True, False after the timeout, None if waits were stopped."""

    def set(self) -> None:
        """Set the event."""

    def clear(self) -> None:
        """Clear the event."""

    def stop(self, stopped: bool, /) -> None:
        """End the waits of this handle and, until a call with False, all later waits."""

    def kept_for(self) -> float:
        """Return the seconds for which a permit stays reserved for long waiters; 0 if none is reserved."""

    @property
    def is_stopped(self) -> bool:
        """True if waits of this handle are stopped."""

    def sleeps_on(self) -> bool:
        """Return True if a wait of this thread must sleep for ever, because the exiting process has left the object."""

    def prepare(self) -> None:
        """Release what dead members hold, and watch living members, before a sleep."""

    def sleeper(self, set: int, /) -> LoopWaiter:
        """Return a slot for an event loop in a wait set of the object.

        The set is 0 for a permit, the event, a signal or an item, 1 for room, 2 for the completion of all items.
        """

    def bytes(self) -> MappedBytes:
        """Return the bytes of a memory, by the buffer protocol."""

@final
class MappedBytes:
    """Bytes of a shared object, by the buffer protocol. They stay mapped while this object or a view of it lives."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class LoopWaiter:
    """The slot of an event loop in a wait set of a shared object."""

    def fileno(self) -> int:
        """Return the descriptor that is readable once the loop is woken."""

    def draw_ticket(self) -> None:
        """Take a place at the end of the wait queue."""

    def announce(self) -> None:
        """Announce that the loop is about to sleep. The caller must check once more afterwards."""

    def withdraw(self) -> None:
        """Withdraw the announcement, because the loop is awake and about to check."""

    def cancel(self) -> None:
        """End the wait. Passes on a wake-up that has arrived in the meantime."""

    def close(self) -> None:
        """Free the slot. Idempotent."""

@final
class YieldBudget:
    """The time for which a task may go on before it yields to the event loop."""

    def __new__(cls) -> Self: ...
    def is_spent(self) -> bool:
        """Return True if the task must yield to the event loop now."""

    def begin(self) -> None:
        """Begin a new budget."""

    def end(self) -> None:
        """End the budget, because the event loop has run."""

@final
class Queue:
    """A queue that this process has open."""

    def __new__(
        cls,
        name: SharedObject,
        encoder: Encoder,
        encode: Callable[[Any], bytes | Parcel],
        decode: Callable[[Any], Any],
        decode_own: Callable[[Any], Any],
        unencodable: Callable[[Exception, int | None], Exception],
        undecodable: Callable[[Exception, int | None], Exception],
        /,
    ) -> Queue: ...
    @property
    def yield_budget(self) -> YieldBudget:
        """The yield budget of the queue's tasks."""

    def put_now(self, value: Any, /) -> PendingItems | None:
        """Put a value. Returns the encoded value if it must wait for room, otherwise None."""

    def put_next(self, value: object, /) -> PendingItems | Literal[False] | None:
        """Do what ``put_now`` does, in an event loop. Puts nothing and returns False if the task must yield first."""

    def put_many_now(self, values: Iterable[Any], /) -> PendingItems | None:
        """Put all values, or none of them. Returns the encoded values if they must wait for room, otherwise None."""

    def get_now(self, default: Any, /) -> Any:
        """Return the next value, or ``default`` if there is none."""

    def get_next(self, default: object, /) -> Any:
        """Do what ``get_now`` does, in an event loop. Returns ``default`` also if the task must yield first."""

    def get_many_now(self, max_items: int, dead: bool, /) -> list[Any]:
        """Return up to ``max_items`` waiting values; with ``dead``, values of the dead letters."""

    def take_into(self, got: list[Any], max_items: int, /) -> bool:
        """Append up to ``max_items`` waiting values to ``got``, and return True if there were any.

        If a signal handler raises before this call returns, the values are in ``got``, and the caller returns them by
        ``put_back``.
        """

    def wait_into(self, got: list[Any], max_items: int, timeout: float | None, /) -> bool | None:
        """Do what ``take_into`` does, and wait in a thread for at least one value.

        Returns True, False after the timeout, and None if waits were stopped. Another receiver may have taken the
        value.
        """

    def put_back(self, values: list[Any], /) -> None:
        """Put back values that were taken and have reached no caller, so that this process gets them next."""

    def peek(self, max_items: int, /) -> list[tuple[int, int, int, tuple[()] | tuple[Any], DecodeError | None]]:
        """Return the next items, at most ``max_items``, which stay in the queue; fewer if they have many bytes.

        Returns for each its number, its number of deliveries, its size in bytes, a tuple of its value, which is empty
        if the item is large or unreadable, and the DecodeError of an unreadable item.
        """

    def claim_now(self, limit: float, dead: bool, /) -> Claim | None:
        """Claim the next item, for ``limit`` seconds if that is not 0. Returns None if there is no item."""

    def wait_claim(self, limit: float, timeout: float | None, /) -> Claim | Literal[False] | None:
        """Wait in a thread for an item to claim. Returns False after the timeout, None if waits were stopped."""

    def reserve_now(self, len: int, body: bytes | None = None) -> Reservation | None:
        """Reserve memory of the queue for an item to fill in place. Returns None if there is no room.

        ``body``, if given, is the body of a value with one buffer of ``len`` bytes. Raises QueueShutDown.
        """

    def wait_reserve(self, len: int, body: bytes | None, timeout: float | None) -> Reservation | Literal[False] | None:
        """Do what ``reserve_now`` does, and wait in a thread for room.

        Returns False after the timeout, None if waits were stopped.
        """

    def task_done(self, count: int, /) -> bool:
        """Mark ``count`` items that this process got as done. Returns False if it has fewer unfinished items."""

    def is_done(self) -> bool:
        """Return True if all items that were put are done."""

    def wait_done(self, timeout: float | None, /) -> bool | None:
        """Wait in a thread until all items are done. Returns False after the timeout, None if waits were stopped."""

    def shut_down(self, immediate: bool, /) -> None:
        """Shut the queue down, so that nothing more can be put. With ``immediate``, drop waiting items."""

    def qsize(self) -> int:
        """Return the number of waiting items."""

    def may_take(self) -> bool:
        """Return True, as a hint, if an item may be waiting or the queue was shut down."""

    def glance(self) -> bool:
        """Spin for a moment before an event loop sleeps. Returns True if an item may be waiting."""

    def next_expiry(self) -> float | None:
        """Return the seconds until the next lease of a claim expires; None if there is none."""

    def wake(self, for_room: bool, /) -> None:
        """Wake the next waiter for room, or for an item."""

    def take_lost(self) -> int:
        """Return, once in a process, the number of items that were lost when all members were killed."""

    def check_may_put(self) -> None:
        """Raise QueueShutDown or LocalProtocolError if no put can succeed any longer."""

    def is_shut(self) -> bool:
        """Return True if the queue is shut down."""

    def may_put(self) -> bool:
        """Return True, as a hint, if there may be room."""

    def stats(self) -> dict[str, Any]:
        """Return the figures of the queue by name."""

@final
class PendingItems:
    """Encoded values that wait for room in a queue."""

    def put_now(self) -> bool:
        """Put the values. Returns False if there is no room."""

    def may_put(self) -> bool:
        """Return True, as a hint, if there may be room for the values."""

    def wait(self, timeout: float | None, /) -> bool | None:
        """Wait in a thread until the values are put. Returns True, False after the timeout, None if stopped."""

    @property
    def count(self) -> int:
        """Number of the values."""

@final
class Publisher:
    """The publishing end of a topic."""

    def __new__(
        cls,
        name: SharedObject,
        encoder: Encoder,
        encode: Callable[[Any], bytes | Parcel],
        unencodable: Callable[[Exception, int | None], Exception],
        limits: Sequence[int],
        /,
    ) -> Publisher: ...
    def publish_now(self, value: Any, /) -> PendingRecords | None:
        """Publish a value. Returns the encoded value if it must wait for room, otherwise None."""

    def publish_many_now(self, values: Iterable[Any], /) -> PendingRecords | None:
        """Publish values in turn. Returns the encoded rest that must wait for room, or None."""

    def reserve(self, size: int, body: bytes | None, /) -> PendingRecords | None:
        """Return a record of ``size`` bytes to fill in place; None for a small record, which is copied.

        ``body``, if given, is the body of a value with this one buffer. Raises ValueError for a record that can never
        have room.
        """

    def is_attached(self) -> bool:
        """Return True if all subscribers will receive the next message."""

    def attaching(self) -> AttachWait:
        """Return a wait until all subscribers have attached."""

    def subscribers(self) -> list[dict[str, Any]]:
        """Return a dict for each subscriber.

        A dict gives the process, the number of messages that it is behind (None if it reads nothing of this publisher)
        and has missed, the bytes of large messages that it reads in place, its policy and the policy's number.
        """

    def stats(self) -> tuple[int, int, int]:
        """Return the number of published messages, the bytes of large messages held, and the bytes of their memory."""

    def close(self, waits: bool = True, /) -> None:
        """Close the publisher. Idempotent.

        With ``waits``, the last handle of this process waits for a while until all subscribers have attached.
        """

@final
class AttachWait:
    """A wait until all subscribers of a topic have attached to the publisher."""

    def is_over(self) -> bool:
        """Return True if all subscribers have attached. If not, the caller may sleep until the next check."""

    def wait(self, timeout: float | None, /) -> bool | None:
        """Wait in a thread. Returns True, False after the timeout, None if waits were stopped."""

@final
class PendingRecords:
    """Values that wait for room in a topic, or a record that the program fills in place."""

    def reserve_now(self) -> bool:
        """Reserve the memory to fill. Returns False if there is no room now."""

    def reserve_or_sleep(self) -> bool:
        """Do what ``reserve_now`` does, for a caller that sleeps next if there is no room."""

    def wait_reserved(self, timeout: float | None, /) -> bool | None:
        """Wait for the memory in a thread. Returns True, False after the timeout, None if waits were stopped."""

    def give_up(self) -> None:
        """Free the memory of a record that was not published. Idempotent; does nothing for a published record."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    def publish_now(self) -> bool:
        """Publish as many records as there is room for. Returns False if some still wait."""

    def publish_or_sleep(self) -> bool:
        """Do what ``publish_now`` does, for a caller that sleeps next if some records still wait.

        The caller is woken once the slowest subscriber has read down to the low watermark.
        """

    def wait(self, timeout: float | None, /) -> bool | None:
        """Wait in a thread until all are published. Returns True, False after the timeout, None if stopped."""

    def slowest(self) -> tuple[int, int, Literal["records", "memory", "filling"]]:
        """Return the subscriber for which the next record waits.

        Returns its process, 0 if there is none, the number of messages that it is behind, and the resource that is
        short.
        """

    def waits_for_this_thread(self) -> bool:
        """Return True if the next record waits for a subscriber that only this thread has read."""

    @property
    def done(self) -> int:
        """Number of published records."""

    @property
    def count(self) -> int:
        """Number of all records."""

@final
class Subscription:
    """The receiving end of a topic."""

    def __new__(
        cls,
        name: SharedObject,
        encoder: Encoder,
        decode: Callable[[Any], Any],
        undecodable: Callable[[Exception, int | None], Exception],
        publisher: Callable[[int, int], Any],
        how: tuple[int, int, int | None, bool],
        /,
    ) -> Subscription: ...
    def get_now(self) -> Message | None:
        """Return the next message; None if there is none."""

    def take_into(self, got: list[Message], max_messages: int, /) -> bool:
        """Append up to ``max_messages`` waiting messages to ``got``, and return True if there were any.

        If a signal handler raises before this call returns, the messages are in ``got``, and the caller returns them by
        ``put_back``.
        """

    def wait_into(self, got: list[Message], max_messages: int, timeout: float | None, /) -> bool | None:
        """Do what ``take_into`` does, and wait in a thread for at least one message.

        Returns True, False after the timeout, and None if waits were stopped. Another reader may have taken the
        message.
        """

    def put_back(self, messages: list[Message], /) -> None:
        """Put back messages that were taken and have reached no caller, so that they are read next."""

    def may_wait(self) -> None:
        """Raise SlowConsumer again if the only publisher has dropped this subscriber: a wait would never end."""

    def may_receive(self) -> bool:
        """Return True, as a hint, if there may be a message to read or an error to raise.

        After the announcement of a sleep, the answer is exact.
        """

    def glance(self) -> bool:
        """Spin for a moment before an event loop sleeps. Returns True if there may be a message."""

    def fileno(self, is_left: bool, /) -> int:
        """Return a descriptor that is readable from the arrival of a message until a read finds none.

        With ``is_left``, it is readable now, because messages are left.
        """

    @property
    def lost(self) -> int:
        """Number of missed messages."""

    def publishers(self) -> list[int]:
        """Return the processes of the publishers that the subscriber reads."""

    def close(self) -> None:
        """Close the subscription. Messages in place stay readable. Idempotent."""

@final
class Message:
    """A message of a topic."""

    @property
    def value(self) -> Any:
        """The value."""

    @property
    def seq(self) -> int:
        """The number of the message among its publisher's messages."""

    @property
    def publisher(self) -> _PublishedBy:
        """The publisher of the message."""

@final
class Claim:
    """An item of a queue that this process has claimed."""

    @property
    def value(self) -> Any:
        """The value. Raises ValueError once the claim has ended."""

    @property
    def deliveries(self) -> int:
        """Number of deliveries of the item, including this one."""

    @property
    def number(self) -> int:
        """Position of the item in the order in which all items were put, from 0 on."""

    @property
    def is_held(self) -> bool:
        """True if the claim has not ended, as far as this process knows."""

    def acknowledge(self) -> bool:
        """End the claim, because the item is done. Returns False if the claim had ended.

        The program may still read the item's memory.
        """

    def nack(self) -> bool:
        """End the claim, and make the item the first one of the queue again. Returns False if the claim had ended."""

@final
class InPlaceBytes:
    """Read-only bytes of an item or a message in shared memory."""

    def to_bytes(self) -> bytes:
        """Return a copy of the bytes."""

    def private(self) -> bytearray:
        """Return a writable copy of the bytes."""

    def shared(self) -> NoReturn:
        """Raise BufferError, because no process may change these bytes."""

    def release(self) -> None:
        """Do nothing, because the item, the message or the last view of it frees the memory."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Reservation:
    """Memory of a queue that the program fills in place."""

    def put_now(self) -> bool:
        """Put the item. Returns False if the queue holds as many items as it may."""

    def may_put(self) -> bool:
        """Return True, as a hint, if there may be room for another item."""

    def wait(self, timeout: float | None, /) -> bool | None:
        """Wait in a thread until the item is put. Returns True, False after the timeout, None if waits were stopped."""

    def give_up(self) -> None:
        """Free the memory. Idempotent; does nothing once the item was put."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Permits:
    """Permits of a semaphore, or the single permit of a lock."""

    def __new__(cls, name: SharedObject, reentrant: bool) -> Self: ...
    def _owner(self) -> int:
        """Return the number of the current task or thread as an owner; 0 for a semaphore."""

    def _locked(self) -> bool:
        """Return True if an acquire would wait now, because no permit is free."""

    def _try(self, owner: int, is_apart: bool, /) -> bool:
        """Acquire a permit. Returns False if none is free. Raises LocalProtocolError for a lock that this owner has.

        With ``is_apart``, another task waits on behalf of the owner, which may release the lock meanwhile.
        """

    def _insist(self, owner: int, is_apart: bool, /) -> bool:
        """Do what ``_try`` does, for a task that has waited for long and may acquire a reserved permit."""

    def _regain(self) -> bool:
        """Acquire an abandoned permit of the current task or thread. Returns True if there was one.

        Without this, the caller would wait for itself.
        """

    def _give_back(self, owner: int, /) -> None:
        """Release a permit that this owner has acquired. Raises LocalProtocolError if the owner has none."""

    def release(self) -> None:
        """Release a permit, for the waiter that has waited longest.

        Raises LocalProtocolError if this process has no permit of the semaphore, or if this task or thread does not
        hold the lock.
        """

    def _acquire(self, timeout: float | None = None) -> Literal[True]:
        """Acquire a permit, and wait for at most ``timeout`` seconds until one is free. Return True.

        Raises WaitTimeout, which names holders, WaitStopped, SharedMemoryError if too many wait, or LocalProtocolError.
        """

    def _aenter(self) -> Awaitable[None]:
        """Enter ``async with``.

        No code runs between this call and the first step of the awaitable that it returns.
        """

    def _aexit(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None, /
    ) -> Awaitable[None]:
        """Leave ``async with``."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

class Signals:
    """The pending signals of a shared object."""

    def __new__(cls, name: SharedObject) -> Self: ...
    def _signal(self, count: int | None = None) -> None:
        """Add signals, each of which ends one ``wait()``, here or in another process, now or later.

        Signals stay pending after their sender has ended, as long as a process has the name open. Raises ValueError for
        a ``count`` that is no integer of 0 or more, and if more than 2^62 signals would be pending.
        """

    def drain(self) -> int:
        """Discard the pending signals, and return their number."""

    def _try(self) -> bool:
        """Take a pending signal. Returns False if there is none."""

    def _wait_signal(self, timeout: float | None = None) -> Literal[True]:
        """Wait for a signal for at most ``timeout`` seconds, and take it. Return True.

        Raises WaitTimeout, WaitStopped, SharedMemoryError if too many wait, and LocalProtocolError for a closed handle.
        """

@final
class StoreRef:
    """A weak reference to a store that this process has open, from which proxies are made."""

    def holder(self) -> int:
        """Return the process that changes the store at this moment; 0 if there is none."""

    def owner(self) -> int:
        """Return the id of the process that alone may change the store; 0: none, -1: in another container."""

    def may_write(self) -> bool:
        """Return True if this process may change the store."""

    def is_beside_sibling(self) -> bool:
        """Return True if another task of this thread is in a transaction."""

    def unwatch(self, watch: int, /) -> None:
        """End a watch of a container."""

    def has_class(self, number: int, /) -> bool:
        """Return True if other processes know the class of this number: the transaction that added it is committed."""

    def class_number(self, name: str, description: object, /) -> int:
        """Return the number of the class of this name, and add it with this description if there is none."""

    def classes(self) -> dict[str, Any]:
        """Return all classes in the order of their numbers, with their descriptions."""

class Store:
    """A handle of a store. All handles of a store in this process share its state.

    ``busy_timeout`` is the time in seconds for which an operation waits while another process changes the store.
    Methods raise StoreBusy, StoreFull and ObjectDeleted.
    """

    def __new__(cls, name: SharedObject, opened: object, busy_timeout: float) -> Self: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __delitem__(self, key: Any, /) -> None: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...
    def _check(self) -> None:
        """Raise LocalProtocolError if this handle is closed."""

    @property
    def _root_place(self) -> tuple[int, int]:
        """Address and number of the store's own dict."""

    @property
    def _store_ref(self) -> StoreRef:
        """The reference from which the store's proxies are made."""

    def _put(self, value: Any, is_back: bool = False, /) -> None:
        """Add a message. With ``is_back``, put a message that was taken at the front."""

    def _take(self, waits: bool = False, /) -> list[Any]:
        """Take the first message. Returns it in a list, which is empty if there is none.

        With ``waits``, the list is also empty while another task of this thread is in a transaction, whose end wakes
        the waiters.
        """

    def _take_into(self, got: list[Any], /) -> bool:
        """Append the first message to ``got``, and return True if there was one.

        If a signal handler raises before this call returns, the message is in ``got``.
        """

    def _peek(self) -> list[Any]:
        """Return a copy of the first message, which stays, in a list; an empty list if there is none."""

    def _has_messages(self) -> bool:
        """Return True if a message waits."""

    def _wait_for_message(self, timeout: float | None, /) -> bool | None:
        """Wait in this thread until a message may be there.

        Returns True, False after the timeout, None if waits were stopped.
        """

    def _usage(self) -> tuple[int, int, int, int]:
        """Return the bytes that values take, how many of these are free, the maximum, and the number of containers."""

    def _fail_over(self) -> int | None:
        """Move all members to a copy if one of them holds the store and makes no progress.

        Returns the process of that member, -1 if it runs in another container; None if no member holds the store.
        """

    def _saved(self) -> tuple[dict[str, tuple[str, ...]], bytearray]:
        """Return all classes as a dict, and all contents as bytes, of the same moment."""

    def _load(self, bytes: bytes, numbers: list[int], /) -> None:
        """Replace all contents by the contents that ``_saved`` returned as bytes.

        ``numbers`` are the numbers of the classes in this store. Raises ValueError for invalid bytes.
        """

class Transaction:
    """A transaction of a store. ``with`` begins and ends it in a thread."""

    def __new__(cls, store_ref: StoreRef, name: SharedObject, joins: bool, /) -> Self: ...
    @property
    def _is_late(self) -> bool:
        """True if a single operation of another process has delayed the transaction. The end of it wakes no waiter."""

    @property
    def _has_begun(self) -> bool:
        """True while the transaction runs."""

    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    def _own(self) -> None:
        """Make the current task or thread the owner, whichever task begins the transaction."""

    def _begin(self) -> bool:
        """Begin the transaction for its owner. Returns False if another owner is in a transaction."""

    def _end(self, is_kept: bool, /) -> None:
        """End the transaction, if it was begun. Its changes stay with ``is_kept``, otherwise they are undone."""

class Proxy:
    """Proxy of a container of a store, of any type."""

    def __new__(cls, store_ref: StoreRef, at: int, id: int) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def _place(self) -> tuple[int, int]:
        """Address and number of the container. No two containers have the same."""

    @property
    def _store_ref(self) -> StoreRef:
        """The reference from which further proxies of the store are made."""

    @property
    def _store_context(self) -> Any:
        """The context of the store in this process."""

    @property
    def _store_name(self) -> str:
        """The name of the store."""

    def _copy(self) -> Any:
        """Return a copy of the container as Python's own type."""

    def _copy_to_put(self) -> Any:
        """Return a copy to put elsewhere. A container that this process has removed is copied as it was then."""

    def _clear(self) -> None:
        """Remove all contents."""

    def _get(self, key: Any, default: Any, /) -> Any:
        """Return the value of a key, or ``default``."""

    def _pop(self, key: Any, default: Any, /) -> Any:
        """Remove a key, and return a copy of its value, or ``default``."""

    def _contains(self, key: object, /) -> bool:
        """Return True if the container has a key or a member."""

    def _keys(self) -> list[Any]:
        """Return a list of the keys or members."""

    def _items(self) -> list[tuple[Any, Any]]:
        """Return a list of the keys with their values."""

    def _insert(self, key: Any, /) -> bool:
        """Add a member to a set. Returns True if the set did not have it."""

    def _discard(self, key: Any, /) -> bool:
        """Remove a member of a set. Returns True if the set had it."""

    def _range(self, start: int, stop: int, /) -> list[Any]:
        """Return the items of a list from index ``start`` up to ``stop``."""

    def _splice(self, start: int, stop: int, values: list[Any], /) -> None:
        """Replace the items of a list from index ``start`` up to ``stop`` by these values."""

    def _permute(self, order: list[int], /) -> bool:
        """Put the items of a list in this order of indices. Returns False if their number has changed meanwhile."""

    def _remove(self, index: int, /) -> Any:
        """Remove an item of a list, and return a copy of it."""

    def _extra(self, name: str, /) -> list[Any]:
        """Return an extra attribute in a list, which is empty if there is none."""

    def _set_extra(self, name: str, value: Any, /) -> None:
        """Set an extra attribute."""

    def _drop_extra(self, name: str, /) -> bool:
        """Remove an extra attribute. Returns False if there is none."""

    def _watch(self) -> int:
        """Begin a watch of the container, and return the number of the watch."""

    def _has_changed(self, watch: int, /) -> bool:
        """Return True if the container has changed, or was deleted, since the watch began."""

    def _wait(self, watch: int, timeout: float | None, /) -> bool | None:
        """Wait in this thread until the container has changed.

        Returns True, False after the timeout, None if waits were stopped.
        """

    def _pin(self) -> tuple[MappedBytes, bytes]:
        """Pin a buffer. Returns its bytes in place, and its encoded description."""

class DictProxy(Proxy):
    """Proxy of a dict of a store."""

    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __delitem__(self, key: Any, /) -> None: ...
    def __contains__(self, key: object, /) -> bool: ...

class ListProxy(Proxy):
    """Proxy of a list of a store. ``_slice``, ``_set_slice`` and ``_delete_slice`` do what is not for single items."""

    def append(self, value: Any, /) -> None:
        """Add a value at the end."""

    def __getitem__(self, index: Any, /) -> Any: ...
    def __setitem__(self, index: Any, value: Any, /) -> None: ...
    def __delitem__(self, index: Any, /) -> None: ...

class StructProxy(Proxy):
    """Proxy of a record whose fields are indexed by the members of an IntEnum."""

    def __getitem__(self, field: int, /) -> Any: ...
    def __setitem__(self, field: int, value: Any, /) -> None: ...

@final
class RecordField:
    """A field of the records of a class: a Python descriptor."""

    def __new__(cls, number: int) -> Self: ...
    @property
    def number(self) -> int:
        """The number of the field."""

    def __get__(self, record: Any, owner: Any = None, /) -> Any: ...
    def __set__(self, record: Any, value: Any, /) -> None: ...

def add_to(container: Store | Proxy, key: Any, by: Any) -> Any:
    """Add to a number in a container, and return the sum; None if a number or the sum does not fit a cell.

    ``key`` is a key of a dict or a store, an index of a list, the number of a field of a struct, or the name of a field
    of an object.
    """
