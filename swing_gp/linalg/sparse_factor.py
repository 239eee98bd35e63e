"""Sparse Cholesky-like factors, where they are cheap: on curves and surfaces, not in volumes. How cheap is predicted first.

>>> path = scipy.sparse.diags_array([2.5, -1.0, -1.0], offsets=[0, -1, 1], shape=(3000, 3000)).tocsr()
>>> predicted_fill(path) < 10 * path.nnz
True
>>> factor = SparseFactor(path)
>>> float((path @ factor.solve(torch.ones(3000, 1).double()).numpy() - 1).max()) < 1e-12
True
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg
import torch
from torch import Tensor

# Nodes of the two parts whose factors tell how the fill grows.
SMALL, LARGE = 800, 3200


class SparseFactor:
    """The factors of a sparse symmetric positive definite matrix."""

    def __init__(self, matrix: scipy.sparse.csr_array) -> None:
        self._factor = _factorize(matrix)

    def solve(self, rhs: Tensor) -> Tensor:  # (N, k), float64
        return torch.from_numpy(self._factor.solve(rhs.numpy()))

    @property
    def logdet(self) -> float:
        return float(np.log(np.abs(self._factor.U.diagonal())).sum())


def sparse_power(matrix: scipy.sparse.csr_array, power: int) -> scipy.sparse.csr_array:
    """A small power as a sparse matrix."""
    result = matrix
    for _ in range(power - 1):
        result = scipy.sparse.csr_array(result @ matrix)
    return result


def _factorize(matrix: scipy.sparse.csr_array) -> scipy.sparse.linalg.SuperLU:
    # Pivots on the diagonal, whose order is chosen beforehand for little fill.
    options = {"SymmetricMode": True, "Equil": False}
    return scipy.sparse.linalg.splu(
        scipy.sparse.csc_matrix(matrix), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options
    )


def predicted_fill(matrix: scipy.sparse.csr_array, power: int = 1) -> float:
    """The entries that the factors of a power of a matrix will have.

    They grow as N log N on surfaces and as N^(4/3) in volumes: two connected parts of the matrix, one four times the other, are
    factorised, and the growth between them is carried on.
    """
    size = matrix.shape[0]
    start = int(np.argmax(np.diff(matrix.indptr)))
    order = scipy.sparse.csgraph.breadth_first_order(matrix, start, directed=False, return_predecessors=False)
    parts = [order[: min(number, len(order))] for number in (SMALL, LARGE)]
    fills = [_factorize(sparse_power(matrix[part][:, part], power)).L.nnz for part in parts]
    if len(parts[1]) <= len(parts[0]):  # components are small
        return 2.0 * fills[1] * size / max(1, len(parts[1]))
    growth = math.log(fills[1] / fills[0]) / math.log(len(parts[1]) / len(parts[0]))
    return 2.0 * fills[1] * (size / len(parts[1])) ** min(max(growth, 1.0), 2.0)
