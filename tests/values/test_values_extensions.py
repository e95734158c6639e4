"""A new type is what one module adds: no other table knows of it."""

from __future__ import annotations

import collections
import importlib
import pkgutil
import sys
import types
from typing import Any

import msgpack
import pytest

from shmrpc import values
from shmrpc.introspection import known_types
from shmrpc.values.all_extensions import ALL_EXTENSIONS
from shmrpc.values.decode_context import DecodeContext
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension
from shmrpc.wire import codec as codecs
from shmrpc.wire.codec import UNREADABLE, Codec
from tests.helpers.value_trips import carried


class Degrees:
    def __init__(self, value: float) -> None:
        self.value = value


class Celsius(Degrees):
    pass


class Marked:
    """A class that no extension names, but that an extension recognises by a mark."""

    mark = "m"


def write(value: Any, context: EncodeContext) -> Any:
    return context.extension(90, [getattr(value, "value", value)])


def read(payload: Any, context: DecodeContext) -> Degrees:
    return Degrees(*payload)


DEGREES = Extension(
    90,
    "degrees",
    "`[number]`",
    read,
    {Degrees: write, "somebodys_library.Grade": write},
    adopt=lambda value: (lambda value, context: write(value.mark, context)) if hasattr(value, "mark") else None,
)


@pytest.fixture(params=["msgspec", "msgpack", "pickle"])
def codec(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Codec:
    """Return a codec made with one more extension."""
    monkeypatch.setattr(codecs, "ALL_EXTENSIONS", (*ALL_EXTENSIONS, DEGREES))
    made: Codec = codecs._codec.__wrapped__(request.param)
    return made


def test_a_type_travels_by_the_extension_that_a_module_adds(codec: Codec) -> None:
    for value in (Degrees(1.5), {"a": [(Degrees(1.5), b"x" * 100_000)]}):
        body = carried(codec.encode(value))
        got = codec.decode(body)
        got = got if isinstance(got, Degrees) else got["a"][0][0]
        assert (type(got), got.value) == (Degrees, 1.5)
    assert codec.encode(Degrees(1.0)) == msgpack.packb(msgpack.ExtType(90, msgpack.packb([1.0])))
    assert codec.decoder(Degrees)(codec.encode(Degrees(2.5))).value == 2.5
    with pytest.raises(UNREADABLE, match="cannot be read as degrees: "):
        codec.decode(msgpack.packb(msgpack.ExtType(90, msgpack.packb([]))))


def test_an_instance_of_a_derived_class_is_not_sent_unless_it_can_be_pickled(
    codec: Codec, request: pytest.FixtureRequest
) -> None:
    if request.node.callspec.id != "pickle":
        with pytest.raises(TypeError, match="a Celsius would arrive as a plain Degrees, and is not sent"):
            codec.encode(Celsius(1.5))
        return
    got = codec.decode(codec.encode(Celsius(1.5)))
    assert (type(got), got.value) == (Celsius, 1.5)


def test_a_library_is_looked_for_only_once_the_program_has_imported_it(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "somebodys_library" not in sys.modules
    codec.encode((Degrees(1.0), collections.OrderedDict(a=1)))
    assert "somebodys_library" not in sys.modules
    library = types.ModuleType("somebodys_library")
    library.Grade = type("Grade", (), {"value": 7.0})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebodys_library", library)
    assert codec.decode(codec.encode(library.Grade())).value == 7.0


def test_a_class_that_no_extension_names_is_recognised_by_its_attributes(codec: Codec) -> None:
    assert codec.decode(codec.encode(Marked())).value == "m"


def test_no_module_that_adds_types_is_left_out() -> None:
    modules = [importlib.import_module(f"shmrpc.values.{each.name}") for each in pkgutil.iter_modules(values.__path__)]
    added = [each for module in modules for each in getattr(module, "EXTENSIONS", ())]
    assert {each.name for each in added} == {each.name for each in ALL_EXTENSIONS}


def test_no_class_that_an_extension_names_is_described_as_anything() -> None:
    classes = [kind for each in ALL_EXTENSIONS for kind in each.writers if isinstance(kind, type)]
    assert [kind for kind in classes if known_types.received_texts(kind) == ["Any"]] == []


def test_no_two_extensions_have_one_code_or_one_name() -> None:
    for of in ("code", "name"):
        values = [getattr(each, of) for each in ALL_EXTENSIONS]
        assert len(set(values)) == len(values)
