"""Groups of exceptions, and what raises them in a worker."""

from __future__ import annotations


class OutOfStock(Exception):
    def __init__(self, item: str) -> None:
        super().__init__(item)
        self.item = item


def made(name: str) -> BaseException:
    """Make the group of this name."""
    if name == "nested":
        stock = OutOfStock("ball")
        return ExceptionGroup("outer", [ValueError("a"), ExceptionGroup("inner", [stock, KeyError("k")])])

    class Local(Exception):
        def __reduce__(self) -> str:
            raise TypeError("not me")

    return ExceptionGroup("odd", [Local("local"), ValueError("b")])


def fail(name: str) -> None:
    """Raise the group of this name."""
    raise made(name)
