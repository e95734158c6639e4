"""Values that the workers of a pool share: written once into sealed memory, which every worker maps."""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from shmrpc.errors import SharedMemoryError
from shmrpc.values.pickling import dumps_beside

#: Alignment of buffers, in bytes.
_ALIGNMENT: Final = 64
#: Bytes below which values are sent with each task, which is faster than mapping them.
_MIN_SHARED_BYTES: Final = 1024
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class SharedFile(NamedTuple):
    """A file without a name, which holds values, and which the process of the pool keeps open."""

    pid: int
    descriptor: int
    #: Proof that the descriptor still is the file's.
    inode: int
    size: int


class ValueRef:
    """A reference to a value in a file. Unpickling a reference gives the value.

    ``parts``: offset and length, in bytes, of its pickle and of each buffer of the pickle.
    """

    __slots__ = ("file", "parts")

    def __init__(self, file: SharedFile, parts: tuple[tuple[int, int], ...]) -> None:
        self.file, self.parts = file, parts

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_value, (*self.file, self.parts)


class _Pickled(NamedTuple):
    """A pickle, and the buffers beside it."""

    data: bytes
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        """Bytes of the pickle and its buffers."""
        return len(self.data) + sum(map(len, self.buffers))


class SharedValues:
    """The values that a pool has shared.

    ``on_released`` is called with the inode of a file, in any thread, once no value of the file is left.
    """

    def __init__(self, on_released: Callable[[int], None]) -> None:
        self._on_released = on_released
        #: By the id of a value: its reference, and a function that returns the value, or None if the value is gone.
        self.refs: dict[int, tuple[ValueRef, Callable[[], Any]]] = {}

    def share(self, values: Sequence[Any]) -> list[Any]:
        """Write values into one file, and return the values as read from there. Slow: call in a thread.

        Returns the values themselves if their pickles have less than 1 KiB in all. Raises SharedMemoryError if there is
        no memory, and what pickling raises.
        """
        pickled = [_pickle(value) for value in values]
        if sum(each.size for each in pickled) < _MIN_SHARED_BYTES:
            return list(values)
        descriptor = os.memfd_create("shmrpc-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            size, parts = _write(descriptor, pickled)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            file = SharedFile(os.getpid(), descriptor, os.fstat(descriptor).st_ino, size)
            memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                size = sum(each.size for each in pickled)
                raise SharedMemoryError(f"no memory to share {size:,} bytes with workers: {error}") from None
            raise
        owner = _FileOwner(file, self._on_released)
        return [self._register(_read(memory, each), ValueRef(file, each), owner) for each in parts]

    def _register(self, value: Any, ref: ValueRef, owner: _FileOwner) -> Any:
        """Keep the reference of a value as long as the value lives; return the value.

        If the value allows no weak reference, keep both as long as the pool.
        """
        key = id(value)

        def forget(_: object, owner: _FileOwner = owner) -> None:
            self.refs.pop(key, None)

        try:
            self.refs[key] = ref, weakref.ref(value, forget)
        except TypeError:
            self.refs[key] = ref, lambda: (value, owner)[0]
        return value

    def close(self) -> None:
        """Drop all references, which closes the files; values that the program holds stay valid."""
        self.refs.clear()

    def replace_values(self, values: Iterable[Any]) -> list[Any]:
        """Return the values, with a reference in the place of each shared one."""
        return list(map(self.replace_value, values))

    def replace_value(self, value: Any) -> Any:
        """Return the reference of a shared value; return any other value unchanged."""
        known = self.refs.get(id(value))
        return known[0] if known is not None and known[1]() is value else value


class _FileOwner:
    """The owner of a file. The file is closed when no reference to the owner, and so to a value, is left."""

    def __init__(self, file: SharedFile, on_released: Callable[[int], None]) -> None:
        weakref.finalize(self, _close, file, on_released).atexit = False


def _close(file: SharedFile, on_released: Callable[[int], None]) -> None:
    """Close a file, and call ``on_released`` with its inode."""
    os.close(file.descriptor)
    on_released(file.inode)


def _pickle(value: Any) -> _Pickled:
    """Pickle a value, with its buffers beside the pickle. Raises what pickling raises."""
    return _Pickled(*dumps_beside(value, 0))


def _write(descriptor: int, pickled: Iterable[_Pickled]) -> tuple[int, list[tuple[tuple[int, int], ...]]]:
    """Write values one after the other; return the length of all in bytes, and the parts of each value.

    Raises OSError if there is no memory.
    """
    end, values = 0, []
    for each in pickled:
        parts = []
        for data in (memoryview(each.data), *each.buffers):
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
            parts.append((end, len(data)))
            written = 0
            while written < len(data):  # One call writes at most 2 GiB.
                written += os.pwrite(descriptor, data[written:], end + written)
            end += len(data)
        values.append(tuple(parts))
    return end, values


def _read(memory: mmap.mmap, parts: Sequence[Sequence[int]]) -> Any:
    """Return the value whose pickle and buffers are at ``parts``. Its arrays are read-only views of the memory."""
    data, *buffers = [memoryview(memory)[start : start + size] for start, size in parts]
    return pickle.loads(data, buffers=buffers)


#: Files that a worker has mapped, by inode, and the values read from each, by their first byte.
_files: Final[dict[int, tuple[mmap.mmap, dict[int, Any]]]] = {}


def _load_value(pid: int, descriptor: int, inode: int, size: int, parts: Sequence[Sequence[int]]) -> Any:
    """Return the value of a reference, in a worker, which reads each value once.

    Raises SharedMemoryError if the file cannot be mapped.
    """
    known = _files.get(inode)
    if known is None:
        known = _files[inode] = _map(pid, descriptor, inode, size), {}
    memory, values = known
    start = parts[0][0]
    if start not in values:
        values[start] = _read(memory, parts)
    return values[start]


def _map(pid: int, descriptor: int, inode: int, size: int) -> mmap.mmap:
    """Map a file through the descriptor of the pool's process. Raises SharedMemoryError if the pool has closed it."""
    try:
        with open(f"/proc/{pid}/fd/{descriptor}", "rb") as file:
            if os.fstat(file.fileno()).st_ino == inode:
                return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        reason = "it was released"
    except OSError as error:
        reason = str(error)
    raise SharedMemoryError(f"cannot map a value that process {pid} shares with its workers: {reason}")


def forget_file(inode: int) -> None:
    """Forget a file and its values, in a worker. Values that tasks have kept stay valid."""
    _files.pop(inode, None)
