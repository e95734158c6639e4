"""PyTorch's tensors, with a small stand-in for the library that has what we use of it, made of NumPy's arrays."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from shmrpc.values import block_of, registry
from shmrpc.wire.codec import get_codec
from tests.helpers.value_trips import FakeBlock, buffers_of, carried, travelled

FAST, REFERENCE = get_codec("msgspec"), get_codec("msgpack")


class DType:
    def __init__(self, name: str, held: str) -> None:
        self.name = name
        #: The type of NumPy's that has the bits.
        self.held = np.dtype(held)

    def __repr__(self) -> str:
        return f"torch.{self.name}"


class Device:
    def __init__(self, kind: str) -> None:
        self.type = kind

    def __str__(self) -> str:
        return f"{self.type}:0"


class Tensor:
    layout: Any = "strided"
    is_quantized = False

    def __init__(self, held: np.ndarray, dtype: DType, base: Tensor | None = None) -> None:
        self.held, self.dtype, self._base, self.device = held, dtype, base, Device("cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.held.shape

    def detach(self) -> Tensor:
        return self

    resolve_conj = resolve_neg = detach

    def dim(self) -> int:
        return self.held.ndim

    def stride(self, axis: int | None = None) -> Any:
        steps = tuple(step // self.held.itemsize for step in self.held.strides)
        return steps if axis is None else steps[axis]

    def is_contiguous(self) -> bool:
        return self.held.flags.c_contiguous

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else Tensor(np.ascontiguousarray(self.held), self.dtype)

    def permute(self, order: list[int]) -> Tensor:
        return Tensor(self.held.transpose(order), self.dtype, self)

    def reshape(self, *shape: Any) -> Tensor:
        return Tensor(self.held.reshape(*shape), self.dtype, self)

    def as_strided(self, shape: list[int], strides: list[int]) -> Tensor:
        steps = [step * self.held.itemsize for step in strides]
        return Tensor(np.lib.stride_tricks.as_strided(self.held, shape, steps), self.dtype, self)

    def view(self, dtype: DType) -> Tensor:
        return Tensor(self.held.view(dtype.held), dtype, self)

    def numel(self) -> int:
        return self.held.size

    def element_size(self) -> int:
        return self.held.itemsize

    def numpy(self) -> np.ndarray:
        if self.dtype.name == "bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.held

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.held[index], self.dtype, self)


DTYPES = {
    "uint8": "u1",
    "float32": "f4",
    "float64": "f8",
    "int64": "i8",
    "bool": "?",
    "complex64": "c8",
    "bfloat16": "u2",
}


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: Any = types.ModuleType("torch")
    made.Tensor, made.dtype, made.strided = Tensor, DType, "strided"
    for name, held in DTYPES.items():
        setattr(made, name, DType(name, held))

    def frombuffer(buffer: Any, *, dtype: DType) -> Tensor:
        assert not memoryview(buffer).readonly
        assert len(memoryview(buffer))
        return Tensor(np.frombuffer(buffer, dtype.held), dtype)

    made.frombuffer = frombuffer
    made.empty = lambda shape, *, dtype: Tensor(np.empty(shape, dtype.held), dtype)
    monkeypatch.setitem(sys.modules, "torch", made)
    yield made
    for listener in registry._listeners:  # So that nothing remembers the stand-in's class.
        listener()


def tensor(torch: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    dtype = getattr(torch, name)
    held = np.random.default_rng(1).integers(0, 2, int(np.prod(shape)), np.uint8).astype(dtype.held)
    return Tensor(held.reshape(shape), dtype)


def alike(got: Any, expected: Tensor) -> None:
    assert type(got) is Tensor
    assert got.dtype is expected.dtype
    assert got.shape == expected.shape
    assert np.array_equal(got.held, expected.held)
    assert got.held.flags.writeable


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (5,), (2, 3), (40, 50, 10)])
@pytest.mark.parametrize("name", DTYPES)
def test_tensors_of_any_type_and_shape(torch: Any, name: str, shape: tuple[int, ...], in_blocks: bool) -> None:
    value = tensor(torch, name, shape)
    for codec in (FAST, REFERENCE):
        body = codec.encode([value])
        assert len(buffers_of(body)) == (value.held.nbytes >= 4096)
        alike(codec.decode(carried(body, in_blocks=in_blocks))[0], value)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (2, 1, 0)])
def test_axes_in_another_order_cost_no_copy(torch: Any, order: tuple[int, ...]) -> None:
    whole = tensor(torch, "float32", (20, 30, 10))
    value = whole.permute(list(order))
    body = FAST.encode(value)
    assert np.shares_memory(buffers_of(body)[0], whole.held)
    got = FAST.decode(carried(body, in_blocks=True))
    alike(got, value)
    assert got.stride() == value.stride()


def test_a_tensor_with_gaps_is_sent_without_them(torch: Any) -> None:
    value = tensor(torch, "float32", (100, 100))[:, ::2]
    body = FAST.encode(value)
    assert len(buffers_of(body)[0]) == 100 * 50 * 4
    alike(FAST.decode(carried(body)), value)


def test_writes_to_a_received_tensor_do_not_reach_the_block(torch: Any) -> None:
    body = carried(FAST.encode(tensor(torch, "float32", (2000,))), in_blocks=True)
    (block,) = buffers_of(body)
    before = block.to_bytes()
    got = FAST.decode(body)
    got.held[:] = 9
    assert block.to_bytes() == before
    assert block_of(got) is block_of(got[3:]) is block
    assert isinstance(block, FakeBlock)
    assert block_of(travelled(FAST, tensor(torch, "float32", (3,)))) is None


def test_tensors_that_cannot_be_sent(torch: Any) -> None:
    on_gpu, sparse, quantized = (tensor(torch, "float32", (3,)) for _ in range(3))
    on_gpu.device = Device("cuda")
    sparse.layout = "sparse_coo"
    quantized.is_quantized = True
    for value, message in (
        (on_gpu, r"on cuda:0 cannot be sent: call \.cpu\(\) first"),
        (sparse, r"call \.to_dense\(\)"),
        (quantized, r"\.dequantize\(\)"),
    ):
        with pytest.raises(TypeError, match=message):
            FAST.encode(value)


def test_a_declared_tensor(torch: Any) -> None:
    value = tensor(torch, "float32", (3,))
    alike(FAST.decoder(Tensor)(FAST.encode(value)), value)
    alike(FAST.decoder(list[Tensor | None])(FAST.encode([value, None]))[0], value)
    with pytest.raises(msgspec.ValidationError, match="Expected `.*Tensor`, got `list`"):
        FAST.decoder(Tensor)(FAST.encode([1]))


@pytest.mark.parametrize(
    "payload",
    [
        ["float32", [3], bytes(8)],
        ["float32", [-3], bytes(12)],
        ["float32", [1 << 62, 4], bytes(16)],
        ["float", [1], bytes(8)],
        ["Tensor", [1], bytes(8)],
        ["no such", [1], bytes(8)],
        [5, [1], bytes(8)],
        ["float32", [2, 2], bytes(16), [2, 2]],
        ["float32", [2, 2], bytes(16), [-1, 2]],
        ["float32", [2, 2], bytes(16), [1]],
        ["float32", [2, 2], bytes(16), [1 << 62, 1]],
        ["float32", [2], 0],
        ["float32", [2.0], bytes(8)],
    ],
    ids=repr,
)
def test_lies_about_a_tensor(payload: list[Any]) -> None:
    body = msgspec.msgpack.encode(msgspec.msgpack.Ext(7, msgspec.msgpack.encode(payload)))
    for codec in (FAST, REFERENCE):
        with pytest.raises(msgspec.DecodeError):
            codec.decode(body)


def test_without_torch_a_tensor_says_what_is_missing(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = FAST.encode(tensor(torch, "float32", (3,)))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(msgspec.DecodeError, match="a PyTorch tensor, and torch is not installed here"):
        FAST.decode(body)
