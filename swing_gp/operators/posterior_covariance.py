r"""The posterior covariance of a matrix-free kernel, :math:`K_{**} - K_{*X} (K_{XX} + R)^{-1} K_{X*}`: by linear solves, among
the modes of a grid, or from the precision of the nodes."""

from __future__ import annotations

from functools import cached_property
from typing import cast

import torch
from linear_operator.operators import DiagLinearOperator, LinearOperator, RootLinearOperator, to_linear_operator
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.precision_matrix import COLUMNS as PRECISION_COLUMNS
from swing_gp.linalg.structure import Modes, NodePrecision
from swing_gp.operators.base import NoisyKernelLinearOperator
from swing_gp.operators.batch import Stack
from swing_gp.operators.estimated_diagonal import estimated_diagonal
from swing_gp.operators.kernel_block import KernelBlock, KernelBlocks
from swing_gp.operators.low_rank_plus_diagonal import LowRankPlusDiagonal
from swing_gp.operators.matrix_free import COLUMNS, MatrixFreeLinearOperator
from swing_gp.solvers.field import FieldPosterior
from swing_gp.solvers.mode_solver import ModeSolver
from swing_gp.solvers.observations import field_inputs
from swing_gp.solvers.precision import NoisyPrecision
from swing_gp.solvers.protocol import Estimate
from swing_gp.solvers.sizes import EXACT_VARIANCES, MOST_SOLVED
from swing_gp.solvers.woodbury import ClosedForm

# Products that an estimate of many variances takes.
PROBES = 64


class PosteriorCovariance(MatrixFreeLinearOperator):
    """The posterior covariance at test inputs, through solves; nothing of size test x train is kept.

    Variances at many points are those of the landmark kernel's posterior, in closed form, plus an unbiased estimate of the
    difference or, where landmarks do not resolve the graph, mean squares of samples; :meth:`variance_standard_error` says how
    good they are. Samples are pathwise (Wilson et al., 2020): a prior sample, corrected by one solve. Where the prior has none,
    and for noise that is given, they come from a dense root.
    """

    def __init__(self, test: KernelBlock, cross: KernelBlock, noisy: NoisyKernelLinearOperator) -> None:
        super().__init__(test, cross, noisy)
        self.test, self.cross, self.noisy = test, cross, noisy

    def _size(self) -> torch.Size:
        return self.test.shape

    def _transpose_nonbatch(self) -> LinearOperator:
        return self

    def _apply(self, rhs: Tensor) -> Tensor:
        solved = self.noisy.solve(self.cross.mT @ rhs)
        return self.test @ rhs - self.cross @ solved

    def _diagonal(self) -> Tensor:
        return self.variances.value

    def variance_standard_error(self) -> Tensor:
        """Standard errors of the variances; zeros where they were solved for."""
        return self.variances.error

    @cached_property
    def variances(self) -> Estimate:
        return self._solved() if self.shape[-1] <= EXACT_VARIANCES else self._estimated()

    def _solved(self) -> Estimate:
        inputs = torch.arange(self.shape[-1], device=self.device).split(COLUMNS)
        blocks = (self.cross.mT._columns(index) for index in inputs)
        known = torch.cat([(block * self.noisy.solve(block)).sum(0) for block in blocks])
        return Estimate.exact((self.test._diagonal() - known).clamp_min(0))

    def _estimated(self) -> Estimate:
        estimate, error = estimated_diagonal(self, self._landmark_posterior(), PROBES)
        # Even if all else were known, the identity part that a point has for itself is seen through noise only.
        own = self.test.leading[0] * self.test.outputscale
        noise = self.noisy.noise.min()
        return Estimate(estimate.clamp_min(float((own * noise / (own + noise)).detach())), error)

    def _landmark_posterior(self) -> LowRankPlusDiagonal | None:
        """The posterior covariance of the landmark kernel with the same noise, ignoring what equal points share."""
        with torch.no_grad():
            test, train = self.test.landmark_approximation(), self.noisy._linear_op.landmark_approximation()
            if test is None or train is None:
                return None
            noisy = ClosedForm(train.structure().plus(self.noisy.noise))
            return LowRankPlusDiagonal(test.factor, noisy.small.posterior_core(), test.diag)

    @property
    def can_sample(self) -> bool:
        return self.test.can_sample and self.noisy._linear_op.can_sample

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        if not self.can_sample:
            return self.dense_root() @ white_noise(self, self.shape[-1], number, generator=generator)
        joint = self.test.prior_samples(self.noisy._linear_op, number, generator)
        test, train = joint.split([self.shape[-1], self.noisy.shape[-1]])
        return test - self.cross @ self.noisy.solve(train + self.noisy.noise_samples(number, generator))

    @cached(name="root_decomposition")
    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        return RootLinearOperator(self.dense_root()) if method is None else super().root_decomposition(method=method)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        return NoisyPosteriorCovariance(self, DiagLinearOperator(diag.expand(self.shape[-1])))


class ModePosteriorCovariance(PosteriorCovariance):
    """The posterior covariance of a grid kernel, whose variances are known among the modes."""

    @cached_property
    def variances(self) -> Estimate:
        solver, test = cast(ModeSolver, self.noisy.solver()), self.test.structure()
        found = solver.variances(test, PROBES) if isinstance(test, Modes) else None
        return super().variances if found is None else found


class PrecisionPosteriorCovariance(PosteriorCovariance):
    """Posterior covariance from the node precision; with gradients, by linear solves."""

    def __init__(self, test: KernelBlock, cross: KernelBlock, noisy: NoisyKernelLinearOperator) -> None:
        super().__init__(test, cross, noisy)
        self.given = cast(NoisyPrecision, noisy.solver())

    @property
    def _differentiable(self) -> bool:
        return torch.is_grad_enabled() and self.requires_grad

    @cached_property
    def _field(self) -> FieldPosterior:
        return field_posterior(self.test, self.given)

    def _apply(self, rhs: Tensor) -> Tensor:
        if self._differentiable:
            return super()._apply(rhs)
        return self._field.covariance(rhs.double()).to(rhs.dtype)

    @cached_property
    def variances(self) -> Estimate:
        size, nodes = self.shape[-1], self.given.precision.size
        if self._differentiable:
            return super()._solved() if size <= EXACT_VARIANCES else super()._estimated()
        if size <= EXACT_VARIANCES and size * nodes <= MOST_SOLVED:
            inputs = torch.arange(size).split(PRECISION_COLUMNS)
            return Estimate.exact(torch.cat([self._columns(part)[part].diagonal() for part in inputs]).clamp_min(0))
        found = self._field.variances()
        return Estimate(found.value.to(self.dtype), found.error.to(self.dtype))

    @property
    def can_sample(self) -> bool:
        return True

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        return self._field.samples(number, generator).to(self.dtype)


def field_posterior(test: KernelBlock, solver: NoisyPrecision) -> FieldPosterior:
    """The posterior at the rows of a symmetric block."""
    with torch.no_grad():
        return FieldPosterior(field_inputs(cast(NodePrecision, test.structure())), solver)


class NoisyPosteriorCovariance(NoisyKernelLinearOperator):
    """The posterior covariance of noisy observations."""

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:
        return self._linear_op.samples(number, generator) + self.noise_samples(number, generator)


def batched_covariance(test: KernelBlocks, cross: KernelBlocks, noisy: NoisyKernelLinearOperator) -> LinearOperator:
    """The posterior covariances of a batch of lists of test inputs, with training inputs that all of it shares.

    Up to 512 inputs a list they are dense, from solves for several lists at once.
    """
    size = test.shape[-1]
    if size > EXACT_VARIANCES:
        parts = zip(test.elements(), cross.elements(), strict=True)
        return Stack(*(PosteriorCovariance(*part, noisy) for part in parts), batch=test.batch_shape)
    known = []
    for part in cross.parts(size, COLUMNS):
        rows = part.dense_rows()  # (lists * size, n)
        solved = noisy.solve(rows.mT).mT.unflatten(0, (-1, size))
        known.append(rows.unflatten(0, (-1, size)) @ solved.mT)
    covariance = test.to_dense() - torch.cat(known).reshape(test.shape)
    return to_linear_operator(0.5 * (covariance + covariance.mT))
