"""The mean variance of the nodes under a kernel: its trace over N."""

from __future__ import annotations

from linear_operator.operators import LinearOperator
from torch import Tensor

from swing_gp.linalg.gram import frozen_signs
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.parallel.shards import count, refuse_shards, total

__all__ = ["mean_variance"]

PROBES = 16


def mean_variance(operator: LinearOperator) -> Tensor:  # scalar
    r"""The mean of the diagonal, differentiable; estimated by products where entries are not to be had.

    The estimate is Hutchinson's, :math:`z^\top K z / N` over a few sign vectors z that are drawn once and for all; its
    relative standard error is at most :math:`\sqrt{\lambda_{\max}(K) / (8\, \mathrm{tr} K)}`.
    """
    if isinstance(operator, LowRankPlusDiagonal):
        return total(operator.diagonal().sum(), "mean variance") / count(operator.shape[-1])
    refuse_shards("An estimate of the mean variance", "use features='landmarks', or normalize=False")
    signs = frozen_signs(operator.shape[-1], PROBES, operator.dtype, operator.device)
    return (signs * operator._matmul(signs)).mean()
