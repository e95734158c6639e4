"""A base class for objects that cannot be copied, because this process has them open and counts them."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex


class NotCopyable:
    """An object that ``copy`` and ``pickle`` refuse, with an error that names the remedy."""

    def _copy_remedy(self) -> tuple[str, str]:
        """Return a description of the object, and the remedy for an attempt to copy it, for the text of the error."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        what, remedy = self._copy_remedy()
        raise TypeError(f"{what} cannot be copied or pickled: {remedy}")
