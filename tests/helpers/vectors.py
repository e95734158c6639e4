"""The golden vectors: values, and the bytes that they are by the MessagePack specification.

The bytes stand in vectors.json, written by hand: ``hex``, then ``fill[0]`` repeated ``fill[1]`` times. ``value`` is
JSON, or what ``kind`` makes of it; ``plain`` is what a reader sees who does not know the type; bytes that are
``only_read`` are those that other languages send, where we send an extension.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

VECTORS: Final[list[dict[str, Any]]] = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())


def golden(vector: dict[str, Any]) -> bytes:
    """Return the bytes of a vector."""
    fill, times = vector.get("fill", ["", 0])
    return bytes.fromhex(vector["hex"] + fill * times)
