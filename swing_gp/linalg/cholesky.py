"""Cholesky factors of covariances that rounding may have made indefinite.

>>> x = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
>>> factor = cholesky_with_jitter(torch.exp(-torch.cdist(x, x) ** 2))  # of numerical rank 10 or so
>>> bool((factor @ factor.mT - torch.exp(-torch.cdist(x, x) ** 2)).abs().max() < 1e-8)
True
"""

from __future__ import annotations

import torch
from torch import Tensor

# linear_operator's psd_safe_cholesky warns at every try, and adds the same whatever the unit of a matrix.
# What is added to the diagonal, in units of its mean: first, and how often tenfold.
JITTER, TRIES = {torch.float32: 1e-6, torch.float64: 1e-12}, 6


class NotPositiveDefiniteError(ValueError, torch.linalg.LinAlgError):
    """Also an error of linear algebra, from which a line search turns back."""


def cholesky_with_jitter(matrix: Tensor) -> Tensor:  # (*batch, m, m)
    """Cholesky factors, with something on the diagonal of matrices that rounding made indefinite."""
    if not bool(torch.isfinite(matrix).all()):
        raise NotPositiveDefiniteError("A covariance has entries that are not finite.")
    factor, info = torch.linalg.cholesky_ex(matrix)
    jitter, tries = JITTER[matrix.dtype], 0
    while bool(info.any()):
        if tries == TRIES:
            raise NotPositiveDefiniteError(
                "A covariance is not positive definite. Use a larger noise, float64, or another covariance function."
            )
        matrix = matrix.clone()
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        diagonal.add_((jitter * diagonal.mean(-1, keepdim=True)) * (info > 0).unsqueeze(-1))
        factor, info = torch.linalg.cholesky_ex(matrix)
        jitter, tries = 10 * jitter, tries + 1
    return factor
