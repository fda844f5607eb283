"""Quantiles, and the interval in which a mean difference lies."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

# Two-sided 95 % of Student's t, by degrees of freedom; beyond the last one, the normal distribution's.
_T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 15: 2.13, 30: 2.04}


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above. Raises ValueError when there is none."""
    if not values:
        raise ValueError("no values have no quantile")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def interval(differences: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of paired differences. Raises ValueError for fewer than two."""
    if len(differences) < 2:
        raise ValueError("an interval needs two differences")
    freedom = len(differences) - 1
    known = max(one for one in _T95 if one <= freedom)
    half = (_T95[known] if freedom < 100 else 1.96) * statistics.stdev(differences) / math.sqrt(len(differences))
    mean = statistics.fmean(differences)
    return mean - half, mean + half
