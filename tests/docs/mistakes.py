"""The mistakes that users make: tests/docs/mistakes.md has each as a small program, with the message that follows."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
import warnings
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

#: The first lines of every program.
_BEFORE: Final = """
import asyncio, contextlib, dataclasses, enum, functools, math, operator
from typing import *
from collections.abc import *
import shmrpc

shop = shmrpc.Service("shop")
"""
_PART: Final = re.compile(r"^(#+) ([^\n]*)$|^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Mistake(NamedTuple):
    """A program, and the last line of what Python then prints; ``...`` in it stands for anything."""

    program: str
    message: str

    def matches(self, text: str) -> bool:
        """Return True if the text is the message."""
        return re.fullmatch(".*".join(map(re.escape, self.message.split("..."))), text, re.DOTALL) is not None


def read_mistakes(path: Path) -> dict[str, Mistake]:
    """Return the mistakes of a document, by their headings."""
    mistakes: dict[str, Mistake] = {}
    name = before = program = ""
    for level, title, language, text in _PART.findall(path.read_text()):
        if level == "#":
            name = before = ""
        elif level:
            assert title not in mistakes, title
            name = title
        elif language == "text":
            mistakes[name] = Mistake(program, " ".join(text.split()))
        elif name:
            inside = before.rstrip().endswith(":")
            program = before + (textwrap.indent(text, "    ") if inside else text)
        else:
            before = text
    return mistakes


async def run(program: str) -> str:
    """Run a program, and return the last line that Python prints: its error, or else its warning, or ""."""
    code = compile(textwrap.dedent(program), "<mistake>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    module = types.ModuleType("mistaken")
    namespace: dict[str, Any] = vars(module)
    exec(_BEFORE, namespace)
    with (
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(record=True, action="always") as caught,
    ):
        patch.setitem(sys.modules, module.__name__, module)
        try:
            run = eval(code, namespace)
            if inspect.iscoroutine(run):
                await run
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "\n".join(f"{each.category.__name__}: {each.message}" for each in caught)
