"""Encoded arrays that do not fit their buffer: the first one beside the body, of 24 bytes."""

from __future__ import annotations

from typing import Any, Final

#: The code of the extension.
ARRAY: Final = 5
#: Bytes of the buffer.
BUFFER_SIZE: Final = 24
_HUGE: Final = 1 << 62
#: Payloads: dtype, shape, index of the buffer, and optionally strides and offset.
CORRUPT_ARRAYS: Final[dict[str, list[Any]]] = {
    "one element too many": ["<f8", [4], 0],
    "one element too few": ["<f8", [2], 0],
    "no elements": ["<f8", [0], 0],
    "as many bytes as elements": ["<f8", [24], 0],
    "two axes too long": ["<f8", [2, 2], 0],
    "no axes": ["<f8", [], 0],
    "a length that is huge": ["<f8", [2**64 - 1], 0],
    "a length below zero": ["<f8", [-3], 0],
    "lengths below zero": ["<f8", [-3, -1], 0],
    "a product that is small again": ["<f8", [_HUGE + 3, 4], 0],
    "a size that is small again": ["<f8", [(1 << 61) + 3], 0],
    "no elements of a size that cannot be": ["<f8", [0, _HUGE, _HUGE], 0],
    "more axes than there are": ["|u1", [24, *[1] * 70], 0],
    "a length that is no number": ["<f8", ["3"], 0],
    "a length that is true": ["|u1", [24, True], 0],
    "a shape that is none": ["<f8", 3, 0],
    "another size of elements": ["<f4", [3], 0],
    "a larger size of elements": ["<c16", [3], 0],
    "elements of no such size": ["<f7", [3], 0],
    "references": ["|O8", [3], 0],
    "a dtype that is no text": [8, [3], 0],
    "a dtype that is bytes": [b"<f8", [3], 0],
    "a dtype without an end": ["<f8" * 100, [3], 0],
    "a buffer that has not come": ["<f8", [3], 2],
    "a buffer far out": ["<f8", [3], 2**64 - 1],
    "a buffer below zero": ["<f8", [3], -1],
    "a buffer that is true": ["<f8", [3], True],
    "no buffer": ["<f8", [3], None],
    "nothing of it": [],
    "no place": ["<f8", [3]],
    "strides out of it": ["<f8", [3], 0, [16], 0],
    "strides before it": ["<f8", [3], 0, [-8], 0],
    "strides that are huge": ["<f8", [3], 0, [_HUGE], 0],
    "an offset out of it": ["<f8", [3], 0, [8], 8],
    "an offset before it": ["<f8", [3], 0, [8], -8],
    "an offset that is huge": ["<f8", [3], 0, [8], _HUGE],
    "strides alone": ["<f8", [3], 0, [8]],
    "strides of another number of axes": ["<f8", [3], 0, [8, 8], 0],
    "more than that": ["<f8", [3], 0, [8], 0, 0],
}
