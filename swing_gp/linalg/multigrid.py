r"""Algebraic multigrid for many right-hand sides at once: the preconditioner of sparse symmetric positive definite matrices.

``pyamg`` makes the hierarchy (smoothed aggregation, Vanek, Mandel & Brezina, 1996) and applies its cycle to one vector at a
time, by Gauss-Seidel sweeps that run through the rows one after another. Here the cycle is made of sparse products alone: it
smooths by Chebyshev polynomials, takes a block of columns, and is symmetric, so that conjugate gradients can take it. It
computes in float32, which moves half the bytes: what a preconditioner rounds, the iterations mend. Small matrices are solved
with densely.

>>> import scipy.sparse
>>> laplacian = scipy.sparse.diags_array([2.001, -1.0, -1.0], offsets=[0, -1, 1], shape=(5000, 5000)).tocsr()
>>> cycle = Multigrid(laplacian)
>>> b = torch.ones(5000, 2, dtype=torch.float64)
>>> from swing_gp.linalg.conjugate_gradients import conjugate_gradients
>>> matrix = sparse_tensor(laplacian)
>>> len(conjugate_gradients(lambda v: matrix @ v, b, precondition=cycle, tol=1e-8).residuals) < 15
True
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from swing_gp.linalg.sparse import sparse_tensor

# Levels end at this many unknowns, which are solved for densely, and matrices up to the second size have one level.
COARSEST, SMALL = 300, 2000
# Products of a smoothing step, and the part of the spectrum that it damps: the upper three quarters.
DEGREE, DAMPED = 2, 0.25
# Steps of the power method for the largest eigenvalue, and the factor that makes an upper bound of the estimate.
POWER_STEPS, ABOVE = 12, 1.1
# Without pyamg a polynomial of this degree stands in for the cycle.
PLAIN_DEGREE, PLAIN_DAMPED = 8, 0.02


@dataclass(frozen=True)
class _Level:
    matrix: Tensor  # CSR
    inverse_diagonal: Tensor  # (n, 1)
    largest: float  # eigenvalue of D^-1 A, from above
    prolongation: Tensor | None  # CSR, from the next level
    restriction: Tensor | None


class Multigrid:
    """A symmetric V-cycle of a sparse symmetric positive definite matrix, as a function of blocks of columns.

    :param matrix: CSR.
    :param accurate: two cycles, in float64, for powers of a matrix that amplify what one leaves.
    :ivar levels: unknowns on every level; one level where ``pyamg`` is missing, and a Chebyshev polynomial is all there is.
    """

    def __init__(self, matrix: scipy.sparse.csr_array, *, accurate: bool = False) -> None:
        matrices, prolongations = _hierarchy(matrix)
        self.levels = [one.shape[0] for one in matrices]
        self._dtype = torch.float64 if accurate or len(matrices) == 1 else torch.float32
        self._levels = [_level(one, up, self._dtype) for one, up in zip(matrices, [*prolongations, None], strict=True)]
        self._coarsest = self._matrix = None
        if self.levels[-1] <= SMALL:
            self._coarsest = torch.linalg.cholesky(torch.from_numpy(matrices[-1].toarray())).to(self._dtype)
        if accurate and len(matrices) > 1:
            self._matrix = self._levels[0].matrix

    def __call__(self, rhs: Tensor) -> Tensor:  # (N, k) -> (N, k)
        values = rhs.to(self._dtype)
        x = self._cycle(values, 0)
        if self._matrix is not None:
            x = x.add_(self._cycle(torch.addmm(values, self._matrix, x, alpha=-1), 0))
        return x.to(rhs.dtype)

    def _cycle(self, rhs: Tensor, depth: int) -> Tensor:
        level = self._levels[depth]
        if depth == len(self._levels) - 1:
            if self._coarsest is None:
                return _smooth(level, rhs, None, PLAIN_DEGREE, PLAIN_DAMPED)
            return torch.cholesky_solve(rhs, self._coarsest)
        assert level.prolongation is not None
        assert level.restriction is not None
        x = _smooth(level, rhs, None)
        left = torch.addmm(rhs, level.matrix, x, alpha=-1)
        x = torch.addmm(x, level.prolongation, self._cycle(level.restriction @ left, depth + 1), out=x)
        return _smooth(level, rhs, x)


def _hierarchy(matrix: scipy.sparse.csr_array) -> tuple[list[scipy.sparse.csr_array], list[scipy.sparse.csr_array]]:
    """Matrices from fine to coarse, and prolongations between them."""
    if matrix.shape[0] <= SMALL:
        return [matrix], []
    try:
        import pyamg
    except ImportError:
        warnings.warn(
            "pyamg is not installed, so solves in precision form take many more steps: pip install pyamg.", stacklevel=3
        )
        return [matrix], []
    # Damping by local row sums: that by the spectral radius draws from NumPy's global generator.
    found = pyamg.smoothed_aggregation_solver(
        scipy.sparse.csr_matrix(matrix),
        symmetry="symmetric",
        smooth=("jacobi", {"weighting": "local"}),
        max_coarse=COARSEST,
        presmoother=None,
        postsmoother=None,
    )
    matrices = [scipy.sparse.csr_array(level.A) for level in found.levels]
    return matrices, [scipy.sparse.csr_array(level.P) for level in found.levels[:-1]]


def _level(matrix: scipy.sparse.csr_array, prolongation: scipy.sparse.csr_array | None, dtype: torch.dtype) -> _Level:
    inverse = 1 / matrix.diagonal()
    # From a start that has a share in every eigenvector, on the symmetric form.
    root, v = np.sqrt(inverse), np.random.default_rng(0).standard_normal(matrix.shape[0])
    for _ in range(POWER_STEPS):
        v = root * (matrix @ (root * (v / np.linalg.norm(v))))
    largest = ABOVE * float(np.linalg.norm(v))
    up, down = (None, None) if prolongation is None else (prolongation, prolongation.T.tocsr())
    down, up = (None if one is None else sparse_tensor(one, dtype) for one in (down, up))
    return _Level(sparse_tensor(matrix, dtype), torch.from_numpy(inverse).to(dtype).unsqueeze(-1), largest, up, down)


def _smooth(level: _Level, rhs: Tensor, x: Tensor | None, degree: int = DEGREE, damped: float = DAMPED) -> Tensor:
    """Steps of the Chebyshev iteration, preconditioned by the diagonal, for the upper part of the spectrum (Saad, 2003)."""
    high, low = level.largest, damped * level.largest
    centre, half = 0.5 * (high + low), 0.5 * (high - low)
    residual = rhs.clone() if x is None else torch.addmm(rhs, level.matrix, x, alpha=-1)
    step = residual.mul(level.inverse_diagonal).div_(centre)
    x = step.clone() if x is None else x.add_(step)
    ratio = half / centre
    for _ in range(degree - 1):
        residual = torch.addmm(residual, level.matrix, step, alpha=-1, out=residual)
        following = 1 / (2 * centre / half - ratio)
        step.mul_(following * ratio).addcmul_(residual, level.inverse_diagonal, value=2 * following / half)
        x.add_(step)
        ratio = following
    return x
