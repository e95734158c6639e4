"""A service that measures Python source: ``shmrpc serve examples.code_metrics:code_metrics``.

Nothing is imported or run, the source is only parsed, so any file may be sent.
"""

from __future__ import annotations

import ast
import codecs
import warnings
from collections.abc import Iterator

import msgspec

import shmrpc

code_metrics = shmrpc.Service("code_metrics")

#: Where a statement keeps the statements inside it. Expressions contain none, so they are not searched.
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


@shmrpc.register  # The caller gets this class, and the server does not log the error.
class Unparsable(ValueError):
    """A source that this version of Python cannot parse."""


class Metrics(msgspec.Struct, frozen=True):
    """Metrics of some source; two of them can be added.

    Every physical line is one of three: blank if it holds only whitespace, a comment if its first other
    character is ``#``, a line of code if it is anything else. Only that decides, also inside a string: the
    text of a docstring counts as code, and an empty line in it as blank.
    """

    classes: int = 0
    #: ``def`` and ``async def`` that are not methods: also the ones inside functions, and under an ``if``.
    functions: int = 0
    #: ``def`` and ``async def`` that stand directly in the body of a class.
    methods: int = 0
    #: Lines of code.
    lines: int = 0
    comments: int = 0
    blanks: int = 0

    def __add__(self, other: Metrics) -> Metrics:
        return Metrics(
            self.classes + other.classes,
            self.functions + other.functions,
            self.methods + other.methods,
            self.lines + other.lines,
            self.comments + other.comments,
            self.blanks + other.blanks,
        )


@code_metrics.endpoint(run_in="process")  # A long file takes longer than a loop should be held.
def measure(source: bytes, filename: str) -> Metrics:
    """Measure the source of one file. ``filename`` is only for messages.

    Raises Unparsable, with the name and the reason, for what this version of Python cannot parse.
    """
    return _count_definitions(_parse(source, filename)) + _count_lines(source)


def _parse(source: bytes, filename: str) -> ast.Module:
    # Bytes, not text: the parser knows about byte order marks and coding comments.
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Doubtful escapes and comparisons are for the file's author.
            return ast.parse(source, filename)
    except (SyntaxError, ValueError, LookupError, OverflowError, RecursionError, MemoryError) as error:
        # Null bytes and bad encodings are not always a SyntaxError, and source that is nested too deeply
        # is a RecursionError or a MemoryError. For the caller it is all one.
        reason = str(error) or "no reason given"
        raise Unparsable(f"{filename}: cannot be parsed: {type(error).__name__}: {reason}") from None


def _count_definitions(module: ast.Module) -> Metrics:
    classes = functions = methods = 0
    for node in _statements(module):
        if isinstance(node, ast.ClassDef):
            classes += 1
            methods += sum(_is_function(statement) for statement in node.body)
        elif _is_function(node):
            functions += 1
    return Metrics(classes, functions - methods, methods)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _statements(module: ast.Module) -> Iterator[ast.AST]:
    """Every statement, however deep. With a stack of our own: a long ``elif`` chain is nested deeply."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        yield node
        for block in _BLOCKS:
            waiting.extend(getattr(node, block, ()))


def _count_lines(source: bytes) -> Metrics:
    lines = comments = blanks = 0
    for line in source.removeprefix(codecs.BOM_UTF8).splitlines():
        text = line.lstrip()
        if not text:
            blanks += 1
        elif text.startswith(b"#"):
            comments += 1
        else:
            lines += 1
    return Metrics(lines=lines, comments=comments, blanks=blanks)
