"""The diagonal of a covariance from a few products with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swing_gp.linalg.gram import frozen_signs
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal

# The signs are the same at every call, so that a diagonal is one vector.
PROBES = 32


def diagonal_terms(
    operator: Any, close: LowRankPlusDiagonal | None, probes: int = PROBES, *, samples: bool = True
) -> Tensor:  # (n, probes)
    r"""Unbiased estimates of the diagonal of a covariance K, one a column.

    :math:`\mathrm{diag} K_L + z \circ (K - K_L) z` for random signs z, with a matrix :math:`K_L` close to K for a control
    variate. Where landmarks resolve the graph that is accurate; where they do not, and above all for long diffusion times, it
    is useless. The square of a sample, the mean of m of which has a relative error of :math:`\sqrt{2/m}` whatever the
    covariance, takes over there.

    :param close: :math:`K_L`, if there is one.
    :param samples: whether samples may take over where the operator has them (``operator.can_sample``).
    """
    signs = frozen_signs(operator.shape[-1], probes, operator.dtype, operator.device)
    plain = terms = signs * operator._matmul(signs)
    if close is not None:
        with torch.no_grad():
            expected, estimated = close.diagonal().unsqueeze(-1), signs * (close @ signs)
        terms = expected + (plain - estimated)
    accurate = terms.std(-1).detach().norm() <= 2**0.5 * terms.mean(-1).detach().norm()  # not where they are NaN
    if bool(accurate):
        return terms
    drawn = samples and operator.can_sample
    return operator.samples(probes, torch.Generator().manual_seed(0)).square() if drawn else plain


def estimated_diagonal(
    operator: Any, close: LowRankPlusDiagonal | None, probes: int = PROBES
) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """The mean of :func:`diagonal_terms`, and its standard error."""
    terms = diagonal_terms(operator, close, probes)
    return terms.mean(-1), terms.std(-1).detach() / probes**0.5
