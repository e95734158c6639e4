"""Classes that both sides know arrive as instances of them; those that one side does not know, as dicts or values."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import pathlib
import threading
import uuid
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np
import pytest

from shmrpc.values import register, registry
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.blocks import LARGE
from shmrpc.values.encode import ValueEncoder
from shmrpc.wire.codec import Codec, get_codec
from tests.helpers.value_trips import carried, travelled


@dataclasses.dataclass
class Order:
    item: str
    count: int = 1
    tags: set[str] = dataclasses.field(default_factory=set)
    price: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.price = 10.0 * self.count


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: Any = None


@dataclasses.dataclass
class Empty:
    pass


class Item(msgspec.Struct, frozen=True, kw_only=True, rename="upper"):
    name: str
    size: int = 0


class Doubled(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        self.x *= 2


class Pair(NamedTuple):
    left: int
    right: Any = None


class Colour(enum.Enum):
    RED = "red"
    MIXED = ("m", 1)


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Money:
    def __init__(self, amount: int, currency: str) -> None:
        self.amount, self.currency = amount, currency

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.amount, self.currency))


class Gold(Money):
    pass


class IntPair(tuple[int, int]):
    pass


@dataclasses.dataclass
class SpecialOrder(Order):
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Key:
    x: int
    counts: dict[int, int] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass
class Keyed:
    counts: dict[Key, int]


@pytest.fixture(params=["msgspec", "msgpack", "pickle"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.fixture(autouse=True)
def registered() -> Iterator[Any]:
    """Forget after a test what it registered."""
    by_type, by_name = dict(registry._by_type), dict(registry._by_name)
    yield
    unregister(by_type, by_name)


def unregister(by_type: Any = (), by_name: Any = ()) -> None:
    registry._by_type.clear()
    registry._by_name.clear()
    registry._by_type.update(by_type)
    registry._by_name.update(by_name)
    for listener in registry._listeners:
        listener()


def money() -> None:
    register(Money, lambda value: (value.amount, value.currency), lambda pair: Money(*pair))


class Sized(TypedDict):
    size: int


def test_a_typed_dict_beside_a_registered_class(codec: Codec) -> None:
    register(Order)
    assert codec.decoder(list[Sized])(codec.encode([{"size": 1}])) == [{"size": 1}]
    assert codec.decoder(tuple[Sized, Order])(codec.encode(({"size": 1}, Order("book")))) == (
        {"size": 1},
        Order("book"),
    )


VALUES = [
    Order("book", 2, {"a"}),
    Point(1, (2, {3})),
    Point(1, np.float64(2)),
    Empty(),
    Item(name="a", size=2),
    Doubled(3),
    Pair(1, {2}),
    Colour.RED,
    Colour.MIXED,
    Access.READ | Access.WRITE,
    Access(0),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_an_instance_arrives_as_one(codec: Codec, value: Any) -> None:
    cls = type(value)
    assert register(cls) is cls
    for whole in (value, [value], {"a": (value, value)}):
        got = travelled(codec, whole)
        assert got == whole
    assert type(travelled(codec, value)) is cls
    assert type(codec.decoder(cls)(codec.encode(value))) is cls
    assert codec.decoder(list[cls | None])(codec.encode([value, None])) == [value, None]  # type: ignore[valid-type]
    assert codec.decoder(dict[str, tuple[cls, int]])(codec.encode({"a": (value, 1)})) == {"a": (value, 1)}  # type: ignore[valid-type]


def test_post_init_does_not_change_what_was_sent(codec: Codec) -> None:
    register(Order)
    register(Doubled)
    order, doubled = Order("book"), Doubled(3)
    order.price, order.count = 1.5, 7
    doubled.x = 5
    got = travelled(codec, [order, doubled])
    assert got == [order, doubled]
    assert got[0].price == 1.5
    assert got[1].x == 5


def test_unset_attributes_of_a_registered_class_stay_unset(codec: Codec) -> None:
    register(Order)
    order = object.__new__(Order)
    order.item, order.count, order.tags = "book", 1, set()
    got = travelled(codec, order)
    assert not hasattr(got, "price")
    assert vars(got) == vars(order)


def test_without_the_class_the_fields_arrive() -> None:
    for value, plain in (
        (Point(1, (2,)), {"x": 1, "y": (2,)}),
        (Item(name="a"), {"name": "a", "size": 0}),
        (Colour.MIXED, ("m", 1)),
        (Pair(1), {"left": 1, "right": None}),
    ):
        register(type(value))
        bodies = [get_codec(name).encode([value]) for name in ("msgspec", "msgpack")]
        assert bodies[0] == bodies[1]
        unregister()
        for name in ("msgspec", "msgpack"):
            assert get_codec(name).decode(bodies[0]) == [plain]


def test_without_the_class_typed_fields_are_read_as_a_map() -> None:
    register(Point, name="point")
    body = get_codec("msgspec").encode([Point(1, (2,))])
    unregister()
    assert get_codec("msgspec").decoder(list[Point])(body) == [Point(1, (2,))]


def test_a_class_with_functions_of_its_own(codec: Codec) -> None:
    money()
    value = {"a": [Money(5, "EUR")], Money(1, "USD"): {Money(2, "USD")}}
    assert travelled(codec, value) == value
    assert codec.decoder(dict[str, Money])(codec.encode({"a": Money(5, "EUR")})) == {"a": Money(5, "EUR")}
    with pytest.raises(msgspec.ValidationError, match="Expected `.*Money`, got `str`"):
        codec.decoder(Money)(codec.encode("x"))


def test_encode_may_return_any_value_that_travels(codec: Codec) -> None:
    register(Money, lambda value: {"a": np.full(LARGE, value.amount)}, lambda plain: Money(int(plain["a"][-1]), "EUR"))
    body = codec.encode([Money(7, "EUR")])
    assert codec.decode(carried(body, in_blocks=True)) == [Money(7, "EUR")]


def test_a_receiver_that_does_not_know_the_class_says_what_to_do() -> None:
    money()
    body = get_codec("msgspec").encode(Money(5, "EUR"))
    unregister()
    with pytest.raises(
        msgspec.DecodeError, match=r"'tests\.values\.test_values_registry\.Money' is not registered here: call"
    ):
        get_codec("msgspec").decode(body)
    with pytest.raises(TypeError, match=r"shmrpc\.register\(Money, encode, decode\)"):
        get_codec("msgspec").encode(Money(5, "EUR"))


def test_functions_that_fail() -> None:
    def fail(value: Any) -> Any:
        raise KeyError("oops")

    codec = get_codec("msgspec")
    register(Money, fail, fail)
    with pytest.raises(TypeError, match="Money failed: KeyError: 'oops'"):
        codec.encode(Money(1, "EUR"))
    unregister()
    register(Money, lambda value: 1, fail)
    with pytest.raises(msgspec.DecodeError, match="oops"):
        codec.decode(codec.encode(Money(1, "EUR")))
    unregister()
    register(Money, lambda value: [value], lambda plain: plain)
    with pytest.raises(RecursionError):
        codec.encode(Money(1, "EUR"))


def test_derived_classes_are_not_registered_with_their_base() -> None:
    money()
    with pytest.raises(TypeError, match="type Gold is unsupported"):
        get_codec("msgspec").encode(Gold(1, "EUR"))
    register(Order)
    got = travelled(get_codec("msgspec"), SpecialOrder("book", note="n"))
    assert type(got) is dict


def test_an_instance_of_a_derived_class_is_one_of_the_base(codec: Codec) -> None:
    register(SpecialOrder)
    value = SpecialOrder("book", 2, note="n")
    for kind, whole in ((Order, value), (list[Order], [value]), (dict[str, Order | None], {"a": value, "b": None})):
        assert codec.decoder(kind)(codec.encode(whole)) == whole


def test_registering_a_class_changes_the_encoding_of_classes_sent_before() -> None:
    @dataclasses.dataclass
    class Holder:
        point: Point

    codec = get_codec("msgspec")
    assert travelled(codec, [Point(1), Holder(Point(2))]) == [{"x": 1, "y": None}, {"point": {"x": 2, "y": None}}]
    register(Point)
    assert travelled(codec, [Point(1), Holder(Point(2))]) == [Point(1), {"point": Point(2)}]
    assert codec.decoder(Holder)(codec.encode(Holder(Point(2)))) == Holder(Point(2))


def test_fields_of_another_version() -> None:
    @dataclasses.dataclass
    class Newer:
        item: str
        count: int
        added: str

    @dataclasses.dataclass
    class Lacking:
        count: int
        other: str
        item: str = "?"

    codec = get_codec("msgspec")
    register(Newer, name="order")
    body = codec.encode(Newer("book", 2, "x"))
    unregister()
    register(Order, name="order")
    got = codec.decode(body)
    assert (got.item, got.count, got.tags) == ("book", 2, set())
    unregister()
    register(Lacking, name="order")
    with pytest.raises(msgspec.DecodeError, match="order: field 'other' is missing"):
        codec.decode(body)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Order, Order(5), "Expected `str`, got `int` - at `$.item`"),  # type: ignore[arg-type]
        (list[Order], [Order("a", tags={1})], "Expected `str`, got `int` - at `$[0].tags[0]`"),  # type: ignore[arg-type]
        (dict[str, Item], {"a": Order("b")}, "Expected `dict`, got `Order` - at `$[...]`"),
        (Order | None, Item(name="a"), "Expected `dict`, got `Item`"),
        (Order, 5, "Expected `dict`, got `int`"),
    ],
)
def test_a_declared_class_is_checked(kind: Any, value: Any, message: str) -> None:
    register(Order)
    register(Item)
    for name in ("msgspec", "msgpack"):
        codec: Codec = get_codec(name)
        with pytest.raises(msgspec.ValidationError) as caught:
            codec.decoder(kind)(codec.encode(value))
        assert str(caught.value).removesuffix("$`") == message


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (dict[Key, int], {Key("a"): 1}, "Expected `int`, got `str` - at `key.x` in `$`"),  # type: ignore[arg-type]
        (list[dict[Key, int]], [{Key("a"): 1}], "Expected `int`, got `str` - at `key.x` in `$[0]`"),  # type: ignore[arg-type]
        (
            dict[tuple[int, Key], int],
            {(1, Key("a")): 1},  # type: ignore[arg-type]
            "Expected `int`, got `str` - at `key[1].x` in `$`",
        ),
        (Keyed, Keyed({5: 1}), "Expected `dict`, got `int` - at `key` in `$.counts`"),  # type: ignore[dict-item]
        (Keyed, Keyed({Key("a"): 1}), "Expected `int`, got `str` - at `key.x` in `$.counts`"),  # type: ignore[arg-type]
        (
            list[Keyed],
            [Keyed({Key(1, {"a": 1}): 1})],  # type: ignore[dict-item]
            "Expected `int`, got `str` - at `key` in `key.counts` in `$[0].counts`",
        ),
    ],
)
def test_an_error_in_a_key_has_the_path_within_the_key(kind: Any, value: Any, words: str) -> None:
    register(Key)
    register(Keyed)
    codec = get_codec("msgspec")
    with pytest.raises(msgspec.ValidationError) as caught:
        codec.convert(value, kind)
    assert str(caught.value) == words


def test_classes_that_cannot_be_registered_are_rejected() -> None:
    class Other:
        pass

    for cls in (int, str, dict, list, bytes, Decimal, uuid.UUID, set, tuple, datetime.date, complex, bytearray):
        with pytest.raises(TypeError, match="travels as it is"):
            register(cls, repr, eval)
    with pytest.raises(TypeError, match=r"register\(Other, encode, decode\)"):
        register(Other)
    with pytest.raises(TypeError, match="both encode and decode, or neither"):
        register(Other, repr)
    with pytest.raises(TypeError, match="expected a class"):
        register(Other())  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"register\(.*Other\): encode: expected a function, got 1"):
        register(Other, 1, eval)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"register\(.*Other\): decode: expected a function, got 'eval'"):
        register(Other, repr, "eval")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"register\(.*Other\): name: expected a str, got 5"):
        register(Other, repr, eval, name=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"register\(.*Other\): name: expected at least one character"):
        register(Other, repr, eval, name="")
    register(Other, repr, eval, name="the name")
    register(Other, repr, eval, name="the name")
    with pytest.raises(ValueError, match="the name 'the name' is registered for another class"):
        register(Money, repr, eval, name="the name")
    with pytest.raises(ValueError, match="registered already"):
        register(Other, repr, eval, name="another name")
    with pytest.raises(ValueError, match="registered already"):
        register(Other, str, eval, name="the name")


def test_every_class_that_the_encoder_writes_without_the_registry_is_refused() -> None:
    """Otherwise its converters would never be called."""
    native = ValueEncoder(msgspec.msgpack.encode, ALL_EXTENSIONS, pickled=False)._exact
    assert {datetime.timedelta, frozenset, memoryview}.issubset(native)
    for cls in native:
        with pytest.raises(TypeError, match="travels as it is"):
            register(cls, repr, eval)


@pytest.mark.parametrize(
    "value", [Fraction(1, 2), pathlib.Path("a"), np.arange(3), np.float64(1), IntPair((1, 2))], ids=repr
)
def test_the_converters_of_a_class_from_a_library_are_called(codec: Codec, value: Any) -> None:
    register(type(value), repr, lambda text: ["decoded", text])
    assert travelled(codec, value) == ["decoded", repr(value)]


def test_threads_may_register_and_encode_at_once() -> None:
    codec = get_codec("msgspec")
    failures: list[BaseException] = []
    done = threading.Event()

    def encode() -> None:
        try:
            while not done.is_set():
                assert travelled(codec, [(1, {2}), bytearray(b"x"), 1j, Pair(1)])[0] == (1, {2})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=encode) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(50):
        register(dataclasses.make_dataclass(f"Made{number}", ["x"]), name=f"made {number}")
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
