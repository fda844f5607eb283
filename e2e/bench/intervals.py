"""Quantiles and confidence intervals of medians, from order statistics, which are robust against outliers."""

from __future__ import annotations

import math
from collections.abc import Sequence

# The minimum number of values for a 95 % interval.
MIN_VALUES = 6


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value with at least this share of values not above it. Raises ValueError without values."""
    if not values:
        raise ValueError("a quantile needs at least one value")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median, for any distribution. Raises ValueError for too few values."""
    count = len(values)
    if count < MIN_VALUES:
        raise ValueError(f"an interval needs {MIN_VALUES} values")
    # The median is outside of the ranks with the probability of so few heads in as many coin tosses.
    outside, rank = 0.5**count, 0
    while outside + math.comb(count, rank + 1) * 0.5**count <= 0.025:
        rank += 1
        outside += math.comb(count, rank) * 0.5**count
    ordered = sorted(values)
    return ordered[rank], ordered[count - 1 - rank]
