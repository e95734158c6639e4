"""Error texts about values that do not fit: Python's words, the possible choices, and the values found."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import pytest

from shmrpc.wire.codec import Codec, get_codec
from tests.values.case_names import case_name


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 3


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Unit(enum.StrEnum):
    GRAM = "g"


class Odd(enum.Enum):
    NOTHING = None
    PAIR = (1, 2)


@dataclasses.dataclass
class Point:
    x: int
    colour: Colour | None = None


class Pair(NamedTuple):
    x: int
    y: int


class Row(msgspec.Struct, array_like=True):
    x: int


class Tagged(msgspec.Struct, tag="`array`"):
    x: int


class Other(msgspec.Struct, tag="other"):
    x: int


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    x: int = 0


@pytest.fixture(params=["msgspec", "msgpack"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


_NULL: Any = Annotated[str, msgspec.Meta(pattern="`null`")]
_COLOURS = "1 (Colour.RED) or 2 (Colour.BLUE)"
_MODES = "1 (Mode.READ), 2 (Mode.WRITE) or several of these joined by |"

CHOICES: list[tuple[Any, Any, str]] = [
    (Colour, 3, f"Invalid enum value 3, expected {_COLOURS}"),
    (Colour, "RED", f"Expected {_COLOURS}, got `str`"),
    (Colour, None, f"Expected {_COLOURS}, got `None`"),
    (list[Colour], ["RED"], f"Expected {_COLOURS}, got `str` - at `$[0]`"),
    (Colour | None, "RED", "Expected 1 (Colour.RED), 2 (Colour.BLUE) or None, got `str`"),
    (
        Point,
        {"x": 1, "colour": 5},
        "Invalid enum value 5, expected 1 (Colour.RED), 2 (Colour.BLUE) or None - at `$.colour`",
    ),
    (dict[Colour, int], {3: 1}, f"Invalid enum value 3, expected {_COLOURS} - at `key` in `$`"),
    (Colour | str, None, "Expected `int | str`, got `None`"),
    (Size, 2, "Invalid enum value 2, expected 1 (Size.SMALL) or 3 (Size.LARGE)"),
    (Size, "S", "Expected 1 (Size.SMALL) or 3 (Size.LARGE), got `str`"),
    (Mode, 8, f"Invalid enum value 8, expected {_MODES}"),
    (Mode, "READ", f"Expected {_MODES}, got `str`"),
    (Unit, "lb", "Invalid enum value 'lb', expected 'g'"),
    (Unit, 1, "Expected 'g', got `int`"),
    (Odd, 3, "Invalid enum value 3, expected None (Odd.NOTHING) or (1, 2) (Odd.PAIR)"),
    (Literal[1, 2], "x", "Expected 1 or 2, got `str`"),
    (Literal["a", 1, None], 2.5, "Expected 1, 'a' or None, got `float`"),
]

WORDS: list[tuple[Any, Any, str]] = [
    (list[int], None, "Expected `list`, got `None`"),
    (list[int] | None, 5, "Expected `list | None`, got `int`"),
    (None, 5, "Expected `None`, got `int`"),
    (dict[str, list[int]], {"a": None}, "Expected `list`, got `None` - at `$[...]`"),
    (dict[str, int], [1], "Expected `dict`, got `list`"),
    (Point, [1], "Expected `dict`, got `list`"),
    (Point, {}, "Missing required field `x`"),
    (Strict, {"object": 1}, "Unknown field `object`"),
    (Pair, {"x": 1}, "Expected `list`, got `dict`"),
    (Row, [], "Expected `list` of at least length 1, got 0"),
    (tuple[int, int], [1], "Expected `list` of length 2, got 1"),
    (int, (1,), "Expected `int`, got `tuple`"),
    (list[int], [{1}], "Expected `int`, got `set` - at `$[0]`"),
    (Annotated[list[int], msgspec.Meta(min_length=2)], [1], "Expected `list` of length >= 2"),
    (Annotated[dict[str, int], msgspec.Meta(max_length=0)], {"a": 1}, "Expected `dict` of length <= 0"),
    (uuid.UUID, 1, "Expected `UUID`, got `int`"),
    (decimal.Decimal, None, "Expected `Decimal`, got `None`"),
    (datetime.timedelta, None, "Expected `timedelta`, got `None`"),
    (int, msgspec.msgpack.Ext(99, b""), "Expected `int`, got `Ext`"),
    (
        dict[str, dict[tuple[int, int], int]],
        {"a": {(1, "b"): 1}},
        "Expected `int`, got `str` - at `key[1]` in `$[...]`",
    ),
    (list[complex] | str, 5, "Expected `str | list`, got `int`"),
]

QUOTED: list[tuple[Any, Any, str]] = [
    (Literal["null", "array"], "`object`", "Invalid enum value '`object`', expected 'array' or 'null'"),
    (Literal["a"], "x - at `$.null`", "Invalid enum value 'x - at `$.null`', expected 'a'"),
    (_NULL, "`array`", "Expected `str` matching regex '`null`'"),
    (Tagged | Other, {"type": "`null`", "x": 1}, "Invalid value '`null`' - at `$.type`"),
    (dict[str, int], {"null": None}, "Expected `int`, got `None` - at `$[...]`"),
]


@pytest.mark.parametrize(("kind", "value", "words"), [*CHOICES, *WORDS, *QUOTED], ids=lambda each: case_name(each)[:40])
def test_an_error_of_a_wrong_value_uses_the_words_of_python(codec: Codec, kind: Any, value: Any, words: str) -> None:
    body = codec.encode(value)
    for read in (codec.decoder(kind), lambda body: codec.convert(codec.decode(body), kind)):
        with pytest.raises(msgspec.ValidationError) as caught:
            read(body)
        assert str(caught.value) == words
