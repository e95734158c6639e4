"""The native core: see core/src/lib.rs for its contract."""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from types import TracebackType
from typing import Any, Literal, Self, final

class ChannelError(Exception):
    """The channel is closed, or the peer broke the rules; it must not be used any more."""

class PeerLeft(ChannelError):
    """The peer has left: its end of the bell is closed. Nothing was sent."""

class Overtaken(Exception):
    """Another thread has begun a call with a higher id. Nothing was sent: it may go with a new id."""

class Oversize(Exception):
    """The payload is over the channel's limit. Nothing was sent."""

class Backlog(Exception):
    """Too much waits already for the peer to read. Nothing was sent."""

class NoMemory(Exception):
    """There is no shared memory for this: what was asked for, and what there is."""

    #: The system's reason; None if it is not the system's.
    errno: int | None

class Unheard(NoMemory):
    """The peer cannot be told of new shared memory: it has closed its end, or is gone."""

class Unmapped(Exception):
    """This process has no room to map the memory that a frame's body or buffers lie in."""

    #: Of what there is no more.
    errno: int

@final
class Buffer:
    """A buffer in shared memory. As long as it lives, and any view of it, the memory is used for nothing else."""

    def to_bytes(self) -> bytes: ...
    def private(self) -> View: ...
    def shared(self) -> View: ...
    def release(self) -> None: ...
    @property
    def released(self) -> bool: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class View:
    """A writable mapping of a buffer."""

    def detach(self) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Parcel:
    """A body, and the buffers that it refers to by their places. Read as bytes it is its body."""

    def __new__(cls, body: bytes, buffers: Iterable[Any], /) -> Parcel: ...
    @property
    def body(self) -> bytes: ...
    @property
    def buffers(self) -> tuple[Any, ...]: ...
    @property
    def weight(self) -> int: ...
    def with_body(self, body: bytes, /) -> Parcel: ...
    def drop_buffers(self) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Descriptor:
    """An open file of this process. It is closed when this goes."""

    @staticmethod
    def pair() -> tuple[Descriptor, Descriptor]: ...
    def fileno(self) -> int: ...
    def is_local_packets(self) -> bool: ...
    def close(self) -> None: ...

@final
class Isolation:
    """Enters copies of a context, one after the other, each until the next ``renew`` or ``leave``."""

    def __new__(cls, base: Context, /) -> Isolation: ...
    def rebase(self, base: Context, /) -> None: ...
    def call_each(
        self, function: Callable[..., Any], calls: list[tuple[Any, ...]], results: list[Any], until: int, /
    ) -> None: ...
    def renew(self) -> None: ...
    def current(self) -> Context | None: ...
    def leave(self) -> None: ...

@final
class Encoder:
    """Values to bytes: MessagePack's own types here, unless ``reference`` is said; other values by the functions."""

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
    ) -> Encoder: ...
    def encode(self, value: Any, /) -> bytes | Parcel: ...
    def encode_all(self, values: Sequence[Any], /) -> bytes | Parcel: ...
    def forget(self) -> None: ...

@final
class Expected:
    """A declared type of the plain ones; see core/src/python/msgpack/expected.rs."""

    def __new__(
        cls,
        scalars: Sequence[str],
        *,
        dtypes: Sequence[str] | None = None,
        each: Expected | None = None,
        is_tuple: bool = False,
        items: Sequence[Expected] | None = None,
        keys: Expected | None = None,
        values: Expected | None = None,
    ) -> Expected: ...
    def read(self, body: bytes | Parcel, /) -> Any: ...

@final
class Ids:
    """Counts up from 1."""

    def __new__(cls) -> Ids: ...
    def __call__(self) -> int: ...

@final
class ShortCall:
    """An endpoint of a connection, as the core calls it by itself; see core/src/python/short_call.rs."""

    def __new__(
        cls,
        *,
        encoder: Encoder,
        ids: Ids,
        expected: Expected | None,
        read: Callable[[bytes | Parcel], Any],
        positional: int,
        keywords: int,
        timed: int,
        timeout: int | None,
        clock_ahead: int,
        inheriting: list[bool] | None,
        nearest: Callable[[int | None], int | None],
    ) -> ShortCall: ...

@final
class CallCoroutine:
    """One call of a LoopEndpoint; a collections.abc.Coroutine."""

class Endpoint:
    """Calls an endpoint, and looks like a function."""

@final
class LoopEndpoint(Endpoint):
    """Calls an endpoint in an event loop: ``function`` in the core, and ``rest`` for a call that has to wait."""

    def __new__(
        cls,
        channel: Channel,
        short: ShortCall,
        function: Callable[..., Coroutine[Any, Any, Any]],
        rest: Callable[[Sequence[Any], Mapping[str, Any], int, Any, int | None], Coroutine[Any, Any, Any]],
        interrupted: Callable[[BaseException], None],
        /,
    ) -> LoopEndpoint: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]: ...

@final
class ThreadEndpoint(Endpoint):
    """Calls an endpoint and waits: ``function`` in the core, and ``rest`` for a call that has to wait."""

    def __new__(
        cls,
        calls: Calls,
        short: ShortCall,
        function: Callable[..., Any],
        rest: Callable[[Sequence[Any], Mapping[str, Any], int, Any, int | None], Any],
        stopped: list[bool],
        reconnector: object,
        session: object,
        /,
    ) -> ThreadEndpoint: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

@final
class Coroutines:
    """Runs coroutines, each in its first step and then as a task; see core/src/python/handler.rs."""

    def __new__(
        cls,
        *,
        is_full: Callable[[Any], bool],
        start: Callable[[Coroutine[Any, Any, Any], Any, str, int, int | None, int], Any],
        later: object,
    ) -> Coroutines: ...

@final
class Handler:
    """A function, and the types of its parameters; see core/src/python/handler.rs."""

    def __new__(
        cls,
        name: str,
        function: Callable[..., Any],
        *,
        by_count: Sequence[Expected | None],
        parameters: Sequence[tuple[str, Expected, bool]],
        places: int,
        coroutines: Coroutines | None,
    ) -> Handler: ...

@final
class Handlers:
    """The endpoints whose calls the core runs, by number; see core/src/python/handler.rs."""

    def __new__(
        cls,
        handlers: Sequence[Handler | None],
        *,
        encoder: Encoder,
        isolation: Isolation,
        running: Running,
        inheriting: list[bool],
        clock_ahead: int,
        encode: Callable[[str, Any], bytes | Parcel],
        fail: Callable[[Any, int, BaseException], None],
        positional: int,
        keywords: int,
        timed: int,
    ) -> Handlers: ...

@final
class Serving:
    """The calls of one client that the core may run, until it is closed."""

    def __new__(cls, handlers: Handlers, calls: dict[int, Any], waiting: dict[int, Any], /) -> Serving: ...
    def close(self) -> None: ...

@final
class Running:
    """What a thread's loop runs between taking a frame and answering it."""

    #: What was set, or of a request that the core runs (key, opcode, id, deadline); None between frames.
    frame: Any
    def __new__(cls) -> Running: ...

@final
class PostInit:
    """Lets ``complete`` set what an instance has not of the fields ``names`` in its `__dict__`; then calls ``own``."""

    def __new__(
        cls, names: Sequence[str], complete: Callable[[Any], None], own: Callable[[Any], object] | None
    ) -> PostInit: ...
    def __call__(self, instance: Any, /) -> None: ...

@final
class Channel:
    """One side of a connection: frames to the peer and from it."""

    def __new__(
        cls,
        *,
        segment: int,
        capacity: int,
        server: bool,
        bell: int,
        semaphores: tuple[str, str] | None,
        owner: int,
        lending: int,
        blocking: bool,
        max_frame: int,
        max_memory: int,
        spin: float,
        answer: int,
    ) -> Channel: ...
    def send(self, opcode: int, id: int, payload: bytes | Parcel, /) -> bool: ...
    def begin(self, opcode: int, id: int, payload: bytes | Parcel, /) -> bool: ...
    def receive_run(self, opcode: int, id: int, most: int, head: bytes, /) -> tuple[int, bytes] | None: ...
    def exchange(
        self, opcode: int, id: int, payload: bytes | Parcel, /
    ) -> bytes | tuple[int, int, bytes | Parcel] | None: ...
    def receive(self) -> tuple[int, int, bytes | Parcel] | None: ...
    def wake(self) -> bool: ...
    def park(self) -> bool: ...
    def unpark(self) -> None: ...
    def is_stalled(self) -> bool: ...
    def is_awaited(self) -> bool: ...
    def is_behind(self) -> bool: ...
    def untaken(self) -> tuple[int, int, int, int]: ...
    def take_back(self, id: int, kinds: bytes, /) -> bool: ...
    def take_back_all(self, id: int, /) -> None: ...
    def has_frame(self) -> bool: ...
    def reached(self) -> int: ...
    def allocate(self, len: int, /) -> Buffer: ...
    def memory(self) -> tuple[int, int]: ...
    def close(self) -> None: ...

@final
class Calls:
    """What the threads that share a channel have under way on it. One of them receives for all."""

    def __new__(
        cls,
        channel: Channel,
        *,
        answers: list[int],
        others: bytes,
        item: int,
        requests: bytes,
        cancel: int,
        nothing: bytes,
        window: int,
        overhead: int,
        look: float,
    ) -> Calls: ...
    def __len__(self) -> int: ...
    def exchange(self, opcode: int, id: int, payload: bytes | Parcel, /) -> bytes | Parcel | Pending: ...
    def begin(self, opcode: int, id: int, payload: bytes | Parcel, /) -> Pending: ...
    def close(self, id: int, /) -> None: ...
    def tend(self, limit: float, /) -> bool: ...
    def interrupt(self) -> None: ...

@final
class Pending:
    """A call that is under way. When it goes, nobody waits for the call any more."""

    @property
    def id(self) -> int: ...
    def next(self, limit: float, /) -> tuple[int, int, bytes | Parcel] | None: ...
    def take_back(self) -> bool: ...
    def close(self) -> None: ...

@final
class Turns:
    """Whose turn it is to do what one thread does at a time. A thread may come again."""

    def take(self) -> Turn | None: ...

@final
class Turn:
    """A turn that a thread has. It ends when it is said so, or goes."""

    def end(self) -> None: ...

@final
class StreamSender:
    """The sending end of a stream: its frames, its credit, and its slice of the loop's time."""

    def __new__(cls, channel: Channel, opcode: int, id: int, credit: int, overhead: int, /) -> StreamSender: ...
    def send(self, payload: bytes | Parcel, /) -> bool: ...
    def grant(self, size: int, /) -> None: ...
    def resume(self) -> bool: ...

@final
class Poller:
    """The receiving side of a server: the next frame on any of its channels."""

    def __new__(cls, *, spin: float, fault: int, answer: int) -> Poller: ...
    def add(self, channel: Channel, key: Any, serving: Serving | None, /) -> int: ...
    def remove(self, index: int, /) -> None: ...
    def wake(self, index: int, /) -> bool: ...
    def set_spinning(self, spinning: bool, /) -> None: ...
    def next(self) -> tuple[Any, int, int, Any] | None: ...
    def send_next(
        self, channel: Channel, opcode: int, id: int, payload: bytes | Parcel, /
    ) -> tuple[Any, int, int, Any] | Literal[True] | None: ...
    def rest(self) -> bool: ...

def segment_size(capacity: int, /) -> int: ...
def create_segment(name: str, size: int, /) -> Descriptor | None: ...
def open_segment(name: str, /) -> Descriptor: ...
def watch_for_names(directories: list[str], /) -> Descriptor: ...
def receive_packet(socket: int, size: int, /) -> tuple[bytes, list[Descriptor], bool, int]: ...
def shorten_time_slice(nanoseconds: int, /) -> bool: ...

@final
class Name:
    """A semaphore, a lock, an event or a memory that this process has open."""

    def __new__(cls, name: str, lock_file: str, kind: str, amount: int) -> Name: ...
    @staticmethod
    def join(name: str, lock_file: str, /) -> Name | None: ...
    @staticmethod
    def look(name: str, lock_file: str, /) -> dict[str, Any] | None: ...
    @staticmethod
    def leave_all() -> None: ...
    def close(self) -> None: ...
    @property
    def is_closed(self) -> bool: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def amount(self) -> int: ...
    def report(self) -> dict[str, Any]: ...
    def signal(self, count: int, /) -> None: ...
    def try_signal(self) -> bool: ...
    def wait_signal(self, timeout: float | None, /) -> bool | None: ...
    def drain(self) -> int: ...
    def event(self) -> int: ...
    def has_passed(self, since: int, /) -> bool: ...
    def wait_event(self, timeout: float | None, /) -> bool | None: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def stop(self, stopped: bool, /) -> None: ...
    @property
    def is_stopped(self) -> bool: ...
    def prepare(self) -> None: ...
    def sleeper(self, signals: bool, /) -> LoopSleeper: ...
    def bytes(self) -> Bytes: ...

@final
class Bytes:
    """The bytes that the members of a name share, by the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class LoopSleeper:
    """The place of an event loop among those that wait for what a name has."""

    def fileno(self) -> int: ...
    def line_up(self) -> None: ...
    def announce(self) -> None: ...
    def withdraw(self) -> None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...

class Hold:
    """What is acquired and released of a name."""

    def __new__(cls, name: Name, reentrant: bool) -> Self: ...
    def _owner(self) -> int: ...
    def _try(self, owner: int, /) -> bool: ...
    def _wait_for(self, owner: int, timeout: float | None, /) -> bool | None: ...
    def _give_back(self, owner: int, /) -> None: ...
    def release(self) -> None:
        """Releases it, to whoever has waited for it the longest.

        Raises LocalProtocolError if this process has no permit of the semaphore, or this task or thread does not hold
        the lock.
        """

    def _acquire(self, timeout: float | None = None) -> None:
        """Waits until it is acquired, for ``timeout`` seconds at most.

        Raises WaitTimeout, which names who has it, and WaitStopped after ``stop()``.
        """

    def _aenter(self) -> Awaitable[None]: ...
    def _aexit(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> Awaitable[None]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
