r"""Gaussian processes in precision form: solves, log-determinants, samples and variances given noisy observations.

With the precision Q of the nodes and observations :math:`y = L f + t`, :math:`t \sim N(0, T)`
(:mod:`swing_gp.solvers.observations`), the posterior precision of the nodes is :math:`M = Q + L^\top T^{-1} L`, and

.. math:: (L K L^\top + T)^{-1} b = T^{-1} (b - L M^{-1} L^\top T^{-1} b), \qquad
          \log|L K L^\top + T| = \log|M| - \log|Q| + \log|T| .

Conjugate gradients on M are preconditioned by multigrid cycles of :math:`B + (L^\top T^{-1} L)^{1/\nu}`, as many as the power
:math:`\nu` of B that Q is. Samples are exact: :math:`M x = q + L^\top T^{-1} t` with q of covariance Q. Marginal variances are
those of :math:`m` samples after Rao-Blackwellisation (Sidén et al., 2018),

.. math:: \frac{1}{M_{ii}} + \frac1m \sum_s \Bigl(x_i - \frac{(M x)_i}{M_{ii}}\Bigr)^2 ,

whose standard errors come with them.
"""

from __future__ import annotations

import math
import warnings
from functools import cached_property, partial
from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import ConvergenceWarning, conjugate_gradients, lanczos_logarithm
from swing_gp.linalg.gram import frozen_signs
from swing_gp.linalg.multigrid import Multigrid
from swing_gp.linalg.precision_matrix import COLUMNS, Action, PrecisionMatrix
from swing_gp.linalg.sparse_factor import SparseFactor, predicted_fill, sparse_power
from swing_gp.solvers.observations import NodeInputs, Observations
from swing_gp.solvers.protocol import Quadrature, Report, Solved
from swing_gp.solvers.sizes import EXACT_TRACE, MOST_DENSE, MOST_FILL
from swing_gp.utils.copies import WithoutCaches

# Relative errors: of solves, and of samples, which are a few; what a second solve may be asked for where digits cancel.
NODE_TOL, SAMPLE_TOL, LEAST_SHARE = 1e-9, 1e-6, 1e-6
MOST_NODE_STEPS = 1000
# Samples that marginal variances come from.
VARIANCE_SAMPLES = 32
# Steps and residual of the Lanczos quadrature of log-determinants.
LANCZOS_STEPS, LANCZOS_TOL = 80, 1e-5


class NoisyPrecision(WithoutCaches):
    r"""A field on the nodes with precision Q, times a ``scale``, and noisy observations of it.

    :param scale: c: the covariance of the observations is :math:`c\,(L K L^\top + T)`.
    """

    method, differentiable, posterior = "precision", False, "nodes"

    def __init__(self, precision: PrecisionMatrix, observations: Observations, scale: float = 1.0, reason: str = "") -> None:
        self.precision, self.observations, self.scale, self.reason = precision, observations, scale, reason

    @classmethod
    def at_nodes(cls, precision: PrecisionMatrix, nodes: Tensor, noise: Tensor, scale: float = 1.0) -> NoisyPrecision:
        """Observe nodes, by their ids, (n,), with noise of each observation."""
        return cls(precision, Observations(NodeInputs(nodes, precision.size), noise.double() / scale), scale)

    @cached_property
    def _information(self) -> Tensor:  # (N, 1), renumbered
        return self.precision.renumbered(self.observations.information(self.precision.size).unsqueeze(-1))

    @cached_property
    def _shifted(self) -> scipy.sparse.csr_array:
        r""":math:`B + (L^\top T^{-1} L)^{1/\nu}`."""
        shift = self._information.squeeze(-1).pow(1 / self.precision.order).numpy()
        return scipy.sparse.csr_array(self.precision.base + scipy.sparse.diags_array(shift))

    @cached_property
    def _precondition(self) -> Action:
        if self.precision.size <= MOST_DENSE and self.observations.diagonal:
            factor = torch.linalg.cholesky(self._dense())
            return lambda v: torch.cholesky_solve(v, factor)
        cycle = Multigrid(self._shifted, accurate=self.precision.order > 2)
        return partial(_powers, cycle, max(1, math.floor(self.precision.order)))

    def _dense(self) -> Tensor:  # (N, N)
        """M, on small graphs."""
        matrix = self.precision.product(torch.eye(self.precision.size, dtype=torch.float64))
        return 0.5 * (matrix + matrix.mT) + self._information.squeeze(-1).diag()

    def _product(self, v: Tensor) -> Tensor:
        """M v."""
        image = self.precision.product(v)
        if self.observations.diagonal:
            return image.addcmul_(self._information, v)
        seen = self.observations.solve(self.observations.inputs.from_nodes(self.precision.numbered(v)))
        return image + self.precision.renumbered(self.observations.inputs.to_nodes(seen))

    def _solve(self, rhs: Tensor, tol: float) -> tuple[Tensor, list[float]]:  # (N, k), renumbered
        """Some columns at a time: the solution, and the residuals of the part that took longest."""
        options: dict[str, Any] = {"tol": tol, "max_iterations": MOST_NODE_STEPS, "energy": True}
        found = [
            conjugate_gradients(self._product, part, precondition=self._precondition, **options)
            for part in rhs.split(COLUMNS, dim=-1)
            if part.shape[-1]
        ]
        if not found:
            return rhs, [0.0]
        residuals = max((one.residuals for one in found), key=len)
        if residuals[-1] > tol:
            warnings.warn(
                f"A solve in precision form reached a residual of {residuals[-1]:.2g} in {len(residuals)} steps, not {tol:g}. "
                "Raise the noise, or use a shorter range (kappa).",
                ConvergenceWarning,
                stacklevel=4,
            )
        return torch.cat([one.solution for one in found], -1), residuals

    # Solves

    def node_solve(self, rhs: Tensor, tol: float = NODE_TOL) -> Tensor:  # (N, k)
        r""":math:`M^{-1} b`: columns of the posterior covariance of the nodes, without the scale."""
        return self.precision.numbered(self._solve(self.precision.renumbered(rhs), tol)[0])

    def condition(self, values: Tensor, tol: float = NODE_TOL) -> tuple[Tensor, Tensor, list[float]]:
        r"""The posterior mean at all nodes, (N, k), :math:`(L K L^\top + T)^{-1} y`, (n, k), and the residuals of the steps.

        :param values: observations with prior mean zero, (n, k).
        """
        seen, precision = self.observations, self.precision
        weighted = seen.solve(values.double())
        mean, residuals = self._solve(precision.renumbered(seen.inputs.to_nodes(weighted)), tol)
        weights = weighted - seen.solve(seen.inputs.from_nodes(precision.numbered(mean)))
        # What the mean leaves of the observations is small where the noise is: the digits that are lost are solved for again.
        left = (weights * seen.product(weights)).sum(0) / (values.double() * weighted).sum(0).clamp_min(1e-300)
        share = float(left.clamp_min(0).sqrt().min()) if len(left) else 1.0
        if share < 1:
            missing = precision.renumbered(seen.inputs.to_nodes(weights)) - precision.product(mean)
            more, again = self._solve(missing, max(share, LEAST_SHARE))
            mean, residuals = mean + more, [*residuals, *(residuals[-1] * one for one in again)]
            weights = weighted - seen.solve(seen.inputs.from_nodes(precision.numbered(mean)))
        return precision.numbered(mean), weights, residuals

    @torch.no_grad()
    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        """Solve with the covariance of the observations; residuals are those of the system that is solved for the nodes."""
        _, weights, residuals = self.condition(rhs, NODE_TOL if tol is None else min(tol, NODE_TOL))
        return Solved((weights / self.scale).to(rhs.dtype), Report(self.method, self.reason, tuple(residuals)))

    def for_adjoint(self, rhs: Tensor) -> NoisyPrecision:
        return self

    @torch.no_grad()
    def quadrature(self, rhs: Tensor, probes: int) -> Quadrature:
        """Few observations have the exact gradient of the log-determinant, from a solve for each."""
        if not probes:
            found = self.solve(rhs)
            return Quadrature(found.solution, rhs.new_zeros(0).double(), rhs[:, :0], rhs[:, :0], found.report.residuals)
        if len(rhs) <= EXACT_TRACE:
            starts = len(rhs) ** 0.5 * torch.eye(len(rhs), dtype=rhs.dtype, device=rhs.device)
        else:
            starts = frozen_signs(len(rhs), probes, rhs.dtype, rhs.device)
        found = self.solve(torch.cat([starts, rhs], dim=-1))
        solved, solution = found.solution.tensor_split([starts.shape[-1]], dim=-1)
        return Quadrature(solution, self.logdet_terms(starts.shape[-1]), solved, starts, found.report.residuals)

    # Samples and variances

    def samples(self, number: int, generator: torch.Generator | None = None, tol: float = SAMPLE_TOL) -> Tensor:  # (N, number)
        """Samples of the posterior at the nodes, with mean zero."""
        return self.precision.numbered(self._draws(number, generator, tol)) * self.scale**0.5

    def _draws(self, number: int, generator: torch.Generator | None, tol: float) -> Tensor:
        if not len(self.observations.noise):
            return self.precision.solve(self.precision.noise(number, generator))
        seen = self.observations.inputs.to_nodes(self.observations.solve(self.observations.draw(number, generator)))
        return self._solve(self.precision.noise(number, generator) + self.precision.renumbered(seen), tol)[0]

    def variances(self, number: int = VARIANCE_SAMPLES) -> tuple[Tensor, Tensor]:  # (N,), (N,)
        """Marginal variances of the nodes, and their standard errors."""
        own, uncertain = self.precision.diagonal
        diagonal = own.unsqueeze(-1) + self._information
        generator = torch.Generator().manual_seed(0)
        mean = scatter = torch.zeros(self.precision.size, dtype=torch.float64)
        done = 0
        while done < number:
            draws = self._draws(min(COLUMNS, number - done), generator, SAMPLE_TOL)
            image = self._product(draws)
            if self.observations.diagonal:
                terms = (draws - image / diagonal).square_() + 1 / diagonal
            else:  # the diagonal is not that of M, and of the two control variates one is left: E x_i (M x)_i = 1
                terms = draws.square() + 2 * (1 - draws * image) / diagonal
            # Means and squares around them, part by part: squares of the terms themselves would cancel.
            size, part = draws.shape[-1], terms.mean(-1)
            scatter = scatter + (terms - part.unsqueeze(-1)).square().sum(-1)
            scatter = scatter + (part - mean).square() * (done * size / (done + size))
            mean, done = mean + (part - mean) * (size / (done + size)), done + size
        # An error of the diagonal m adds (M - m) / m^2.
        bias = uncertain / diagonal.squeeze(-1).square()
        error = (scatter / (number * (number - 1)) + bias.square()).sqrt()
        found = torch.stack([mean.clamp_min(0), error], -1) * self.scale
        variance, error = self.precision.numbered(found).unbind(-1)
        return variance, error

    # Log-determinants

    def logdet_terms(self, probes: int) -> Tensor:  # (probes,), float64
        """Estimates of the log-determinant of the covariance of the observations, one a probe; all equal where exact."""
        number = len(self.observations.noise)
        fixed = number * math.log(self.scale)
        if not probes:
            return torch.zeros(0, dtype=torch.float64)
        if not self.observations.diagonal:
            if self.precision.size <= MOST_DENSE and number <= MOST_DENSE:
                dense = self._covariance(torch.eye(number, dtype=torch.float64))
                return torch.full((probes,), fixed + float(dense.logdet()), dtype=torch.float64)
            return fixed + self._lanczos(probes)
        fixed += float(self.observations.noise.log().sum())
        precision = self.precision
        if precision.size <= MOST_DENSE:
            return torch.full((probes,), fixed + self._dense_logdet(), dtype=torch.float64)
        if precision.is_whole and predicted_fill(precision.base, precision.whole) <= MOST_FILL:
            matrix = sparse_power(precision.base, precision.whole)
            matrix = scipy.sparse.csr_array(matrix + scipy.sparse.diags_array(self._information.squeeze(-1).numpy()))
            exact = SparseFactor(matrix).logdet - precision.whole * SparseFactor(precision.base).logdet
            return torch.full((probes,), fixed + exact, dtype=torch.float64)
        if precision.is_power and predicted_fill(precision.base) <= MOST_FILL:
            return fixed + self._preconditioned_quadrature(probes)
        return fixed + self._lanczos(probes)

    def _dense_logdet(self) -> float:
        """Dense log det M - log det Q, on small graphs."""
        precision = self.precision
        base = torch.from_numpy(precision.base.toarray())
        eye = torch.eye(precision.size, dtype=torch.float64)
        prior = precision.order * base.logdet() if precision.is_power else precision.product(eye).logdet()
        return float(self._dense().logdet() - prior)

    def _preconditioned_quadrature(self, probes: int) -> Tensor:
        r""":math:`\log|M| - \log|Q|` from factors of B and of :math:`C = B + (L^\top T^{-1} L)^{1/\nu}`.

        Iterations that are preconditioned by :math:`P = C^k` and start from vectors of covariance P estimate
        :math:`\log|M| - \log|P|`. The same for Q and :math:`B^k`, from the same random numbers, estimates
        :math:`(\nu - k) \log|B|`, which is known: a control variate.
        """
        precision, number = self.precision, max(1, math.floor(self.precision.order))
        shift, estimates = self._information.pow(1 / precision.order), []
        for matrix, action, diagonal in (
            (self._shifted, self._product, shift),
            (precision.base, precision.product, torch.zeros_like(shift)),
        ):
            factor, generator = SparseFactor(matrix), torch.Generator().manual_seed(0)
            starts = torch.randn(precision.size, probes, dtype=torch.float64, generator=generator)
            if number % 2:
                starts = diagonal.sqrt() * starts + precision.base_noise(probes, generator)
            for _ in range(number // 2):
                starts = precision.base_product(starts) + diagonal * starts
            estimates.append((factor.logdet, _quadrature(action, starts, partial(_powers, factor.solve, number))))
        (shifted, ours), (base, known) = estimates
        return ours + number * shifted - (known - (precision.order - number) * base) - precision.order * base

    def _covariance(self, v: Tensor) -> Tensor:  # (n, k)
        """Products with the covariance of the observations, without the scale: the dearest way, and one that always works."""
        seen, precision = self.observations, self.precision
        kernel = precision.numbered(precision.solve(precision.renumbered(seen.inputs.to_nodes(v))))
        return seen.inputs.from_nodes(kernel) + seen.product(v)

    def _lanczos(self, probes: int) -> Tensor:
        """Lanczos quadrature for log det M - log det Q where all observations are of nodes, for the covariance elsewhere."""
        seen = self.observations
        root = seen.noise.sqrt().unsqueeze(-1) if seen.diagonal else torch.ones((), dtype=torch.float64)
        starts = frozen_signs(len(seen.noise), probes, torch.float64, torch.device("cpu"))
        return _quadrature(lambda v: self._covariance(v / root) / root, starts)


def _powers(action: Action, number: int, v: Tensor) -> Tensor:
    for _ in range(number):
        v = action(v)
    return v


def _quadrature(action: Action, starts: Tensor, precondition: Action | None = None) -> Tensor:  # (N, k) -> (k,)
    r"""Quadratic forms of the logarithm of a matrix, or of :math:`P^{-1/2} M P^{-1/2}`."""
    found = conjugate_gradients(action, starts, tol=LANCZOS_TOL, max_iterations=LANCZOS_STEPS, precondition=precondition)
    sizes = (starts * (starts if precondition is None else precondition(starts))).sum(0)
    return lanczos_logarithm(found, sizes)


class NodeSolver:
    """Solves with a sparse precision itself: products with the kernel."""

    method, differentiable, posterior = "multigrid", False, "solves"

    def __init__(self, matrix: PrecisionMatrix, reason: str = "") -> None:
        self.matrix, self.reason = matrix, reason

    @torch.no_grad()
    def solve(self, rhs: Tensor, tol: float | None = None, max_steps: int | None = None) -> Solved:
        solution = self.matrix.numbered(self.matrix.solve(self.matrix.renumbered(rhs)))
        return Solved(solution.to(rhs.dtype), Report(self.method, self.reason))

    def for_adjoint(self, rhs: Tensor) -> NodeSolver:
        return self

    @torch.no_grad()
    def quadrature(self, rhs: Tensor, probes: int) -> Quadrature:
        if not probes:
            return Quadrature(self.solve(rhs).solution, rhs.new_zeros(0).double(), rhs[:, :0], rhs[:, :0])
        starts = frozen_signs(len(rhs), probes, rhs.dtype, rhs.device)
        solved, solution = self.solve(torch.cat([starts, rhs], dim=-1)).solution.tensor_split([probes], dim=-1)
        terms = _quadrature(self.matrix.product, self.matrix.renumbered(starts))
        return Quadrature(solution, terms, solved, starts)
