"""A value comes out of a store equal and of its type, or is refused when it is put in: by each way in and out."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import types
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy._core.defchararray import chararray  # `numpy.char` gives it with a warning since NumPy 2.5.

import shmrpc
import shmrpc.sync
from shmrpc.stores.shared_container import SharedContainer
from tests.helpers.member_process import MemberProcess
from tests.stores.shared_classes import Player
from tests.stores.stored_types import (
    Access,
    Codes,
    Colour,
    Digest,
    Folded,
    Frame,
    Level,
    Money,
    Name,
    Noted,
    Position,
    Ratio,
    Registered,
    State,
)

#: A name that no other run of these tests has.
OURS = f"storevalues{os.getpid()}"
LARGE = 100_000


@pytest.fixture
def s() -> Iterator[shmrpc.sync.Store]:
    with shmrpc.sync.store(OURS) as opened:
        yield opened


#: Values that come out as they are.
SAME: dict[str, Any] = {
    "large memoryview": memoryview(b"x" * LARGE),
    "memoryview of floats": memoryview(array.array("d", [1.5, 2.5])),
    "large registered": Frame(b"y" * LARGE),
    "registered dataclass": Registered(Colour.RED, [1]),
    "registered class derived from dict": Codes(a=1),
    "range": range(3),
    "slice of large": slice(b"z" * LARGE, Colour.RED, (1, Position(2))),
    "array.array": array.array("i", range(LARGE)),
    "uuid": uuid.UUID(int=7),
    "path": pathlib.Path("/a/b"),
    "fraction": fractions.Fraction(1, 3),
    "enum": Colour.BLUE,
    "str enum": State.RUNNING,
    "int enum": Level.HIGH,
    "flags": Access.READ | Access.WRITE,
    "derived text": Name("ada"),
    "derived int": Money(5),
    "derived float": Ratio(1.5),
    "derived bytes": Digest(b"abc"),
    "named tuple": Position(1, (Level.LOW, [2])),
    "numpy int": np.int64(5),
    "numpy float": np.float32(0.1),
    "numpy bool": np.bool_(True),
    "numpy text": np.str_("abc"),
    "long double": np.longdouble(1) / 3,
    "moment in ns": np.datetime64("2020-01-01T00:00:00.123456789"),
    "span": np.timedelta64(5, "M"),
    "structured row": np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])[0],
    "array of dates": np.array(["2020-01-01"], "M8[D]"),
    "structured array": np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "empty array": np.zeros((0, 3)),
    "array without dimensions": np.array(2.5),
    "timedelta": datetime.timedelta(microseconds=5),
}


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


@pytest.mark.parametrize("value", SAME.values(), ids=SAME)
def test_a_value_comes_out_equal_and_of_its_type(s: shmrpc.sync.Store, value: Any, tmp_path: Path) -> None:
    s["it"] = value
    s["nested"] = [{"in": (value, 1)}]
    s.inbox.put((value,))
    assert _is_same(s["it"], value)
    assert _is_same(s["nested"][0]["in"][0], value)
    assert _is_same(s.copy()["nested"][0]["in"][0], value)
    assert _is_same(dict(s)["it"], value)
    s.save(tmp_path / "saved")
    assert _is_same(s.pop("it"), value)
    s.load(tmp_path / "saved")
    assert _is_same(s["it"], value)
    assert _is_same(s.inbox.take()[0], value)


@pytest.mark.slow
@pytest.mark.parametrize("value", SAME.values(), ids=SAME)
def test_another_process_finds_it_equal_and_of_its_type(s: shmrpc.sync.Store, other: MemberProcess, value: Any) -> None:
    s["it"] = value
    other.do("import tests.stores.stored_types")
    other.do(f"s = sync.attach({OURS!r}); s['back'] = s['it']; s.close()")
    assert _is_same(s["back"], value)


@dataclasses.dataclass
class Unregistered:
    value: int = 1


class Local(msgspec.Struct):
    value: int = 1


def _inner_enum() -> enum.Enum:
    class Inner(enum.Enum):
        A = 1

    return Inner.A


def _noted() -> Noted:
    noted = Noted("a")
    noted.note = "more than text"
    return noted


#: Values that would come out as something else.
REFUSED: dict[str, Any] = {
    "masked array": np.ma.masked_array([1, 2], [True, False]),
    "record array": np.rec.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")]),
    "character array": np.array(["a"]).view(chararray),
    "array of objects": np.array([None]),
    "array of texts of any length": np.array(["a"], np.dtypes.StringDType()),
    "ordered dict": collections.OrderedDict(a=1),
    "default dict": collections.defaultdict(list),
    "counter": collections.Counter("a"),
    "deque": collections.deque([1]),
    "user dict": collections.UserDict(a=1),
    "user string": collections.UserString("abc"),
    "mapping proxy": types.MappingProxyType({}),
    "keys": {}.keys(),
    "values": {}.values(),
    "dataclass": Unregistered(),
    "struct": Local(),
    "enum of a function": _inner_enum(),
    "text with more": _noted(),
    "slice of a dataclass": slice(Unregistered()),
    "named tuple of a dataclass": Position(1, Unregistered()),
    "object": object(),
    "derived datetime": type("Moment", (datetime.datetime,), {})(2026, 1, 2),
    "derived decimal": type("Price", (Decimal,), {})("1.5"),
    "derived bytearray": type("Buffer", (bytearray,), {})(b"abc"),
    "derived array": type("Grid", (np.ndarray,), {})((2,)),
    "derived path": type("Folder", (pathlib.PurePosixPath,), {})("/a"),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_value_that_would_come_out_as_something_else_is_refused(s: shmrpc.sync.Store, value: Any) -> None:
    s["list"] = [1]
    for put in (
        lambda: s.__setitem__("it", value),
        lambda: s["list"].append(value),
        lambda: s.__setitem__("it", [{"in": (value,)}]),
        lambda: s.inbox.put(value),
        lambda: s.update(it=value),
        lambda: s.setdefault("it", value),
    ):
        with pytest.raises(shmrpc.EncodeError, match=r"store '.*' cannot hold a") as caught:
            put()
        assert "shmrpc" in str(caught.value) or "store" in str(caught.value)
    assert s.copy() == {"list": [1]}
    assert not s.inbox.has_messages()


def test_other_types_are_pickled_as_they_are_where_that_was_asked_for() -> None:
    with shmrpc.sync.store(OURS, pickle=True) as s:
        for value in (collections.OrderedDict(a=1), collections.deque([1]), Unregistered(2), datetime.UTC):
            s["it"] = value
            assert s["it"] == value and type(s["it"]) is type(value)
        masked = np.ma.masked_array([1, 1000], [False, True])
        s["it"] = masked
        assert s["it"].sum() == 1


@pytest.mark.parametrize("change", [lambda d: d.update({len(d): 0}), lambda d: d.update({len(d): d.pop("last")})])
def test_a_dict_that_is_changed_while_it_is_put_is_put_as_it_was(change: Callable[[dict[Any, Any]], None]) -> None:
    """Another thread may do so, or what converts an item."""
    items: dict[Any, Any] = {}

    class Meddler:
        def __reduce__(self) -> tuple[Any, ...]:
            change(items)
            return int, (3,)

    items.update(first=Meddler(), middle=2, last=3)
    with shmrpc.sync.store(OURS, pickle=True) as s:
        s["it"] = items
        assert s["it"] == {"first": 3, "middle": 2, "last": 3}


class Unreadable(Exception):
    """An exception that can be pickled, and not read again."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("text")


def test_a_value_that_cannot_be_unpickled_is_not_pickled() -> None:
    with shmrpc.sync.store(OURS, pickle=True) as s:
        s["other"] = 1
        with pytest.raises(shmrpc.EncodeError, match="cannot be pickled and read again"):
            s["it"] = Unreadable(1, 2)
        with pytest.raises(shmrpc.EncodeError, match="cannot be pickled and read again"):
            s["it"] = _inner_enum()
        assert s.copy() == {"other": 1}


class Misread:
    """A class that is registered with functions that make something else of its instances."""


def test_a_registered_class_that_reads_something_else_is_refused(s: shmrpc.sync.Store) -> None:
    shmrpc.register(Misread, lambda value: 1, lambda value: value)
    with pytest.raises(shmrpc.EncodeError, match="would come out as a int"):
        s["it"] = Misread()


def test_a_member_of_a_class_that_is_not_registered_elsewhere_is_not_read_as_something_else(
    s: shmrpc.sync.Store, other: MemberProcess
) -> None:
    s["it"] = Registered("red")  # type: ignore[arg-type]
    other.do(f"s = sync.attach({OURS!r})")
    with pytest.raises(RuntimeError, match=r"DecodeError: .*Registered.* is not registered here"):
        other.do("result = type(s['it']).__name__")


# --- keys ---

#: Keys that come out as they are, and the plain one that each equals.
KEYS: list[tuple[Any, Any]] = [
    (Decimal("2.00"), 2),
    (Decimal("1.50"), 1.5),
    (Decimal("1.10"), None),
    (1 + 0j, 1),
    (1 + 2j, None),
    (np.int64(5), 5),
    (np.uint8(5), 5),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("long enough to be no cell"), "long enough to be no cell"),
    (np.bytes_(b"abc"), b"abc"),
    (Colour.RED, None),
    (Access.READ | Access.WRITE, None),
    (State.RUNNING, "running"),
    (Level.HIGH, 2),
    (Name("ada"), "ada"),
    (Money(1 << 70), 1 << 70),
    (Ratio(1.5), 1.5),
    (Digest(b"abc"), b"abc"),
    (Position(1, "a"), (1, "a")),
    ((Decimal("2.0"), State.RUNNING), (2, "running")),
    (frozenset({Decimal("2.0")}), frozenset({2})),
    ((b"x" * LARGE, 1), (b"x" * LARGE, 1)),
]


def _exact(value: Any) -> Any:
    """Return a value with the types of all its parts."""
    items = sorted(map(_exact, value), key=repr) if isinstance(value, (tuple, frozenset)) else repr(value)
    return type(value), items


@pytest.mark.parametrize(("key", "equal"), KEYS, ids=lambda each: repr(each)[:30])
def test_a_key_comes_out_as_it_is_and_is_the_one_that_it_equals(
    s: shmrpc.sync.Store, key: Any, equal: Any, tmp_path: Path
) -> None:
    s["d"], s["s"], s[key] = {key: 1}, {key, "more"}, 2
    equal = key if equal is None else equal
    for _ in range(2):
        for keys in (s["d"], s["s"], s, s["d"].copy(), s["s"].copy()):
            assert key in keys and equal in keys
            assert _exact(key) in [_exact(each) for each in keys]
        assert s["d"][equal] == 1 and s[equal] == 2
        s.save(tmp_path / "saved")
        s.load(tmp_path / "saved")
    s["d"][equal] = 3
    assert s["d"].copy() == {key: 3}
    assert [_exact(each) for each in s["d"]] == [_exact(key)], "the first one stays"
    s["s"].add(equal)
    assert len(s["s"]) == 2
    del s["d"][equal]
    s["d"][equal] = 4
    assert s["d"][key] == 4 and len(s["d"]) == 1
    s["s"].remove(equal)
    assert s["s"] == {"more"}


def test_tables_grow_with_keys_that_equal_plain_ones(s: shmrpc.sync.Store) -> None:
    s["d"] = {}
    for number in range(200):
        s["d"][Decimal(number) / 4 if number % 2 else np.int64(number)] = number
    assert all(s["d"][number / 4 if number % 2 else number] in {number, 4 * number} for number in range(200))
    assert s["d"].copy() == {Decimal(number) / 4 if number % 2 else number: number for number in range(200)}


@pytest.mark.parametrize(
    "key",
    [
        np.datetime64("2020-01-01"),
        np.timedelta64(1, "s"),
        Folded("A"),
        _noted(),
        _inner_enum(),
        uuid.UUID(int=1),
        type("Moment", (datetime.datetime,), {})(2026, 1, 2),
        (1, type("Span", (datetime.timedelta,), {})(1)),
    ],
    ids=lambda key: type(key).__name__,
)
def test_a_key_that_cannot_be_compared_or_made_again_is_refused(s: shmrpc.sync.Store, key: Any) -> None:
    s["s"] = set()
    for put in (lambda: s.__setitem__(key, 1), lambda: s["s"].add(key), lambda: s.__setitem__("it", {(1, key)})):
        with pytest.raises(TypeError):
            put()
    assert s.copy() == {"s": set()}


def test_sets_have_sets(s: shmrpc.sync.Store) -> None:
    groups = {frozenset({1, 2}), frozenset({"a"}), frozenset()}
    s["groups"] = groups
    assert s["groups"] == groups and frozenset({2, 1}) in s["groups"]
    s["groups"].discard(frozenset({"a"}))
    s["groups"] |= {frozenset({State.RUNNING})}
    assert s["groups"].copy() == {frozenset({1, 2}), frozenset(), frozenset({"running"})}


# --- depth ---


def _nested(depth: int, make: Callable[[Any], Any]) -> Any:
    value: Any = 1 << 100
    for _ in range(depth):
        value = make(value)
    return value


@pytest.mark.parametrize("make", [lambda v: [v], lambda v: (v,), lambda v: {"a": v}, lambda v: [(v,)]])
def test_a_value_of_any_accepted_depth_is_copied_saved_and_popped(
    s: shmrpc.sync.Store, make: Callable[[Any], Any], tmp_path: Path
) -> None:
    taken = 0
    for depth in (1, 100, 127, 128, 129, 254, 255, 256, 257, 258, 300, 400, 499, 500, 600):
        s.clear()
        s["other"] = [1]
        try:
            s["it"] = value = _nested(depth, make)
        except RecursionError:
            assert s.copy() == {"other": [1]}
            continue
        taken = depth
        s.copy()
        s.save(tmp_path / "saved")
        s.load(tmp_path / "saved")
        s["again"] = s["it"]
        assert repr(s.pop("it")) == repr(value)
    assert taken in {128, 256}


def test_a_packed_value_is_not_nested_deeper_than_it_is_read(s: shmrpc.sync.Store) -> None:
    for make in (lambda v: slice(v), lambda v: slice([v]), lambda v: Position(1, v), lambda v: slice({"a": v})):
        for depth in (40, 60, 99, 100, 101, 300):
            value = _nested(depth, make)
            try:
                s["it"] = value
            except RecursionError:
                s["it"] = None
            s.copy()


# --- what is too large ---


@pytest.mark.parametrize(
    "put",
    [
        lambda s, n: s.__setitem__("it", [0] * n),
        lambda s, n: s.__setitem__("it", (0,) * n),
        lambda s, n: s.__setitem__("it", [[[0] * n]]),
        lambda s, n: s.__setitem__("it", dict.fromkeys(range(n))),
        lambda s, n: s.__setitem__("it", set(range(n))),
        lambda s, n: s["list"].extend([0] * n),
        lambda s, n: s["list"].__imul__(n),
        lambda s, n: s["list"].__setitem__(slice(None), [0] * n),
        lambda s, n: s.inbox.put([0] * n),
        lambda s, n: s.__setitem__("it", [[0] * 100] * (n // 100)),
    ],
)
def test_a_value_larger_than_the_store_is_refused(put: Callable[[Any, int], None]) -> None:
    with shmrpc.sync.store(OURS, max_memory="64KiB") as s:
        s["list"] = [0]
        with pytest.raises(shmrpc.StoreFull, match="max_memory"):
            put(s, 100_000)
        assert s.copy() == {"list": [0]}


# --- at random ---


def _anything(dice: random.Random, depth: int) -> Any:
    leaves: list[Any] = [*SAME.values(), *REFUSED.values(), 1, 2.5, "text", b"bytes" * 20, None, Decimal("1.50")]
    keys = [key for key, _ in KEYS] + ["a", 1, (1, 2)]
    match dice.randrange(8) if depth else 0:
        case 1 | 2:
            return [_anything(dice, depth - 1) for _ in range(dice.randrange(4))]
        case 3:
            return tuple(_anything(dice, depth - 1) for _ in range(dice.randrange(4)))
        case 4 | 5:
            return {dice.choice(keys): _anything(dice, depth - 1) for _ in range(dice.randrange(4))}
        case 6:
            return {dice.choice(keys) for _ in range(dice.randrange(4))}
        case _:
            return dice.choice(leaves)


def _all_same(one: Any, other: Any) -> bool:
    if type(one) in (list, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_all_same, one, other))
    if type(one) is dict:
        return (
            type(other) is dict
            and [_exact(key) for key in one] == [_exact(key) for key in other]
            and all(map(_all_same, one.values(), other.values()))
        )
    if type(one) is set:
        return (
            type(other) is set
            and one == other
            and set(map(repr, map(_exact, one))) == set(map(repr, map(_exact, other)))
        )
    return _is_same(one, other)


def test_whatever_is_taken_is_read_copied_saved_and_loaded_as_it_was(tmp_path: Path) -> None:
    dice, kept = random.Random(5), dict[str, Any]()
    with shmrpc.sync.store(OURS) as s:
        for number in range(400):
            name, value = f"k{dice.randrange(8)}", _anything(dice, 3)
            try:
                s[name] = value
                kept[name] = value
            except (TypeError, RecursionError):  # An EncodeError is a TypeError.
                pass
            if number % 10 == 0:
                s.save(tmp_path / "saved")
                s.load(tmp_path / "saved")
                copied = s.copy()
                assert copied.keys() == kept.keys()
                assert all(_all_same(copied[key], kept[key]) for key in kept)
        assert len(kept) == 8
        for key, value in kept.items():
            assert _all_same(s.pop(key), value)


def test_a_decimal_that_is_no_number_can_be_a_key_as_in_python(s: shmrpc.sync.Store) -> None:
    s["it"] = {decimal.Decimal("Infinity"): 1}
    assert s["it"][float("inf")] == 1 and list(s["it"]) == [Decimal("Infinity")]
    with pytest.raises(TypeError):
        s["it"]["sNaN", decimal.Decimal("sNaN")] = 1


# --- the table of the reference ---


def _rows() -> list[tuple[str, str, str]]:
    page = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
    section = page.split("\n### What a store takes\n")[1].split("\n## ")[0]
    return re.findall(r"^\| [^|]+ \| `(.+?)` \| ([^|]+) \| ([^|]+) \|$", section, re.MULTILINE)


@pytest.mark.parametrize(("example", "out", "as_key"), _rows(), ids=lambda each: each[:30])
def test_the_reference_says_what_a_store_takes(example: str, out: str, as_key: str) -> None:
    with shmrpc.sync.store(OURS) as s, shmrpc.sync.store(f"{OURS}.lobby") as lobby:
        lobby["scores"] = {"ada": 1}
        known = {"np": np, "Decimal": Decimal, "socket": socket, "collections": collections, "array": array}
        value = eval(example, {**known, "Point": Position, "Player": Player, "lobby": lobby})
        if out.startswith("refused"):
            with pytest.raises(shmrpc.EncodeError):
                s["it"] = value
        else:
            s["it"] = value
            found = s["it"]
            match out.split(",")[0].split(";")[0]:
                case "the same":
                    assert _is_same(found, value)
                case "a proxy" | "a copy":
                    assert isinstance(found, SharedContainer) and found == value and found.copy() == value
                case "a tuple":
                    assert type(found) is tuple and found == value and isinstance(found[1], SharedContainer)
                case "a memoryview of the shared memory":
                    assert type(found) is memoryview and found == value and _is_same(s.copy()["it"], value)
                case "an array that is a view of the shared memory":
                    assert _is_same(found, value) and not found.flags.owndata
                case _:
                    pytest.fail(out)
        if as_key.startswith("yes"):
            s["keys"] = {value: 1}
            assert _exact(next(iter(s["keys"]))) == _exact(value)
        else:
            with pytest.raises(TypeError):
                s[value] = 1


def test_the_table_of_the_reference_has_examples() -> None:
    assert len(_rows()) > 17


LIMITED = """
import resource, sys
import shmrpc

with shmrpc.sync.store(sys.argv[1], max_memory="64MiB") as s:
    s["list"] = [0] * 2_000_000
    s["bytes"] = b"x" * (16 << 20)
    found = s["list"]
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (8 << 20), -1))
    ways = (found.copy, s.copy, lambda: list(found), lambda: s.pop("list"), lambda: s["bytes"])
    for copied in (*ways, lambda: s.save(sys.argv[2])):
        try:
            copied()
            print("done")
        except MemoryError:
            print("no memory")
    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
    print(len(found), len(s["bytes"]))
"""


@pytest.mark.slow
def test_a_copy_for_which_there_is_no_memory_is_an_error_and_no_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, f"{OURS}.limited", str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*["no memory"] * 6, "2000000 16777216", ""]
    assert not list(tmp_path.iterdir())
