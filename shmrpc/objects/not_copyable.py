"""What cannot be copied: it is open in one process, and counted there."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class Uncopied:
    """Something that ``copy`` and ``pickle`` refuse, with what to do instead."""

    def _what_instead(self) -> tuple[str, str]:
        """What it is, and what to do instead of copying it."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        what, instead = self._what_instead()
        raise TypeError(f"{what} cannot be copied or pickled: {instead}")
