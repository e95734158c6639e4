"""Values that MessagePack does not carry are pickled, if both sides ask for it."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import operator
import pathlib
import pickle
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from shmrpc.values import pickling
from shmrpc.values.blocks import LARGE
from shmrpc.wire import frames
from shmrpc.wire.codec import get_codec
from shmrpc.wire.failure import Failure
from tests.helpers.value_trips import buffers_of, carried, travelled

FAST, REFERENCE, PICKLING = get_codec("msgspec"), get_codec("msgpack"), get_codec("pickle")


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bool(np.array_equal(self.x, other.x))

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass
class Data:
    x: int
    y: Any = None


class Record(msgspec.Struct):
    x: int


class Pair(NamedTuple):
    left: int
    right: str


class Colour(enum.Enum):
    RED = 1


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Words(list[str]):
    pass


class Raw(bytearray):
    pass


class Failing:
    def __reduce__(self) -> Any:
        raise KeyError("oops")


class FailingToLoad:
    def __reduce__(self) -> Any:
        return operator.truediv, (1, 0)


VALUES = [
    Plain(1),
    Data(1, (2, {3})),
    Record(1),
    Pair(1, "x"),
    Colour.RED,
    Access.READ | Access.WRITE,
    collections.OrderedDict(a=1),
    collections.Counter("aab"),
    collections.deque([1]),
    Words(["a"]),
    Raw(b"x"),
    functools.partial(len),
    len,
    int,
    datetime.datetime,
    {Plain(1): [Data(1), (Pair(1, "x"),)]},
    np.array([1, "x", None], object),
    np.ma.masked_array([1, 2], [False, True]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:40])
def test_values_unknown_to_messagepack_arrive_unchanged(value: Any) -> None:
    got = travelled(PICKLING, [value, {"a": value}])[0]
    assert type(got) is type(value)
    assert repr(got) == repr(value) or got == value
    kind: Any = type(value)
    assert type(PICKLING.decoder(list[kind])(PICKLING.encode([value]))[0]) is kind


@pytest.mark.parametrize("value", [(1, {2}), 2**70, 1j, pathlib.Path("a"), b"x" * LARGE, [None, "a"], {"a": 1.5}])
def test_values_that_messagepack_carries_are_not_pickled(value: Any) -> None:
    assert bytes(PICKLING.encode(value)) == bytes(FAST.encode(value))
    assert travelled(PICKLING, value) == value


def test_our_own_frames_are_not_pickled() -> None:
    header = frames.Header(5, {"a": "b"})
    assert PICKLING.encode_all((header, [], {})) == FAST.encode_all((header, [], {}))
    failure = Failure("raised", "m", value=b"\x80" + bytes(LARGE), metadata={"a": b"b"})
    (got,) = PICKLING.decoder(list[Failure])(PICKLING.encode_all([failure]))
    assert got == failure


@pytest.mark.parametrize("in_blocks", [False, True])
def test_large_buffers_in_a_pickle_travel_beside_the_body(in_blocks: bool) -> None:
    value = Plain(np.arange(LARGE).reshape(4, -1))
    body = PICKLING.encode(value)
    assert len(bytes(body)) < 1000
    assert np.shares_memory(buffers_of(body)[0], value.x)
    got = PICKLING.decode(carried(body, in_blocks=in_blocks))
    assert got == value
    assert not got.x.flags.writeable
    large = Plain("x" * LARGE)
    body = PICKLING.encode([large, Plain(np.arange(LARGE)[::2]), Plain(np.arange(3))])
    assert PICKLING.decode(carried(body, in_blocks=in_blocks))[0] == large
    assert len(buffers_of(body)) == 2


def test_only_who_asked_for_pickles_reads_them() -> None:
    body = PICKLING.encode([Plain(1)])
    for codec in (FAST, REFERENCE):
        for decode in (codec.decode, codec.decoder(list[Any]), codec.decoder(list[Plain])):
            with pytest.raises(
                msgspec.DecodeError, match=r"it was pickled; set codec='pickle' on both sides if you trust"
            ):
                decode(body)
    with pytest.raises(TypeError, match=r"shmrpc\.register\(Plain, encode, decode\)"):
        FAST.encode([Plain(1)])


@pytest.fixture
def by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a pool has found that no other process can import this program."""
    for name in ("_is_by_value", "_has_more"):
        monkeypatch.setattr(pickling, name, False)


@pytest.mark.usefixtures("by_reference")
@pytest.mark.parametrize("value", [lambda: 1, Failing(), open], ids=["lambda", "failing", "open"])
def test_unpicklable_values_are_refused(value: Any) -> None:
    if value is open:
        with pathlib.Path(__file__).open() as file, pytest.raises(TypeError, match="TextIOWrapper cannot be pickled"):
            PICKLING.encode([file])
        return
    with pytest.raises(TypeError, match="cannot be pickled: .*(lambda|oops)"):
        PICKLING.encode([value])


@pytest.mark.parametrize(
    "payload",
    [
        [b"", []],
        [b"no pickle", []],
        [pickle.dumps(5)[:-1], []],
        [pickle.dumps(FailingToLoad()), []],
        [b"cno_such_module\nname\n.", []],
        [pickle.dumps(5), [0]],
        [0, []],
        ["text", []],
        5,
    ],
    ids=repr,
)
def test_a_pickle_that_is_none(payload: Any) -> None:
    body = msgspec.msgpack.encode([msgspec.msgpack.Ext(35, msgspec.msgpack.encode(payload))])
    with pytest.raises(msgspec.DecodeError):
        PICKLING.decode(body)


def test_a_pickled_instance_of_another_class_does_not_fit() -> None:
    for kind, value in ((Data, Plain(1)), (list[Plain], [Data(1)]), (Colour, Access.WRITE)):
        with pytest.raises(msgspec.ValidationError):
            PICKLING.decoder(kind)(PICKLING.encode(value))
