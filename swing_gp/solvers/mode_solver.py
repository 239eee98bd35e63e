r"""Solves with a grid kernel and noise, among the modes instead of the nodes.

At observed inputs, on or off the graph, the kernel and the noise are :math:`A = D + F H F^\top`: with what every input has for
itself (:mod:`swing_gp.linalg.own_noise`), :math:`F = s\, E B^{1/2}` and the prior covariance :math:`H = h(\hat T)` of the
weights of modes (:mod:`swing_gp.solvers.modes`). So with their posterior covariance :math:`\Sigma`, for which
:math:`F^\top D^{-1} F` is a Toeplitz matrix between roots of weights, from *one* transform of the observations' weights,

.. math:: A^{-1} = D^{-1} - D^{-1} F \Sigma F^\top D^{-1}, \qquad \log|A| = \log|D| + \log|S| .

A right-hand side takes one transform into the modes and one out of them, and nothing in between knows how many observations
there are. For raw weights and one step, :math:`H = I`, this is the equispaced Fourier GP of Greengard, Rachh and Barnett.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from swing_gp.graphs.inputs import Inputs
from swing_gp.linalg.coincident import groups_of, sum_of_equals
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.nufft import PointTransform, fold
from swing_gp.linalg.own_noise import OwnNoise
from swing_gp.linalg.toeplitz import symbol_of
from swing_gp.solvers.modes import DenseModes, IterativeModes, Prior
from swing_gp.solvers.sizes import DENSE_MODES, among_modes

# Coordinates of right-hand sides that are solved for at once.
AT_ONCE = 2**22
# Random signs of estimated variances that are solved for at once, and the relative standard error at which they are enough.
BATCH, ENOUGH = 16, 2e-3
# Relative error of the root of h, as a share of the tolerance of the grid.
ROOT_TOL = 0.05


class ModeSolver:
    """The solver of a grid kernel at observed inputs, with noise. Made by :func:`mode_solver`.

    :param kernel: the kernel on all nodes.
    :param prior: the weights of modes before the observations.
    :param posterior: and after them.
    :param points: transforms between the observations and the modes.
    :param scale: s, (n,), times the root of the outputscale.
    :param own: D.
    """

    def __init__(self, kernel: Any, prior: Prior, posterior: Any, points: PointTransform, scale: Tensor, own: OwnNoise) -> None:
        self.kernel, self.prior, self.posterior, self.points, self.scale, self.own = (
            kernel,
            prior,
            posterior,
            points,
            scale,
            own,
        )
        self.modes = prior.modes

    @property
    def method(self) -> str:
        """``"modes"`` in closed form, ``"modes-pcg"`` by preconditioned conjugate gradients."""
        return self.posterior.method

    @property
    def residuals(self) -> list[float]:
        """Of all steps of conjugate gradients so far, relative, the largest over right-hand sides."""
        return self.posterior.residuals

    # F and its transpose

    def project(self, points: PointTransform, scale: Tensor, x: Tensor) -> Tensor:  # (n, k) -> (P, k)
        return self.modes.from_modes(self.prior.root * points.to_modes(scale.unsqueeze(-1) * x))

    def evaluate(self, points: PointTransform, scale: Tensor, weights: Tensor) -> Tensor:  # (P, k) -> (n, k)
        modes = fold(self.modes.half_widths[-1]) * self.prior.root * self.modes.to_modes(weights)
        return scale.unsqueeze(-1) * points.to_points(modes)

    # Solves

    def _solve(self, rhs: Tensor) -> tuple[Tensor, Tensor]:  # (n, k) -> (P, k), (n, k)
        """The weights of modes, and the solution."""
        alone = self.own.inverse(rhs)
        sizes = (rhs * alone).detach().sum(0).sqrt()
        projected = self.project(self.points, self.scale, alone)
        parts = (x.split(max(1, AT_ONCE // len(self.modes)), dim=-1) for x in (projected, sizes))
        weights = torch.cat([self.posterior.solve(*part) for part in zip(*parts, strict=True)], dim=-1)
        return weights, self.own.inverse(rhs - self.evaluate(self.points, self.scale, weights))

    def solve(self, rhs: Tensor) -> Tensor:  # (n, k) -> (n, k)
        """The solution, differentiable once."""
        return self._solve(rhs.double())[1].to(rhs.dtype)

    def inv_quad_logdet(self, rhs: Tensor, probes: int) -> tuple[Tensor, Tensor]:  # (n, k) -> (k,), (probes,)
        """Quadratic forms of the inverse, one a column, and estimates of the log-determinant, or itself where it is dense."""
        rhs = rhs.double()
        alone = self.own.inverse(rhs)
        own = (rhs * alone).sum(0)
        projected = self.project(self.points, self.scale, alone)
        quadratic, logdets = self.posterior.inv_quad_logdet(projected, own.detach().sqrt(), probes)
        return own - quadratic, logdets + self.own.logdet()

    # The posterior at other inputs

    def same_modes(self, block: Any) -> bool:
        """Whether a block is of the same kernel in the same modes. Inputs beyond the box of the nodes make a wider grid."""
        other, ours = block.base, self.kernel
        alike = type(other) is type(ours) and other.features.half_widths == ours.features.half_widths
        return alike and torch.equal(other.weights, ours.weights) and other.features.alike(ours.features)

    def reads(self, block: Any) -> bool:
        """Whether means and variances are known at the rows of a block: all are among those that the nodes reach."""
        return self.same_modes(block) and not block.x.requires_grad and self.kernel.features.reached(block.x) is None

    def _at(self, block: Any) -> tuple[PointTransform, Tensor]:
        """Transforms to the rows of a block, and their scale."""
        scale = (block.outputscale.sqrt() * block.left).double()
        return self.kernel.features.transform(block.x, precise=True), scale

    def mean(self, cross: Any, rhs: Tensor) -> Tensor:  # (n, k) -> (t, k)
        """The posterior mean at the rows of a block of covariances between them and the observations."""
        weights, solution = self._solve(rhs.double())
        mean = self.evaluate(*self._at(cross), weights)
        rows, columns = groups_of(cross.inputs[0].keys, self.own.keys)
        return (mean + self.own.own * sum_of_equals(rows, columns, solution)).to(rhs.dtype)

    def variances(self, test: Any, probes: int) -> tuple[Tensor, Tensor] | None:  # (t,), (t,)
        r"""The posterior variances at the rows of a block, and their standard errors.

        :math:`\phi(x)^\top \Sigma \phi(x)` is a trigonometric polynomial in x: one transform gives it at all inputs. Where
        :math:`\Sigma` is not dense it is that of the leading modes, and random signs give what is missing; None where that
        is too rough.
        """
        points, scale = self._at(test)
        left = self.own.left_of(test.inputs[0].keys)
        scale = left * scale
        some, core, rest = self.posterior.leading()
        root = self.modes.spread(self.prior.root)
        matrix = root[some].unsqueeze(-1) * core * root[some]
        modes = self.modes.diagonal_function(matrix, root.square() * rest, some, self.prior.symbol.shape)
        doubled = self.kernel.features.transform(test.x, stretch=2, precise=True)
        known = doubled.to_points(fold(2 * self.modes.half_widths[-1]) * modes).squeeze(-1)
        own = self.own.own * left
        variances = own + scale.square() * known
        if isinstance(self.posterior, DenseModes):
            return variances.to(test.dtype), torch.zeros_like(variances, dtype=test.dtype)
        signs = frozen_signs(len(left), probes, torch.float64, variances.device)
        terms: list[Tensor] = []
        for some in signs.split(BATCH, dim=-1):  # until they say enough
            weights = self.posterior.beyond_leading(self.project(points, scale, some))
            terms.append(variances.unsqueeze(-1) + some * self.evaluate(points, scale, weights))
            mean, scatter = torch.cat(terms, -1).mean(-1), torch.cat(terms, -1).std(-1).detach()
            error = scatter / (len(terms) * BATCH) ** 0.5
            if bool(error.norm() <= ENOUGH * mean.detach().norm()):
                break
        if not bool(scatter.norm() <= 2**0.5 * mean.detach().norm()):
            return None
        return torch.maximum(mean, own).to(test.dtype), error.to(test.dtype)


def mode_solver(
    kernel: Any, inputs: Inputs, scale: Tensor, outputscale: Tensor, identity: Tensor, noise: Tensor
) -> ModeSolver | None:
    r"""The solver among the modes, or None where there is none, or solves among the observations cost less.

    :param kernel: the kernel on all nodes.
    :param inputs: the observed inputs, n of them.
    :param scale: s at the inputs, (n,).
    :param outputscale: what the kernel is multiplied by.
    :param identity: :math:`\alpha_0`.
    :param noise: (n,).
    """
    features, distinct = kernel.features, inputs.distinct
    own = outputscale.double() * identity.double().squeeze()
    definite = kernel.graph.positive_definite and kernel.asymmetry is None and float(outputscale.detach()) > 0
    if not definite or inputs.points.requires_grad or not float((noise + own if distinct else noise).detach().min()) > 0:
        return None
    cheap = among_modes(len(inputs), kernel.symbol.numel(), len(kernel.coefficients))
    if not cheap or features.reached(inputs.points) is not None:
        return None
    modes = features.coordinates
    weights = kernel.weights.double()
    root = torch.where(weights > 0, weights, torch.ones_like(weights)).sqrt() * (weights > 0)
    prior = Prior(modes, root, kernel.symbol.double(), kernel.coefficients.double(), kernel.interval)
    half = None if len(modes) <= DENSE_MODES else prior.root_coefficients(ROOT_TOL * features.tol)
    if len(modes) > DENSE_MODES and half is None:
        return None
    diagonal = OwnNoise(noise, own, inputs.keys, distinct=distinct)
    scale = (outputscale.sqrt() * scale).double()
    loads = (diagonal.information() * scale.square()).unsqueeze(-1)
    generator = features.transform(inputs.points, stretch=2, precise=True).to_modes(loads)
    precision = symbol_of(generator, prior.symbol.shape)
    posterior = DenseModes(prior, precision) if half is None else IterativeModes(prior, precision, half)
    return ModeSolver(kernel, prior, posterior, features.transform(inputs.points, precise=True), scale, diagonal)
