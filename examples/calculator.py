"""The smallest useful service: ``shmrpc serve examples.calculator:calculator``."""

import shmrpc

calculator = shmrpc.Service("calculator")


@calculator.endpoint
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@calculator.endpoint
async def greet(name: str, *, punctuation: str = "!") -> str:
    """Greet a person by name."""
    return f"Hello, {name}{punctuation}"
