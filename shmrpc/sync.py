"""Public API for programs without an event loop. Waits block the calling thread; threads may share all objects."""

import typing as _typing

from shmrpc.basics.lazy_import import lazy_attributes as _lazy_attributes

if _typing.TYPE_CHECKING:
    from shmrpc.client.threads.client import Client
    from shmrpc.client.threads.factory import connect
    from shmrpc.client.threads.stream_call import StreamCall
    from shmrpc.discovery.attach import blocking_attach as attach
    from shmrpc.locks.event import BlockingEvent as Event
    from shmrpc.locks.lock import BlockingLock as Lock
    from shmrpc.locks.semaphore import BlockingSemaphore as Semaphore
    from shmrpc.locks.signal import BlockingSignal as Signal
    from shmrpc.pools.blocking_pool import BlockingPool as Pool
    from shmrpc.pools.blocking_pool import blocking_pool as pool
    from shmrpc.queues.blocking_queue import BlockingQueue as Queue
    from shmrpc.queues.blocking_queue import blocking_queue as queue
    from shmrpc.shared_memory.memory import BlockingMemory as Memory
    from shmrpc.shared_memory.memory import blocking_memory as memory
    from shmrpc.stores.store import BlockingStore as Store
    from shmrpc.stores.store import blocking_store as store
    from shmrpc.topics.blocking_subscription import BlockingSubscription as Subscription
    from shmrpc.topics.blocking_subscription import blocking_subscribe as subscribe
    from shmrpc.topics.blocking_topic import BlockingTopic as Topic
    from shmrpc.topics.blocking_topic import blocking_topic as topic

#: Modules of the names, imported on first use, so that a program that only calls does not wait for pools and stores.
_HOMES = {
    "Client": "shmrpc.client.threads.client",
    "Event": "shmrpc.locks.event:BlockingEvent",
    "Lock": "shmrpc.locks.lock:BlockingLock",
    "Memory": "shmrpc.shared_memory.memory:BlockingMemory",
    "Pool": "shmrpc.pools.blocking_pool:BlockingPool",
    "Queue": "shmrpc.queues.blocking_queue:BlockingQueue",
    "Semaphore": "shmrpc.locks.semaphore:BlockingSemaphore",
    "Signal": "shmrpc.locks.signal:BlockingSignal",
    "Store": "shmrpc.stores.store:BlockingStore",
    "StreamCall": "shmrpc.client.threads.stream_call",
    "Subscription": "shmrpc.topics.blocking_subscription:BlockingSubscription",
    "Topic": "shmrpc.topics.blocking_topic:BlockingTopic",
    "attach": "shmrpc.discovery.attach:blocking_attach",
    "connect": "shmrpc.client.threads.factory",
    "memory": "shmrpc.shared_memory.memory:blocking_memory",
    "pool": "shmrpc.pools.blocking_pool:blocking_pool",
    "queue": "shmrpc.queues.blocking_queue:blocking_queue",
    "store": "shmrpc.stores.store:blocking_store",
    "subscribe": "shmrpc.topics.blocking_subscription:blocking_subscribe",
    "topic": "shmrpc.topics.blocking_topic:blocking_topic",
}

__all__ = [
    "Client",
    "Event",
    "Lock",
    "Memory",
    "Pool",
    "Queue",
    "Semaphore",
    "Signal",
    "Store",
    "StreamCall",
    "Subscription",
    "Topic",
    "attach",
    "connect",
    "memory",
    "pool",
    "queue",
    "store",
    "subscribe",
    "topic",
]

if not _typing.TYPE_CHECKING:  # A type checker would accept any name otherwise.
    __getattr__, __dir__ = _lazy_attributes(__name__, globals(), __all__, _HOMES)
