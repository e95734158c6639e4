"""Arrays of other libraries with `__dlpack__`: themselves where their very class is declared, else refused."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import types
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.msgpack import Ext

import shmrpc
import shmrpc.sync
from shmrpc.values.foreign_arrays import FOREIGN_ARRAY
from shmrpc.wire.codec import UNREADABLE, Codec, encode_inline, exact_codec, get_codec
from tests.helpers.value_trips import carried
from tests.values.value_samples import Tensor, is_same

LARGE = 100_000
CPU = 1
NAME = f"{Tensor.__module__}.Tensor"
REMEDY = r"send numpy\.from_dlpack\(value\), or shmrpc\.register\("


class Derived(Tensor):
    pass


class Doubling(Tensor):
    """A class whose constructor takes something other than its elements."""

    def __init__(self, numbers: np.ndarray) -> None:
        super().__init__(numbers * 2)


class Zeroing(Tensor):
    """A class whose constructor writes to what it gets."""

    def __init__(self, numbers: np.ndarray) -> None:
        numbers[...] = 0
        super().__init__(numbers)


class Made(Tensor):
    """A class that makes its instances by a method."""

    def __init__(self) -> None:
        raise AssertionError("it is made by from_dlpack")

    @classmethod
    def from_dlpack(cls, other: Any) -> Made:
        made = cls.__new__(cls)
        made.numbers = np.from_dlpack(other)
        return made


class OnADevice(Tensor):
    def __dlpack_device__(self) -> Any:
        return 2, 0


@dataclasses.dataclass
class Holder:
    tensor: Tensor
    name: str = "weights"


service = shmrpc.Service(f"foreign-arrays-{os.getpid()}")


@service.endpoint
def echo(tensor: Tensor, other: Tensor | None = None) -> Tensor:
    assert type(tensor) is Tensor
    return tensor if other is None else other


@service.endpoint
def both(holder: Holder, pairs: list[tuple[Tensor, int]]) -> tuple[Holder, dict[str, Tensor]]:
    assert type(holder.tensor) is type(pairs[0][0]) is Tensor
    return holder, {"first": pairs[0][0]}


@service.endpoint
def count(*tensors: Tensor, **named: Tensor) -> int:
    assert {type(each) for each in (*tensors, *named.values())} == {Tensor}
    return len(tensors) + len(named)


@service.endpoint
def take(value: Any, derived: Derived | None = None) -> Any:
    raise AssertionError(f"it got {value!r} and {derived!r}")


@service.endpoint
def undeclared_result(tensor: Tensor) -> Any:
    return tensor


@service.endpoint
async def each(tensors: AsyncIterator[Tensor]) -> AsyncIterator[Tensor]:
    async for tensor in tensors:
        assert type(tensor) is Tensor
        yield tensor


@pytest.fixture(params=["msgspec", "msgpack"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.mark.parametrize("size", [3, LARGE])
async def test_an_array_arrives_as_an_instance_of_its_declared_class(size: int) -> None:
    sent = Tensor(np.arange(size, dtype=np.int16).reshape(1, size))
    async with shmrpc.serve(service), shmrpc.connect(service) as client:
        assert is_same(await client.echo(sent), sent)
        assert is_same(await client.echo(tensor=sent, other=sent), sent)
        holder, named = await client.both(Holder(sent), [(sent, 1)])
        assert (type(holder), holder.name) == (Holder, "weights")
        assert is_same([holder.tensor, named], [sent, {"first": sent}])
        assert await client.count(sent, sent, c=sent) == 3
        assert await client.count(*[sent] * 20) == 20
        assert is_same([each async for each in client.each(iter([sent, sent]))], [sent, sent])


@pytest.mark.parametrize("size", [3, LARGE])
async def test_an_array_of_one_of_many_calls_arrives_as_its_declared_class(size: int) -> None:
    sent = Tensor(np.arange(size))
    async with shmrpc.serve(service), shmrpc.connect(service) as client:
        assert is_same([each async for each in client.map(echo, [sent, sent])], [sent, sent])
        async with client.batch() as batch:
            same, undeclared = batch.call(echo, sent), batch.call(undeclared_result, sent)
            named, number = batch.echo(sent), batch.count(sent, b=sent)
        assert is_same([await same, await named], [sent, sent])
        assert await number == 2
        with pytest.raises(shmrpc.DecodeError, match=REMEDY):
            await undeclared


async def test_an_array_arrives_as_its_declared_class_in_threads() -> None:
    def work() -> None:
        with shmrpc.sync.connect(service) as client:
            assert is_same(client.echo(sent), sent)
            assert is_same(client.echo(tensor=sent), sent)
            assert is_same(list(client.each(iter([sent]))), [sent])
            with pytest.raises(shmrpc.InvalidArguments, match=REMEDY):
                client.take(sent)

    sent = Tensor(np.arange(LARGE))
    async with shmrpc.serve(service):
        await asyncio.to_thread(work)


async def test_an_array_is_refused_where_its_class_is_not_declared() -> None:
    sent = Tensor(np.arange(3))
    async with shmrpc.serve(service), shmrpc.connect(service) as client:
        for value in (sent, [sent], {"a": (sent, 1)}, Tensor(np.arange(LARGE)), Derived(np.arange(3))):
            for args, named in (((value,), {}), ((), {"value": value})):
                with pytest.raises(shmrpc.InvalidArguments, match=f"'value': a .* is not declared; {REMEDY}"):
                    await client.take(*args, **named)
        with pytest.raises(shmrpc.InvalidArguments, match=rf"'derived': expected `.*got `{NAME}`; {REMEDY}Tensor"):
            await client.take(1, sent)
        with pytest.raises(shmrpc.InvalidArguments, match=rf"expected `Tensor.*got `.*\.Derived`; {REMEDY}Derived"):
            await client.echo(Derived(np.arange(3)))
        with pytest.raises(shmrpc.DecodeError, match=REMEDY):
            await client.undeclared_result(sent)
        assert is_same(await client.echo(sent), sent)


@pytest.mark.parametrize("kind", [int, str, bytes, list[int], np.ndarray, Derived, Derived | int, Holder, int | None])
def test_the_words_for_another_declared_type_say_what_to_send(codec: Codec, kind: Any) -> None:
    for size in (3, LARGE):
        with pytest.raises(
            msgspec.ValidationError, match=rf"Expected `.*`, got `{NAME}`; {REMEDY}Tensor, enc.*\$\[0\]"
        ):
            codec.decoder(list[kind])(carried(codec.encode([Tensor(np.arange(size))])))
    with pytest.raises(msgspec.ValidationError, match=f"a {NAME} arrived where its class is not declared; {REMEDY}"):
        codec.decoder(dict[str, Any])(codec.encode({"a": [Tensor(np.arange(3))]}))


def test_a_mismatch_of_a_class_named_like_the_placeholder_names_that_class(codec: Codec) -> None:
    other = type("ForeignArray", (), {})()
    for value, kind in ((other, int), ([other], list[int]), (other, dict[str, int])):
        with pytest.raises(msgspec.ValidationError, match="Expected `.*`, got `ForeignArray`"):
            codec.convert(value, kind)


@pytest.mark.parametrize("size", [3, LARGE])
@pytest.mark.parametrize("kind", [Doubling, Zeroing])
def test_a_class_that_changes_the_elements_is_refused(codec: Codec, kind: type[Tensor], size: int) -> None:
    value = Tensor.__new__(kind)
    value.numbers = np.ones(size)
    with pytest.raises(msgspec.ValidationError, match=rf"no equal `{kind.__name__}` can be made .* {REMEDY}"):
        codec.decoder(kind)(carried(codec.encode(value)))


def test_a_class_with_from_dlpack_is_made_by_that(codec: Codec) -> None:
    value = Made.from_dlpack(np.arange(LARGE))
    assert is_same(codec.decoder(Made)(carried(codec.encode(value))).numbers, value.numbers)


def test_a_class_is_made_by_its_library(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("arrays_of_others")
    array = type("Array", (Tensor,), {"__module__": "arrays_of_others.core", "__init__": lambda self: None})

    def from_dlpack(other: Any) -> Any:
        made: Any = Tensor.__new__(array)
        made.numbers = np.from_dlpack(other)
        return made

    library.from_dlpack = from_dlpack  # type: ignore[attr-defined]
    body = carried(codec.encode(from_dlpack(np.arange(3))))
    with pytest.raises(msgspec.ValidationError, match="no equal `Array` can be made"):
        codec.decoder(array)(body)
    monkeypatch.setitem(sys.modules, "arrays_of_others", library)
    assert codec.decoder(array)(body).numbers.tolist() == [0, 1, 2]


def test_an_instance_has_memory_of_its_own(codec: Codec) -> None:
    got = codec.decoder(Tensor)(carried(codec.encode(Tensor(np.zeros(LARGE)))))
    got.numbers += 1
    assert got.numbers.sum() == LARGE


def test_objects_that_cannot_become_arrays_are_refused_at_the_sender(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match=r"OnADevice cannot be sent: it is not in the CPU's memory; copy it there, or"):
        codec.encode(OnADevice(np.arange(3)))
    with pytest.raises(TypeError, match=r"a Tensor cannot be sent: numpy\.from_dlpack\(\) cannot take it: .*; send an"):
        codec.encode(Tensor(np.array([None])))
    monkeypatch.delitem(sys.modules, "numpy")
    with pytest.raises(TypeError, match=r"has not imported NumPy; import numpy, or shmrpc\.register\(Tensor, encode, "):
        codec.encode([Tensor(np.arange(3))])


@pytest.mark.parametrize("name", ["msgspec", "msgpack"])
def test_queues_and_topics_refuse_one(name: Any) -> None:
    with pytest.raises(TypeError, match=rf"Tensor is unsupported; {REMEDY}Tensor, encode, decode\)"):
        exact_codec(name).encode(Tensor(np.arange(3)))


def test_no_array_is_a_member_of_a_set(codec: Codec) -> None:
    body = msgspec.msgpack.encode(Ext(18, msgspec.msgpack.encode([1, Ext(FOREIGN_ARRAY, payload("a.B"))])))
    for kind in (Any, set[Tensor], set[Any]):
        with pytest.raises(UNREADABLE):
            codec.decoder(kind)(body)


def payload(name: Any, array: Any = None) -> bytes:
    return msgspec.msgpack.encode([name, msgspec.Raw(encode_inline(np.arange(3) if array is None else array))])


@pytest.mark.parametrize(
    "data",
    [
        payload("builtins.int"),
        payload("subprocess.Popen"),
        payload(f"{__name__}.Holder"),
        payload(f"{__name__}.Derived"),
        payload(5),
        payload(None),
        payload([NAME]),
        payload(NAME, "text"),
        payload(NAME, np.float64(1.5)),
        payload(NAME, [1, 2]),
        msgspec.msgpack.encode([NAME]),
        msgspec.msgpack.encode(NAME),
        msgspec.msgpack.encode({}),
        b"\xc1",
        payload("x" * 100_000),
    ],
)
@pytest.mark.parametrize("kind", [Any, int, Holder, Tensor, list[Tensor], Tensor | None, Tensor | str, type, object])
def test_a_peer_that_lies_makes_no_instance(codec: Codec, kind: Any, data: bytes) -> None:
    extension = Ext(FOREIGN_ARRAY, data)
    for value in (extension, [extension], {"tensor": extension}):
        with pytest.raises(UNREADABLE) as caught:
            codec.decoder(kind)(msgspec.msgpack.encode(value))
        assert len(str(caught.value)) < 1000


def test_only_its_elements_are_taken_from_a_peer(codec: Codec) -> None:
    body = msgspec.msgpack.encode(Ext(FOREIGN_ARRAY, payload(NAME, np.array(["a"]))))
    with pytest.raises(msgspec.ValidationError, match="no equal `Tensor` can be made"):
        codec.decoder(Tensor)(body)
    body = msgspec.msgpack.encode(Ext(FOREIGN_ARRAY, payload(NAME)))
    assert is_same(codec.decoder(Tensor)(body), Tensor(np.arange(3)))


def test_the_words_for_dtypes_of_other_libraries_say_what_to_send(codec: Codec) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in ("bfloat16", "float8_e5m2", "int4"):
        cls = getattr(ml_dtypes, name)
        array = np.ones(3, cls)
        with pytest.raises(TypeError, match=r"send value\.view\('u[12]'\), and call \.view\('.*'\) on what") as caught:
            codec.encode(array)
        plain = array.view("u2" if "'u2'" in str(caught.value) else "u1")
        assert codec.decode(codec.encode(plain)).view(name).tolist() == array.tolist()
        with pytest.raises(TypeError, match=rf"send float\(value\), or shmrpc\.register\({name}, float, {name}\)"):
            codec.encode(array[0])
