r"""Precision matrices that are functions of a sparse matrix: products, solves, random vectors, diagonals, in float64.

With a sparse symmetric A, whose spectrum is in [-1, 1], and :math:`B = a I + b A` positive definite, :math:`b < 0`,

.. math:: Q = B^m \rho(A) ,

:math:`\rho` a polynomial that stands for what is left of a power that is not whole. The factors are multiplied one after
another: near the smallest eigenvalue of B a polynomial of all of Q would lose every digit. Solves go through multigrid cycles.
Nodes are renumbered so that neighbours are close in memory, which makes products two to three times faster.

Numbers only: gradients are the business of :mod:`swing_gp.operators.precision`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import torch
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import conjugate_gradients
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.multigrid import SMALL, Multigrid
from swing_gp.linalg.polynomial import clenshaw_in_place
from swing_gp.linalg.sparse import advance, sparse_tensor
from swing_gp.utils.copies import WithoutCaches

# Columns that are solved for at a time: few enough to stay near the processor, enough for sparse products to pay.
COLUMNS = 16
# Relative residuals of solves with B, whose errors multiply, and the most steps they take.
SOLVE_TOL, MAX_STEPS = 1e-11, 500
# Random signs for the diagonal of a matrix that no row product gives.
DIAGONAL_PROBES = 64


Action = Callable[[Tensor], Tensor]  # (N, k) -> (N, k)


@dataclass(frozen=True)
class MatrixFunction:
    r"""A positive function :math:`\rho(A)`, its root, and roughly its inverse, as products with blocks of columns."""

    apply: Action
    root: Action
    rough_inverse: Action

    @classmethod
    def dense(cls, matrix: scipy.sparse.csr_array, function: Callable[[Tensor], Tensor]) -> MatrixFunction:
        """From all eigenvalues of a small matrix."""
        values, vectors = torch.linalg.eigh(torch.from_numpy(matrix.toarray()))
        rho = function(values)
        one, two, three = (partial(_spectral_product, vectors, x.unsqueeze(-1)) for x in (rho, rho.sqrt(), 1 / rho))
        return cls(one, two, three)

    @classmethod
    def polynomial(cls, matrix: scipy.sparse.csr_array, interval: tuple[float, float], *coefficients: Tensor) -> MatrixFunction:
        """From Chebyshev coefficients on an interval that holds the spectrum: of the function, its root and its inverse."""
        step = partial(advance, sparse_tensor(matrix))
        one, two, three = (partial(clenshaw_in_place, step, part, interval) for part in coefficients)
        return cls(one, two, three)


def _spectral_product(vectors: Tensor, values: Tensor, v: Tensor) -> Tensor:
    return vectors @ (values * (vectors.mT @ v))


class PrecisionMatrix(WithoutCaches):
    r""":math:`Q = B^m \rho(A)`.

    :param matrix: A, CSR, float64.
    :param roots: t with :math:`A t = t`, (N,): the roots of the degrees; for random vectors.
    :param linear: a and b.
    :param whole: m.
    :param rest: makes :math:`\rho` of the renumbered A; None for one.
    :param order: the power of B that Q is, about, and exactly if ``is_power``.
    """

    def __init__(
        self,
        matrix: scipy.sparse.csr_array,
        roots: np.ndarray,
        *,
        linear: tuple[float, float],
        whole: int,
        order: float,
        is_power: bool = True,
        rest: Callable[[scipy.sparse.csr_array], MatrixFunction] | None = None,
    ) -> None:
        a, b = linear
        self.whole, self.order, self.is_power, self._linear = whole, order, is_power, linear
        self._order = torch.from_numpy(scipy.sparse.csgraph.reverse_cuthill_mckee(matrix, symmetric_mode=True).astype(np.int64))
        self._back = torch.empty_like(self._order)
        self._back[self._order] = torch.arange(len(self._order))
        numbers = self._order.numpy()
        self._matrix = scipy.sparse.csr_array(matrix[numbers][:, numbers])
        self._roots = roots[numbers]
        eye = scipy.sparse.eye_array(matrix.shape[0], format="csr")
        self.base = scipy.sparse.csr_array(a * eye + b * self._matrix)  # B, renumbered
        self._base = sparse_tensor(self.base)
        self._rest = None if rest is None else rest(self._matrix)

    @property
    def size(self) -> int:
        return self.base.shape[0]

    @property
    def is_whole(self) -> bool:
        """Whether Q is a whole power of B."""
        return self._rest is None

    def renumbered(self, values: Tensor) -> Tensor:
        """Values at the nodes, in float64 and in the order in which everything is computed."""
        return values.double()[self._order]

    def numbered(self, values: Tensor) -> Tensor:
        """The same values in the order of the user."""
        return values[self._back]

    # All that follows is in the order of the matrix.

    def product(self, v: Tensor) -> Tensor:  # (N, k) -> (N, k)
        """Q v."""
        return self._powers(v if self._rest is None else self._rest.apply(v), self.whole)

    def base_product(self, v: Tensor) -> Tensor:
        """B v."""
        return self._base @ v

    def _powers(self, v: Tensor, number: int) -> Tensor:
        for _ in range(number):
            v = self._base @ v
        return v

    def noise(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (N, number)
        r"""Random vectors of covariance Q, exactly (up to :math:`\rho`).

        For even m, :math:`B^{m/2} z`. For odd m the last factor is a root of B itself: :math:`I - A` is the Laplacian
        :math:`G^\top G` of the scaled weights, with a row of G for every edge, so that with normal :math:`z, z'` the vector
        :math:`\sqrt{a + b}\, z + \sqrt{-b}\, G^\top z'` has covariance B.
        """
        white = torch.randn(self.size, number, dtype=torch.float64, generator=generator)
        v = self._powers(self.base_noise(number, generator) if self.whole % 2 else white, self.whole // 2)
        return v if self._rest is None else self._rest.root(v)

    def base_noise(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (N, number)
        """Random vectors of covariance B."""
        a, b = self._linear
        left, entries, tail, head = self._incidence
        own, alone, edges = (
            torch.randn(size, number, dtype=torch.float64, generator=generator) for size in (self.size, self.size, len(tail))
        )
        v = (a + b) ** 0.5 * own + (-b) ** 0.5 * (left * alone)
        for ends, entry in ((tail, entries[0]), (head, -entries[1])):
            v.index_add_(0, ends, edges * ((-b) ** 0.5 * entry).unsqueeze(-1))
        return v

    @cached_property
    def _incidence(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """For every node the root of what its edges leave of one; for every edge the entries of G, and its ends."""
        upper = scipy.sparse.triu(self._matrix, k=1).tocoo()
        tail, head = upper.row, upper.col
        ratio = self._roots[head] / self._roots[tail]
        entries = np.sqrt(upper.data * np.stack([ratio, 1 / ratio]))
        off = scipy.sparse.csr_array(self._matrix - scipy.sparse.diags_array(self._matrix.diagonal()))
        left = 1 - self._matrix.diagonal() - (off @ self._roots) / self._roots  # zero but for nodes without edges
        rest = np.sqrt(np.clip(left, 0, None))[:, None]
        tails, heads = (torch.from_numpy(end.astype(np.int64)) for end in (tail, head))
        return torch.from_numpy(rest), torch.from_numpy(entries), tails, heads

    @cached_property
    def _components(self) -> tuple[int, Tensor, Tensor]:
        """Of the components that have edges: their number, that of every node, and the roots of the degrees, zero elsewhere."""
        _, labels = scipy.sparse.csgraph.connected_components(self._matrix, directed=False)
        linked = np.asarray(self._matrix.sum(axis=1)).ravel() > 0
        return (
            len(np.unique(labels[linked])),
            torch.from_numpy(labels.astype(np.int64)),
            torch.from_numpy(np.where(linked, self._roots, 0.0)).unsqueeze(-1),
        )

    @property
    def num_constants(self) -> int:
        """The eigenvectors of A with eigenvalue one: the roots of the degrees on every component."""
        return self._components[0]

    def without_constants(self, v: Tensor) -> Tensor:  # (N, k) -> (N, k)
        """What is orthogonal to those eigenvectors."""
        _, labels, root = self._components
        sums = torch.zeros(int(labels.max()) + 1, v.shape[-1] + 1, dtype=torch.float64)
        sums = sums.index_add(0, labels, torch.cat([root * v, root.square()], -1))
        return v - root * (sums[:, :-1] / sums[:, -1:].clamp_min(1e-300))[labels]

    @cached_property
    def diagonal(self) -> tuple[Tensor, Tensor]:  # (N,), (N,)
        """The diagonal of Q and its standard error: zero, or that of an estimate from random signs."""
        if self.size <= SMALL:
            return self.product(torch.eye(self.size, dtype=torch.float64)).diagonal(), torch.zeros(self.size).double()
        if self._rest is None and self.whole <= 3:
            squared = self.base.multiply(self.base)
            exact = {
                0: lambda: np.ones(self.size),
                1: lambda: self.base.diagonal(),
                2: lambda: squared.sum(axis=1),
                3: lambda: self.base.multiply(self.base @ self.base).sum(axis=1),
            }[self.whole]()
            return torch.from_numpy(np.asarray(exact, dtype=np.float64)), torch.zeros(self.size, dtype=torch.float64)
        signs = frozen_signs(self.size, DIAGONAL_PROBES, torch.float64, torch.device("cpu"))
        terms = torch.cat([part * self.product(part) for part in signs.split(COLUMNS, dim=-1)], -1)
        # Off the constants Q is about as large everywhere: no estimate may come near zero.
        least = 0.1 * float(terms.mean())
        return terms.mean(-1).clamp_min(least), terms.std(-1) / DIAGONAL_PROBES**0.5

    @cached_property
    def cycle(self) -> Multigrid:
        """A multigrid cycle of B."""
        return Multigrid(self.base)

    def solve(self, rhs: Tensor) -> Tensor:  # (N, k) -> (N, k)
        r""":math:`Q^{-1} b`, one factor after another: one solve with all of Q would lose digits."""
        return torch.cat([self._solve(part) for part in rhs.split(COLUMNS, dim=-1)], dim=-1) if rhs.shape[-1] else rhs.clone()

    def _solve(self, v: Tensor) -> Tensor:
        for _ in range(self.whole):
            v = self._iterate(self.base_product, v, self.cycle)
        return v if self._rest is None else self._iterate(self._rest.apply, v, self._rest.rough_inverse)

    def _iterate(self, action: Action, rhs: Tensor, precondition: Action) -> Tensor:
        options: dict[str, Any] = {"tol": SOLVE_TOL, "max_iterations": MAX_STEPS, "energy": True}
        return conjugate_gradients(action, rhs, precondition=precondition, **options).solution
