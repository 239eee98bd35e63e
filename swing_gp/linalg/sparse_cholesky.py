r"""Exact factors of sparse symmetric positive definite matrices: solves, log-determinants, samples, marginal variances.

SuperLU computes :math:`P A P^\top = L D L^\top`. What depends on the pattern of A alone is kept in a :class:`FactorPattern`
for any number of matrices; a :class:`SparseCholesky` is the factor of one. In the plane and on surfaces it has some tens of
entries a node; in volumes they grow as :math:`N^{4/3}`, and what would be too large is refused before it is allocated.

**Values and gradients.** A matrix is given by one value for every entry of a :class:`~swing_gp.linalg.sparse.SparsePattern`, in
both triangles. What is factorised is its symmetric part :math:`\frac12 (A + A^\top)`, and each entry has a gradient of its own,
that of a function of the whole matrix:

.. math:: \frac{\partial \log|A|}{\partial A_{ij}} = (A^{-1})_{ij} .

With one parameter for each unordered pair, put into both places, autograd adds the two entries: twice that off the diagonal.

>>> path = scipy.sparse.csr_array([[2.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 2.0]])
>>> values = torch.from_numpy(path.data).requires_grad_()
>>> factor = FactorPattern(SparsePattern.from_scipy(path)).factorize(values)
>>> factor.logdet().exp().detach(), factor.inverse_diagonal().detach()
(tensor(4., dtype=torch.float64), tensor([0.7500, 1.0000, 0.7500], dtype=torch.float64))
>>> torch.autograd.grad(factor.logdet(), values)[0]
tensor([0.7500, 0.5000, 0.5000, 1.0000, 0.5000, 0.5000, 0.7500], dtype=torch.float64)
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from swing_gp.linalg.cholesky import NotPositiveDefiniteError
from swing_gp.linalg.elimination import eliminate, grounded_laplacian, superlu
from swing_gp.linalg.selected_inverse import FrontPlaces, InversePlan
from swing_gp.linalg.sparse import SparsePattern
from swing_gp.linalg.sparse_autograd import logdet, selected_inverse, solve
from swing_gp.linalg.sparse_factor import LARGE, predicted_fill

# Bytes of a factor and its selected inverse that are not exceeded unless asked for: a million cells of a lattice take half.
MOST_BYTES = 8 * 2**30
# Bytes for an entry of L: L and U in SuperLU's storage and in SciPy's copies (16 and 24), maps into the fronts (12), and what
# SuperLU allocates beyond them.
ENTRY_BYTES = 64
# Largest difference between the two triangles, as a share of the largest value: what float32 leaves.
TRIANGLE_GAP = 1e-6
# Share of a diagonal entry, times the root of N, below which its pivot is nothing but rounding: Laplacians of lattices,
# spheres and trees leave up to a tenth of that of their last one.
SINGULAR = 64 * np.finfo(np.float64).eps
# Columns of unit vectors that are solved for at a time.
UNIT_COLUMNS = 64


class FactorTooLargeError(ValueError):
    """A factor that would not fit into the memory it may take."""


class FactorPattern:
    """The order of elimination, the fronts and all index maps of matrices with one pattern.

    :param pattern: of a symmetric matrix, every diagonal entry included.
    :param order: the nodes in the order of elimination; by default that of minimum degree.
    :param max_bytes: memory that a factor with its selected inverse may take.
    """

    def __init__(self, pattern: SparsePattern, *, order: np.ndarray | None = None, max_bytes: float = MOST_BYTES) -> None:
        self.pattern, self._flipped = pattern, _checked_symmetry(pattern)
        numbered = scipy.sparse.csr_array(
            (np.arange(pattern.num_entries), pattern.col.numpy(), pattern.crow.numpy()), shape=pattern.shape
        )
        if pattern.shape[0] > 4 * LARGE:  # parts tell before the factor itself is made
            _refuse_large(ENTRY_BYTES * predicted_fill(grounded_laplacian(numbered)) / 2, max_bytes)
        self.fronts = eliminate(numbered, order)
        self.bytes = ENTRY_BYTES * self.fronts.num_entries + self.plan.bytes
        _refuse_large(self.bytes, max_bytes)
        permuted = scipy.sparse.csc_array(numbered)[:, self.fronts.order][self.fronts.order]
        permuted.sort_indices()
        self._permuted = permuted
        self._known: tuple[np.ndarray, np.ndarray, FrontPlaces] | None = None

    @property
    def size(self) -> int:
        return self.pattern.shape[0]

    @cached_property
    def plan(self) -> InversePlan:
        return InversePlan(self.fronts)

    @cached_property
    def entries(self) -> FrontPlaces:
        """Places of the entries of the matrix among the fronts."""
        return self.locate(self.pattern.rows().numpy(), self.pattern.col.numpy())[0]

    @cached_property
    def diagonal(self) -> Tensor:  # (N,)
        """Which entries are on the diagonal."""
        return torch.nonzero(self.pattern.rows() == self.pattern.col).squeeze(-1)

    def locate(self, rows: np.ndarray, columns: np.ndarray) -> tuple[FrontPlaces, np.ndarray]:
        """Places of pairs of nodes among the fronts, and the indices of pairs that share none."""
        first, second = self.fronts.position[rows], self.fronts.position[columns]
        return self.plan.locate(np.maximum(first, second), np.minimum(first, second))

    def locate_factor(self, lower: scipy.sparse.csc_array) -> FrontPlaces:
        """Places of the entries of a factor: those of the last one, unless zeros that SuperLU leaves out are elsewhere."""
        if self._known is not None:
            pointers, rows, places = self._known
            if np.array_equal(pointers, lower.indptr) and np.array_equal(rows, lower.indices):
                return places
        places = self.plan.locate_factor(lower)
        self._known = lower.indptr, lower.indices, places
        return places

    def symmetric(self, values: Tensor) -> Tensor:  # (entries,)
        """The values of the symmetric part, float64."""
        if values.shape != (self.pattern.num_entries,):
            raise ValueError(f"values must have shape ({self.pattern.num_entries},), got {tuple(values.shape)}.")
        numbers = values.detach()
        if not bool(torch.isfinite(numbers).all()):
            raise ValueError("values must be finite: they contain NaN or infinity.")
        double = values.double()
        mirrored = double[self._flipped.to(values.device)]
        gap = float((double - mirrored).detach().abs().max())
        if gap > TRIANGLE_GAP * float(numbers.abs().max()):
            raise ValueError(f"values must be those of a symmetric matrix, whose triangles agree; they differ by {gap:.3g}.")
        return 0.5 * (double + mirrored)

    def permuted(self, values: np.ndarray) -> scipy.sparse.csc_array:
        """The matrix in the order of elimination."""
        parts = values[self._permuted.data], self._permuted.indices, self._permuted.indptr
        return scipy.sparse.csc_array(parts, shape=self.pattern.shape)

    def factorize(self, values: Tensor) -> SparseCholesky:
        """The factor of the matrix with these values, (entries,), which may require gradients."""
        return SparseCholesky(self, values)


class SparseCholesky:
    """The factor of one matrix. Results are float64, and follow the values by autograd. Made by ``FactorPattern.factorize``."""

    def __init__(self, pattern: FactorPattern, values: Tensor) -> None:
        self.pattern, self.values = pattern, pattern.symmetric(values)
        matrix = pattern.permuted(self.values.detach().cpu().numpy())
        self._factors, self._pivots = _positive_factors(matrix, pattern.fronts.order)

    @property
    def sparse(self) -> SparsePattern:
        return self.pattern.pattern

    # Differentiable results

    def logdet(self) -> Tensor:
        r""":math:`\\log|A|`, with gradients; second derivatives are refused."""
        return logdet(self, self.values)

    def solve(self, rhs: Tensor) -> Tensor:  # (N,) or (N, k)
        r""":math:`A^{-1} b`, with derivatives of all orders in the values and in b."""
        if rhs.dim() not in (1, 2) or len(rhs) != self.pattern.size:
            raise ValueError(f"rhs must have shape ({self.pattern.size},) or ({self.pattern.size}, k), got {tuple(rhs.shape)}.")
        columns = rhs.double() if rhs.dim() == 2 else rhs.double().unsqueeze(-1)
        found = solve(self, self.values, columns)
        return found if rhs.dim() == 2 else found.squeeze(-1)

    def inverse_values(self) -> Tensor:  # (entries,)
        """The entries of the inverse where the matrix has entries; a gradient through them is refused."""
        return selected_inverse(self, self.values)

    def inverse_diagonal(self) -> Tensor:  # (N,)
        """Marginal variances of a field with this precision; a gradient through them is refused."""
        return self.inverse_values()[self.pattern.diagonal.to(self.values.device)]

    # Numbers

    def inverse_pairs(self, rows: Tensor, columns: Tensor) -> Tensor:  # (n,), (n,) -> (n,)
        """Entries of the inverse for any pairs of nodes, without gradients.

        Pairs that share a front, which all neighbours do, come from one selected inverse; others from one solve for each of
        the nodes in ``columns``.
        """
        first, second = (np.asarray(nodes.cpu(), dtype=np.int64) for nodes in (rows, columns))
        if first.shape != second.shape or first.ndim != 1:
            raise ValueError(f"rows and columns must be vectors of one length, got {first.shape} and {second.shape}.")
        for name, nodes in (("rows", first), ("columns", second)):
            if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.pattern.size:
                raise ValueError(f"{name} must be nodes from 0 to {self.pattern.size - 1}.")
        places, missing = self.pattern.locate(first, second)
        found = self._select(places, len(first)) if len(places.entry) else torch.zeros(len(first), dtype=torch.float64)
        distant = np.unique(second[missing])
        for part in np.array_split(distant, -(-len(distant) // UNIT_COLUMNS) or 1):
            chosen = missing[np.isin(second[missing], part)]
            units = torch.zeros(self.pattern.size, len(part), dtype=torch.float64)
            units[torch.from_numpy(part), torch.arange(len(part))] = 1.0
            found[chosen] = self.plain_solve(units)[first[chosen], np.searchsorted(part, second[chosen])]
        return found.to(self.values.device)

    def root(self, v: Tensor) -> Tensor:  # (N,) or (N, k)
        r"""Apply :math:`P^\top L^{-\top} D^{-1/2}`, without gradients: standard normal numbers become draws of covariance
        :math:`A^{-1}`. As the inverse of A times :math:`L D^{1/2} v`, since SuperLU solves with all of A."""
        numbers = v.detach().double().cpu().numpy()
        scaled = np.sqrt(self._pivots).reshape(-1, *[1] * (numbers.ndim - 1)) * numbers
        return self._numbered(self._factors.solve(self._factors.L @ scaled)).to(v.device)

    def plain_logdet(self) -> Tensor:
        return torch.tensor(np.log(self._pivots).sum(), device=self.values.device)

    def plain_solve(self, rhs: Tensor) -> Tensor:  # (N, k)
        return self._numbered(self._factors.solve(rhs.detach().cpu().numpy()[self.pattern.fronts.order])).to(rhs.device)

    @cached_property
    def plain_inverse(self) -> Tensor:  # (entries,)
        return self._select(self.pattern.entries, self.sparse.num_entries).to(self.values.device)

    def _numbered(self, found: np.ndarray) -> Tensor:
        return torch.from_numpy(found[self.pattern.fronts.position])

    def _select(self, wanted: FrontPlaces, count: int) -> Tensor:
        lower = self._factors.L
        places = self.pattern.locate_factor(lower)
        return self.pattern.plan.inverse(places, lower.data, self._pivots, wanted, count)


def _checked_symmetry(pattern: SparsePattern) -> Tensor:
    """Which entry is the mirror image of every entry."""
    if pattern.shape[0] != pattern.shape[1] or not pattern.shape[0]:
        raise ValueError(f"pattern must be square, with at least one row, got {pattern.shape}.")
    order, flipped = pattern.transposed
    if not (torch.equal(flipped.crow, pattern.crow) and torch.equal(flipped.col, pattern.col)):
        raise ValueError("pattern must be symmetric: give every entry in both triangles, zeros if need be.")
    return order


def _refuse_large(needed: float, allowed: float) -> None:
    if needed > allowed:
        raise FactorTooLargeError(
            f"An exact factor would take about {needed / 2**30:.3g} GiB, and max_bytes allows {allowed / 2**30:.3g} GiB. Use "
            "iterative solves with multigrid instead, or raise max_bytes."
        )


def _positive_factors(matrix: scipy.sparse.csc_array, order: np.ndarray) -> tuple[scipy.sparse.linalg.SuperLU, np.ndarray]:
    """The factors and their pivots, all positive."""
    diagonal = matrix.diagonal()
    try:
        factors = superlu(matrix, "NATURAL")
    except RuntimeError as error:
        if "singular" not in str(error):
            raise
        # SuperLU does not say where: shifted by rounding alone, the pivot is rounding.
        shift = np.finfo(np.float64).eps * float(np.abs(diagonal).max() or 1.0)
        pivots = superlu(matrix + scipy.sparse.diags_array(np.full(len(order), shift)), "NATURAL").U.diagonal()
        _refuse_pivot(int(order[np.argmin(np.abs(pivots))]), 0.0)
    pivots = factors.U.diagonal()
    moved = factors.perm_r != np.arange(len(order))
    bad = np.flatnonzero(moved | ~(pivots > SINGULAR * len(order) ** 0.5 * np.abs(diagonal)))
    if len(bad):
        _refuse_pivot(int(order[bad[0]]), 0.0 if moved[bad[0]] else float(pivots[bad[0]]))
    return factors, pivots


def _refuse_pivot(node: int, pivot: float) -> None:
    what = "is zero up to rounding, so that the matrix is singular" if pivot >= 0 else "is negative"
    raise NotPositiveDefiniteError(
        f"The matrix is not positive definite: the pivot of node {node}, its precision after earlier nodes are eliminated, "
        f"{what} ({pivot:.3g}). Add to the diagonal; if rows add up to zero (an intrinsic field), fix a node of each component."
    )
