"""Print every module of the project with the first sentence of its docstring: ``make modules``."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The folders whose modules are listed, with the suffix of their files.
FOLDERS = {"shmrpc": ".py", "core/src": ".rs"}


def first_sentence(text: str) -> str:
    """Return the first sentence of a description, on one line."""
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    return re.match(r".*?[.:](?= [A-Z]|$)|.*", paragraph)[0].rstrip(".:")  # type: ignore[index]


def description(path: Path) -> str:
    """Return the docstring of a Python module, or the ``//!`` comment of a Rust one; empty if it has none."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return ast.get_docstring(ast.parse(source)) or ""
    lines = re.match(r"(?://!.*\n)*", source)
    assert lines is not None
    return re.sub(r"(?m)^//! ?", "", lines[0])


def modules(folder: Path, suffix: str) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder and of those below it, a folder's own file first; tests have no entry."""
    own = {".py": "__init__.py", ".rs": "mod.rs"}[suffix]
    files = sorted(folder.glob(f"*{suffix}"), key=lambda path: (path.name not in (own, "lib.rs"), path.name))
    for path in files:
        if path.stem != "tests":
            yield path, first_sentence(description(path))
    for inner in sorted(
        each for each in folder.iterdir() if each.is_dir() and each.name not in ("tests", "__pycache__")
    ):
        yield from modules(inner, suffix)


def page() -> str:
    """Return the list as Markdown."""
    lines = []
    for top, suffix in FOLDERS.items():
        folder = None
        for path, sentence in modules(ROOT / top, suffix):
            if path.parent != folder:
                folder = path.parent
                lines.append(f"\n## {folder.relative_to(ROOT)}\n")
                if path.name in ("__init__.py", "mod.rs", "lib.rs"):
                    lines.append(f"{sentence}.\n")
                    continue
            lines.append(f"- `{path.name}`: {sentence}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
