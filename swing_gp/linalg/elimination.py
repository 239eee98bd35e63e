r"""Elimination trees: in what order a sparse symmetric matrix is factorised, and the dense blocks that its factor is made of.

In :math:`P A P^\top = L D L^\top` the *parent* of a column is the first row below its diagonal that is not zero, and all its
other rows are rows of the parent too. Columns that are next to one another in this tree and have about the same rows make one
*supernode*; with the rows below, its *front*. Everything here depends on the pattern of A alone, and is computed once for many
matrices with the same pattern.

>>> path = scipy.sparse.diags_array([2.5, -1.0, -1.0], offsets=[0, -1, 1], shape=(300, 300)).tocsr()
>>> fronts = eliminate(path)
>>> fronts.num_fronts < 60, fronts.size
(True, 300)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

# Seconds that the selected inverse takes, about, for a batch of fronts, a front, an entry of it, and a multiplication in it.
# Only their ratios matter: they decide how far supernodes are merged, and how fronts are batched.
BATCH_SECONDS, FRONT_SECONDS, ENTRY_SECONDS, MULTIPLICATION_SECONDS = 1.5e-4, 1.5e-6, 4e-9, 2e-10

Number = TypeVar("Number", float, np.ndarray)


def front_seconds(columns: Number, rows: Number) -> Number:
    """Seconds that a front of so many columns and rows below them takes."""
    size = columns + rows
    return FRONT_SECONDS + ENTRY_SECONDS * size * size + MULTIPLICATION_SECONDS * columns * (rows * size + columns * columns)


@dataclass(frozen=True)
class Fronts:
    """The supernodes of a factor, children before their parents. Positions are places in the order of elimination.

    :ivar num_entries: entries of the factor L.
    :ivar order: the node at every position, (N,).
    :ivar start: the first position of every supernode, and N, (S + 1,).
    :ivar parent: the parent of every supernode, -1 at roots, (S,).
    :ivar depth: the number of supernodes above, (S,).
    :ivar row_start: where the rows of a supernode begin in ``rows``, (S + 1,).
    :ivar rows: positions of the rows below the columns of a supernode, ascending in each.
    """

    num_entries: int
    order: np.ndarray
    start: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    row_start: np.ndarray
    rows: np.ndarray

    @property
    def size(self) -> int:
        return len(self.order)

    @property
    def num_fronts(self) -> int:
        return len(self.parent)

    @cached_property
    def num_columns(self) -> np.ndarray:  # (S,)
        return np.diff(self.start)

    @cached_property
    def num_rows(self) -> np.ndarray:  # (S,)
        return np.diff(self.row_start)

    @cached_property
    def position(self) -> np.ndarray:  # (N,)
        """The position of every node."""
        return inverse_permutation(self.order)

    @cached_property
    def front(self) -> np.ndarray:  # (N,)
        """The supernode of every position."""
        return np.repeat(np.arange(self.num_fronts), self.num_columns)

    @cached_property
    def _keys(self) -> np.ndarray:
        return np.repeat(np.arange(self.num_fronts), self.num_rows) * self.size + self.rows

    def places(self, front: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Index of a position within a front: among its columns first, then among its rows; -1 where it is not there."""
        column = position - self.start[front]
        below = np.searchsorted(self._keys, front * self.size + position)
        row = below - self.row_start[front]
        width = self.num_columns[front]
        there = (row >= 0) & (row < self.num_rows[front])
        there[there] = self.rows[below[there]] == position[there]
        return np.where((column >= 0) & (column < width), column, np.where(there, width + row, -1))


def inverse_permutation(order: np.ndarray) -> np.ndarray:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def ragged_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenated ranges of whole numbers."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - ends + lengths, lengths) + np.arange(ends[-1] if len(ends) else 0)


def superlu(matrix: scipy.sparse.csc_array, ordering: str) -> scipy.sparse.linalg.SuperLU:
    """SuperLU's factors with pivots on the diagonal: of a symmetric positive definite matrix, L and D L^T."""
    options = {"SymmetricMode": True, "Equil": False}
    return scipy.sparse.linalg.splu(
        scipy.sparse.csc_matrix(matrix), permc_spec=ordering, diag_pivot_thresh=0.0, panel_size=PANEL, options=options
    )


# Share of the degrees that grounds the Laplacian: far above rounding, and too little for entries to decay to nothing.
GROUND = 1e-8
# Entries of a row, as a multiple of the root of N, above which a node is eliminated last, as by AMD (Amestoy et al., 2004):
# the time that minimum degree takes grows with the square of such a row, to 5 s at 100,000 entries.
MANY_ENTRIES = 10.0
# Entries of a factor that are looked through at a time.
PARENT_ENTRIES = 2**20
# Columns that SuperLU updates together: a fifth less time than with its default of 20 on lattices and surfaces.
PANEL = 4


def eliminate(matrix: scipy.sparse.csr_array, order: np.ndarray | None = None) -> Fronts:
    """The fronts of a symmetric pattern, every diagonal entry included.

    :param matrix: a CSR array, of which only the pattern counts.
    :param order: the nodes in the order of elimination; by default that of minimum degree.
    """
    # Columns 0..N-1 are those of a factor in any order; they make fundamental supernodes, which are merged, and then numbered.
    factor, order = _generic_factor(matrix, order)
    counts = np.diff(factor.indptr)  # with the diagonal
    parent = _parents(factor)
    member = _fundamental(parent, counts)
    last = np.flatnonzero(member == np.arange(len(member)))  # a supernode is named by its last column
    number = np.empty(len(member) + 1, dtype=np.int64)
    number[last], number[-1] = np.arange(len(last)), -1
    above = number[np.append(member, len(member))[parent[last]]]
    into = _merged(above, np.bincount(number[member], minlength=len(last)), counts[last] - 1)
    tops = np.flatnonzero(into == np.arange(len(into)))
    label = np.empty(len(into) + 1, dtype=np.int64)
    label[tops], label[-1] = np.arange(len(tops)), -1
    tree = label[np.append(into, -1)[above[tops]]]
    return _numbered(order, label[into[number[member]]], tree, factor, last[tops])


def _parents(factor: scipy.sparse.csc_array) -> np.ndarray:
    """The first row below the diagonal of every column, N where there is none; some columns at a time."""
    size, pointers = factor.shape[0], factor.indptr
    parent, start = np.empty(size, dtype=np.int64), 0
    while start < size:
        stop = max(start + 1, int(np.searchsorted(pointers, pointers[start] + PARENT_ENTRIES, side="right")) - 1)
        rows = factor.indices[pointers[start] : pointers[stop]]
        columns = np.repeat(np.arange(start, stop), np.diff(pointers[start : stop + 1]))
        parent[start:stop] = np.minimum.reduceat(np.where(rows > columns, rows, size), pointers[start:stop] - pointers[start])
        start = stop
    return parent


def grounded_laplacian(matrix: scipy.sparse.csr_array) -> scipy.sparse.csr_array:
    """A positive definite matrix with a given pattern, and with no positive entry off its diagonal."""
    counts = np.diff(matrix.indptr)
    rows = np.repeat(np.arange(len(counts)), counts)
    diagonal = matrix.indices == rows
    if int(diagonal.sum()) != len(counts):
        node = int(np.flatnonzero(np.bincount(rows[diagonal], minlength=len(counts)) == 0)[0])
        raise ValueError(f"The pattern must hold every diagonal entry; that of node {node} is missing.")
    values = np.where(diagonal, (1 + GROUND) * np.maximum(counts - 1, 1)[rows], -1.0)
    return scipy.sparse.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)


def _generic_factor(matrix: scipy.sparse.csr_array, order: np.ndarray | None) -> tuple[scipy.sparse.csc_array, np.ndarray]:
    """A factor without accidental zeros, and its order.

    That of a grounded Laplacian with the same pattern: elimination only adds to the size of its negative entries, so that none
    of them vanishes.
    """
    size, generic = matrix.shape[0], scipy.sparse.csc_array(grounded_laplacian(matrix))
    if order is None:
        many = np.diff(matrix.indptr) > MANY_ENTRIES * size**0.5
        if not many.any():
            factors = superlu(generic, "MMD_AT_PLUS_A")
            return factors.L, np.argsort(factors.perm_c)
        few = np.flatnonzero(~many)
        if len(few):
            few = few[np.argsort(superlu(generic[:, few][few], "MMD_AT_PLUS_A").perm_c)]
        order = np.concatenate([few, np.flatnonzero(many)])
    order = np.asarray(order, dtype=np.int64)
    if not np.array_equal(np.sort(order), np.arange(size)):
        raise ValueError(f"order must hold every node from 0 to {size - 1} once.")
    return superlu(generic[:, order][order], "NATURAL").L, order


def _fundamental(parent: np.ndarray, counts: np.ndarray) -> np.ndarray:  # (N,), (N,) -> (N,)
    """The last column of the fundamental supernode of every column: of a chain of columns that have the same rows."""
    size = len(parent)
    columns = np.arange(size)
    alike = columns[(parent < size) & (counts == np.append(counts, 0)[parent] + 1)]
    child = np.full(size + 1, -1)
    child[parent[alike]] = alike  # one of those that fit
    top = np.where(child[parent] == columns, parent, columns)
    while not np.array_equal(top, following := top[top]):
        top = following
    return top


def _merged(parent: np.ndarray, columns: np.ndarray, rows: np.ndarray) -> np.ndarray:  # (S,) each
    """The supernode that every supernode is merged into, roots first, while that saves time."""
    above, width, height = parent.tolist(), columns.tolist(), rows.tolist()
    depth = np.asarray(_depths(above))
    # Where a tree is narrow, a batch has few fronts to share its cost.
    shared = (BATCH_SECONDS / np.bincount(depth))[depth].tolist()
    into = list(range(len(above)))
    seconds = [0.0] * len(above)
    for child in range(len(above) - 1, -1, -1):
        seconds[child] = own = shared[child] + front_seconds(width[child], height[child])
        if above[child] < 0:
            continue
        top = into[above[child]]
        together = shared[top] + front_seconds(width[top] + width[child], height[top])
        # Dearer columns than those that are there would be better off in a supernode of their own.
        if together - seconds[top] <= min(own, seconds[top] * width[child] / width[top]):
            into[child], seconds[top] = top, together
            width[top] += width[child]
    return np.asarray(into, dtype=np.int64)


def _depths(parent: list[int]) -> list[int]:
    depth = [0] * len(parent)
    for child in range(len(parent) - 1, -1, -1):
        if parent[child] >= 0:
            depth[child] = depth[parent[child]] + 1
    return depth


def _numbered(
    order: np.ndarray,  # (N,)
    group: np.ndarray,  # (N,), supernode of every column
    parent: np.ndarray,  # (S,)
    factor: scipy.sparse.csc_array,
    last: np.ndarray,  # (S,), a column with all rows of its supernode
) -> Fronts:
    """Number positions anew, so that the columns of a supernode and of every branch of the tree are next to one another."""
    tree, widths = parent.tolist(), np.bincount(group, minlength=len(parent))
    branch = widths.tolist()  # columns in the branch that ends in a supernode
    for child, above in enumerate(tree):
        if above >= 0:
            branch[above] += branch[child]
    free, root = [0] * len(tree), 0  # where the next branch of a supernode begins
    for child in range(len(tree) - 1, -1, -1):
        above = tree[child]
        if above >= 0:
            free[child], free[above] = free[above], free[above] + branch[child]
        else:
            free[child], root = root, root + branch[child]
    begin = np.asarray(free, dtype=np.int64)  # behind all branches: the first column
    rank = np.argsort(begin)
    columns = np.argsort(begin[group], kind="stable")
    position = inverse_permutation(columns)
    label = inverse_permutation(rank)
    above = parent[rank]
    last = last[rank]
    lengths = (factor.indptr[last + 1] - factor.indptr[last]).astype(np.int64)
    rows = factor.indices[ragged_ranges(factor.indptr[last], lengths)]
    owner, below = np.repeat(np.arange(len(rank)), lengths), rows > np.repeat(last, lengths)
    keys = np.sort(owner[below] * len(order) + position[rows[below]])
    above = np.where(above >= 0, label[above], -1)
    return Fronts(
        num_entries=factor.nnz,
        order=order[columns],
        start=np.append(begin[rank], len(order)),
        parent=above,
        depth=np.asarray(_depths(above.tolist()), dtype=np.int64),
        row_start=np.concatenate([[0], np.cumsum(lengths - 1)]),
        rows=keys % len(order),
    )
