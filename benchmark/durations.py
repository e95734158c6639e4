"""Measured durations, and their percentiles by NumPy."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Final

#: The most points of a curve of percentiles.
_POINTS: Final = 200


@dataclasses.dataclass
class Durations:
    """Durations in nanoseconds, in any order."""

    nanoseconds: array.array[int] = dataclasses.field(default_factory=lambda: array.array("q"))

    @staticmethod
    def of(times: Iterable[int]) -> Durations:
        """Return the durations of these times in nanoseconds."""
        return Durations(array.array("q", times))

    def __len__(self) -> int:
        return len(self.nanoseconds)

    def __add__(self, other: Durations) -> Durations:
        return Durations(self.nanoseconds + other.nanoseconds)

    @property
    def longest(self) -> int:
        """The longest duration, in nanoseconds."""
        return max(self.nanoseconds, default=0)

    def percentile(self, share: float) -> float:
        """Return the microseconds that this share of the durations, 0 to 1, does not exceed.

        Raises ValueError without durations.
        """
        if not self.nanoseconds:
            raise ValueError("no durations, no percentile")
        return float(_numpy().quantile(self.nanoseconds, share, method="inverted_cdf")) / 1e3

    def steps(self) -> Iterator[tuple[float, float]]:
        """Yield points of the distribution: microseconds, and the share of durations up to there.

        The points lie closer together towards the longest duration.
        """
        numpy, total = _numpy(), len(self.nanoseconds)
        ranked = numpy.sort(self.nanoseconds)
        for above in numpy.unique(numpy.geomspace(1, total, _POINTS).astype(int))[::-1]:
            yield float(ranked[total - above]) / 1e3, float((total - above + 1) / total)


def _numpy() -> Any:
    import numpy  # Slow to import, and the measured processes must not wait for that.

    return numpy
