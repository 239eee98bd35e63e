"""The clouds of the accuracy table: dense, sparse, curved, and high-dimensional with and without outliers."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cube(number: int, seed: int) -> Tensor:
    return torch.rand(number, 3, generator=_generator(seed), dtype=torch.float64)


def swiss_roll(number: int, seed: int) -> Tensor:
    """A rolled-up sheet of standard deviation one along each axis."""
    generator = _generator(seed)
    u, v = torch.rand(2, number, generator=generator, dtype=torch.float64)
    angle = 1.5 * math.pi * (1 + 2 * u)
    roll = torch.stack([angle * angle.cos(), 21 * v, angle * angle.sin()], -1)
    return (roll - roll.mean(0)) / roll.std(0)


def gaussian(number: int, seed: int, dim: int = 8) -> Tensor:
    return torch.randn(number, dim, generator=_generator(seed), dtype=torch.float64)


def gaussian_with_outliers(number: int, seed: int, dim: int = 8) -> Tensor:
    """A Gaussian cloud and, three in a hundred, points far away from everything."""
    generator = _generator(seed)
    points = 0.85 * torch.randn(number, dim, generator=generator, dtype=torch.float64)
    far = number * 3 // 100
    points[:far] = 12 * torch.randn(far, dim, generator=generator, dtype=torch.float64)
    return points
