r"""SWING as a linear operator: frozen space walks, one-sided or two-sided."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.features.base import DenseFeatures, FeatureMap
from swing_gp.linalg.gram import gram, white_noise
from swing_gp.operators.kernel_block import MatrixFreeKernel
from swing_gp.operators.low_rank_kernel import FeatureKernelLinearOperator
from swing_gp.operators.walks import WalkGroup, Walks, space_walks
from swing_gp.series.base import Series


class SwingLinearOperator(MatrixFreeKernel):
    r"""Frozen walks as a matrix: :math:`\Phi` (one-sided) or :math:`\Phi \Phi^\top` (two-sided, symmetric PSD).

    Made by :func:`~swing_gp.operators.swing.swing_kernel`. Its tensors are the diagonal of :math:`\Phi` and, for dense
    features shared by all walks, the factors F and :math:`\Psi` of :math:`\Phi = \mathrm{diag} + F \Psi^\top`; otherwise
    positions, weights and column scales of every group and the tensors of the graph, and products go through the two verbs.

    :param maps: the feature map of every group of walks; empty for the factored form.
    """

    def __init__(
        self,
        identity: Tensor,
        *tensors: Tensor,
        maps: tuple[FeatureMap, ...],
        features: FeatureMap,
        series: Series,
        walks: Walks,
        transposed: bool = False,
    ) -> None:
        super().__init__(identity, *tensors, maps=maps, features=features, series=series, walks=walks, transposed=transposed)
        self.identity, self.walks, self.transposed = identity, walks, transposed
        self.features, self.series, self.graph = features, series, features.graph
        self._factors = None if maps else tensors
        self._groups = []
        size = len(tensors) // max(1, len(maps))
        for index, own in enumerate(maps):
            positions, weights, column, *of_graph = tensors[index * size : (index + 1) * size]
            if any(new is not old for new, old in zip(of_graph, own.graph.tensors(), strict=True)):
                own = own.bind(own.graph.with_tensors(*of_graph))
            self._groups.append(WalkGroup(own, positions, weights, column))

    @property
    def asymmetry(self) -> str | None:
        if self.walks.sides == 2:
            return None
        return "one-sided walks give none; use Walks(sides=2), or the collapsed kernel (walks=None)."

    def _transpose_nonbatch(self) -> LinearOperator:
        if self.walks.sides == 2:
            return self
        return self.__class__(*self._args, **{**self._kwargs, "transposed": not self.transposed})

    def _signature(self, rhs: Tensor, *, adjoint: bool) -> Tensor:
        """Phi v or Phi^T v."""
        result = self.identity.unsqueeze(-1) * rhs
        if self._factors is not None:
            left, right = self._factors[::-1] if adjoint else self._factors
            return result + left @ (right.mT @ rhs)
        for group in self._groups:
            result = result + (group.adjoint(rhs) if adjoint else group.apply(rhs))
        return result

    def _apply(self, rhs: Tensor) -> Tensor:
        if self.walks.sides == 1:
            return self._signature(rhs, adjoint=self.transposed)
        return self._signature(self._signature(rhs, adjoint=True), adjoint=False)

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (N, number)
        self.check_symmetric()
        # Phi is a root; Lanczos would find a part of one.
        return self._signature(white_noise(self, self.shape[-1], number, generator=generator), adjoint=False)


def swing_kernel(
    features: FeatureMap, series: Series, walks: Walks, *, generator: torch.Generator, tol: float = 1e-4
) -> LinearOperator:
    r"""Walk on the graph of a feature map and return the kernel as an operator.

    Dense features shared by all walks make :math:`\Phi = e + F \Psi^\top` explicit; two-sided it is low rank plus diagonal,

    .. math:: \Phi \Phi^\top = e^2 + [F, e\Psi] \begin{pmatrix} \Psi^\top\Psi & I \\ I & 0 \end{pmatrix} [F, e\Psi]^\top ,

    and everything a GP needs has a closed form.
    """
    graph = features.graph
    graph.shards.refuse("A kernel by walks", "use the collapsed kernel (walks=None), which is their expectation")
    if walks.sides == 2:
        graph.check_symmetric("Walks(sides=2)")
    frozen = space_walks(features, series, walks, generator=generator, tol=tol)
    origin: dict[str, Any] = {"features": features, "series": series}
    if walks.groups > 1 or not isinstance(features, DenseFeatures):
        maps = tuple(group.features for group in frozen.groups)
        tensors = [tensor for group in frozen.groups for tensor in group.tensors()]
        return SwingLinearOperator(frozen.identity, *tensors, maps=maps, walks=walks, **origin)
    left, right = frozen.groups[0].factors()
    if walks.sides == 1:
        return SwingLinearOperator(frozen.identity, left, right, maps=(), walks=walks, **origin)
    eye = torch.eye(right.shape[-1], dtype=torch.float64, device=right.device)
    core = torch.cat([torch.cat([gram(right), eye], -1), torch.cat([eye, torch.zeros_like(eye)], -1)], -2)
    factor = torch.cat([left, frozen.identity.unsqueeze(-1) * right], dim=-1)
    return FeatureKernelLinearOperator(factor, core, frozen.identity.square(), **origin)
