"""Cholesky factors of covariances that rounding may have made indefinite.

>>> x = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
>>> factor = cholesky_with_jitter(torch.exp(-torch.cdist(x, x) ** 2))  # of numerical rank 10 or so
>>> bool((factor @ factor.mT - torch.exp(-torch.cdist(x, x) ** 2)).abs().max() < 1e-8)
True
"""

from __future__ import annotations

import torch
from torch import Tensor

# What is added to the diagonal, in units of its mean: first, and how often tenfold.
JITTER, TRIES = {torch.float32: 1e-6, torch.float64: 1e-12}, 6


def cholesky_with_jitter(matrix: Tensor) -> Tensor:  # (*batch, m, m)
    """Cholesky factors, with something on the diagonal of matrices that rounding made indefinite."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    jitter = JITTER[matrix.dtype]
    for _ in range(TRIES):
        if not bool(info.any()):
            return factor
        matrix = matrix.clone()
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
        diagonal.add_((jitter * diagonal.mean(-1, keepdim=True)) * (info > 0).unsqueeze(-1))
        factor, info = torch.linalg.cholesky_ex(matrix)
        jitter *= 10
    raise ValueError("A covariance is not positive definite. Use a larger noise, float64, or another covariance function.")
