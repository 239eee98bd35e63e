"""A GP on a graph with fixed hyper-parameters: its mean, and its deviations when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from swing_gp.gp.trend import Trend, independent, line_through
from swing_gp.graphs.inputs import nodes_of
from swing_gp.operators.posterior import condition
from swing_gp.operators.preconditioning import LandmarkApproximation

# Known nodes whose prior variances the noise is measured by, and columns times nodes that they may take beyond the fewest.
LEAST_SCALED, MOST_SCALED, SCALE_WORK = 48, 200, 2**20


class GraphPosterior:
    """A GP with fixed hyper-parameters: one covariance for all columns of values, and of the basis of their trend."""

    def __init__(
        self, operator: Any, known: Tensor, columns: Tensor, basis: Tensor, noise: float, amplitude: Tensor | None = None
    ) -> None:  # (N, N), (n,), (n, k), (N, p), (k,)
        self.operator, self.noise = operator, noise
        # Without a plain trend, in units of the largest value: squares in solvers and amplitudes neither overflow nor vanish.
        told = basis[known]
        self.line = basis @ line_through(told, columns.double())  # (N, k)
        left = columns - self.line[known].to(columns)
        largest = left.abs().amax(0)
        self.unit = torch.where(largest > 0, largest, 1.0)  # (k,)
        self.values = left / self.unit
        # Orthonormal at the known nodes, for the sake of solves.
        basis = (basis @ (torch.linalg.pinv(told) @ independent(told))).to(columns)
        self.landmarks = LandmarkApproximation(operator.graph, operator.series)
        points = operator.graph.points
        self.nodes, seen = nodes_of(points, torch.arange(len(points))), nodes_of(points, known)
        prior = operator.covariance(seen, seen, self.landmarks)
        number = max(LEAST_SCALED, min(MOST_SCALED, SCALE_WORK // len(points)))
        sample = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))[:number]
        self.scale = operator.covariance(seen[sample], seen[sample], self.landmarks).diagonal().mean()
        self.cross = operator.covariance(self.nodes, seen, self.landmarks)
        both = torch.cat([self.values, basis[known]], -1)  # (n, k + p): one solve for all of them
        found = condition(prior.add_diagonal(noise * self.scale), both.mT.contiguous())
        assert found is not None
        self.posterior = found
        solved_values, solved_basis = found.weights.mT.tensor_split([columns.shape[1]], -1)
        self.trend = Trend.solved(basis[known], solved_basis, self.values)
        mean, self.rest = self.trend.predict(found.mean(self.cross).mT, basis)
        self.mean = mean * self.unit + self.line.to(mean)  # (N, k)
        left = solved_values - solved_basis @ self.trend.coefficients.to(solved_basis)
        number = max(1, len(known) - self.trend.number)  # the restricted likelihood has a value less for each coefficient
        likeliest = ((self.values * left).sum(0) / number).clamp_min(0).sqrt() * self.unit
        self.amplitude = likeliest if amplitude is None else amplitude.to(likeliest)  # (k,)

    @cached_property
    def variance(self) -> Tensor:  # (N,)
        """Of the function at all nodes, for an amplitude of one."""
        with torch.no_grad():
            test = self.operator.covariance(self.nodes, self.nodes, self.landmarks)
            variance = self.posterior.covariance(test, self.cross).diagonal().reshape(-1, len(self.nodes))[0].clamp_min(0)
            return variance + self.trend.variance(self.rest).to(variance.dtype)

    @property
    def std(self) -> Tensor:  # (N, k)
        """Of the function at all nodes."""
        return self.variance.sqrt().unsqueeze(-1) * self.amplitude

    @property
    def noise_std(self) -> Tensor:  # (k,)
        return (self.noise * self.scale) ** 0.5 * self.amplitude


class ByColumn:
    """Posteriors of one column each, side by side."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    @cached_property
    def mean(self) -> Tensor:  # (N, k)
        return torch.cat([part.mean for part in self.parts], -1)

    @cached_property
    def std(self) -> Tensor:  # (N, k)
        return torch.cat([part.std for part in self.parts], -1)

    @property
    def noise_std(self) -> Tensor:  # (k,)
        return torch.cat([part.noise_std for part in self.parts])
