r"""Ensembles of Gaussian vectors: independent ones, and coupled ones that lower the variance of random features.

Every row is marginally :math:`\mathcal N(0, I_d)`; only the dependence between the rows of a block differs.

- ``"iid"``: independent rows.
- ``"orthogonal"``: blocks of d orthogonal directions (Yu et al., 2016).
- ``"simplex"``: blocks of d directions that point to the corners of a regular simplex (Reid et al., 2023).

>>> import torch
>>> rows = gaussian_ensemble(4, 2, ensemble="orthogonal", generator=torch.Generator().manual_seed(0))
>>> bool((rows[0] @ rows[1]).abs() < 1e-12)
True
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swing_gp.utils.validation import check_choice

ENSEMBLES = ("iid", "orthogonal", "simplex")


def gaussian_ensemble(number: int, dim: int, *, ensemble: str, generator: torch.Generator) -> Tensor:
    """``number`` Gaussian vectors of dimension ``dim``, float64, on the generator's device."""
    check_choice("ensemble", ensemble, ENSEMBLES)
    options = {"dtype": torch.float64, "device": generator.device, "generator": generator}
    if ensemble == "iid" or dim == 1:  # one direction: every ensemble is a sign times a length
        return torch.randn(number, dim, **options)  # type: ignore[call-overload]
    blocks = math.ceil(number / dim)
    q, r = torch.linalg.qr(torch.randn(blocks, dim, dim, **options))  # type: ignore[call-overload]
    rotation = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # Haar-distributed
    if ensemble == "simplex":
        rotation = simplex_directions(dim).to(rotation) @ rotation
    lengths = torch.randn(blocks, dim, dim, **options).norm(dim=-1, keepdim=True)  # type: ignore[call-overload]
    return (lengths * rotation).reshape(-1, dim)[:number]


def simplex_directions(dim: int) -> Tensor:  # (dim, dim)
    """``dim`` unit vectors with mutual inner products -1/(dim - 1); they span a hyperplane."""
    corner = torch.ones(dim, dtype=torch.float64)
    corner[-1] = 0
    directions = math.sqrt(dim / (dim - 1)) * torch.eye(dim, dtype=torch.float64)
    directions = directions - (math.sqrt(dim) + 1) / (dim - 1) ** 1.5 * corner
    directions[-1] = corner / math.sqrt(dim - 1)
    return directions
