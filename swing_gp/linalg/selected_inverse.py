r"""Selected entries of the inverse of a sparse matrix from its factor: all variances, and all entries on its pattern.

The factor is :math:`L D L^\top`, cut into fronts (:mod:`swing_gp.linalg.elimination`) of columns J and rows R below. With
:math:`G = L_{RJ} L_{JJ}^{-1}` and what the parent knows of the inverse Z, which holds all of :math:`Z_{RR}`,

.. math:: Z_{RJ} = -Z_{RR} G , \qquad
          Z_{JJ} = L_{JJ}^{-\top} D_J^{-1} L_{JJ}^{-1} - G^\top Z_{RJ} ,

so that one pass from the roots down finds all pairs that share a front (Takahashi, Fagan & Chin, 1973; Erisman & Tinney, 1975).
Fronts at one depth do not depend on one another: those of similar sizes are padded to one size and computed together. Fronts
are dropped as soon as none is left that needs them, so that those of two depths are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from swing_gp.linalg.elimination import BATCH_SECONDS, Fronts, front_seconds, ragged_ranges

# Entries of the fronts of a batch: few enough to stay in the cache, many enough to make little of what a batch costs.
BATCH_ENTRIES = 2**18
# Tensors of the size of a batch that are in memory at a time: columns of factor and inverse, corners and their indices.
TEMPORARIES = 5


@dataclass(frozen=True)
class _Batch:
    """Fronts that are computed together, padded to one size.

    :ivar fronts: which, (B,).
    :ivar columns: padded number of columns.
    :ivar rows: padded number of rows.
    :ivar inner: whether other fronts need these.
    :ivar above: where the inverses of the parents begin among those of their depth, (B, 1, 1).
    :ivar stride: row lengths of the parents, (B, 1, 1).
    :ivar places: places of the rows in the parents' fronts, (B, rows).
    :ivar pivots: positions of the columns; N where padded, (B, columns).
    """

    fronts: np.ndarray
    columns: int
    rows: int
    inner: bool
    above: np.ndarray
    stride: np.ndarray
    places: np.ndarray
    pivots: np.ndarray

    @property
    def size(self) -> int:
        return self.columns + self.rows


@dataclass(frozen=True)
class FrontPlaces:
    """Where entries of a matrix are among the fronts, batch after batch.

    :ivar entry: indices of the entries, in the order of the batches.
    :ivar place: their places among the columns of a batch, (B, columns + rows, columns), flat.
    :ivar bounds: where the entries of a batch begin.
    """

    entry: np.ndarray
    place: np.ndarray
    bounds: np.ndarray

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        part = slice(self.bounds[number], self.bounds[number + 1])
        return self.entry[part], self.place[part]


class InversePlan:
    """A plan of the pass from the roots down, for all factors with one pattern.

    :ivar bytes: memory that a pass takes, besides the factor and the results.
    """

    def __init__(self, fronts: Fronts) -> None:
        self.fronts = fronts
        self._levels, level_entries = _plan(fronts)
        batches = [batch for level in self._levels for batch in level]
        self._batch_of, self._slot_of = np.empty((2, fronts.num_fronts), dtype=np.int64)
        for number, batch in enumerate(batches):
            self._batch_of[batch.fronts] = number
            self._slot_of[batch.fronts] = np.arange(len(batch.fronts))
        self._columns = np.array([batch.columns for batch in batches])
        self._sizes = np.array([batch.size for batch in batches])
        largest = max(len(batch.fronts) * batch.size**2 for batch in batches)
        two_depths = level_entries + np.append(level_entries[1:], 0)
        self.bytes = 8 * (int(two_depths.max()) + TEMPORARIES * largest)

    def locate(self, high: np.ndarray, low: np.ndarray) -> tuple[FrontPlaces, np.ndarray]:
        """Find pairs of positions among the fronts.

        :param high: the later position of every pair, which may be the other one too.
        :param low: the earlier one.
        :returns: the places of the pairs that share a front, and the indices of those that do not.
        """
        batch, place = self._places(high, low)
        known, number = np.flatnonzero(place >= 0), len(self._columns)
        batch = batch[known]
        order = known[np.argsort(batch.astype(np.int16) if number < 2**15 else batch, kind="stable")]  # fast for short integers
        bounds = np.concatenate([[0], np.cumsum(np.bincount(batch, minlength=number))])
        return FrontPlaces(_compact(order), _compact(place[order]), bounds), np.flatnonzero(place < 0)

    def locate_factor(self, lower: scipy.sparse.csc_array) -> FrontPlaces:
        """Find the entries of a factor, batch by batch."""
        found = [self._factor_places(batch.fronts, lower) for level in self._levels for batch in level]
        bounds = np.concatenate([[0], np.cumsum([len(entry) for entry, _ in found])])
        return FrontPlaces(np.concatenate([entry for entry, _ in found]), np.concatenate([place for _, place in found]), bounds)

    def _factor_places(self, fronts: np.ndarray, lower: scipy.sparse.csc_array) -> tuple[np.ndarray, np.ndarray]:
        """The entries of a factor in some fronts of a batch, and their places.

        Columns whose rows are those of the column before, in the same order, take their places from it.
        """
        columns = ragged_ranges(self.fronts.start[fronts], self.fronts.num_columns[fronts])
        counts = (lower.indptr[columns + 1] - lower.indptr[columns]).astype(np.int64)
        entry = ragged_ranges(lower.indptr[columns], counts)
        rows, begin = lower.indices[entry], np.cumsum(counts) - counts
        column = np.repeat(np.arange(len(columns)), counts)
        follows = np.append(False, (counts[1:] == counts[:-1] - 1) & (columns[1:] == columns[:-1] + 1))
        candidates = np.flatnonzero(follows[column])
        before = candidates + (1 - np.append(1, counts[:-1]))[column[candidates]]  # the diagonal comes first
        follows[column[candidates[rows[before] != rows[candidates]]]] = False
        follows &= np.append(True, self.fronts.front[columns[1:]] == self.fronts.front[columns[:-1]])
        head = np.maximum.accumulate(np.where(follows, 0, np.arange(len(columns))))
        place = np.empty(len(rows), dtype=np.int64)
        searched = np.flatnonzero(~follows[column])
        place[searched] = self._places(rows[searched].astype(np.int64), columns[column[searched]])[1]
        if (place[searched] < 0).any():
            raise RuntimeError("A factor has entries that its pattern does not have.")
        # Rows stay and columns move on: both the entry within its column and its place.
        copied = np.flatnonzero(follows[column])
        shift = np.arange(len(columns)) - head
        place[copied] = place[copied + (begin[head] - begin + shift)[column[copied]]] + shift[column[copied]]
        return _compact(entry), _compact(place)

    def _places(self, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The batch of every pair, and its place there, -1 for none."""
        front = self.fronts.front[low]
        row = self.fronts.places(front, high)
        batch = self._batch_of[front]
        padded, columns = self._columns[batch], self.fronts.num_columns[front]
        padded_row = np.where(row >= columns, row + (padded - columns), row)
        place = (self._slot_of[front] * self._sizes[batch] + padded_row) * padded + (low - self.fronts.start[front])
        return batch, np.where(row < 0, -1, place)

    def inverse(
        self,
        factor: FrontPlaces,
        values: np.ndarray,  # of all entries of L
        pivots: np.ndarray,  # D, (N,)
        wanted: FrontPlaces,
        count: int,
    ) -> Tensor:  # (count,)
        """The wanted entries of the inverse; the others of ``count`` are zero."""
        result, above, number = np.zeros(count), np.zeros(1), 0
        inverse_pivots = np.append(1 / pivots, 1.0)
        for level in self._levels:
            following = []
            for batch in level:
                source, place = factor.batch(number)
                lower = np.zeros((len(batch.fronts), batch.size, batch.columns))
                lower.reshape(-1)[place] = values[source]
                columns, corner = _front_inverses(batch, torch.from_numpy(lower), inverse_pivots[batch.pivots], above)
                entry, place = wanted.batch(number)
                result[entry] = columns.numpy().reshape(-1)[place]
                if batch.inner:
                    following.append(_whole(columns, corner))
                number += 1
            above = torch.cat(following).numpy() if following else above[:0]
        return torch.from_numpy(result)


def _compact(index: np.ndarray) -> np.ndarray:
    return index.astype(np.int32) if len(index) and index.max() < 2**31 else index


def _front_inverses(
    batch: _Batch, lower: Tensor, inverse_pivots: np.ndarray, above: np.ndarray
) -> tuple[Tensor, Tensor | None]:
    """Columns J of the inverse in the fronts of a batch, and what their parents know of the rows R."""
    eye = torch.eye(batch.columns, dtype=lower.dtype).expand(len(lower), -1, -1)
    triangle = torch.linalg.solve_triangular(lower[:, : batch.columns], eye, upper=False, unitriangular=True)
    own = triangle.mT @ (torch.from_numpy(inverse_pivots).unsqueeze(-1) * triangle)
    if not batch.rows:
        return own, None
    places = batch.places
    corner = torch.from_numpy(above.take(batch.above + places[:, :, None] * batch.stride + places[:, None, :]))
    step = lower[:, batch.columns :] @ triangle
    below = -(corner @ step)
    own = own - step.mT @ below
    return torch.cat([own, below], dim=1), corner


def _whole(columns: Tensor, corner: Tensor | None) -> Tensor:
    """Fronts as flat symmetric matrices."""
    if corner is None:
        return columns.reshape(-1)
    right = torch.cat([columns[:, -corner.shape[-1] :].mT, corner], dim=1)
    return torch.cat([columns, right], dim=2).reshape(-1)


def _plan(fronts: Fronts) -> tuple[list[list[_Batch]], np.ndarray]:
    """Batches at every depth, and the entries of the inner fronts of every depth."""
    inner = np.zeros(fronts.num_fronts, dtype=bool)
    inner[fronts.parent[fronts.parent >= 0]] = True
    begin = np.zeros(fronts.num_fronts, dtype=np.int64)  # in the fronts of a depth
    stride = np.ones(fronts.num_fronts, dtype=np.int64)
    padded = np.zeros(fronts.num_fronts, dtype=np.int64)
    levels, entries = [], []
    order = np.argsort(fronts.depth, kind="stable")
    for members in np.split(order, np.cumsum(np.bincount(fronts.depth))[:-1]):
        level, used = [], 0
        for among in (True, False):
            for group in _groups(fronts, members[inner[members] == among]):
                batch = _batch(fronts, group, among, begin, stride, padded)
                level.append(batch)
                if among:
                    stride[group], padded[group] = batch.size, batch.columns
                    begin[group] = used + np.arange(len(group)) * batch.size**2
                    used += len(group) * batch.size**2
        levels.append(level)
        entries.append(used)
    return levels, np.array(entries)


def _batch(fronts: Fronts, group: np.ndarray, inner: bool, begin: np.ndarray, stride: np.ndarray, padded: np.ndarray) -> _Batch:
    columns, rows = fronts.num_columns[group], fronts.num_rows[group]
    width, height, parent = int(columns.max()), int(rows.max()), fronts.parent[group]
    row = np.arange(height)
    there = row < rows[:, None]
    above = np.broadcast_to(parent[:, None], there.shape)[there]
    found = fronts.places(above, fronts.rows[(fronts.row_start[group][:, None] + row)[there]])
    if (found < 0).any():
        raise RuntimeError("The pattern of the factor is not that of an elimination.")
    # The rows of the parent come behind its padded columns. What is padded here points at its first entry, and counts nowhere.
    places = np.zeros(there.shape, dtype=np.int64)
    places[there] = np.where(found >= fronts.num_columns[above], found + (padded - fronts.num_columns)[above], found)
    column = np.arange(width)
    pivots = np.where(column < columns[:, None], fronts.start[group][:, None] + column, fronts.size)
    return _Batch(group, width, height, inner, begin[parent][:, None, None], stride[parent][:, None, None], places, pivots)


def _groups(fronts: Fronts, members: np.ndarray) -> Iterator[np.ndarray]:
    """Fronts of similar sizes: groups are cut in two while that saves more than a batch costs."""
    groups = [members] if len(members) else []
    while groups:
        group = groups.pop()
        columns, rows = fronts.num_columns[group], fronts.num_rows[group]
        together = len(group) * front_seconds(int(columns.max()), int(rows.max()))
        best, cut = together - BATCH_SECONDS, None
        for sizes in (columns, rows):
            low, high = int(sizes.min()), int(sizes.max())
            small = sizes <= int((low * high) ** 0.5)
            if low == high or small.all():
                continue
            parts = (group[small], group[~small])
            seconds = sum(
                len(p) * front_seconds(int(fronts.num_columns[p].max()), int(fronts.num_rows[p].max())) for p in parts
            )
            if seconds < best:
                best, cut = seconds, parts
        if cut is not None:
            groups.extend(cut)
            continue
        step = max(1, BATCH_ENTRIES // int(columns.max() + rows.max()) ** 2)
        yield from (group[i : i + step] for i in range(0, len(group), step))
