"""Dataclasses, Structs and attrs classes that are not registered: they travel as maps, whatever their fields hold."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import enum
import pickle
import uuid
import zoneinfo
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shmrpc
import shmrpc.testing
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.blocks import LARGE
from shmrpc.values.encode import ValueEncoder
from shmrpc.values.fields import class_defaults, is_closed, loose_names, names_of
from shmrpc.wire.codec import Codec, get_codec
from tests.helpers.value_trips import buffers_of, carried
from tests.values.hypothesis_draws import drawn
from tests.values.test_values import values

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
def test_fields_that_can_hold_foreign_values_are_checked(cls: type, loose: tuple[str, ...]) -> None:
    names = names_of(cls)
    assert names is not None
    assert loose_names(cls, names) == loose
    for pickled in (False, True):
        plain = ValueEncoder(msgspec.msgpack.encode, ALL_EXTENSIONS, pickled=pickled).is_plain(cls)
        left, inexact = class_defaults(cls, names), ("when",) if cls is Plain else loose
        assert plain == (not pickled and ((left, inexact) if left or inexact else True))


@dataclasses.dataclass
class Meeting:
    at: datetime.datetime
    also: list[datetime.datetime] = dataclasses.field(default_factory=list)
    daily: datetime.time | None = None


ZONES = [None, datetime.UTC, zoneinfo.ZoneInfo("Europe/Berlin"), datetime.timezone(datetime.timedelta(hours=1), "ours")]


@pytest.mark.parametrize("fold", [0, 1])
@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_times_in_fields_keep_their_zones(zone: datetime.tzinfo | None, fold: Any) -> None:
    when = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=fold)
    sent = Meeting(when, [when], when.timetz())
    for name in ("msgspec", "msgpack"):
        codec: Codec = get_codec(name)
        for got in (codec.decoder(Meeting)(codec.encode(sent)), codec.decoder(list[Meeting])(codec.encode([sent]))[0]):
            assert (repr(got), got) == (repr(sent), sent)


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
def test_a_type_is_closed_if_the_codec_carries_all_its_values(kind: type, closed: bool) -> None:
    assert is_closed(kind) is closed


def test_fields_with_unresolvable_annotations_are_checked() -> None:
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


def test_unset_fields_are_left_out(codec: Codec) -> None:
    class Optional(msgspec.Struct):
        x: Any | msgspec.UnsetType = msgspec.UNSET
        y: Any = None

    assert codec.decode(codec.encode(Optional(y=(1,)))) == {"y": (1,)}


def test_an_annotation_with_bounds_is_checked(codec: Codec) -> None:
    kind = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    assert codec.decoder(kind)(codec.encode((1, 2))) == (1, 2)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int` >= 0 - at `\$\[1\]`"):
        codec.decoder(kind)(codec.encode((1, -2)))


def test_unsendable_values_in_fields_are_refused(codec: Codec) -> None:
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


@dataclasses.dataclass
class Narrowed(Request):
    """A field without a default, whose name is an attribute of the base class."""

    status: Any = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Required(Request):
    status: str = dataclasses.field(kw_only=True)


@dataclasses.dataclass(kw_only=True)
class KeywordOnly(Request):
    urgent: bool = False


@dataclasses.dataclass
class Computed(Request):
    total: int = 0

    def __post_init__(self) -> None:
        self.total = len(vars(self))


class Clamped:
    """A descriptor that is a field."""

    def __get__(self, instance: Any, owner: Any) -> Any:
        return 7 if instance is None else instance.__dict__["_level"]

    def __set__(self, instance: Any, value: int) -> None:
        instance.__dict__["_level"] = min(value, 10)


@dataclasses.dataclass
class WithDescriptor:
    size: int
    level: int = Clamped()  # type: ignore[assignment]
    status: str = "new"


class Wrapping(msgspec.Struct):
    request: Request
    more: tuple[FrozenRequest, ...] = ()


class Pair(NamedTuple):
    request: Request
    texts: list[str]


class Listed(TypedDict):
    requests: dict[str, Request]


@dataclasses.dataclass
class Described:
    size: int = 0
    status: str = "new"


@dataclasses.dataclass
class Holder:
    known: Described

    def __post_init__(self) -> None:
        self.seen = vars(self.known).copy()


@dataclasses.dataclass
class Unhashed:
    """A class that no other test uses, whose defaults msgspec could have learnt there."""

    size: int
    status: str = "new"


@dataclasses.dataclass
class Boxed(Generic[T]):
    content: T
    status: str = "new"


#: Metadata that cannot be hashed.
_NOTE: dict[str, int] = {"note": 1}


@dataclasses.dataclass
class Annotating:
    request: Annotated[Request, _NOTE]
    status: str = "new"


_FILLED = {"size": 1, "status": "new", "tags": [], "counted": 3}


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
        assert await future == Request(1)


MADE: list[tuple[Any, dict[str, Any]]] = [
    (Request, {"size": 1}),
    (FrozenRequest, {"size": 1}),
    (HalfSlotted, {"size": 1}),
    (Frozen, {"name": "a", "value": 1}),
    (Narrowed, {"size": 1}),
    (Required, {"size": 1, "status": "old"}),
    (KeywordOnly, {"size": 1}),
    (Computed, {"size": 1}),
    (Boxed, {"content": Request(1)}),
]


@pytest.mark.parametrize(("cls", "given"), MADE, ids=lambda each: getattr(each, "__name__", ""))
def test_a_decoded_dataclass_is_as_its_constructor_makes_it(codec: Codec, cls: Any, given: dict[str, Any]) -> None:
    kind = Boxed[Request] if cls is Boxed else cls
    made, body = cls(**given), codec.encode(given)
    for got in (codec.decoder(kind)(body), codec.quick_decoder(kind)(body), codec.convert(codec.decode(body), kind)):
        assert got == made and type(got) is cls
        assert getattr(got, "__dict__", None) == getattr(made, "__dict__", None)
        assert dataclasses.asdict(got) == dataclasses.asdict(made)
        assert copy.copy(got).__reduce_ex__(4)[2] == made.__reduce_ex__(4)[2]
        assert pickle.loads(pickle.dumps(got)) == made
        assert dataclasses.replace(got, **given) == dataclasses.replace(made, **given)
        assert codec.decode(codec.encode(got)) == codec.decode(codec.encode(made))
        # A default is the very object; a factory makes a new one.
        assert getattr(got, "status", None) is getattr(made, "status", None) or cls in (Narrowed, Required)


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (Wrapping, {"request": {"size": 1}, "more": [{"size": 2}]}, lambda got: [got.request, *got.more]),
        (Pair, [{"size": 1}, []], lambda got: [got.request]),
        (Listed, {"requests": {"a": {"size": 1}}}, lambda got: [got["requests"]["a"]]),
        (list[Boxed[Request]], [{"content": {"size": 1}}], lambda got: [got[0].content]),
        (list[Boxed[Request]], [{"content": {"size": 1}}], list),
        (dict[str, Request | None], {"a": {"size": 1}}, lambda got: [got["a"]]),
        (Annotated[Request, "noted"] | complex, {"size": 1}, lambda got: [got]),
        (NewType("Ordered", Request), {"size": 1}, lambda got: [got]),
    ],
)
def test_a_dataclass_within_other_types_has_its_defaults_too(
    codec: Codec, kind: Any, given: Any, found: Callable[[Any], list[Any]]
) -> None:
    for got in found(codec.decoder(kind)(codec.encode(given))):
        assert vars(got).keys() >= {field.name for field in dataclasses.fields(got) if field.init}


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (Annotated[Unhashed, _NOTE], {"size": 1}, lambda got: [got]),
        (list[Annotated[Unhashed, _NOTE]], [{"size": 1}], list),
        (Annotating, {"request": {"size": 1}}, lambda got: [got, got.request]),
        (Boxed[Annotated[Request, _NOTE]], {"content": {"size": 1}}, lambda got: [got, got.content]),
    ],
    ids=["itself", "items", "field", "parameter"],
)
def test_a_dataclass_beside_metadata_that_cannot_be_hashed_has_its_defaults_too(
    codec: Codec, kind: Any, given: Any, found: Callable[[Any], list[Any]]
) -> None:
    """On every use of the type, which cannot be cached."""
    for _ in range(2):
        for got in (codec.convert(given, kind), codec.decoder(kind)(codec.encode(given))):
            for each in found(got):
                assert vars(each).keys() >= {field.name for field in dataclasses.fields(each) if field.init}


def test_a_class_that_msgspec_has_met_before_has_its_defaults_too() -> None:
    before = msgspec.msgpack.Decoder(Holder)
    own = vars(Holder)["__post_init__"]
    got = get_codec("msgspec").decoder(Holder)(msgspec.msgpack.encode({"known": {"size": 1}}))
    assert got.seen == {"size": 1, "status": "new"}
    assert vars(Holder)["__post_init__"] is own and "__post_init__" not in vars(Described)
    assert before.decode(msgspec.msgpack.encode({"known": {}})).known == Described()


@pytest.mark.parametrize(("item", "content"), [(Any, 1), (int, 1), (str, "x"), (bytes, b"x")])
def test_each_alias_of_a_generic_class_has_its_defaults(codec: Codec, item: Any, content: Any) -> None:
    [got] = codec.decoder(list[Boxed[item]])(codec.encode([{"content": content}]))
    assert vars(got) == {"content": content, "status": "new"}


def test_a_missing_field_is_missing_whatever_a_base_class_has(codec: Codec) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Missing required field `status` - at `\$\[0\]`"):
        codec.decoder(list[Required])(codec.encode([{"size": 1}]))


def test_a_field_that_keeps_itself_is_set_and_sent_by_its_own_rules(codec: Codec) -> None:
    value = WithDescriptor(1, level=90)
    assert codec.decode(codec.encode(value)) == {"size": 1, "level": 10, "status": "new"}
    got = codec.decoder(WithDescriptor)(codec.encode({"size": 1, "level": 90}))
    assert vars(got) == {"size": 1, "_level": 10, "status": "new"}


@dataclasses.dataclass
class Shape:
    name: str


@dataclasses.dataclass
class Circle(Shape):
    tags: Any = ()
    sides: int = dataclasses.field(default=0, init=False)


@dataclasses.dataclass
class Drawing:
    first: Shape
    others: dict[str, list[Shape | None]] = dataclasses.field(default_factory=dict)


class Framed(msgspec.Struct):
    first: Shape


@pytest.mark.parametrize("outer", [Drawing, Framed])
def test_an_instance_of_a_derived_class_is_sent_with_all_its_fields(codec: Codec, outer: Any) -> None:
    circle = {"name": "a", "tags": (1, {2}), "sides": 0}
    value = outer(Circle("a", tags=(1, {2})))
    assert codec.decode(codec.encode(value))["first"] == circle
    got = codec.decoder(outer)(codec.encode(value))
    assert got.first == Shape("a") and vars(got.first) == {"name": "a"}  # Only the fields of the declared type.
    if outer is Drawing:
        value = Drawing(Shape("b"), {"x": [Circle("a", tags=(1, {2})), None]})
        assert codec.decode(codec.encode([value]))[0]["others"] == {"x": [circle, None]}


def test_defaults_of_instances_are_sent_wherever_their_fields_stand(codec: Codec) -> None:
    got = Request(1, tags=["a"])
    del got.status
    vars(got).update({"extra": {1}, "more": 1})
    turned = Request(1)
    for name in list(vars(turned)):
        turned.__dict__[name] = turned.__dict__.pop(name)
    turned.__dict__ = dict(reversed(vars(turned).items()))
    assert codec.decode(codec.encode([turned, got])) == [_FILLED, {**_FILLED, "tags": ["a"]}]


def test_instances_in_each_other_without_end_are_refused(codec: Codec) -> None:
    value = Frozen("a", [])
    value.value.append(value)
    with pytest.raises(RecursionError):
        codec.encode(value)


@pytest.mark.parametrize("name", ["msgspec", "msgpack"])
@pytest.mark.parametrize("default", [{}, {"default": 3}], ids=["required", "with a default"])
@pytest.mark.parametrize("value", [7, (7,), "x" * LARGE, datetime.datetime(2026, 1, 2, fold=1)])
def test_a_private_field_of_an_attrs_class_travels_too(name: Any, default: dict[str, int], value: Any) -> None:
    attrs = pytest.importorskip("attrs")
    cls = attrs.make_class("Account", {"owner": attrs.field(type=str), "_balance": attrs.field(type=Any, **default)})
    codec, sent = get_codec(name), cls("me", value)
    assert codec.decoder(cls)(carried(codec.encode(sent))) == sent
    assert codec.decoder(list[cls])(carried(codec.encode([sent, sent]))) == [sent, sent]  # type: ignore[valid-type]
    assert codec.decode(carried(codec.encode({"a": sent}))) == {"a": {"owner": "me", "_balance": value}}
