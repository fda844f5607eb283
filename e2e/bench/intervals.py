"""Quantiles, and the interval in which a median lies: order statistics, which a few wild values do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence

# The fewest values whose extremes hold the median with 95 %.
FEWEST = 6


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above. Raises ValueError when there is none."""
    if not values:
        raise ValueError("no values have no quantile")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median, whatever the distribution. Raises ValueError for too few values."""
    count = len(values)
    if count < FEWEST:
        raise ValueError(f"an interval needs {FEWEST} values")
    # The median lies outside of the ranks when so few of as many throws of a coin are heads.
    outside, rank = 0.5**count, 0
    while outside + math.comb(count, rank + 1) * 0.5**count <= 0.025:
        rank += 1
        outside += math.comb(count, rank) * 0.5**count
    ordered = sorted(values)
    return ordered[rank], ordered[count - 1 - rank]
