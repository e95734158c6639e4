#!/usr/bin/env python3
"""Reject cycles between the files of core/src.

A file depends on the file that defines what it names by a path: in a `use`, or in the code. A `mod` line is no
dependency, nor is a `pub use`, unless the file itself uses the name. Tests are left out: they may know everything.
Methods are not seen: a call by `self.` from one file's `impl` to another's needs no path.

Files that still stand in a cycle are listed in pyproject.toml, and only there::

    [tool.check-rust-cycles]
    pending = ["store/mod.rs"]

A listed file that stands in no cycle fails the check: delete its line.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "core" / "src"

#: Text that contains no code: comments, strings and characters.
_NO_CODE: Final = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(\#*)".*?"\1|[bc]?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\\n]|\\[^\n][^'\n]*)'""", re.DOTALL
)
_USE: Final = re.compile(r"(?P<public>pub(?:\([a-z: ]+\))?\s+)?\buse\s+(?P<tree>[^;]+);")
_PATH: Final = re.compile(r"(?<![\w:])(?:r#)?[A-Za-z_]\w*(?:\s*::\s*(?:r#)?[A-Za-z_]\w*)*")
_TEST_MODULE: Final = re.compile(r"#\[cfg\((?:all\()?test\b[^]]*\]\s*(?:pub(?:\([a-z]+\))?\s+)?mod\s+(\w+)\s*([;{])")

Module = tuple[str, ...]


@dataclass
class Source:
    """A file: the paths that it names, and the names that it hands on from other modules."""

    file: str
    module: Module
    #: (path, name in this module) of each import; a glob has the name "*".
    imports: list[tuple[Module, str]] = field(default_factory=list)
    exports: list[tuple[Module, str]] = field(default_factory=list)
    paths: set[Module] = field(default_factory=set)
    words: set[str] = field(default_factory=set)


def leaves(tree: str) -> Iterator[tuple[Module, str]]:
    """Yield the path and the local name of each leaf of the tree of a `use`."""
    head, brace, rest = tree.strip().partition("{")
    prefix = tuple(part.strip() for part in head.split("::") if part.strip())
    if not brace:
        path, _, alias = head.partition(" as ")
        parts = tuple(part.strip() for part in path.split("::"))
        if parts[-1] == "self":
            parts = parts[:-1]
        if parts:
            yield parts, alias.strip() or parts[-1]
        return
    depth, start = 0, 0
    inner = rest.rpartition("}")[0] + ","
    for index, character in enumerate(inner):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            if branch := inner[start:index].strip():
                if branch == "self":
                    yield prefix, prefix[-1]
                else:
                    yield from ((prefix + path, name) for path, name in leaves(branch))
            start = index + 1


def without_tests(code: str) -> tuple[str, set[str]]:
    """Return the code without its test modules, and the names of test modules in files of their own."""
    files = set()
    while found := _TEST_MODULE.search(code):
        end = found.end()
        if found[2] == ";":
            files.add(found[1])
        else:
            depth = 1
            while depth:
                depth += {"{": 1, "}": -1}.get(code[end], 0)
                end += 1
        code = code[: found.start()] + code[end:]
    return code, files


def read(file: str, module: Module, text: str) -> tuple[Source, set[str]]:
    """Read a file; return also the names of its test modules in files of their own."""
    code, tests = without_tests(_NO_CODE.sub(" ", text))
    source = Source(file, module)
    for use in _USE.finditer(code):
        (source.exports if use["public"] else source.imports).extend(leaves(use["tree"]))
    rest = _USE.sub(" ", code)
    for path in _PATH.finditer(rest):
        parts = tuple(re.sub(r"\s|r#", "", path.group()).split("::"))
        source.words.add(parts[0])
        if len(parts) > 1:
            source.paths.add(parts)
    return source, tests


class Crate:
    """The files of a crate by module."""

    def __init__(self, files: dict[str, str]) -> None:
        """Read the files, given as path below src and text."""
        self._sources: dict[Module, Source] = {}
        tests: set[Module] = set()
        for file, text in files.items():
            module = tuple(part for part in file.removesuffix(".rs").split("/") if part not in ("mod", "lib"))
            source, test_names = read(file, module, text)
            self._sources[module] = source
            tests |= {(*module, name) for name in test_names}
        for module in list(self._sources):
            if any(module[: len(test)] == test for test in tests):
                del self._sources[module]

    def dependencies(self) -> dict[str, set[str]]:
        """Return the files on which each file depends."""
        graph: dict[str, set[str]] = defaultdict(set)
        for source in self._sources.values():
            own = {name: path for path, name in source.imports + source.exports}
            wanted = [path for path, _ in source.imports]
            wanted += [path for path, name in source.exports if name in source.words]
            for path in source.paths:  # A path begins with a module, or with a name that was imported.
                wanted.append(own[path[0]] + path[1:] if path[0] in own else path)
            found = {self._defining(source.module, path) for path in wanted}
            graph[source.file] = {each for each in found if each not in (None, source.file)}  # type: ignore[misc]
        return graph

    def _defining(self, module: Module, path: Module, depth: int = 0) -> str | None:
        """Return the file in which a path ends, also if modules between hand it on; None if it is outside."""
        start: Module
        match path[0]:
            case "crate":
                start, path = (), path[1:]
            case "self":
                start, path = module, path[1:]
            case "super":
                start = module
                while path and path[0] == "super":
                    start, path = start[:-1], path[1:]
            case first if (*module, first) in self._sources:
                start = module
            case _:
                return None
        while path and (*start, path[0]) in self._sources:
            start, path = (*start, path[0]), path[1:]
        source = self._sources.get(start)
        if source is None:
            return None
        if path and path[0] != "*" and depth < 8:
            for exported, name in source.exports:
                if name == path[0]:
                    return self._defining(start, exported + path[1:], depth + 1) or source.file
            for exported, name in source.exports:
                if name == "*" and (globbed := self._defining(start, exported[:-1], depth + 1)):
                    return globbed
        return source.file


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of files that depend on each other."""
    graph = {file: set(targets) for file, targets in graph.items()}
    groups: list[set[str]] = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            # The files of a cycle become one, whose dependencies are those of them all.
            cycle = set(error.args[1])
            merged = set().union(*(group for group in groups if group & cycle)) | cycle
            groups = [group for group in groups if not group & cycle] + [merged]
            name = min(cycle)
            graph[name] = set().union(*(graph.pop(file) for file in cycle)) - cycle
            for targets in graph.values():
                if targets & cycle:
                    targets -= cycle
                    targets.add(name)
        else:
            return sorted(groups, key=min)


def main() -> int:
    """Check the core's sources."""
    files = {str(path.relative_to(SOURCES)): path.read_text() for path in SOURCES.rglob("*.rs")}
    graph = Crate(files).dependencies()
    groups = cycles(graph)
    pending = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["check-rust-cycles"]["pending"])
    failed = False
    for group in groups:
        if not group <= pending:
            failed = True
            sys.stdout.write("a cycle between files of core/src:\n")
            for file in sorted(group):
                sys.stdout.write(f"    {file} -> {', '.join(sorted(graph[file] & group))}\n")
    for file in sorted(pending - set().union(*groups)):
        failed = True
        sys.stdout.write(f"pyproject.toml: {file} stands in no cycle: delete it from pending\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
