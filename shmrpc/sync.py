"""Calling from a program without an event loop; any number of threads may share a client."""

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
