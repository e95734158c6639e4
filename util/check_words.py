#!/usr/bin/env python3
"""Reject old words and sentence openings in names, docstrings, comments, messages and documents.

The rules are in words.toml. Folders that still break them stand in pyproject.toml, and only there::

    [tool.check-words]
    pending = ["shmrpc/client"]

An entry covers the files directly in that folder. A pending folder without a finding fails the check: delete its line.

    util/check_words.py [PATH ...]     # every finding in files and folders; without PATH: outside pending folders
    util/check_words.py --count        # the number of findings in each folder

Findings include ruff's D401 and D404: the docstring of a function begins with a verb in the imperative.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
RULES: Final = Path(__file__).with_name("words.toml")
#: Kinds of text. Openings concern documentation and names of tests.
DOC, PROSE, NAME = "doc", "prose", "name"
#: Folders whose files and folders are named by the table [files].
PRODUCT: Final = ("core/src", "shmrpc")


#: Files that give the old public names on purpose.
OLD_NAMES: Final = ("CHANGELOG.md", "shmrpc/basics/renamed.py", "shmrpc/cli/commands.py", "tests/docs/test_renamed.py")


class Text(NamedTuple):
    """A piece of a file."""

    line: int
    kind: str
    content: str


class Finding(NamedTuple):
    """A place that breaks a rule."""

    path: PurePath
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.found.split())!r}: {self.instead}"


@dataclass(frozen=True)
class Rules:
    """The tables of words.toml, compiled."""

    words: tuple[tuple[re.Pattern[str], str], ...]
    openings: tuple[tuple[re.Pattern[str], str], ...]
    identifiers: dict[str, str]
    files: dict[str, str]
    public: tuple[tuple[re.Pattern[str], str], ...]

    @classmethod
    def of(cls, tables: dict[str, Any]) -> Rules:
        """Compile the tables as tomllib has read them."""
        return cls(
            tuple((_pattern(rf"\b({key})\b"), instead) for key, instead in tables.get("words", {}).items()),
            tuple((_pattern(rf"({key})\b"), instead) for key, instead in tables.get("openings", {}).items()),
            tables.get("identifiers", {}),
            tables.get("files", {}),
            tuple((re.compile(key), instead) for key, instead in tables.get("public", {}).items()),
        )


def _pattern(expression: str) -> re.Pattern[str]:
    return re.compile(expression.replace(" ", r"\s+"), re.IGNORECASE)


def python_texts(source: str) -> Iterator[Text]:
    """Yield the names, docstrings, comments and string literals of a Python file."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(first.value)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            kind = DOC if node in docstrings else PROSE
            if kind == DOC or " " in node.value:  # A literal without a space is data, such as a user name.
                yield Text(node.lineno, kind, node.value)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    yield from _blocks([(*each.start, each.string.lstrip("#: ")) for each in tokens if each.type == tokenize.COMMENT])
    for each in tokens:
        if each.type == tokenize.NAME:
            yield Text(each.start[0], NAME, each.string)


#: The tokens of Rust that matter here. Whatever else there is, one character at a time.
RUST_TOKEN: Final = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>b?r(?P<hashes>\#*)".*?"(?P=hashes))
    |(?P<string>[bc]?"(?:[^"\\]|\\.)*")
    |(?P<char>b?'(?:[^'\\\n]|\\[^\n][^'\n]*)')
    |(?P<name>(?:r\#)?[A-Za-z_]\w*)
    |(?P<skip>'[a-z_]\w*|\s+|.)""",
    re.DOTALL | re.VERBOSE,
)


def rust_texts(source: str) -> Iterator[Text]:
    """Yield the names, comments and string literals of a Rust file."""
    comments = []
    line, start = 1, 0
    for token in RUST_TOKEN.finditer(source):
        line, start = line + source.count("\n", start, token.start()), token.start()
        content = token.group()
        match token.lastgroup:
            case "comment":
                column = start - source.rfind("\n", 0, start)
                comments.append((line, column, re.sub(r"^/[/*]+!?\s*", "", content)))
            case "string" | "raw" if " " in content:
                yield Text(line, PROSE, content)
            case "name":
                yield Text(line, NAME, content)
    yield from _blocks(comments)


def _blocks(comments: list[tuple[int, int, str]]) -> Iterator[Text]:
    """Join comments on consecutive lines that begin in the same column."""
    block: list[str] = []
    first = column = 0
    for line, at, content in comments:
        if block and (line, at) != (first + len(block), column):
            yield Text(first, DOC, "\n".join(block))
            block = []
        if not block:
            first, column = line, at
        block.append(content)
    if block:
        yield Text(first, DOC, "\n".join(block))


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield a document without its code: blocks between fences, and what stands between backticks."""
    blank = re.compile(r"^( *)(```|~~~).*?^ *\2|`[^`]*`", re.DOTALL | re.MULTILINE)
    yield Text(1, PROSE, blank.sub(lambda code: "`" + "\n" * code.group().count("\n"), source))


def hash_comments(source: str) -> Iterator[Text]:
    """Yield the comments of a makefile, a shell script or a TOML file."""
    found = ((number, re.search(r"(?:^|\s)#+:? +(.*)", line)) for number, line in enumerate(source.split("\n"), 1))
    yield from _blocks([(number, each.start(), each[1]) for number, each in found if each])


READERS: Final = {
    ".py": python_texts,
    ".pyi": python_texts,
    ".rs": rust_texts,
    ".md": markdown_texts,
    ".toml": hash_comments,
    ".sh": hash_comments,
    ".yaml": hash_comments,
}


def findings(path: PurePath, source: str, rules: Rules) -> Iterator[Finding]:
    """Yield what breaks the rules in a file; a name once, wherever else it stands."""
    yield from _in_path(path, rules)
    yield from _in_source(path, source, rules)
    names = set()
    for text in READERS.get(path.suffix, hash_comments)(source):
        if text.kind == NAME:
            if text.content in names:
                continue
            names.add(text.content)
            yield from _in_name(path, text, rules)
            continue
        yield from _in_words(path, text, rules)
        if text.kind == DOC:
            yield from _in_opening(path, text.line, text.content.lstrip(), rules)


def _in_path(path: PurePath, rules: Rules) -> Iterator[Finding]:
    for root in PRODUCT:
        if path.is_relative_to(root):
            for part in path.relative_to(root).with_suffix("").parts:
                if part in rules.files:
                    yield Finding(path, 1, part, rules.files[part])


def _in_source(path: PurePath, source: str, rules: Rules) -> Iterator[Finding]:
    """Yield the old public names in a source or a document, its code included."""
    if path.suffix not in (".py", ".pyi", ".md") or str(path) in OLD_NAMES:
        return
    for number, line in enumerate(source.split("\n"), 1):
        if "Renamed" in line or "renamed" in line:
            continue
        for pattern, instead in rules.public:
            if match := pattern.search(line):
                yield Finding(path, number, match.group(), instead)


def _in_name(path: PurePath, text: Text, rules: Rules) -> Iterator[Finding]:
    if text.content in rules.identifiers:
        yield Finding(path, text.line, text.content, rules.identifiers[text.content])
        return
    parts = " ".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", text.content))
    if " " in parts:
        yield from _in_words(path, Text(text.line, NAME, parts), rules)
    if parts.startswith("test "):
        yield from _in_opening(path, text.line, parts.removeprefix("test "), rules)


def _in_words(path: PurePath, text: Text, rules: Rules) -> Iterator[Finding]:
    for pattern, instead in rules.words:
        for match in pattern.finditer(text.content):
            yield Finding(path, text.line + text.content.count("\n", 0, match.start()), match.group(), instead)


def _in_opening(path: PurePath, line: int, content: str, rules: Rules) -> Iterator[Finding]:
    for pattern, instead in rules.openings:
        if match := pattern.match(content):
            yield Finding(path, line, f"{match.group()} ...", instead)


def tracked(paths: list[str]) -> list[PurePath]:
    """Return the files of the repository that have a reader, below the paths or all of them."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *paths]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    named = [PurePath(each) for each in listed if each and (ROOT / each).is_file() and not (ROOT / each).is_symlink()]
    return [each for each in named if each.suffix in READERS or each.name in ("Makefile", "run")]


def imperative_findings(paths: list[str]) -> Iterator[Finding]:
    """Yield the docstrings that do not begin with a verb in the imperative, as ruff reports them."""
    if not paths:
        return
    ruff = [str(Path(sys.executable).with_name("ruff")), "check", "--select", "D401,D404", "--config", "lint.ignore=[]"]
    run = subprocess.run([*ruff, "--output-format", "json", *paths], cwd=ROOT, capture_output=True, text=True)
    for each in json.loads(run.stdout):
        path = PurePath(each["filename"]).relative_to(ROOT)
        yield Finding(path, each["location"]["row"], each["code"], each["message"])


def verdict(found: list[Finding], pending: list[str]) -> tuple[list[Finding], list[str]]:
    """Return the findings outside the pending folders, and the pending folders without a finding."""
    folders = {str(each.path.parent) for each in found}
    return [each for each in found if str(each.path.parent) not in pending], sorted(set(pending) - folders)


def main() -> int:
    """Check the repository, or the paths of the command line."""
    parser = argparse.ArgumentParser(description="Reject old words and sentence openings.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders; pending ones are checked, too")
    parser.add_argument("--count", action="store_true", help="print the number of findings in each folder")
    options = parser.parse_args()
    rules = Rules.of(tomllib.loads(RULES.read_text()))
    files = tracked(options.paths)
    found = [each for path in files for each in findings(path, (ROOT / path).read_text(), rules)]
    found += imperative_findings([str(path) for path in files if path.suffix in (".py", ".pyi")])
    if options.count:
        for folder, number in sorted(Counter(str(each.path.parent) for each in found).items()):
            sys.stdout.write(f"{number:6} {folder}\n")
        sys.stdout.write(f"{len(found):6} in all\n")
        return 0
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"].get("check-words", {})
    reported, clean = verdict(found, [] if options.paths else settings.get("pending", []))
    sys.stdout.writelines(f"{each}\n" for each in reported)
    sys.stdout.writelines(f"pyproject.toml: {each} has no finding: delete it from pending\n" for each in clean)
    return bool(reported or clean)


if __name__ == "__main__":
    sys.exit(main())
