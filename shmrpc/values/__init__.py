"""Values that MessagePack does not carry unchanged: Python's own types, arrays, buffers and registered classes."""

from shmrpc.values.blocks import Block
from shmrpc.values.registry import register
from shmrpc.values.sharing import WRITABLE, Writable, block_of, can_be_writable, is_writable, writable

__all__ = ["WRITABLE", "Block", "Writable", "block_of", "can_be_writable", "is_writable", "register", "writable"]
