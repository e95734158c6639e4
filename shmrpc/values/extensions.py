"""The MessagePack extensions by which values travel that MessagePack has not.

A payload is one MessagePack value, and may hold extensions in turn, 100 of them in each other. *data* is either
``bin``, the bytes themselves, or ``int``, the place of a buffer among those that travel beside the body. Bytes of
numbers are in the byte order that the type says, or the machine's where it says none.

====  ===================  =================================================================================
code  value                payload
====  ===================  =================================================================================
1     bytes                data: large ones only, small ones are MessagePack's own ``bin``
2     bytearray            data
3     memoryview           data, or ``[data, format, shape]`` if it is not plain bytes in a row
4     array.array          ``[typecode, data]``
5     NumPy array          ``[dtype, shape, data]`` in C order, else ``[dtype, shape, data, strides, offset]``,
                           in bytes; *dtype* is a text such as ``<f4``, or ``{"fields": [[name, dtype, offset],
                           …], "itemsize": int}`` (a title may come fourth), or ``{"base": dtype, "shape": […]}``
6     NumPy scalar         ``[dtype, bin]``
7     PyTorch tensor       ``[name of the dtype, shape, data]`` in C order, else ``[…, strides]``, in elements
8     Arrow buffer         data
9     Arrow record batch   data: an IPC stream of one batch
10    Arrow table          data: an IPC stream
16    int over 64 bits     bin: two's complement, most significant byte first
17    complex              ``[real, imaginary]``
18    set                  array of the elements
19    frozenset            array of the elements
20    tuple                array of the elements
21    range                ``[start, stop, step]``
22    slice                ``[start, stop, step]``
23    date                 ISO text
24    time                 ISO text, or ``[ISO text, zone, fold]``; *zone*: nil, a time zone's IANA name, or
                           ``[microseconds east of UTC]``, with the zone's own name second if it has one
25    datetime             as for a time; one in UTC is MessagePack's own timestamp
26    timedelta            ``[days, seconds, microseconds]``
27    time zone            zone
28    Decimal              text
29    Fraction             ``[numerator, denominator]``
30    UUID                 bin of 16 bytes
31    path                 ``[kind, name]``: ``path``, ``posix`` or ``windows`` (the pure ones); text, or bin for
                           a name that is no UTF-8
32    registered Enum      ``[registered name, member, value]``
33    registered class     ``[registered name, {field: value}]``
34    user type            ``[registered name, what its encode gave]``
35    pickle               ``[data, [data, …]]``: a pickle and its buffers
====  ===================  =================================================================================
"""

from __future__ import annotations

from typing import Final

#: So many extensions may stand in each other. The reference package takes 40 KB of the stack for each.
MAX_DEPTH: Final = 100

BYTES: Final = 1
BYTEARRAY: Final = 2
MEMORYVIEW: Final = 3
ARRAY: Final = 4
NDARRAY: Final = 5
SCALAR: Final = 6
TENSOR: Final = 7
ARROW_BUFFER: Final = 8
RECORD_BATCH: Final = 9
TABLE: Final = 10
INTEGER: Final = 16
COMPLEX: Final = 17
SET: Final = 18
FROZENSET: Final = 19
TUPLE: Final = 20
RANGE: Final = 21
SLICE: Final = 22
DATE: Final = 23
TIME: Final = 24
DATETIME: Final = 25
TIMEDELTA: Final = 26
ZONE: Final = 27
DECIMAL: Final = 28
FRACTION: Final = 29
UUID: Final = 30
PATH: Final = 31
ENUM: Final = 32
OBJECT: Final = 33
CUSTOM: Final = 34
PICKLE: Final = 35
