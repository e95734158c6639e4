"""Stores are saved to files, and loaded from them: whole, or with an error, and then nothing has changed."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import enum
import fcntl
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess

#: A name that no other run of these tests has.
OURS = f"storefiles{os.getpid()}"


@shmrpc.shared
@dataclasses.dataclass
class Piece:
    """Put the values of a program into a store."""

    name: str
    at: tuple[int, int] = (0, 0)
    parts: list[Any] = dataclasses.field(default_factory=list)


@shmrpc.shared(open=True)
class Loose:
    """One that has attributes beyond its fields."""

    size: int = 0


class Figures(enum.IntEnum):
    """Of a struct."""

    calls = 0
    errors = 1


VALUES: dict[Any, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 1 << 47, -(1 << 60), 1 << 200],
    "floats": [0.5, float("inf"), -0.0],
    "texts": ["", "short", "a text that is too long for a cell", "ä€"],
    "bytes": [b"", b"few", b"x" * 1000],
    "times": [datetime.datetime(2026, 1, 2, 3, 4), datetime.timedelta(1), decimal.Decimal("1.5"), slice(1, 2)],
    "nested": {"a": {"b": [1, [2, (3, frozenset({4, "five and more"}))]]}, "empty": [[], {}, set(), ()]},
    "set": {1, "two", (3, "four"), datetime.date(2026, 1, 1)},
    "bytearray": bytearray(b"y" * 5000),
    1: "an int as a key",
    (1, "two"): "a tuple",
    decimal.Decimal("0.1"): "a decimal",
    None: "none",
    b"bytes as a key, which are long": 1,
}


def test_saved_values_are_loaded_again(runtime: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    loose = Loose(3)
    loose.colour = "red"  # type: ignore[attr-defined]
    with shmrpc.sync.store(OURS) as store:
        store.update(VALUES)
        store["piece"] = Piece("ada", (1, 2), [Piece("within")])
        store["loose"] = loose
        store["frame"] = np.arange(12, dtype="f4").reshape(3, 4)
        store.struct(Figures, {Figures.errors: 5})
        store.inbox.put("a message")
        store.save(path)
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    with shmrpc.sync.store(OURS) as store:
        store["before"] = old = None
        store["list"] = [1]
        old = store["list"]
        store.inbox.put("of the new one")
        store.load(path)
        for key, value in VALUES.items():
            assert _plain(store[key]) == value
        assert len(store) == len(VALUES) + 4, "nothing else is in it"
        assert store["set"] == VALUES["set"]
        assert (1, "two") in store
        assert store["piece"].copy() == Piece("ada", (1, 2), [Piece("within")])
        assert isinstance(store["piece"].parts[0], Piece)
        assert store["loose"].colour == "red"
        assert (store["frame"] == np.arange(12, dtype="f4").reshape(3, 4)).all()
        assert store.struct(Figures)[Figures.errors] == 5
        with pytest.raises(shmrpc.ObjectDeleted):
            old.append(2)
        assert store.inbox.take() == "of the new one"
        assert not store.inbox.has_messages(), "messages are not saved"
        store["piece"].parts.append(1)
        store.load(path)
        assert store["piece"].parts == [Piece("within")]


def _plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytearray(value)
    return value.copy() if hasattr(value, "_copy") else value


def test_a_loop_saves_and_loads_too(runtime: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with shmrpc.store(OURS) as store:
            store["a"] = [1]
            await store.save(tmp_path / "saved")
            store["a"].append(2)
            await store.load(tmp_path / "saved")
            assert store.copy() == {"a": [1]}

    asyncio.run(main())


def test_a_saved_file_is_a_snapshot_and_watchers_notice_a_load(runtime: Path, tmp_path: Path) -> None:
    with shmrpc.sync.store(OURS) as store, MemberProcess() as member:
        store.update(one=0, other=0, rest=list(range(2000)))
        store.save(tmp_path / "begin")
        member.begin(
            f"s = sync.store({OURS!r})\nwhile 'end' not in s:\n"
            "    with s.transaction():\n        s['one'] += 1; s['other'] -= 1"
        )
        while not store["one"]:
            pass
        moments = []
        for number in range(30):
            store.save(tmp_path / str(number))
        store["end"] = True
        member.end()
        for number in range(30):
            store.load(tmp_path / str(number))
            assert store["one"] + store["other"] == 0
            moments.append(store["one"])
        assert moments == sorted(moments)
        assert moments[0] < moments[-1]
        changed = threading.Thread(target=store.wait_changed, args=(30,))
        changed.start()
        while store.stats().made and not changed.is_alive():
            pass
        while changed.is_alive():
            store.load(tmp_path / "begin")
        member.do("s.close()")


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda data: b"", "is not a saved store"),
    "foreign": (lambda data: b"PK\x03\x04" + data[4:], "is not a saved store"),
    "cut off in its head": (lambda data: data[:40], "is cut off: it has 40 bytes"),
    "cut off": (lambda data: data[:-1], "is damaged: it has .* bytes instead of the"),
    "longer": (lambda data: data + b"\0", "is damaged: it has .* bytes instead of the"),
    "newer": (lambda data: data[:16] + struct.pack("<I", 2) + data[20:], "has format version 2"),
    "another bit": (lambda data: data[:-3] + bytes([data[-3] ^ 4]) + data[-2:], "its checksum is wrong"),
    "another head": (lambda data: data[:40] + bytes([data[40] ^ 4]) + data[41:], "its checksum is wrong"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_none_changes_nothing(runtime: Path, tmp_path: Path, damage: str) -> None:
    change, message = DAMAGES[damage]
    path = tmp_path / "saved"
    with shmrpc.sync.store(OURS) as store:
        store["list"] = [1, "a text that is too long for a cell"]
        store.save(path)
        path.write_bytes(change(path.read_bytes()))
        store["list"].append(2)
        kept = store["list"]
        with pytest.raises(shmrpc.DecodeError, match=message):
            store.load(path)
        assert store.copy() == {"list": [1, "a text that is too long for a cell", 2]}
        kept.append(3)
        assert len(kept) == 4
        with pytest.raises(FileNotFoundError):
            store.load(tmp_path / "missing")


def _forged(values: bytes, classes: bytes = b"[]") -> bytes:
    """Write a file with these values and a correct checksum."""
    head = b"\x89shmrpc-store\r\n\x1a" + struct.pack("<IIQ", 1, len(classes), len(values))
    return head + hashlib.sha256(head + classes + values).digest() + classes + values


def _cell(word: int) -> bytes:
    return b"\0" + struct.pack("<Q", word)


DICT = b"\x11" + struct.pack("<Q", 1) + _cell(2 << 48 | 1 << 40 | ord("k"))
FORGED: dict[str, bytes] = {
    "no dict": _cell(4 << 48),
    "nothing": b"",
    "more items than bytes": b"\x11" + struct.pack("<Q", 1 << 62),
    "a cell that is a reference": DICT + _cell(5 << 48 | 16 << 40 | 4096),
    "a type that there is not": DICT + b"\x63",
    "a key as a value": DICT + b"\x07" + struct.pack("<Q", 0),
    "a class that there is not": DICT + b"\x13" + struct.pack("<IQQ", 7, 0, 0),
    "deeper than any value": DICT + (b"\x10" + struct.pack("<Q", 1)) * 5000 + _cell(4 << 48),
    "more behind it": DICT + _cell(4 << 48) + b"more",
    "the same key twice": b"\x11" + struct.pack("<Q", 2) + (DICT[9:] + _cell(4 << 48)) * 2,
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_forged_file_changes_nothing(runtime: Path, tmp_path: Path, forged: str) -> None:
    path = tmp_path / "saved"
    path.write_bytes(_forged(FORGED[forged]))
    with shmrpc.sync.store(OURS) as store:
        store["list"] = [1]
        with pytest.raises(shmrpc.DecodeError, match="is damaged: "):
            store.load(path)
        assert store.copy() == {"list": [1]}
        path.write_bytes(_forged(DICT + _cell(4 << 48)))
        store.load(path)
        assert store.copy() == {"k": None}, "the same without the corruption is read"


def test_a_class_with_other_fields_raises_and_an_unknown_one_when_it_is_read(runtime: Path, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    with shmrpc.sync.store(OURS) as store:
        store["piece"] = Piece("ada")
        store.save(path)
        data = path.read_bytes()
        name = f"{__name__}:Piece".encode()
        known = data[64 : 64 + struct.unpack_from("<I", data, 20)[0]]
        values = data[64 + len(known) :]
        path.write_bytes(_forged(values, known.replace(b'"parts"', b'"party"')))
        with pytest.raises(shmrpc.DecodeError, match=r"has the fields name, at, party there, and name, at, parts in"):
            store.load(path)
        assert store["piece"].name == "ada"
        path.write_bytes(_forged(values, known.replace(name, name + b"Gone")))
        store.load(path)
        with pytest.raises(shmrpc.DecodeError, match="PieceGone of an object in the store cannot be imported here"):
            store["piece"]


def test_a_file_for_which_there_is_no_room_changes_nothing(runtime: Path, tmp_path: Path) -> None:
    with shmrpc.sync.store(OURS, max_memory="16MiB") as store:
        store["large"] = bytearray(12 << 20)
        store.save(tmp_path / "saved")
    with shmrpc.sync.store(OURS, max_memory="1MiB") as store:
        store["list"] = [1]
        with pytest.raises(shmrpc.StoreFull):
            store.load(tmp_path / "saved")
        assert store.copy() == {"list": [1]}


def test_a_save_that_fails_leaves_the_file_that_was_there(runtime: Path, tmp_path: Path) -> None:
    with shmrpc.sync.store(OURS) as store:
        store["n"] = 1
        store.save(tmp_path / "saved")
        with pytest.raises(FileNotFoundError) as missing:
            store.save(tmp_path / "missing" / "saved")
        assert missing.value.filename == str(tmp_path / "missing" / "saved")
        (tmp_path / "directory").mkdir()
        with pytest.raises(IsADirectoryError):
            store.save(tmp_path / "directory")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "saved"], "nothing half done is left"
        store["n"] = 2
        store.save(tmp_path / "saved")
        store["n"] = 3
        store.load(tmp_path / "saved")
        assert store["n"] == 2


def test_a_link_is_followed_and_stays_one(runtime: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link, dangling, loop = tmp_path / "link", tmp_path / "dangling", tmp_path / "loop"
    (folder / "there").write_text("old")
    link.symlink_to("elsewhere/there")
    dangling.symlink_to(folder / "new")
    loop.symlink_to("loop")
    with shmrpc.sync.store(OURS) as store:
        store["n"] = 1
        for path in (link, dangling):
            store.save(path)
            assert path.is_symlink()
        with pytest.raises(OSError, match="link") as refused:
            store.save(loop)
        assert refused.value.filename == str(loop)
        for name in ("there", "new"):
            store.clear()
            store.load(folder / name)
            assert store.copy() == {"n": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "elsewhere", "link", "loop"]


def test_a_target_that_is_no_file_is_not_replaced(runtime: Path, tmp_path: Path) -> None:
    fifo, bound = tmp_path / "fifo", tmp_path / "socket"
    os.mkfifo(fifo)
    with socket.socket(socket.AF_UNIX) as listening, shmrpc.sync.store(OURS) as store:
        listening.bind(str(bound))
        (tmp_path / "link").symlink_to(fifo)
        terminals = os.openpty()
        device = Path(os.ttyname(terminals[1]))
        (tmp_path / "device").symlink_to(device)
        store["n"] = 1
        before = {path: path.lstat().st_mode for path in [*tmp_path.iterdir(), device]}
        for path in before:
            with pytest.raises(OSError, match="no regular file") as refused:
                store.save(path)
            assert refused.value.filename == str(path)
        assert {path: path.lstat().st_mode for path in [*tmp_path.iterdir(), device]} == before
        for terminal in terminals:
            os.close(terminal)


SAVES = """
import os, signal, sys
import shmrpc
from shmrpc.stores import files

written = os.fsync
def killed(descriptor):
    os.kill(os.getpid(), signal.SIGKILL)

with shmrpc.sync.store(sys.argv[1]) as store:
    store["n"] = 1
    if "named" in sys.argv:
        os.O_TMPFILE = os.O_DIRECTORY | os.O_EXCL | os.O_CREAT  # As a file system says that has none.
    if "linked" in sys.argv:
        os.replace = lambda one, other: killed(0)
    else:
        os.fsync = killed
    store.save(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["unnamed", "named", "linked"])
def test_the_file_of_a_killed_save_is_removed_by_the_next_one(runtime: Path, tmp_path: Path, how: str) -> None:
    path, others = tmp_path / "saved", [".saved.txt", ".saved.0123456789abcdef", ".other.0123456789abcdef.saving"]
    for name in others:
        (tmp_path / name).write_text("of another program")
    command = [sys.executable, "-c", SAVES, f"{OURS}.killed", str(path), how]
    assert subprocess.run(command, timeout=90, check=False).returncode == -signal.SIGKILL
    left = {each.name for each in tmp_path.iterdir()} - {*others}
    assert len(left) == (how != "unnamed")
    if left:
        being_written = tmp_path / f".saved.{'0' * 16}.saving"
        being_written.touch()
        with being_written.open() as locked, shmrpc.sync.store(OURS) as store:
            fcntl.flock(locked, fcntl.LOCK_EX)
            store.save(path)
            assert being_written.exists(), "another process is writing it"
    with shmrpc.sync.store(OURS) as store:
        store.save(path)
    assert {each.name for each in tmp_path.iterdir()} == {"saved", *others}


def test_a_load_within_a_transaction_is_a_part_of_it(runtime: Path, tmp_path: Path) -> None:
    with shmrpc.sync.store(OURS) as store:
        store["n"] = 1
        store.save(tmp_path / "saved")
        store["n"] = 2
        with pytest.raises(ZeroDivisionError), store.transaction():
            store.load(tmp_path / "saved")
            assert store["n"] == 1
            store["n"] = 1 // 0
        assert store["n"] == 2
