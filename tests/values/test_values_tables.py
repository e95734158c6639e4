"""Arrow's buffers, batches and tables."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from shmrpc.values import block_of
from shmrpc.wire.codec import get_codec
from tests.helpers.value_trips import FakeBlock, buffers_of, carried, travelled

pa: Any = pytest.importorskip("pyarrow")
FAST, REFERENCE = get_codec("msgspec"), get_codec("msgpack")
NESTED = {"n": [1, None, 3], "s": ["a", "ü", None], "l": [[1], [], [2, 3]], "d": [{"x": 1}, None, {"x": 3}]}


def table(rows: int) -> Any:
    return pa.table(
        {"n": pa.array(range(rows), pa.int64()), "s": pa.array(map(str, range(rows)), pa.string())}, metadata={"k": "v"}
    )


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("rows", [0, 3, 5000])
def test_tables_and_batches(rows: int, in_blocks: bool) -> None:
    several = pa.concat_tables([table(rows), table(3)])
    values: list[Any] = [table(rows), several, pa.table(NESTED), table(rows).combine_chunks().to_batches() or 0]
    values.append(pa.record_batch({"n": list(range(rows))}))
    values.append(table(rows).slice(rows // 2))
    values.append(pa.table({"c": pa.array(["a", "b", "a"] * rows).dictionary_encode()}))
    for codec in (FAST, REFERENCE):
        got = travelled(codec, values, in_blocks=in_blocks)
        assert got == values
        assert [type(each) for each in got] == [type(each) for each in values]
        assert got[0].schema.metadata == {b"k": b"v"}


def test_a_received_table_lies_in_the_block() -> None:
    body = carried(FAST.encode(table(5000)), in_blocks=True)
    (block,) = buffers_of(body)
    whole = pa.py_buffer(block)
    got = FAST.decode(body)
    for chunk in got["n"].chunks:
        values = chunk.buffers()[1]
        assert whole.address <= values.address < whole.address + whole.size


def test_a_large_buffer_is_sent_and_received_without_a_copy() -> None:
    buffer = pa.py_buffer(bytes(range(256)) * 100)
    body = FAST.encode({"b": buffer})
    assert pa.py_buffer(buffers_of(body)[0]).address == buffer.address
    body = carried(body, in_blocks=True)
    (block,) = buffers_of(body)
    got = FAST.decode(body)["b"]
    assert got.equals(buffer)
    assert isinstance(block_of(got), FakeBlock)
    assert block_of(got) is block_of(got.slice(10).slice(5)) is block
    small = travelled(FAST, pa.py_buffer(b"abc"))
    assert small.equals(pa.py_buffer(b"abc"))
    assert block_of(small) is None


def test_declared_tables() -> None:
    kind: Any
    for kind, value in (
        (pa.Table, table(3)),
        (pa.RecordBatch, pa.record_batch({"n": [1]})),
        (pa.Buffer, pa.py_buffer(b"")),
    ):
        for codec in (FAST, REFERENCE):
            assert codec.decoder(kind)(codec.encode(value)).equals(value)
            assert codec.decoder(list[kind | None])(codec.encode([value, None]))[0].equals(value)
            with pytest.raises(msgspec.ValidationError, match="Expected `pyarrow"):
                codec.decoder(kind)(codec.encode([1]))


def stream_of(value: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("code", [9, 10])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff" * 100,
        b"text" * 100,
        stream_of(table(10))[:100],
        stream_of(table(10))[:-200],
    ],
    ids=["nothing", "much", "ones", "text", "half a schema", "half a batch"],
)
def test_a_malformed_arrow_stream_is_refused(code: int, data: bytes) -> None:
    body = msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(data)))
    with pytest.raises(msgspec.DecodeError, match="cannot be read as Arrow"):
        FAST.decode(body)


def test_a_batch_that_is_none() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table(0).schema):
        pass
    payload = msgspec.msgpack.encode(sink.getvalue().to_pybytes())
    with pytest.raises(msgspec.DecodeError, match="Arrow record batch: .* no batch"):
        FAST.decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(9, payload)))
    assert FAST.decode(msgspec.msgpack.encode(msgspec.msgpack.Ext(10, payload))).num_rows == 0


def test_without_pyarrow_a_table_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    body = FAST.encode(table(3))
    for name in [name for name in sys.modules if name.split(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(msgspec.DecodeError, match="an Arrow table, and pyarrow is not installed here"):
        FAST.decode(body)


class _Marks(pa.ExtensionArray):  # type: ignore[misc]
    """Arrays of an extension type, in a class of the program's own."""


class _Mark(pa.ExtensionType):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(pa.int64(), "shmrpc.tests.mark")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: Any, serialized: bytes) -> Any:
        return cls()

    def __arrow_ext_class__(self) -> type:
        return _Marks


def test_an_array_of_an_extension_type_arrives_in_the_class_that_the_type_names() -> None:
    marks = pa.ExtensionArray.from_storage(_Mark(), pa.array([1, None, 3]))
    pa.register_extension_type(_Mark())
    try:
        for codec in (FAST, REFERENCE):
            (got,) = travelled(codec, [marks], in_blocks=False)
            assert type(got) is _Marks and got.equals(marks)
    finally:
        pa.unregister_extension_type("shmrpc.tests.mark")
    with pytest.raises(msgspec.DecodeError, match=r"'shmrpc.tests.mark' is not known here: call pyarrow"):
        travelled(FAST, [marks], in_blocks=False)
