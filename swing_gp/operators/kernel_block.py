r"""Covariances between lists of inputs for matrix-free kernels (Fourier grid, neighbour lists), by products alone.

Between nodes the block of K is one product of the whole kernel, scattered and gathered. Off the graph the same kernel goes on
through the two verbs,

.. math:: k(x, x') = \alpha_0 [x = x'] + s(x) s(x')\, \phi(x)^\top h \,\phi(x') , \qquad s = \max(d, f(0))^{-1/2} .
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.graphs.inputs import Sites
from swing_gp.linalg.gram import frozen_signs
from swing_gp.operators.low_rank_kernel import SeriesLinearOperator
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import MatrixFreeLinearOperator
from swing_gp.operators.preconditioning import PROBES, LandmarkControl, estimated_variances

__all__ = ["KernelBlock"]

# Up to here a diagonal is exact, column by column; above it is estimated.
EXACT_DIAGONAL = 2048


class KernelBlock(MatrixFreeLinearOperator):
    r"""The matrix of :math:`c\,k(x_i, x'_j)` for two lists of inputs, through products alone.

    :param base: the kernel on all nodes.
    :param left: s at the rows, (n,); unused between nodes.
    :param right: s at the columns, (m,).
    :param outputscale: c, a scalar.
    :param head: :math:`\alpha_0, \alpha_1`.
    :param tail: what a kernel without features needs of its series off the graph (see ``SeriesLinearOperator.between``).
    :param sites: the two lists.
    :param control: the landmark kernel of the same graph.
    """

    def __init__(
        self,
        base: LinearOperator,
        left: Tensor,
        right: Tensor,
        outputscale: Tensor,
        head: Tensor,
        tail: Tensor,
        *,
        sites: tuple[Sites, Sites],
        control: LandmarkControl,
    ) -> None:
        super().__init__(base, left, right, outputscale, head, tail, sites=sites, control=control)
        self.base, self.left, self.right, self.outputscale = base, left, right, outputscale
        self.head, self.tail = head, tail
        self.sites, self.control = sites, control

    def _size(self) -> torch.Size:
        return torch.Size((len(self.sites[0].keys), len(self.sites[1].keys)))

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        return self.base.device

    def _transpose_nonbatch(self) -> LinearOperator:
        return self._with(self.right, self.left, self.outputscale, (self.sites[1], self.sites[0]))

    def _with(self, left: Tensor, right: Tensor, outputscale: Tensor, sites: tuple[Sites, Sites]) -> KernelBlock:
        return self.__class__(self.base, left, right, outputscale, self.head, self.tail, sites=sites, control=self.control)

    @property
    def symmetric(self) -> bool:
        return self.sites[0] is self.sites[1] or (
            len(self.sites[0].keys) == len(self.sites[1].keys) and torch.equal(self.sites[0].keys, self.sites[1].keys)
        )

    # Products

    def _apply(self, rhs: Tensor) -> Tensor:  # (m, k) -> (n, k)
        rows, columns = self.sites
        if rows.on_graph and columns.on_graph:
            full = torch.zeros(self.base.shape[-1], rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
            product = self.base._matmul(full.index_add(0, columns.nodes, rhs))[rows.nodes]
        else:
            scaled = self.right.unsqueeze(-1) * rhs
            product = self.base.between(rows.points, columns.points, scaled, self.head[1], self.tail)
            product = self.left.unsqueeze(-1) * product + self.head[0] * self._matches(rhs)
        return self.outputscale * product

    @cached_property
    def _groups(self) -> tuple[Tensor, ...]:
        """For rows and for columns, a number that agrees where the points do."""
        both = torch.cat([sites.keys for sites in self.sites])
        return both.unique(return_inverse=True)[1].split([len(sites.keys) for sites in self.sites])

    def _matches(self, rhs: Tensor) -> Tensor:
        """Sums over the columns that are the same point as a row."""
        rows, columns = self._groups
        totals = torch.zeros(sum(self.shape), rhs.shape[-1], dtype=rhs.dtype, device=rhs.device)
        return totals.index_add(0, columns, rhs)[rows]

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        scale = self.outputscale * (other.reshape(()) if torch.is_tensor(other) else other)
        return self._with(self.left, self.right, scale, self.sites)

    # Entries

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        one, two = self.sites[0][row_index], self.sites[1][col_index]
        if row_index is col_index or (self.symmetric and _same_index(row_index, col_index)):
            two = one
        left, right = self.left[row_index], self.right[col_index]
        return self._with(left, right, self.outputscale, (one, two))

    def _diagonal(self) -> Tensor:
        if self.symmetric and self.sites[0].on_graph and self.shape[-1] > EXACT_DIAGONAL:
            return self.outputscale * self.base._diagonal()[self.sites[0].nodes]
        if self.symmetric and self.shape[-1] > EXACT_DIAGONAL:
            return self._estimated_diagonal()
        return super()._diagonal()

    def _estimated_diagonal(self) -> Tensor:
        """The diagonal off the graph: the landmarks' and an unbiased estimate of what they leave, or that of samples."""
        signs = frozen_signs(self.shape[-1], PROBES, self.dtype, self.device)
        close = self.close() if self.control.exists else None
        sample = (lambda number: self.zero_mean_mvn_samples(number).mT) if self.has_root else None
        return estimated_variances(signs, self._apply(signs), close, sample)[0]

    def close(self) -> LowRankPlusDiagonal:
        """The landmark kernel on the same inputs, for a symmetric block; its points are distinct."""
        with torch.no_grad():
            factor, diag = self.control.kernel.at(self.sites[0])
            core = self.control.kernel.core * self.outputscale.detach().to(self.control.kernel.core)
            return LowRankPlusDiagonal(factor, core, diag * self.outputscale.detach())

    @property
    def has_root(self) -> bool:
        """Whether the kernel can be sampled at these inputs: off the graph, that of a list cannot."""
        return self.sites[0].on_graph or not isinstance(self.base, SeriesLinearOperator)

    def prior_samples(self, other: KernelBlock, number: int) -> Tensor:  # (n + m, number)
        """Joint samples at the rows of this block and of another."""
        one, two = self.sites[0], other.sites[0]
        if one.on_graph and two.on_graph:
            root = self.base.root_decomposition().root
            white = torch.randn(root.shape[-1], number, dtype=self.dtype, device=self.device)
            sample = (root @ white)[torch.cat([one.nodes, two.nodes])]
        else:
            scale = torch.cat([self.left, other.left]).unsqueeze(-1)
            sample = scale * self.base.draw(torch.cat([one.points, two.points]), number)
            # The identity part is one number for every point, however often it is listed.
            keys, group = torch.cat([one.keys, two.keys]).unique(return_inverse=True)
            own = torch.randn(len(keys), number, dtype=self.dtype, device=self.device)[group]
            sample = sample + self.head[0].sqrt() * own
        return self.outputscale.sqrt() * sample

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        nothing = self._getitem(slice(0, 0), slice(0, 0))
        return self.prior_samples(nothing, num_samples).mT

    # Noise

    def precondition(self, noise: Tensor) -> LowRankPlusDiagonal | None:
        """The landmark kernel plus the noise, where it is close enough to help; repeated inputs go without."""
        least = float(noise.min() / self.outputscale.detach())
        if not self.sites[0].distinct or not self.control.helps(self.base, least):
            return None
        close = self.close().add_diagonal(noise)
        assert isinstance(close, LowRankPlusDiagonal)
        return close


def _same_index(one: Any, two: Any) -> bool:
    if torch.is_tensor(one) and torch.is_tensor(two):
        return one.shape == two.shape and torch.equal(one, two)
    return not torch.is_tensor(one) and not torch.is_tensor(two) and one == two
