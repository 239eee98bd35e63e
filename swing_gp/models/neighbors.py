"""Nearest points: by a k-d tree in few dimensions, by all distances in many."""

from __future__ import annotations

import numpy as np
import scipy.spatial
import torch
from torch import Tensor

from swing_gp.graphs.nearest import TREE_DIM
from swing_gp.linalg.chunks import chunk_entries
from swing_gp.utils.validation import check_count

# Of how many times as many candidates by leading coordinates the nearest are taken.
CANDIDATES = 4


class NeighborSearch:
    """Which of some points are nearest to others.

    :param points: (n, d).
    :param scale: what every dimension is divided by, (d,).
    :param leading: search by the first coordinates, and take the nearest in all of them among four times as many.

    >>> search = NeighborSearch(torch.tensor([[0.0], [1.0], [3.0]]))
    >>> search.nearest(torch.tensor([[1.9]]), 2)
    tensor([[1, 2]])
    """

    def __init__(self, points: Tensor, *, scale: Tensor | None = None, leading: int | None = None) -> None:
        dim = points.shape[1]
        self.leading = dim if leading is None else check_count("leading", leading)
        if self.leading > dim:
            raise ValueError(f"leading must be at most the number of coordinates, {dim}, got {leading}.")
        self._scale = None if scale is None else scale.to(points)
        self._points = self._scaled(points)
        array = _array(self._points[:, : self.leading])
        self._tree = scipy.spatial.cKDTree(array) if self.leading <= TREE_DIM else None
        if self._tree is None:
            from sklearn.neighbors import NearestNeighbors  # takes a second to load, for many dimensions alone

            self._all = NearestNeighbors(algorithm="brute").fit(array)

    def _scaled(self, x: Tensor) -> Tensor:
        return x.detach() if self._scale is None else x.detach() / self._scale

    def nearest(self, x: Tensor, number: int) -> Tensor:  # (m, d) -> (m, number)
        """The rows of the nearest points, nearest first."""
        return self._nearest(self._scaled(x), number)

    def nearest_others(self, rows: Tensor, number: int) -> Tensor:  # (m,) -> (m, number)
        """The rows of the points nearest to some of them, without themselves."""
        near = self._nearest(self._points[rows], number + 1)
        itself = near == rows.unsqueeze(-1)
        itself[:, -1] |= ~itself.any(-1)  # of points that are there many times one more can go
        return near[~itself].reshape(len(rows), number)

    def _nearest(self, x: Tensor, number: int) -> Tensor:
        if len(x) == 0:
            return torch.empty(0, number, dtype=torch.long, device=x.device)
        if self.leading == x.shape[1] or number == len(self._points):
            return self._by_leading(x, number)
        near = self._by_leading(x, min(CANDIDATES * number, len(self._points)))
        step = max(1, chunk_entries(x.dtype) // (near.shape[1] * x.shape[1]))
        parts = []
        for one, ids in zip(x.split(step), near.split(step), strict=True):
            squares = (self._points[ids] - one.unsqueeze(1)).square().sum(-1)
            parts.append(ids.gather(1, squares.argsort(1)[:, :number]))
        return torch.cat(parts)

    def _by_leading(self, x: Tensor, number: int) -> Tensor:
        queries = _array(x[:, : self.leading])
        if self._tree is not None:
            found = self._tree.query(queries, number, workers=-1)[1].reshape(len(queries), number)
        else:
            found = self._all.kneighbors(queries, number, return_distance=False)
        return torch.from_numpy(found.astype(np.int64, copy=False)).to(x.device)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().double().cpu().numpy()
