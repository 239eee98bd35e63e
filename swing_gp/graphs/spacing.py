"""How far apart points are: the unit that lengthscales are chosen in."""

from __future__ import annotations

import numpy as np
import scipy.spatial

# Distances are the median over a sample of this many points.
SAMPLE = 2000


def neighbor_distance(points: np.ndarray, neighbor: int) -> float:
    """The median distance of a point to its n-th neighbour, at other places than its own; 1 where all points are one."""
    distinct = np.unique(points, axis=0)
    number = min(neighbor, len(distinct) - 1)
    if number == 0:
        return 1.0
    sample = np.random.default_rng(0).permutation(len(distinct))[:SAMPLE]
    distances, _ = scipy.spatial.cKDTree(distinct).query(distinct[sample], k=number + 1)
    return float(np.median(distances[:, -1]))
