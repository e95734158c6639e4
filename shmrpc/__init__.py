"""Call another Python process on the same host at memory speed.

>>> import shmrpc
>>> calculator = shmrpc.Service("calculator")
>>> @calculator.endpoint
... def add(a: int, b: int) -> int:
...     return a + b

Serve it with ``shmrpc serve MODULE:calculator`` or ``async with shmrpc.serve(calculator)``; call it with
``async with shmrpc.connect("calculator") as client: await client.add(1, 2)``, and from a program without a
loop with ``with shmrpc.sync.connect("calculator") as client: client.add(1, 2)``.
"""

import importlib as _importlib
import sys as _sys
import typing as _typing

if not _sys.platform.startswith("linux"):
    raise ImportError(f"shmrpc runs on Linux only; this is {_sys.platform}")

from shmrpc.basics.import_hints import in_sub_interpreter as _in_sub_interpreter

# The native module belongs to the interpreter that loads it first: its load here would take it from the main one.
if _in_sub_interpreter():
    raise ImportError(
        "shmrpc does not support sub-interpreters: import it in the main interpreter, and use threads or processes"
        " (shmrpc.pool) instead of sub-interpreters"
    )

try:
    _importlib.import_module("shmrpc._core")
except ImportError as _error:
    from shmrpc.basics.import_hints import missing_core_error as _missing_core_error

    raise _missing_core_error(_error) from None

from shmrpc._core import Message
from shmrpc.basics.lazy_import import lazy_attributes as _lazy_attributes
from shmrpc.basics.renamed import raise_if_renamed as _raise_if_renamed
from shmrpc.basics.version import VERSION
from shmrpc.errors import (
    ApplicationError,
    CallError,
    CallStopped,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    EncodeError,
    EndOfStream,
    EndpointNotFound,
    FrameTooLarge,
    InvalidArguments,
    LocalProtocolError,
    MessagesLost,
    NameConflict,
    ObjectDeleted,
    Overloaded,
    PoolBroken,
    ProtocolError,
    PublisherGone,
    QueueBusy,
    QueueEmpty,
    QueueFull,
    QueueShutDown,
    RemoteError,
    RemoteProtocolError,
    ServiceInUse,
    ServiceUnavailable,
    SharedMemoryError,
    ShmrpcError,
    SlowConsumer,
    StaleClaim,
    StoreBusy,
    StoreFull,
    TopicFull,
    WaitStopped,
    WaitTimeout,
    WorkerDied,
)
from shmrpc.server.executors import set_process_factory as _set_process_factory
from shmrpc.service.call import Call, current_call
from shmrpc.service.marks import endpoint
from shmrpc.service.service import Group, Service
from shmrpc.values import Writable, register
from shmrpc.values.sharing import Leased, leased

if _typing.TYPE_CHECKING:
    from shmrpc import atomic, sync
    from shmrpc.client.aio.client import Client
    from shmrpc.client.aio.factory import connect
    from shmrpc.client.aio.stream_call import StreamCall
    from shmrpc.discovery.attach import attach
    from shmrpc.discovery.members import Member, members
    from shmrpc.introspection.describe import Description
    from shmrpc.locks.event import Event
    from shmrpc.locks.lock import Lock
    from shmrpc.locks.semaphore import Semaphore
    from shmrpc.locks.signal import Signal
    from shmrpc.pools.factory import pool
    from shmrpc.pools.pool import Pool, PoolStats, WorkerStats
    from shmrpc.pools.task_future import TaskFuture
    from shmrpc.pools.worker.current_worker import Worker, worker
    from shmrpc.queues.claim import Claim
    from shmrpc.queues.queue import Queue, queue
    from shmrpc.queues.queue_base import DeadLetters
    from shmrpc.queues.queue_stats import HeldItem, QueueStats, WaitingItem
    from shmrpc.server.server import Server, serve
    from shmrpc.shared_memory.memory import Memory, memory
    from shmrpc.stores.changes import Changes, watch
    from shmrpc.stores.container_items import get_buffer
    from shmrpc.stores.records import SharedStruct, shared
    from shmrpc.stores.store import Store, store
    from shmrpc.stores.store_base import StoreStats
    from shmrpc.topics.slow_policy import Disconnect, KeepLast
    from shmrpc.topics.subscription import Subscription, subscribe
    from shmrpc.topics.subscription_base import Publisher
    from shmrpc.topics.topic import Topic, topic
    from shmrpc.topics.topic_base import Subscriber

__version__ = VERSION

#: Modules of the names that are imported on first use, so that a program without stores and pools does not wait for
#: their import.
_LATER = {
    "shmrpc.client.aio.client": "Client",
    "shmrpc.client.aio.factory": "connect",
    "shmrpc.client.aio.stream_call": "StreamCall",
    "shmrpc.discovery.attach": "attach",
    "shmrpc.queues.claim": "Claim",
    "shmrpc.locks.event": "Event",
    "shmrpc.locks.lock": "Lock",
    "shmrpc.discovery.members": "Member members",
    "shmrpc.shared_memory.memory": "Memory memory",
    "shmrpc.queues.queue": "Queue queue",
    "shmrpc.queues.queue_base": "DeadLetters",
    "shmrpc.queues.queue_stats": "HeldItem QueueStats WaitingItem",
    "shmrpc.locks.semaphore": "Semaphore",
    "shmrpc.locks.signal": "Signal",
    "shmrpc.stores.changes": "Changes watch",
    "shmrpc.stores.container_items": "get_buffer",
    "shmrpc.stores.records": "SharedStruct shared",
    "shmrpc.stores.store": "Store store",
    "shmrpc.stores.store_base": "StoreStats",
    "shmrpc.topics.subscription": "Subscription subscribe",
    "shmrpc.topics.slow_policy": "Disconnect KeepLast",
    "shmrpc.topics.subscription_base": "Publisher",
    "shmrpc.topics.topic": "Topic topic",
    "shmrpc.topics.topic_base": "Subscriber",
    "shmrpc.introspection.describe": "Description",
    "shmrpc.pools.factory": "pool",
    "shmrpc.pools.pool": "Pool PoolStats WorkerStats",
    "shmrpc.pools.task_future": "TaskFuture",
    "shmrpc.pools.worker.current_worker": "Worker worker",
    "shmrpc.server.server": "Server serve",
}

_HOMES = {name: module for module, names in _LATER.items() for name in names.split()}


# A server's processes are a pool, and a pool's workers are servers: this connects the two without an import cycle.
_set_process_factory(lambda: _importlib.import_module("shmrpc.pools.handler_processes").HandlerProcesses())

__all__ = [
    "ApplicationError",
    "Call",
    "CallError",
    "CallStopped",
    "Changes",
    "Claim",
    "Client",
    "ConnectionLost",
    "DeadLetters",
    "DeadlineExceeded",
    "DecodeError",
    "Description",
    "Disconnect",
    "EncodeError",
    "EndOfStream",
    "EndpointNotFound",
    "Event",
    "FrameTooLarge",
    "Group",
    "HeldItem",
    "InvalidArguments",
    "KeepLast",
    "Leased",
    "LocalProtocolError",
    "Lock",
    "Member",
    "Memory",
    "Message",
    "MessagesLost",
    "NameConflict",
    "ObjectDeleted",
    "Overloaded",
    "Pool",
    "PoolBroken",
    "PoolStats",
    "ProtocolError",
    "Publisher",
    "PublisherGone",
    "Queue",
    "QueueBusy",
    "QueueEmpty",
    "QueueFull",
    "QueueShutDown",
    "QueueStats",
    "RemoteError",
    "RemoteProtocolError",
    "Semaphore",
    "Server",
    "Service",
    "ServiceInUse",
    "ServiceUnavailable",
    "SharedMemoryError",
    "SharedStruct",
    "ShmrpcError",
    "Signal",
    "SlowConsumer",
    "StaleClaim",
    "Store",
    "StoreBusy",
    "StoreFull",
    "StoreStats",
    "StreamCall",
    "Subscriber",
    "Subscription",
    "TaskFuture",
    "Topic",
    "TopicFull",
    "WaitStopped",
    "WaitTimeout",
    "WaitingItem",
    "Worker",
    "WorkerDied",
    "WorkerStats",
    "Writable",
    "atomic",
    "attach",
    "connect",
    "current_call",
    "endpoint",
    "get_buffer",
    "leased",
    "members",
    "memory",
    "pool",
    "queue",
    "register",
    "serve",
    "shared",
    "store",
    "subscribe",
    "sync",
    "topic",
    "watch",
    "worker",
]

if not _typing.TYPE_CHECKING:  # A type checker would accept any name otherwise.
    _find, __dir__ = _lazy_attributes(__name__, globals(), __all__, _HOMES)

    def __getattr__(name: str) -> object:
        if name in ("atomic", "sync"):
            return _importlib.import_module(f"shmrpc.{name}")  # The import sets the attribute of the package.
        _raise_if_renamed(__name__, name)
        return _find(name)
