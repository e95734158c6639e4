"""Calling from a program without an event loop; any number of threads may share a client."""

from shmrpc.client.sync_client import Client, connect
from shmrpc.client.sync_stream_call import StreamCall

__all__ = ["Client", "StreamCall", "connect"]
