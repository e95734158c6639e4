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
    """Return the extension of an Arrow buffer. Raises TypeError for a buffer outside the CPU's memory."""
    if not value.is_cpu:
        raise TypeError("an Arrow buffer that is not in the CPU's memory cannot be sent: copy it there first")
    return Ext(ARROW_BUFFER, context.pack(_encode_data(value, value, context)))


def _read_buffer(payload: Any, context: DecodeContext) -> Any:
    """Return an Arrow buffer over the data; the same one each time for the same buffer of the parcel.

    Raises DecodeError without pyarrow.
    """
    pa = _import_pyarrow("an Arrow buffer")
    return context.once(ARROW_BUFFER, payload, lambda data: _wrap_buffer(pa, data))


def _encode_data(owner: Any, buffer: Any, context: EncodeContext) -> bytes | int:
    """Return the bytes of a small buffer, or place a large one beside the body and return its index."""
    return buffer.to_pybytes() if buffer.size < LARGE_ARRAY else context.place(owner, buffer)


def _write_ipc_stream(value: Any) -> Any:
    """Return a buffer with the IPC stream of a batch or a table, which is written twice, first to measure its size.

    Raises TypeError if pyarrow cannot be imported.
    """
    pa: Any = sys.modules["pyarrow"]
    try:
        importlib.import_module("pyarrow.ipc")
    except ImportError as error:
        kind = type(value).__qualname__
        raise TypeError(f"sending a {kind} needs pyarrow: {describe_import_failure('pyarrow.ipc', error)}") from error
    measure = pa.MockOutputStream()
    _write_value(pa, measure, value)
    buffer = pa.allocate_buffer(measure.size())
    _write_value(pa, pa.FixedSizeBufferWriter(buffer), value)
    return buffer


def _write_value(pa: Any, sink: Any, value: Any) -> None:
    """Write a batch or a table to ``sink`` as an IPC stream."""
    with pa.ipc.new_stream(sink, value.schema) as writer:
        writer.write(value)


def _is_arrow_class(kind: type) -> bool:
    """Return True if a module of pyarrow defines the class."""
    return kind.__module__.partition(".")[0] == "pyarrow"


def _identity(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def _stream_extension(
    code: int,
    name: str,
    cls: str,
    payload: str,
    take: Callable[[Any], Any],
    wrap: Callable[[Any], Any] = _identity,
    covers: Callable[[type], bool] = _is_arrow_class,
) -> Extension:
    """Return the extension of a type that travels as an IPC stream. The columns of a received value stay in its block.

    ``wrap`` makes a batch or table of a value, ``take`` reads the value from a stream.
    """

    def write(value: Any, context: EncodeContext) -> Ext:
        return Ext(code, context.pack(_encode_data(value, _write_ipc_stream(wrap(value)), context)))

    def read(payload: Any, context: DecodeContext) -> Any:
        pa = _import_pyarrow(f"an {name}")

        def read_stream(data: Data) -> Any:
            with pa.ipc.open_stream(_wrap_buffer(pa, data)) as stream:
                value = take(stream)
            value.validate()
            return value

        return context.once(code, payload, read_stream)

    return Extension(code, name, payload, read, {cls: write}, covers=covers)


def _first_batch(stream: Any) -> Any:
    """Return the next batch of a stream. Raises ValueError if there is none."""
    batch = next(stream, None)
    if batch is None:
        raise ValueError("there is no batch in the stream")
    return batch


def _as_batch(value: Any) -> Any:
    """Return a record batch whose only column, without a name, is an Arrow array."""
    return sys.modules["pyarrow"].RecordBatch.from_arrays([value], [""])


def _as_table(value: Any) -> Any:
    """Return a table whose only column, without a name, is a chunked array."""
    return sys.modules["pyarrow"].Table.from_arrays([value], [""])


def _only_column(value: Any) -> Any:
    """Return the column of a batch or a table. Raises ValueError if there is not one, or its type is unknown here."""
    if value.num_columns != 1:
        raise ValueError(f"expected one column, got {value.num_columns}")
    unknown = (value.schema.field(0).metadata or {}).get(b"ARROW:extension:name")
    if unknown is not None:
        raise ValueError(f"its type {unknown.decode()!r} is not known here: call pyarrow.register_extension_type()")
    return value.column(0)


def _import_pyarrow(what: str) -> Any:
    """Import pyarrow and its IPC. Raises DecodeError, which calls the value ``what``."""
    pyarrow = library("pyarrow", what)
    library("pyarrow.ipc", what)
    return pyarrow


def _wrap_buffer(pa: Any, data: Data) -> Any:
    """Return a pyarrow buffer over data, without a copy.

    If the data is a block, record it by the address of the buffer until the buffer is freed.
    """
    buffer = pa.py_buffer(data)
    if is_block(data):
        _blocks[buffer.address] = data
        weakref.finalize(buffer, _forget_block, buffer.address, data).atexit = False
    return buffer


def _forget_block(address: int, block: Block) -> None:
    """Remove a block from the table, unless another block has its address now."""
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
    Extension(
        ARROW_BUFFER, "Arrow buffer", "data", _read_buffer, {"pyarrow.Buffer": _write_buffer}, covers=_is_arrow_class
    ),
    _stream_extension(9, "Arrow record batch", "pyarrow.RecordBatch", "data: an IPC stream of one batch", _first_batch),
    _stream_extension(10, "Arrow table", "pyarrow.Table", "data: an IPC stream", lambda stream: stream.read_all()),
    _stream_extension(
        40,
        "Arrow array",
        "pyarrow.Array",
        "data: an IPC stream of one batch, which has one column",
        lambda stream: _only_column(_first_batch(stream)),
        _as_batch,
        lambda kind: True,  # The class of an array of an extension type, which the type names, is the program's own.
    ),
    _stream_extension(
        41,
        "Arrow chunked array",
        "pyarrow.ChunkedArray",
        "data: an IPC stream of a table, which has one column",
        lambda stream: _only_column(stream.read_all()),
        _as_table,
    ),
)
