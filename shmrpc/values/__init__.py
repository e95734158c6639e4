"""What MessagePack does not carry as it is: Python's own types, arrays and buffers, and the classes of users."""

from shmrpc.values.blocks import Block
from shmrpc.values.leases import WRITABLE, Writable, block_of, is_writable, writable
from shmrpc.values.registry import register

__all__ = ["WRITABLE", "Block", "Writable", "block_of", "is_writable", "register", "writable"]
