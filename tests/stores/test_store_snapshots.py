"""Copies of a store that others change without end are of one moment; the bytes of its values as memoryviews."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shmrpc
import shmrpc.sync
from tests.helpers.member_process import MemberProcess

#: A name that no other run of these tests has.
OURS = f"storesnapshots{os.getpid()}"
ACCOUNTS = 300

MOVES = """
import random
dice = random.Random({seed})
with sync.store({name!r}, busy_timeout=30.0) as s:
    banks = [s["world"]["banks"][0], s["world"]["banks"][1]]
    while "end" not in s:
        with s.transaction():
            one, other = dice.sample(range({accounts}), 2)
            banks[0]["accounts"][one] -= 1
            banks[1]["accounts"][other] += 1
            banks[0]["moved"] = banks[1]["moved"] = {{"by": [{seed}, "a text that is too long for a cell"]}}
            banks[0]["accounts"].append(banks[0]["accounts"].pop(0))
            s["world"]["moves"] += 1
"""

#: The ways to copy, each with the part of the copy that is the same at each moment.
SNAPSHOTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "the store": (lambda s: s.copy(), lambda found: _total(found["world"])),
    "a subtree": (lambda s: s["world"].copy(), lambda found: _total(found)),
    "a list of it": (lambda s: s["world"]["banks"].copy(), lambda found: _total({"banks": found})),
}


def _total(world: dict[str, Any]) -> int:
    one, other = world["banks"]
    assert len(one["accounts"]) == len(other["accounts"]) == ACCOUNTS
    assert one["moved"] == other["moved"]
    total: int = sum(one["accounts"]) + sum(other["accounts"])
    return total


@pytest.mark.parametrize("what", SNAPSHOTS)
def test_a_snapshot_beside_writers_is_of_one_moment_and_comes_to_an_end(runtime: Path, what: str) -> None:
    take, total = SNAPSHOTS[what]
    with shmrpc.sync.store(OURS, busy_timeout=30.0) as store, MemberProcess() as one, MemberProcess() as other:
        banks = [{"accounts": [10] * ACCOUNTS, "moved": None} for _ in range(2)]
        store["world"] = {"banks": banks, "moves": 0}
        for seed, member in enumerate((one, other)):
            member.begin(MOVES.format(seed=seed, name=OURS, accounts=ACCOUNTS))
        while store["world"]["moves"] < 10:
            pass
        taken, begun = 0, store["world"]["moves"]
        while taken < 200 or store["world"]["moves"] < begun + 50:  # The others go on meanwhile.
            assert total(take(store)) == 2 * 10 * ACCOUNTS
            taken += 1
        store["end"] = True
        one.end()
        other.end()


BYTES: dict[str, tuple[Any, bytes, bool]] = {
    "bytes": (b"some bytes, and a few more", b"some bytes, and a few more", True),
    "few bytes": (b"ab", b"ab", True),
    "text": ("a text that is too long for a cell: ä", "a text that is too long for a cell: ä".encode(), True),
    "bytearray": (bytearray(b"xyz"), b"xyz", False),
    "array": (np.arange(6, dtype="<u2").reshape(2, 3), np.arange(6, dtype="<u2").tobytes(), False),
    "a number as an array": (np.array(7, "<u4"), b"\7\0\0\0", False),
    "times": (np.array(["2026-01-01"], "M8[D]"), np.array(["2026-01-01"], "M8[D]").tobytes(), False),
}


@pytest.mark.parametrize("what", BYTES)
def test_the_bytes_of_a_value_are_had_in_place(runtime: Path, what: str) -> None:
    value, expected, is_readonly = BYTES[what]
    with shmrpc.sync.store(OURS) as store:
        store["it"] = value
        store["list"] = [value]
        view = shmrpc.get_buffer(store, "it")
        assert (view.tobytes(), view.readonly, view.ndim, view.itemsize) == (expected, is_readonly, 1, 1)
        assert shmrpc.get_buffer(store["list"], 0) == view
        if not is_readonly:
            view[0] = 99
            assert shmrpc.get_buffer(store, "it")[0] == 99, "it is the memory of the store"
            assert shmrpc.get_buffer(store["list"], 0)[0] == expected[0]
        del store["it"]
        store["other"] = bytearray(10_000)
        assert view[1:] == expected[1:], "the memory stays as long as the view"
        del view
        gc.collect()


def test_a_value_without_bytes_is_refused(runtime: Path) -> None:
    with shmrpc.sync.store(OURS) as store:
        store["list"], store["n"] = [1], 1
        for key in ("list", "n"):
            with pytest.raises(TypeError, match="expected bytes, bytearray, str, an array or a tensor"):
                shmrpc.get_buffer(store, key)
        with pytest.raises(KeyError):
            shmrpc.get_buffer(store, "no")
