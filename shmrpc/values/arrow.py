"""Extensions for Arrow buffers, arrays, record batches and tables. pyarrow is imported only to receive them.

A table is received without a copy, so only the lengths of its columns and buffers are checked. A receiver that does
not trust the sender calls ``.validate(full=True)``, which reads all of it.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from msgspec.msgpack import Ext

from shmrpc.basics.import_hints import describe_import_failure
from shmrpc.values.blocks import LARGE_ARRAY, Block, Data, is_block
from shmrpc.values.decode_context import DecodeContext, library
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension

ARROW_BUFFER: Final = 8

#: Blocks under living Arrow buffers, by address, because Arrow does not expose them.
_blocks: Final[dict[int, Block]] = {}


def _write_buffer(value: Any, context: EncodeContext) -> Ext:
    if not value.is_cpu:
        raise TypeError("an Arrow buffer that is not in the CPU's memory cannot be sent: copy it there first")
    return Ext(ARROW_BUFFER, context.pack(_data(value, value, context)))


def _read_buffer(payload: Any, context: DecodeContext) -> Any:
    pa = _pyarrow("an Arrow buffer")
    return context.once(ARROW_BUFFER, payload, lambda data: _buffer_of(pa, data))


def _data(owner: Any, buffer: Any, context: EncodeContext) -> bytes | int:
    return buffer.to_pybytes() if buffer.size < LARGE_ARRAY else context.place(owner, buffer)


def _stream_of(value: Any) -> Any:
    """Return an IPC stream of a batch or a table. It is written twice, first only to measure its size."""
    pa: Any = sys.modules["pyarrow"]
    try:
        importlib.import_module("pyarrow.ipc")
    except ImportError as error:
        kind = type(value).__qualname__
        raise TypeError(f"sending a {kind} needs pyarrow: {describe_import_failure('pyarrow.ipc', error)}") from error
    measure = pa.MockOutputStream()
    _write(pa, measure, value)
    buffer = pa.allocate_buffer(measure.size())
    _write(pa, pa.FixedSizeBufferWriter(buffer), value)
    return buffer


def _write(pa: Any, sink: Any, value: Any) -> None:
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)


def _is_arrows(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pyarrow"


def _same(value: Any) -> Any:
    return value


def _stream(
    code: int,
    name: str,
    cls: str,
    payload: str,
    take: Callable[[Any], Any],
    wrap: Callable[[Any], Any] = _same,
    covers: Callable[[type], bool] = _is_arrows,
) -> Extension:
    """Return the extension of a type that travels as an IPC stream, whose columns stay in received memory.

    ``wrap`` makes a batch or table of a value, ``take`` reverses it.
    """

    def write(value: Any, context: EncodeContext) -> Ext:
        return Ext(code, context.pack(_data(value, _stream_of(wrap(value)), context)))

    def read(payload: Any, context: DecodeContext) -> Any:
        pa = _pyarrow(f"an {name}")

        def opened(data: Data) -> Any:
            with pa.ipc.open_stream(_buffer_of(pa, data)) as stream:
                value = take(stream)
            value.validate()
            return value

        return context.once(code, payload, opened)

    return Extension(code, name, payload, read, {cls: write}, covers=covers)


def _first_batch(stream: Any) -> Any:
    batch = next(stream, None)
    if batch is None:
        raise ValueError("there is no batch in the stream")
    return batch


def _as_batch(value: Any) -> Any:
    return sys.modules["pyarrow"].RecordBatch.from_arrays([value], [""])


def _as_table(value: Any) -> Any:
    return sys.modules["pyarrow"].Table.from_arrays([value], [""])


def _column(value: Any) -> Any:
    """Return the only column of a batch or a table. Raises ValueError."""
    if value.num_columns != 1:
        raise ValueError(f"expected one column, got {value.num_columns}")
    unknown = (value.schema.field(0).metadata or {}).get(b"ARROW:extension:name")
    if unknown is not None:
        raise ValueError(f"its type {unknown.decode()!r} is not known here: call pyarrow.register_extension_type()")
    return value.column(0)


def _pyarrow(what: str) -> Any:
    pyarrow = library("pyarrow", what)
    library("pyarrow.ipc", what)
    return pyarrow


def _buffer_of(pa: Any, data: Data) -> Any:
    buffer = pa.py_buffer(data)
    if is_block(data):
        _blocks[buffer.address] = data
        weakref.finalize(buffer, _forget, buffer.address, data).atexit = False
    return buffer


def _forget(address: int, block: Block) -> None:
    if _blocks.get(address) is block:
        del _blocks[address]


def block_of_buffer(value: Any) -> Block | None:
    """Return the block under a received Arrow buffer, or under a slice of a living one; None for any other value."""
    pa = sys.modules.get("pyarrow")
    if pa is None or not isinstance(value, pa.Buffer):
        return None
    while value is not None:
        if value.address in _blocks:
            return _blocks[value.address]
        value = value.parent
    return None


EXTENSIONS: Final = (
    Extension(ARROW_BUFFER, "Arrow buffer", "data", _read_buffer, {"pyarrow.Buffer": _write_buffer}, covers=_is_arrows),
    _stream(9, "Arrow record batch", "pyarrow.RecordBatch", "data: an IPC stream of one batch", _first_batch),
    _stream(10, "Arrow table", "pyarrow.Table", "data: an IPC stream", lambda stream: stream.read_all()),
    _stream(
        40,
        "Arrow array",
        "pyarrow.Array",
        "data: an IPC stream of one batch, which has one column",
        lambda stream: _column(_first_batch(stream)),
        _as_batch,
        lambda kind: True,  # The class of an array of an extension type, which the type names, is the program's own.
    ),
    _stream(
        41,
        "Arrow chunked array",
        "pyarrow.ChunkedArray",
        "data: an IPC stream of a table, which has one column",
        lambda stream: _column(stream.read_all()),
        _as_table,
    ),
)
