r"""Kernels with exact weights, for small graphs: the yardstick of every approximation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from swing_gp.features.auto import exact_features
from swing_gp.features.pairwise import ONE_BLOCK
from swing_gp.graphs.graph import Graph
from swing_gp.linalg.polynomial import clenshaw, spectral_radius
from swing_gp.series.base import Series


@dataclass(frozen=True)
class ExactSpectrum:
    r"""All eigenvalues and eigenvectors of a graph's matrix, by dense algebra in float64. :math:`P = D^{-1} W` goes through
    the symmetric matrix that it is similar to."""

    values: Tensor  # (N,)
    vectors: Tensor  # (N, N)
    scale: Tensor  # (N,): the matrix is scale^-1 V diag(values) V^T scale

    @classmethod
    def of(cls, graph: Graph) -> ExactSpectrum:
        matrix, root = symmetric_matrix(graph)
        scale = root if graph.normalization == "random_walk" else torch.ones_like(root)
        values, vectors = torch.linalg.eigh(matrix)
        return cls(values, vectors, scale)

    def kernel(self, series: Series, nodes: Tensor | slice = slice(None)) -> Tensor:  # (n,) -> (n, n)
        """The kernel of a series between some of the nodes."""
        vectors, scale = self.vectors[nodes], self.scale[nodes]
        return (vectors * series(self.values)) @ vectors.mT * scale / scale.unsqueeze(-1)


def symmetric_matrix(graph: Graph) -> tuple[Tensor, Tensor]:  # (N, N), (N,)
    r"""W or :math:`D^{-1/2} W D^{-1/2}`, after density, as a dense matrix in float64, and the roots of the degrees (ones for
    W)."""
    weights = graph.weight_matrix().double()
    one = torch.ones_like(weights[0])
    if graph.normalization is None:
        return weights, one
    degree = weights.sum(-1)
    degree = torch.where(degree > 0, degree, one)  # a node without edges has a row of zeros
    if graph.density:
        loads = degree.pow(-graph.density)
        weights = loads.unsqueeze(-1) * weights * loads
        degree = weights.sum(-1)
    root = degree.sqrt()
    return weights / (root.unsqueeze(-1) * root), root


def exact_kernel_product(graph: Graph, series: Series, rhs: Tensor) -> Tensor:  # (N, k) -> (N, k)
    """K v with exact weights, to machine precision: O(N^2) time a term, O(N) memory. A steep series, which has no polynomial,
    takes all eigenvalues of up to 2,000 nodes."""
    if series.steep:
        if graph.num_nodes > ONE_BLOCK:
            raise ValueError(
                f"{series!r} takes all eigenvalues: up to {ONE_BLOCK} nodes, got {graph.num_nodes}; use a larger floor."
            )
        return (ExactSpectrum.of(graph).kernel(series) @ rhs.double()).to(rhs)
    features = exact_features(graph)
    log_degree = features.log_degree()
    left, right = (scale.unsqueeze(-1) for scale in graph.degree_scales(log_degree, features.log_density()))

    def action(v: Tensor) -> Tensor:
        return left * features.evaluate(None, right * v)

    low, high = graph.spectrum
    if graph.normalization is None:
        high = spectral_radius(action, log_degree.unsqueeze(-1), math.exp(float(log_degree.max())))
        low = -high if low < 0 else 0.0
    coefficients = series.chebyshev((low, high), 10 * torch.finfo(rhs.dtype).eps).to(rhs)
    return clenshaw(action, coefficients, (low, high), rhs)
