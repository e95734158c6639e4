"""LMDB: a map in a file that all processes map, changed in transactions of one writer at a time.

Nothing is synchronized with the disk; each number is eight bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import lmdb

from benchmark.processes import Rendezvous
from benchmark.queue_work import Part
from benchmark.store_work import FIELDS, KEYS, Kept, ValueStore, keys, nine, one, ten
from benchmark.subjects import Loop

_ROOM: Final = 64 << 20


class _Environment:
    loop: Loop = "none"

    def __init__(self, place: Rendezvous) -> None:
        self.place = place

    @contextlib.contextmanager
    def open(self, part: Part) -> Iterator[Kept]:
        path = f"{self.place.directory}/lmdb"
        with lmdb.open(path, map_size=_ROOM, sync=False, metasync=False, writemap=True, max_readers=64) as env:
            names: dict[str, Any] = {"env": env, "begin": env.begin, "number": _number, "packed": _packed}
            changed = "txn.put(b'{name}', packed(number(txn.get(b'{name}')) + 1))"
            one_each = f"with begin(write=True) as txn: {changed}"
            with_keys = {**names, "encoded": {key: key.encode() for key in KEYS}}
            encoded = [key.encode() for key in KEYS]

            def reset() -> None:
                with env.begin(write=True) as txn:
                    for name in FIELDS:
                        txn.put(name.encode(), _packed(0))
                    for key in encoded:
                        txn.put(key, _packed(1))

            def values(wanted: list[bytes]) -> list[int]:
                with env.begin() as txn:
                    return [_number(txn.get(key) or b"") for key in wanted]

            yield Kept(
                reset,
                lambda: values([name.encode() for name in FIELDS]),
                nine(one_each, **names),
                one(one_each, **names),
                one("with begin() as txn: number(txn.get(b'{name}'))", **names),
                ten(changed, "with begin(write=True) as txn:", **names),
                keys("with begin() as txn: number(txn.get(encoded[key]))", **with_keys),
                keys("with begin(write=True) as txn: txn.put(encoded[key], packed(7))", **with_keys),
                keys(
                    "with begin(write=True) as txn: txn.put(encoded[key], packed(number(txn.get(encoded[key])) + 1))",
                    **with_keys,
                ),
                lambda: sum(values(encoded)),
            )


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _packed(number: int) -> bytes:
    return number.to_bytes(8, "little")


@contextlib.contextmanager
def connect(place: Rendezvous) -> Iterator[ValueStore]:
    """Yield each process opens it by itself: it must not be inherited."""
    yield _Environment(place)
