"""Times by how often they came, to within 0.8 per cent whatever their size, in the manner of HdrHistogram."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

#: Of each time the seven highest binary digits are kept, so that a bucket is at most 1/64 of its time wide.
_DIGITS: Final = 7


def bucket_of(time: int) -> int:
    """The least time of the bucket into which a time goes; both in nanoseconds."""
    below = max(0, time.bit_length() - _DIGITS)
    return time >> below << below


def width_of(bucket: int) -> int:
    """How many nanoseconds wide a bucket is."""
    return int(1 << max(0, bucket.bit_length() - _DIGITS))


@dataclasses.dataclass
class Histogram:
    """Times in nanoseconds, and the longest of them as it was."""

    counts: Counter[int] = dataclasses.field(default_factory=Counter)
    longest: int = 0

    @staticmethod
    def of(times: Iterable[int]) -> Histogram:
        """That of these times."""
        made = Histogram()
        known = list(times)
        made.counts.update(map(bucket_of, known))
        made.longest = max(known, default=0)
        return made

    def __len__(self) -> int:
        return self.counts.total()

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.counts + other.counts, max(self.longest, other.longest))

    def percentile(self, share: float) -> float:
        """The microseconds that this share of the times, 0 to 1, does not exceed; in the middle of a bucket."""
        if not self.counts:
            raise ValueError("no times, no percentile")
        need, seen = share * self.counts.total(), 0
        for bucket, count in sorted(self.counts.items()):
            seen += count
            if seen >= need:
                return min(bucket + (width_of(bucket) - 1) / 2, self.longest) / 1e3
        return self.longest / 1e3

    def steps(self) -> Iterator[tuple[float, float]]:
        """For each bucket its upper end in microseconds, and the share of the times up to there."""
        total, seen = self.counts.total(), 0
        for bucket, count in sorted(self.counts.items()):
            seen += count
            yield min(bucket + width_of(bucket), self.longest) / 1e3, seen / total
