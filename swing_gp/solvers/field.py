r"""The posterior of a field on a sparse graph at any inputs :math:`f_* = L_* f + e_*`, given noisy observations.

With E for covariances of e, :math:`J = L_* - E_{*X} T^{-1} L` and the notation of :mod:`swing_gp.solvers.precision`, the
covariance is :math:`J M^{-1} J^\top + E_{**} - E_{*X} T^{-1} E_{X*}`. Without gradients, in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from swing_gp.linalg.precision_matrix import COLUMNS
from swing_gp.linalg.structure import FieldInputs
from swing_gp.solvers.observations import draw_own
from swing_gp.solvers.precision import NoisyPrecision
from swing_gp.solvers.protocol import Estimate

# Columns of products that find the diagonal of what inputs off the graph have for themselves.
PROBED = 256


class FieldPosterior:
    """Test inputs after the observations."""

    def __init__(self, inputs: FieldInputs, solver: NoisyPrecision) -> None:
        self.inputs, self.solver, self.observed = inputs, solver, solver.observations
        self._any_off = bool(inputs.off.any())
        # What test inputs share with observations beyond the nodes, if both are off the graph.
        self._shares = self._any_off and not self.observed.diagonal
        self._alone = inputs.own(inputs)
        self._crossed, self._back = inputs.own(self.observed.inputs), self.observed.inputs.own(inputs)

    def from_nodes(self, values: Tensor) -> Tensor:  # (N, k) -> (t, k)
        """J v."""
        result = self.inputs.from_nodes(values)
        if not self._shares:
            return result
        return result - self._crossed(self.observed.solve(self.observed.inputs.from_nodes(values)))

    def to_nodes(self, values: Tensor) -> Tensor:  # (t, k) -> (N, k)
        """The transpose."""
        result = self.inputs.to_nodes(values)
        if not self._shares:
            return result
        return result - self.observed.inputs.to_nodes(self.observed.solve(self._back(values)))

    def own(self, values: Tensor) -> Tensor:  # (t, k) -> (t, k)
        """Products with the covariance of e after the observations."""
        result = self._alone(values)
        return result - self._crossed(self.observed.solve(self._back(values))) if self._shares else result

    def mean(self, node_mean: Tensor, weights: Tensor) -> Tensor:  # (N, k), (n, k) -> (t, k)
        """Carry the mean at the nodes and the solution of the observations over to the test inputs."""
        result = self.inputs.from_nodes(node_mean)
        return result + self._crossed(weights) if self._shares else result

    def covariance(self, rhs: Tensor) -> Tensor:  # (t, k) -> (t, k)
        return self.solver.scale * (self.from_nodes(self.solver.node_solve(self.to_nodes(rhs))) + self.own(rhs))

    def variances(self) -> Estimate:  # (t,)
        """At nodes after Rao-Blackwellisation; off the graph the mean squares of samples, and what is known exactly."""
        variance, error = (part[self.inputs.nodes] for part in self.solver.variances())
        if not self._any_off:
            return Estimate(variance, error)
        squares = self._node_samples(2 * COLUMNS, torch.Generator().manual_seed(0)).square()
        own, off = self.solver.scale * self._own_diagonal(), self.inputs.off
        spread = squares.std(-1) / squares.shape[-1] ** 0.5
        return Estimate(torch.where(off, squares.mean(-1) + own, variance), torch.where(off, spread, error))

    def _own_diagonal(self) -> Tensor:  # (t,)
        result = torch.zeros(len(self.inputs.off), dtype=torch.float64)
        for part in self.inputs.off.nonzero().squeeze(-1).split(PROBED):
            unit = torch.zeros(len(result), len(part), dtype=torch.float64)
            unit[part, torch.arange(len(part))] = 1
            result[part] = self.own(unit)[part, torch.arange(len(part))]
        return result

    def _node_samples(self, number: int, generator: torch.Generator | None) -> Tensor:  # (t, number)
        return self.from_nodes(self.solver.samples(number, generator))

    def samples(self, number: int, generator: torch.Generator | None) -> Tensor:  # (t, number)
        if not self._any_off:
            return self._node_samples(number, generator)
        own = draw_own(self.inputs, self.own, number, generator)
        return self._node_samples(number, generator) + self.solver.scale**0.5 * own
