"""Values that the workers of a pool share: written once into memory that nobody can change, and mapped by all."""

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

#: Bytes to a multiple of which buffers begin.
_ALIGNMENT: Final = 64
#: A value of fewer bytes is sent with each task: that is quicker than to look for it.
_SMALL: Final = 1024
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class File(NamedTuple):
    """Where values lie: a file without a name, which the process of the pool keeps open."""

    pid: int
    descriptor: int
    #: By which it is known that the descriptor is still its.
    inode: int
    size: int


class Place:
    """Where one value lies in a file: its pickle, and the buffers that this refers to, as (first byte, bytes)."""

    __slots__ = ("file", "parts")

    def __init__(self, file: File, parts: tuple[tuple[int, int], ...]) -> None:
        self.file, self.parts = file, parts

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker that reads it has the value."""
        return _value_at, (*self.file, self.parts)


class _Pickled(NamedTuple):
    data: bytes
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        return len(self.data) + sum(map(len, self.buffers))


class SharedValues:
    """The values that a pool has shared. ``released`` is called once nothing is left of a file, in any thread."""

    def __init__(self, released: Callable[[int], None]) -> None:
        self._released = released
        #: By the value's id, which is checked: where it lies, and the value or what refers to it weakly.
        self.places: dict[int, tuple[Place, Callable[[], Any]]] = {}

    def share(self, values: Sequence[Any]) -> list[Any]:
        """Writes values into one file; the values as they lie there. It takes a while: to be run in a thread.

        Raises SharedMemoryError if there is no memory, and what pickling raises.
        """
        pickled = [_pickle(value) for value in values]
        if sum(each.size for each in pickled) < _SMALL:
            return list(values)
        descriptor = os.memfd_create("shmrpc-shared", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            size, parts = _write(descriptor, pickled)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            file = File(os.getpid(), descriptor, os.fstat(descriptor).st_ino, size)
            memory = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                size = sum(each.size for each in pickled)
                raise SharedMemoryError(f"no memory for {size:,} bytes that workers are to share: {error}") from None
            raise
        holder = _Holder(file, self._released)
        return [self._keep(_read(memory, each), Place(file, each), holder) for each in parts]

    def _keep(self, value: Any, place: Place, holder: _Holder) -> Any:
        """Knows a value from now on, until nobody has it; one that cannot be referred to weakly, for ever."""
        key = id(value)

        def forget(_: object, holder: _Holder = holder) -> None:
            self.places.pop(key, None)

        try:
            self.places[key] = place, weakref.ref(value, forget)
        except TypeError:
            self.places[key] = place, lambda: (value, holder)[0]
        return value

    def close(self) -> None:
        """Knows none any more: files are closed, and what is there of values lasts."""
        self.places.clear()

    def placed(self, values: Iterable[Any]) -> list[Any]:
        """The values, with places for those that are shared."""
        return list(map(self.place_of, values))

    def place_of(self, value: Any) -> Any:
        """Where a value lies that is shared; any other as it is."""
        known = self.places.get(id(value))
        return known[0] if known is not None and known[1]() is value else value


class _Holder:
    """Closes a file once no value that lies in it is known."""

    def __init__(self, file: File, released: Callable[[int], None]) -> None:
        weakref.finalize(self, _close, file, released).atexit = False


def _close(file: File, released: Callable[[int], None]) -> None:
    os.close(file.descriptor)
    released(file.inode)


def _pickle(value: Any) -> _Pickled:
    return _Pickled(*dumps_beside(value, 0))


def _write(descriptor: int, pickled: Iterable[_Pickled]) -> tuple[int, list[tuple[tuple[int, int], ...]]]:
    """Writes values one behind the other; the bytes of all, and the parts of each."""
    end, values = 0, []
    for each in pickled:
        parts = []
        for data in (memoryview(each.data), *each.buffers):
            end = -(-end // _ALIGNMENT) * _ALIGNMENT
            parts.append((end, len(data)))
            written = 0
            while written < len(data):  # Some GiB at a time, without the GIL.
                written += os.pwrite(descriptor, data[written:], end + written)
            end += len(data)
        values.append(tuple(parts))
    return end, values


def _read(memory: mmap.mmap, parts: Sequence[Sequence[int]]) -> Any:
    data, *buffers = [memoryview(memory)[start : start + size] for start, size in parts]
    return pickle.loads(data, buffers=buffers)


#: In a worker, by its inode: a file, and the values of it that were read, by where they begin.
_files: Final[dict[int, tuple[mmap.mmap, dict[int, Any]]]] = {}


def _value_at(pid: int, descriptor: int, inode: int, size: int, parts: Sequence[Sequence[int]]) -> Any:
    """In a worker: the value at a place."""
    known = _files.get(inode)
    if known is None:
        known = _files[inode] = _map(pid, descriptor, inode, size), {}
    memory, values = known
    start = parts[0][0]
    if start not in values:
        values[start] = _read(memory, parts)
    return values[start]


def _map(pid: int, descriptor: int, inode: int, size: int) -> mmap.mmap:
    try:
        with open(f"/proc/{pid}/fd/{descriptor}", "rb") as file:
            if os.fstat(file.fileno()).st_ino == inode:
                return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        reason = "it was released"
    except OSError as error:
        reason = str(error)
    raise SharedMemoryError(f"a value that process {pid} shares with its workers cannot be mapped: {reason}")


def forget(inode: int) -> None:
    """In a worker: forgets a file. What tasks have kept of it lasts."""
    _files.pop(inode, None)
