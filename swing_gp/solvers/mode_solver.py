r"""Solves with a grid kernel and noise, among the modes instead of the nodes.

At observed inputs, on or off the graph, the kernel and the noise are :math:`A = D + F H F^\top`: with what every input has for
itself (:class:`~swing_gp.linalg.coincident.OwnPart`), :math:`F = s\, E B^{1/2}` and the prior covariance :math:`H = h(\hat T)`
of the weights of modes (:mod:`swing_gp.solvers.modes`). So with their posterior covariance :math:`\Sigma`, for which
:math:`F^\top D^{-1} F` is a Toeplitz matrix between roots of weights, from *one* transform of the observations' weights,

.. math:: A^{-1} = D^{-1} - D^{-1} F \Sigma F^\top D^{-1}, \qquad \log|A| = \log|D| + \log|S| .

A right-hand side takes one transform into the modes and one out of them, and nothing in between knows how many observations
there are. For raw weights and one step, :math:`H = I`, this is the equispaced Fourier GP of Greengard, Rachh and Barnett.
"""

from __future__ import annotations

import torch
from linear_operator import settings
from torch import Tensor

from swing_gp.linalg.coincident import OwnPart, groups_of, sum_of_equals
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.nufft import PointTransform, fold
from swing_gp.linalg.structure import Modes, Waves
from swing_gp.linalg.toeplitz import symbol_of
from swing_gp.solvers.modes import DenseModes, IterativeModes, Prior
from swing_gp.solvers.protocol import Estimate, Report, Solved

# Coordinates of right-hand sides that are solved for at once.
AT_ONCE = 2**22
# Random signs of estimated variances that are solved for at once, and the relative standard error at which they are enough.
SIGN_BATCH, SIGN_ERROR = 16, 2e-3


class ModeSolver:
    """The solver of a grid kernel at observed inputs, with noise.

    :param half: Chebyshev coefficients of the root of h, for conjugate gradients; None for dense matrices.
    """

    differentiable, posterior = True, "modes"  # dense, or with derivatives of its own

    def __init__(self, matrix: Modes, noise: Tensor, prior: Prior, half: Tensor | None, reason: str = "") -> None:
        self.matrix, self.waves, self.prior, self.reason = matrix, matrix.waves, prior, reason
        self.modes, self.scale, self.identity = prior.modes, matrix.scale.double(), matrix.identity.double().squeeze()
        distinct = matrix.size == len(matrix.keys.unique())
        self.own = OwnPart.of_inputs(noise.double(), self.identity, matrix.keys, distinct=distinct)
        loads = (self.own.information() * self.scale.square()).unsqueeze(-1)
        precision = symbol_of(self.waves.transform(matrix.points, 2).to_modes(loads), prior.symbol.shape)
        self.weights_posterior = DenseModes(prior, precision) if half is None else IterativeModes(prior, precision, half)
        self.points = self.waves.transform(matrix.points, 1)

    @property
    def method(self) -> str:
        """``"modes"`` in closed form, ``"modes-pcg"`` by preconditioned conjugate gradients."""
        return self.weights_posterior.method

    # F and its transpose

    def project(self, points: PointTransform, scale: Tensor, x: Tensor) -> Tensor:  # (n, k) -> (P, k)
        return self.modes.from_modes(self.prior.root * points.to_modes(scale.unsqueeze(-1) * x))

    def evaluate(self, points: PointTransform, scale: Tensor, weights: Tensor) -> Tensor:  # (P, k) -> (n, k)
        modes = fold(self.modes.half_widths[-1]) * self.prior.root * self.modes.to_modes(weights)
        return scale.unsqueeze(-1) * points.to_points(modes)

    # Solves

    def condition(self, rhs: Tensor) -> tuple[Tensor, Tensor, tuple[float, ...]]:  # (n, k) -> (P, k), (n, k)
        """The posterior means of the weights of modes, the solution, and the residuals of the steps; in float64."""
        rhs = rhs.double()
        alone = self.own.inverse(rhs)
        sizes = (rhs * alone).detach().sum(0).sqrt()
        projected = self.project(self.points, self.scale, alone)
        parts = (x.split(max(1, AT_ONCE // len(self.modes)), dim=-1) for x in (projected, sizes))
        found, residuals = zip(*(self.weights_posterior.solve(*part) for part in zip(*parts, strict=True)), strict=True)
        weights = torch.cat(found, dim=-1)
        return weights, self.own.inverse(rhs - self.evaluate(self.points, self.scale, weights)), sum(residuals, ())

    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        with settings.max_cg_iterations(settings.max_cg_iterations.value() if max_steps is None else max_steps):
            _, solution, residuals = self.condition(rhs)
        return Solved(solution.to(rhs.dtype), Report(self.method, self.reason, residuals))

    def inv_quad_logdet(self, rhs: Tensor, probes: int) -> tuple[Tensor, Tensor]:  # (n, k) -> (k,), (probes,)
        rhs = rhs.double()
        alone = self.own.inverse(rhs)
        own = (rhs * alone).sum(0)
        projected = self.project(self.points, self.scale, alone)
        quadratic, logdets = self.weights_posterior.inv_quad_logdet(projected, own.detach().sqrt(), probes)
        return own - quadratic, logdets + self.own.logdet(len(rhs))

    # The posterior at other inputs

    def mean(self, test: Modes, rhs: Tensor) -> Tensor:  # (n, k) -> (t, k)
        """The posterior mean at other inputs of the kernel."""
        weights, solution, _ = self.condition(rhs)
        mean = self.evaluate(self.waves.transform(test.points, 1), test.scale.double(), weights)
        rows, columns = groups_of(test.keys, self.matrix.keys)
        return (mean + self.identity * sum_of_equals(rows, columns, solution)).to(rhs.dtype)

    def variances(self, test: Modes, probes: int) -> Estimate | None:  # (t,)
        r"""The posterior variances at other inputs of the kernel.

        :math:`\phi(x)^\top \Sigma \phi(x)` is a trigonometric polynomial in x: one transform gives it at all inputs. Where
        :math:`\Sigma` is not dense it is that of the leading modes, and random signs give what is missing; None where that
        is too rough.
        """
        rows, columns = groups_of(test.keys, self.matrix.keys)
        known = sum_of_equals(rows, columns, self.own.information().unsqueeze(-1)).squeeze(-1)
        left = 1 - self.identity * known  # of the identity part of every input
        points, scale = self.waves.transform(test.points, 1), left * test.scale.double()
        some, core, rest = self.weights_posterior.leading()
        root = self.modes.spread(self.prior.root)
        matrix = root[some].unsqueeze(-1) * core * root[some]
        modes = self.modes.diagonal_function(matrix, root.square() * rest, some, self.prior.symbol.shape)
        doubled = self.waves.transform(test.points, 2)
        explained = doubled.to_points(fold(2 * self.modes.half_widths[-1]) * modes).squeeze(-1)
        own = self.identity * left
        variances = own + scale.square() * explained
        if isinstance(self.weights_posterior, DenseModes):
            return Estimate.exact(variances.to(test.like))
        signs = frozen_signs(len(left), probes, torch.float64, variances.device)
        terms: list[Tensor] = []
        for part in signs.split(SIGN_BATCH, dim=-1):  # until they say enough
            weights = self.weights_posterior.beyond_leading(self.project(points, scale, part))
            terms.append(variances.unsqueeze(-1) + part * self.evaluate(points, scale, weights))
            mean, scatter = torch.cat(terms, -1).mean(-1), torch.cat(terms, -1).std(-1).detach()
            error = scatter / (len(terms) * SIGN_BATCH) ** 0.5
            if bool(error.norm() <= SIGN_ERROR * mean.detach().norm()):
                break
        if not bool(scatter.norm() <= 2**0.5 * mean.detach().norm()):
            return None
        return Estimate(torch.maximum(mean, own).to(test.like), error.to(test.like))


def prior_of(waves: Waves) -> Prior:
    """The weights of modes before any observation, in float64."""
    weights = waves.weights.double()
    root = torch.where(weights > 0, weights, torch.ones_like(weights)).sqrt() * (weights > 0)
    return Prior(waves.modes(), root, waves.symbol.double(), waves.coefficients.double(), waves.interval)
