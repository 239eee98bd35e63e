"""Spacing of points, the unit of automatic lengthscales."""

from __future__ import annotations

import numpy as np
import scipy.spatial

# Points in the sample that a median distance is taken over: its standard error is about 3% of the spread of distances.
SPACING_SAMPLE = 2000


def neighbor_distance(points: np.ndarray, neighbor: int) -> float:
    """Median distance of a point to its n-th nearest neighbour among distinct points; 1 if all points coincide.

    :param points: coordinates, (N, d).
    :param neighbor: n; at most the number of other distinct points is taken.
    """
    distinct = np.unique(points, axis=0)
    number = min(neighbor, len(distinct) - 1)
    if number == 0:
        return 1.0
    sample = np.random.default_rng(0).permutation(len(distinct))[:SPACING_SAMPLE]
    distances, _ = scipy.spatial.cKDTree(distinct).query(distinct[sample], k=number + 1)
    return float(np.median(distances[:, -1]))
