"""Dataclasses, Structs and attrs classes that are not registered: maps, whatever stands in their fields."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shmrpc
import shmrpc.testing
from shmrpc.protocol.codec import LARGE, Codec, get_codec
from shmrpc.values.fields import class_defaults, is_closed, loose_names, names_of
from shmrpc.values.lowering import Lowering
from tests.drawn import drawn
from tests.test_values import values
from tests.values import buffers_of, carried

T = TypeVar("T")
UserId = NewType("UserId", int)


@dataclasses.dataclass
class Plain:
    number: int
    texts: list[str] = dataclasses.field(default_factory=list)
    when: datetime.datetime | None = None
    ids: dict[UserId, uuid.UUID] = dataclasses.field(default_factory=dict)
    kind: Literal["a", "b"] = "a"
    total: ClassVar[int] = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    value: Any = None


class Loose(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="kind", tag="loose"):
    any_value: Any
    next_one: Loose | None = None
    count: int = 0


class Row(msgspec.Struct, array_like=True):
    a: int
    b: Any


class Tree(msgspec.Struct):
    children: list[Tree]
    name: str = ""


class Named(NamedTuple):
    a: int
    b: list[Any]


class Typed(TypedDict):
    a: int


class Box(msgspec.Struct, Generic[T]):
    content: T


class Level(enum.IntEnum):
    HIGH = 2


class Odd(enum.Enum):
    PAIR = (1, 2)


@dataclasses.dataclass
class Failing(Exception):
    why: Any


@pytest.fixture(params=["msgspec", "msgpack"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.mark.parametrize(
    ("cls", "loose"),
    [
        (Plain, ()),
        (Frozen, ("value",)),
        (Loose, ("any_value", "next_one")),
        (Row, ("b",)),
        (Tree, ()),
        (Box, ("content",)),
    ],
)
def test_which_fields_are_looked_at(cls: type, loose: tuple[str, ...]) -> None:
    names = names_of(cls)
    assert names is not None
    assert loose_names(cls, names) == loose
    for pickled in (False, True):
        plain = Lowering(msgspec.msgpack.encode, pickled=pickled).is_plain(cls)
        assert plain is (not (loose or pickled or class_defaults(cls, names)))


@pytest.mark.parametrize(
    ("kind", "closed"),
    [
        (Level, True),
        (Odd, False),
        (Typed, True),
        (Named, False),
        (bytes, False),
        (np.ndarray, False),
        (complex, False),
        (list, False),
        (uuid.UUID, True),
    ],
)
def test_what_can_hold_only_what_its_type_says(kind: type, closed: bool) -> None:
    assert is_closed(kind) is closed


def test_annotations_that_cannot_be_resolved_are_looked_at() -> None:
    @dataclasses.dataclass
    class Unresolved:
        x: Missing  # type: ignore[name-defined]  # noqa: F821

    assert loose_names(Unresolved, ("x",)) == ("x",)
    assert get_codec("msgspec").decode(get_codec("msgspec").encode(Unresolved((1,)))) == {"x": (1,)}


INSTANCES: list[tuple[Any, Any]] = [
    (Plain(1), None),
    (Plain(2**70), None),
    (Frozen("a", (1, {2})), {"name": "a", "value": (1, {2})}),
    (Loose((1,), Loose(1j)), {"kind": "loose", "anyValue": (1,), "nextOne": {"kind": "loose", "anyValue": 1j}}),
    (Row(1, {2}), [1, {2}]),
    (Row(2**70, None), [2**70, None]),
    (Tree([Tree([])], "x"), None),
    (Box((1, 2)), {"content": (1, 2)}),
]


@pytest.mark.parametrize(("value", "plain"), INSTANCES, ids=lambda each: repr(each)[:50])
def test_instances_are_maps_that_a_typed_receiver_reads(codec: Codec, value: Any, plain: Any) -> None:
    before = repr(value)
    body = codec.encode([value, {"a": value}])
    if plain is not None:
        assert codec.decode(body) == [plain, {"a": plain}]
    kind: Any = type(value)
    got = codec.decoder(tuple[kind, dict[str, kind]])(body)
    assert got == (value, {"a": value})
    assert repr(value) == before


def test_instances_within_instances(codec: Codec) -> None:
    value = Frozen("a", [Plain(2**70), {"x": Frozen("b", (1,))}])
    fields = {"number": 2**70, "texts": [], "when": None, "ids": {}, "kind": "a"}
    assert codec.decode(codec.encode(value)) == {"name": "a", "value": [fields, {"x": {"name": "b", "value": (1,)}}]}


def test_a_plain_instance_takes_the_short_way(codec: Codec) -> None:
    value = [Plain(1, ["a"], datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), {UserId(1): uuid.UUID(int=1)})]
    assert codec.encode(value) == msgspec.msgpack.encode(value)


@drawn(60)
@given(values)
def test_anything_in_a_loose_field(value: Any) -> None:
    for name in ("msgspec", "msgpack"):
        codec: Codec = get_codec(name)
        assert codec.decoder(Frozen)(codec.encode(Frozen("a", value))) == Frozen("a", value)
        assert codec.decoder(list[Loose])(codec.encode([Loose(value)])) == [Loose(value)]


@drawn(60)
@given(st.builds(Plain, st.integers(), st.lists(st.text()), st.none() | st.datetimes(timezones=st.just(datetime.UTC))))
def test_closed_fields(value: Plain) -> None:
    for name in ("msgspec", "msgpack", "pickle"):
        codec: Codec = get_codec(name)
        assert codec.decoder(list[Plain])(codec.encode([value])) == [value]


def test_a_field_that_holds_something_else_than_it_says(codec: Codec) -> None:
    odd: Any = np.int64(5)
    value = Plain(odd, texts=("a",), when=(1, {2}))  # type: ignore[arg-type]
    assert codec.decode(codec.encode(value)) == {"number": 5, "texts": ("a",), "when": (1, {2}), "ids": {}, "kind": "a"}
    assert codec.decoder(Plain)(codec.encode(Plain(odd, texts=["a"]))) == Plain(5, ["a"])


def test_large_bytes_in_a_field_travel_beside_the_body(codec: Codec) -> None:
    @dataclasses.dataclass
    class File:
        name: str
        content: bytes

    value = [File("a", bytes(LARGE)), File("b", b"small")]
    body = codec.encode(value)
    assert len(buffers_of(body)) == 1
    assert len(bytes(body)) < 100
    for in_blocks in (False, True):
        assert codec.decoder(list[File])(carried(body, in_blocks=in_blocks)) == value


def test_an_exception_that_is_a_dataclass(codec: Codec) -> None:
    error = Failing((1, 2))
    assert codec.decode(codec.encode([error])) == [{"why": (1, 2)}]
    assert error.why == (1, 2)


def test_what_is_not_set_is_left_out(codec: Codec) -> None:
    class Optional(msgspec.Struct):
        x: Any | msgspec.UnsetType = msgspec.UNSET
        y: Any = None

    assert codec.decode(codec.encode(Optional(y=(1,)))) == {"y": (1,)}


def test_an_annotation_with_bounds_is_checked(codec: Codec) -> None:
    kind = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    assert codec.decoder(kind)(codec.encode((1, 2))) == (1, 2)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int` >= 0 - at `\$\[1\]`"):
        codec.decoder(kind)(codec.encode((1, -2)))


def test_what_cannot_be_sent_in_a_field(codec: Codec) -> None:
    for value in (Frozen("a", object()), [Loose({"a": object()})], Plain(object())):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="objects of type object is unsupported"):
            codec.encode(value)


@dataclasses.dataclass
class _Old:
    x: int


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    x: int


async def test_fields_that_a_class_does_not_have_are_left_out_unless_it_forbids_them() -> None:
    service = shmrpc.Service("tested.fields")

    @service.endpoint
    def old(value: _Old) -> str:
        return repr(value)

    @service.endpoint
    def strict(value: _Strict) -> str:
        return repr(value)

    async with shmrpc.testing.connect(service) as client:
        assert await client.old({"x": 1, "added later": 2}) == "_Old(x=1)"
        assert await client.strict({"x": 1}) == "_Strict(x=1)"
        with pytest.raises(shmrpc.InvalidArguments, match="unknown field `later`"):
            await client.strict({"x": 1, "later": 2})


@dataclasses.dataclass
class Request:
    size: int
    status: str = "new"
    tags: list[str] = dataclasses.field(default_factory=list)
    counted: int = dataclasses.field(default=3, init=False)


@dataclasses.dataclass(frozen=True)
class FrozenRequest:
    size: int
    urgent: bool = False


@dataclasses.dataclass(slots=True)
class HalfSlotted(Request):
    urgent: bool = False


@dataclasses.dataclass
class Order:
    first: Request
    others: dict[str, list[Request | None]]


_FILLED = {"size": 1, "status": "new", "tags": [], "counted": 3}


@pytest.mark.parametrize("codec", [get_codec("msgspec"), get_codec("msgpack")], ids=["msgspec", "msgpack"])
@pytest.mark.parametrize(
    ("kind", "filled"),
    [
        (Request, _FILLED),
        (HalfSlotted, {**_FILLED, "urgent": False}),
        (FrozenRequest, {"size": 1, "urgent": False}),
    ],
)
def test_a_field_that_is_left_to_the_class_is_sent(codec: Codec, kind: type, filled: dict[str, Any]) -> None:
    for value in (codec.decoder(kind)(codec.encode({"size": 1})), kind(1)):
        assert codec.decode(codec.encode(value)) == filled
        assert codec.decode(codec.encode_all((value, [value], {"a": value}))) == [filled, [filled], {"a": filled}]


@pytest.mark.parametrize("codec", [get_codec("msgspec"), get_codec("msgpack")], ids=["msgspec", "msgpack"])
def test_a_field_that_is_left_to_the_class_is_sent_from_within_another_class(codec: Codec) -> None:
    order = codec.decoder(Order)(codec.encode({"first": {"size": 1}, "others": {"a": [{"size": 1}, None]}}))
    assert codec.decode(codec.encode(order)) == {"first": _FILLED, "others": {"a": [_FILLED, None]}}


async def test_all_fields_of_a_dataclass_come_back_from_an_endpoint() -> None:
    service = shmrpc.Service("orders")

    @service.endpoint
    def back(request: Request) -> Request:
        return request

    @service.endpoint
    async def each(request: Request) -> AsyncIterator[Request]:
        yield request

    async with shmrpc.testing.connect(service) as client:
        assert await client.back({"size": 1}) == Request(1)
        assert [item async for item in client.each({"size": 1})] == [Request(1)]
        async with client.batch() as batch:
            future = batch.back({"size": 1})
        assert await future == _FILLED
