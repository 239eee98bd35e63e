"""Explicit graphs as sparse and dense matrices, and products with exp(-t (I - A)) as peers compute them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import scipy.spatial
import torch
from scipy.sparse.linalg import LinearOperator, expm_multiply
from torch import Tensor

__all__ = [
    "Product",
    "by_expm_multiply",
    "by_lanczos",
    "by_taylor",
    "dense_weights",
    "gaussian_list",
    "keops_weights",
    "normalized",
    "within",
]

Product = Callable[[Tensor], Tensor]

# Matrices


def within(points: np.ndarray, radius: float, weight: Callable[[np.ndarray], np.ndarray] | None = None) -> Any:
    """All pairs within a radius as a sparse matrix with self-loops of weight one, by SciPy alone.

    :param weight: the weight as a function of squared distances; one if None.
    """
    i, j = scipy.spatial.cKDTree(points).query_pairs(radius, output_type="ndarray").T
    weights = np.ones(len(i)) if weight is None else weight(np.square(points[i] - points[j]).sum(-1))
    upper = scipy.sparse.coo_array((weights, (i, j)), shape=(len(points), len(points))).tocsr()
    return upper + upper.T + scipy.sparse.eye_array(len(points), format="csr")


def gaussian_list(scaled: np.ndarray, radius: float) -> Any:
    """Gaussian weights of points in units of the lengthscale, up to a radius."""
    return within(scaled, radius, lambda squares: np.exp(-0.5 * squares))


def normalized(weights: Any) -> Any:
    """D^-1/2 W D^-1/2 of a sparse matrix."""
    root = scipy.sparse.diags_array(weights.sum(axis=1) ** -0.5)
    return (root @ weights @ root).tocsr()


def dense_weights(scaled: Tensor) -> Product:
    half = 0.5 * scaled.square().sum(-1, keepdim=True)
    matrix = torch.addmm(-half - half.mT, scaled, scaled.mT).exp_()
    return lambda v: matrix @ v


def keops_weights(scaled: Tensor) -> Product:
    import pykeops
    from pykeops.torch import LazyTensor

    pykeops.set_verbose(False)
    rows, columns = LazyTensor(scaled.unsqueeze(1)), LazyTensor(scaled.unsqueeze(0))
    matrix = (-((rows - columns) ** 2).sum(-1) / 2).exp()
    return lambda v: matrix @ v


# exp(-t (I - A)) v, for a matrix A that is given by its products with (N, k)


def by_expm_multiply(step: Product, trace: float, v: Tensor, time: float) -> Tensor:
    """Multiply by the algorithm of Al-Mohy and Higham.

    :param trace: the trace of A.
    """

    def product(u: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.ascontiguousarray(u)).to(v.dtype).reshape(len(v), -1)
        return (time * (step(tensor) - tensor)).numpy().reshape(u.shape)

    products = dict.fromkeys(("matvec", "rmatvec", "matmat", "rmatmat"), product)
    matrix = LinearOperator((len(v), len(v)), dtype=v.numpy().dtype, **products)
    return torch.from_numpy(expm_multiply(matrix, v.numpy(), traceA=time * (trace - len(v))))


def by_lanczos(step: Product, v: Tensor, time: float, steps: int = 20) -> Tensor:
    """Multiply by Lanczos iterations, one for each column."""
    from linear_operator.utils.lanczos import lanczos_tridiag

    size = len(v)
    columns = []
    for column in v.mT.unsqueeze(-1):
        basis, matrix = lanczos_tridiag(step, min(steps, size), v.dtype, v.device, (size, size), init_vecs=column)
        values, vectors = torch.linalg.eigh(matrix.double())
        first = vectors @ ((time * (values - 1)).exp() * vectors[0])
        columns.append(column.norm() * (basis @ first.to(v)))
    return torch.stack(columns, -1)


def by_taylor(step: Product, v: Tensor, time: float, terms: int = 60) -> Tensor:
    """Multiply by a Taylor series; terms do not cancel, because the spectrum of A lies in [-1, 1] and mostly above zero."""
    total = term = v
    for power in range(1, terms):
        term = time / power * step(term)
        total = total + term
    return math.exp(-time) * total
