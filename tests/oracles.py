"""Dense truth for small graphs: everything the package avoids, spelled out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from swing_gp import ImplicitGraph, Series


def cloud(number: int, dim: int = 3, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Points in the unit cube."""
    return torch.rand(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def paper_cloud(number: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """The paper's cloud: constant density, about one other point within unit distance."""
    side = (math.pi * number / 6) ** (1 / 3)
    return (2 * cloud(number, 3, seed=seed) - 1).mul(side).to(dtype)


def dense_adjacency(graph: ImplicitGraph) -> Tensor:
    difference = graph.points.unsqueeze(1) - graph.points.unsqueeze(0)
    weights = graph.edge(difference)
    degree = weights.sum(-1)
    if graph.normalization == "symmetric":
        return weights / (degree.sqrt().unsqueeze(0) * degree.sqrt().unsqueeze(1))
    if graph.normalization == "random_walk":
        return weights / degree.unsqueeze(1)
    return weights


def matrix_power_series(series: Series, matrix: Tensor) -> Tensor:
    """The closed form of a named series by functions of dense matrices, not by its own coefficients."""
    name = type(series).__name__
    eye = torch.eye(len(matrix), dtype=matrix.dtype)
    laplacian = eye - matrix
    if name == "Diffusion":
        return torch.matrix_exp(-series.time * laplacian)
    if name == "RandomWalk":
        return torch.linalg.matrix_power(series.laziness * eye - laplacian, series.steps)
    if name == "RegularizedLaplacian" and float(series.power) == int(series.power):
        return torch.linalg.matrix_power(torch.linalg.inv(eye + series.scale * laplacian), int(series.power))
    if name == "InverseCosine":
        return torch.matrix_exp(1j * math.pi / 4 * laplacian).real
    if name == "PowerSeries":
        return sum(a * torch.linalg.matrix_power(matrix, k) for k, a in enumerate(series.alpha))
    if name == "Matern":
        base = 2 * series.nu / series.kappa**2 * eye + laplacian
        values, vectors = torch.linalg.eigh(base)
        return (vectors * values.pow(-series.nu)) @ vectors.mT
    raise AssertionError(name)


def dense_kernel(graph: ImplicitGraph, series: Series) -> Tensor:
    return matrix_power_series(series, dense_adjacency(graph))


def relative(ours: Tensor, truth: Tensor) -> float:
    return float((ours - truth).norm() / truth.norm())
