"""Extension for JAX arrays in the CPU's memory. JAX is imported only to receive them, never to send."""

from __future__ import annotations

import sys
from typing import Any, Final

from msgspec.msgpack import Ext

from shmrpc.values.arrays import write_array
from shmrpc.values.decode_context import DecodeContext, library
from shmrpc.values.encode_context import EncodeContext
from shmrpc.values.extension import Extension

JAX_ARRAY: Final = 39


def _write(value: Any, context: EncodeContext) -> Ext:
    """Encode the elements of a JAX array, without its sharding. Raises TypeError if it cannot be sent."""
    jax, np = sys.modules["jax"], sys.modules["numpy"]
    if isinstance(value, jax.core.Tracer):
        raise TypeError("a JAX tracer has no numbers and cannot be sent: send what the traced function returns")
    if any(device.platform != "cpu" for device in value.devices()) or not value.is_fully_addressable:
        raise TypeError("a JAX array that is not in the CPU's memory cannot be sent: call jax.device_get() first")
    if not isinstance(value.dtype, np.dtype):
        raise TypeError(f"a JAX array of {value.dtype} cannot be sent: send jax.random.key_data() of a key")
    try:
        array = np.asarray(value)
    except RuntimeError as error:  # The array was deleted or donated.
        raise TypeError(f"a JAX array cannot be sent: {error}") from None
    return Ext(JAX_ARRAY, context.pack(write_array(array, context)))


def _read(payload: Any, context: DecodeContext) -> Any:
    """Return a JAX array. Raises ValueError if JAX has no such dtype here, and TypeError for an invalid payload.

    Raises DecodeError without JAX or NumPy.
    """
    jnp, np = library("jax.numpy", "a JAX array"), library("numpy", "a JAX array")
    if not isinstance(payload, np.ndarray):
        raise TypeError(f"expected a NumPy array, got {type(payload).__name__}")
    made = jnp.asarray(payload)
    if made.dtype != payload.dtype:
        raise ValueError(f"JAX here has no {payload.dtype}: set jax_enable_x64 as its sender did")
    return made


EXTENSIONS: Final = (
    Extension(
        JAX_ARRAY,
        "JAX array",
        "NumPy array",
        _read,
        {"jax.Array": _write},
        covers=lambda kind: kind.__module__.partition(".")[0] in ("jax", "jaxlib"),
    ),
)
