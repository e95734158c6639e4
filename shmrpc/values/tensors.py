"""Extension for PyTorch tensors in the CPU's memory. PyTorch is imported only to receive them, never to send."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

from msgspec.msgpack import Ext

from shmrpc.values.blocks import LARGE_ARRAY, Block, Data, check_axis_length, is_block, size_of
from shmrpc.values.decode_context import DecodeContext, library
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension

TENSOR: Final = 7


def _write_tensor(value: Any, context: EncodeContext) -> Ext:
    """Encode a tensor's elements, without gradient and ``requires_grad``. Raises TypeError if it cannot be sent."""
    torch = sys.modules["torch"]
    if value.device.type != "cpu":
        raise TypeError(f"a tensor on {value.device} cannot be sent: call .cpu() first")
    if value.layout != torch.strided or value.is_quantized:
        raise TypeError("a tensor that is sparse or quantized cannot be sent: call .to_dense() or .dequantize() first")
    tensor = value.detach().resolve_conj().resolve_neg()
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    row = tensor if tensor.is_contiguous() else tensor.permute(order)
    if not row.is_contiguous():
        row = tensor = tensor.contiguous()
    # Encoded as bytes, because NumPy lacks some of the types.
    try:
        memory = row.reshape(-1).view(torch.uint8).numpy() if row.numel() else b""
    except RuntimeError as error:
        raise TypeError(f"a tensor cannot be sent: {error}") from None
    size = row.numel() * row.element_size()
    data = bytes(memory) if size < LARGE_ARRAY else context.place(value, memory)
    payload = [str(value.dtype).removeprefix("torch."), list(value.shape), data]
    if row is not tensor:
        payload.append(list(tensor.stride()))
    return Ext(TENSOR, context.pack(payload))


def _read_tensor(payload: Any, context: DecodeContext) -> Any:
    """Return a tensor over private memory, because PyTorch has no read-only one: a write copies a page of the block.

    Raises ValueError or TypeError for an invalid payload, DecodeError without PyTorch.
    """
    torch: Any = library("torch", "a PyTorch tensor")
    name, shape, place, *layout = payload
    dtype: Any = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype of PyTorch's")
    count, size = math.prod(map(check_axis_length, shape)), size_of(context.data(place))
    if count * torch.empty(0, dtype=dtype).element_size() != size:
        raise ValueError(f"{size} bytes are not {count} elements of {dtype}")
    if not count:
        return torch.empty(shape, dtype=dtype)
    row = torch.frombuffer(context.once(TENSOR, place, _make_writable), dtype=dtype)
    if layout:
        (strides,) = layout
        if sum((n - 1) * check_axis_length(step) for n, step in zip(shape, strides, strict=True)) >= count:
            raise ValueError(f"the strides {strides} lead out of {count} elements")
        tensor = row.as_strided(shape, strides)
    else:
        tensor = row.reshape(shape)
    data = context.data(place)
    if is_block(data):
        row._shmrpc_block = tensor._shmrpc_block = data
    return tensor


def block_of_tensor(value: Any) -> Block | None:
    """Return the block of a received tensor, or of the tensor that it is a view of; None if there is none."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    found = (getattr(each, "_shmrpc_block", None) for each in (value, getattr(value, "_base", None)))
    return next((block for block in found if block is not None), None)


def _make_writable(data: Data) -> Any:
    """Return a writable buffer of the same bytes, private to this process."""
    return data.private() if is_block(data) else bytearray(data)


EXTENSIONS: Final = (
    Extension(
        TENSOR,
        "PyTorch tensor",
        "`[name of the dtype, shape, data]` in C order, else `[name, shape, data, strides]`, in elements",
        _read_tensor,
        {"torch.Tensor": _write_tensor},
    ),
)
