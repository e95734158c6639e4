"""Calling from a program without an event loop; any number of threads may share a client."""

import typing as _typing

from shmrpc.basics.later import later as _later

if _typing.TYPE_CHECKING:
    from shmrpc.client.sync_client import Client, connect
    from shmrpc.client.sync_stream_call import StreamCall
    from shmrpc.equals.attach import blocking_attach as attach
    from shmrpc.equals.blocking_queue import BlockingQueue as Queue
    from shmrpc.equals.blocking_queue import blocking_queue as queue
    from shmrpc.equals.blocking_subscription import BlockingSubscription as Subscription
    from shmrpc.equals.blocking_subscription import blocking_subscribe as subscribe
    from shmrpc.equals.blocking_topic import BlockingTopic as Topic
    from shmrpc.equals.blocking_topic import blocking_topic as topic
    from shmrpc.equals.event import BlockingEvent as Event
    from shmrpc.equals.lock import BlockingLock as Lock
    from shmrpc.equals.memory import BlockingMemory as Memory
    from shmrpc.equals.memory import blocking_memory as memory
    from shmrpc.equals.semaphore import BlockingSemaphore as Semaphore
    from shmrpc.equals.stores.store import BlockingStore as Store
    from shmrpc.equals.stores.store import blocking_store as store
    from shmrpc.pools.blocking_pool import BlockingPool as Pool
    from shmrpc.pools.blocking_pool import blocking_pool as pool

#: Where the names are: a program that only calls is not to wait for pools and stores.
_HOMES = {
    "Client": "shmrpc.client.sync_client",
    "Event": "shmrpc.equals.event:BlockingEvent",
    "Lock": "shmrpc.equals.lock:BlockingLock",
    "Memory": "shmrpc.equals.memory:BlockingMemory",
    "Pool": "shmrpc.pools.blocking_pool:BlockingPool",
    "Queue": "shmrpc.equals.blocking_queue:BlockingQueue",
    "Semaphore": "shmrpc.equals.semaphore:BlockingSemaphore",
    "Store": "shmrpc.equals.stores.store:BlockingStore",
    "StreamCall": "shmrpc.client.sync_stream_call",
    "Subscription": "shmrpc.equals.blocking_subscription:BlockingSubscription",
    "Topic": "shmrpc.equals.blocking_topic:BlockingTopic",
    "attach": "shmrpc.equals.attach:blocking_attach",
    "connect": "shmrpc.client.sync_client",
    "memory": "shmrpc.equals.memory:blocking_memory",
    "pool": "shmrpc.pools.blocking_pool:blocking_pool",
    "queue": "shmrpc.equals.blocking_queue:blocking_queue",
    "store": "shmrpc.equals.stores.store:blocking_store",
    "subscribe": "shmrpc.equals.blocking_subscription:blocking_subscribe",
    "topic": "shmrpc.equals.blocking_topic:blocking_topic",
}

__all__ = [
    "Client",
    "Event",
    "Lock",
    "Memory",
    "Pool",
    "Queue",
    "Semaphore",
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

if not _typing.TYPE_CHECKING:  # Else no name would be unknown to a type checker.
    __getattr__, __dir__ = _later(__name__, globals(), __all__, _HOMES)
