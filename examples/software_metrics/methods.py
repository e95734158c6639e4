"""The methods in a file of source, and what one of them consists of: what a worker finds out."""

from __future__ import annotations

import ast
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Where the way through a method parts.
_BRANCHES: Final = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.comprehension)


class Metrics(msgspec.Struct, frozen=True):
    """Metrics of some methods; two of them can be added."""

    methods: int = 0
    lines: int = 0
    statements: int = 0
    #: Ways through them, as McCabe counts: one for each method, and one for each branch in it.
    complexity: int = 0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(
            self.methods + other.methods,
            self.lines + other.lines,
            self.statements + other.statements,
            self.complexity + other.complexity,
        )


def methods_in(path: str) -> list[str]:
    """Return the source of each method in a file; none for a file that this version of Python cannot parse."""
    source = Path(path).read_bytes()
    try:
        module = _parse(source)
        lines = source.decode().splitlines()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [_source(lines, method) for method in _methods(module)]


def measure(method: str) -> Metrics:
    """Measures a method, given by its source."""
    function = next(node for node in ast.walk(_parse(method)) if isinstance(node, _FUNCTIONS))
    nodes = list(ast.walk(function))
    branches = sum(isinstance(node, _BRANCHES) for node in nodes)
    operators = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    return Metrics(1, len(_lines(function)), statements, 1 + branches + operators)


def _parse(source: bytes | str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Doubtful escapes are for the file's author.
        return ast.parse(source)


def _methods(module: ast.Module) -> Iterator[_Function]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield from (statement for statement in node.body if isinstance(statement, _FUNCTIONS))


def _lines(method: _Function) -> range:
    """Return the numbers of the lines of a method, decorators included; the first line of the file is 0."""
    first = min([method.lineno, *(decorator.lineno for decorator in method.decorator_list)])
    return range(first - 1, method.end_lineno or first)


def _source(lines: list[str], method: _Function) -> str:
    own = _lines(method)
    text = textwrap.dedent("\n".join(lines[own.start : own.stop]))
    # A line that is indented less is within a string. In the body of an if, the method can be parsed unchanged.
    return text if not text[:1].isspace() else "if True:\n" + text
