"""The mean variance of the nodes under a kernel."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from swing_gp.features.landmarks import AccuracyWarning
from swing_gp.operators.estimated_diagonal import diagonal_terms
from swing_gp.operators.exact import symmetric_matrix
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.precision_kernel import PrecisionKernelLinearOperator
from swing_gp.operators.preconditioning import LandmarkApproximation
from swing_gp.operators.swing import SwingLinearOperator
from swing_gp.solvers.sizes import MOST_DENSE

PROBES = 16
# The relative standard error above which an estimate says so.
TOLERATED = 0.05


def mean_variance(operator: Any, landmarks: LandmarkApproximation | None = None) -> Tensor:  # scalar
    r"""The mean of the diagonal of a kernel, its trace over N; differentiable.

    In closed form with dense features. Up to 2,000 nodes it is the mean of g over the eigenvalues of the graph's matrix, which
    operators approximate to their tolerance. Above, and for walks, it is an estimate of 16 random signs z: without landmarks
    Hutchinson's :math:`z^\top K z / N`, whose relative standard error is at most
    :math:`\sqrt{\lambda_{\max}(K) / (8\, \mathrm{tr} K)}`, in precision form after the constants of the components, which are
    known, are taken out. A warning gives the error as it is where it exceeds 5%.

    :param landmarks: those of the same graph, for a control variate where they resolve it.
    """
    if isinstance(operator, LowRankPlusDiagonal):
        return operator.shards.sum(operator.diagonal().sum(), "mean variance") / operator.shards.count(operator.shape[-1])
    if operator.shape[-1] <= MOST_DENSE and not isinstance(operator, SwingLinearOperator):
        return operator.series(torch.linalg.eigvalsh(symmetric_matrix(operator.graph)[0])).mean().to(operator.dtype)
    close = None if landmarks is None or landmarks.hopeless else landmarks.kernel
    if isinstance(operator, PrecisionKernelLinearOperator):
        estimates = operator.mean_variance_terms(PROBES)
    else:
        estimates = diagonal_terms(operator, close, PROBES, samples=False).mean(0)
    value = estimates.mean()
    error = float((estimates.std() / PROBES**0.5 / value).detach().abs())
    if error > TOLERATED:
        warnings.warn(
            f"The mean variance, by which normalize=True divides, is an estimate with a standard error of {error:.0%}. The "
            "outputscale of a ScaleKernel makes up for it in training; for the exact mean use features='landmarks'.",
            AccuracyWarning,
            stacklevel=2,
        )
    return value
