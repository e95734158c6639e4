"""Files in memory, and where each word is in them. It knows nothing of calls."""

from __future__ import annotations

import dataclasses
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

_LIBRARY: Final = Path(sysconfig.get_path("stdlib"))
_NOT_OF_THE_LIBRARY: Final = {"site-packages", "dist-packages", "test"}
_WORD: Final = re.compile(r"[^\W\d]\w*")


@dataclasses.dataclass(frozen=True)
class Match:
    """A file that has a word, and how often."""

    file: str
    count: int


class Index:
    """The lines of every file, and the files of every word."""

    def __init__(self) -> None:
        self._lines: dict[str, Sequence[str]] = {}
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    @property
    def files(self) -> Mapping[str, Sequence[str]]:
        """The lines of each file."""
        return self._lines

    def check_is_new(self, file: str) -> None:
        """Raise FileExistsError if the index has a file of this name."""
        if file in self._lines:
            raise FileExistsError(f"there is a file {file!r} already")

    def add(self, file: str, lines: Sequence[str]) -> None:
        """Add a file. Raises FileExistsError if the index has one of this name."""
        self.check_is_new(file)
        self._lines[file] = lines
        for word, count in Counter(_WORD.findall("\n".join(lines))).items():
            self._counts[word][file] = count

    def best(self, word: str, limit: int) -> list[Match]:
        """Return the files that contain the word, the one with the most occurrences first."""
        found = self._counts.get(word, Counter())
        return [Match(file, count) for file, count in found.most_common(limit)]


def index_library() -> Index:
    """Index the sources of Python's standard library, without its tests."""
    index = Index()
    for path in _library():
        index.add(str(path.relative_to(_LIBRARY)), path.read_text("utf-8", "replace").splitlines())
    return index


def _library() -> Iterator[Path]:
    for path in sorted(_LIBRARY.rglob("*.py")):
        if _NOT_OF_THE_LIBRARY.isdisjoint(path.relative_to(_LIBRARY).parts):
            yield path
