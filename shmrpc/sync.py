"""Calling from a program without an event loop; any number of threads may share a client."""

from shmrpc.client.sync_client import Client, connect
from shmrpc.client.sync_stream_call import StreamCall
from shmrpc.equals.attach import blocking_attach as attach
from shmrpc.equals.blocking_queue import BlockingQueue as Queue
from shmrpc.equals.blocking_queue import blocking_queue as queue
from shmrpc.equals.event import BlockingEvent as Event
from shmrpc.equals.lock import BlockingLock as Lock
from shmrpc.equals.memory import BlockingMemory as Memory
from shmrpc.equals.memory import blocking_memory as memory
from shmrpc.equals.semaphore import BlockingSemaphore as Semaphore

__all__ = [
    "Client",
    "Event",
    "Lock",
    "Memory",
    "Queue",
    "Semaphore",
    "StreamCall",
    "attach",
    "connect",
    "memory",
    "queue",
]
