"""Operators that are solved with by their structure: the base of all of ours.

An operator hands over a record of what it is, by :meth:`Structured.structure`. :func:`~swing_gp.solvers.policy.solver_for`
makes a solver of it, and solves, log-determinants and their gradients follow from that.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import torch
from linear_operator import settings
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator, LinearOperator
from torch import Tensor

from swing_gp.features.landmarks import AccuracyWarning
from swing_gp.linalg.gram import white_noise
from swing_gp.linalg.second_order import gradients as pulled_back
from swing_gp.linalg.second_order import refused, wanted
from swing_gp.linalg.structure import NodePrecision, Structure
from swing_gp.operators.batch import repeated
from swing_gp.operators.indexing import Indexed
from swing_gp.solvers.dense import Dense
from swing_gp.solvers.implicit import Pair, implicit
from swing_gp.solvers.policy import dense_solver, solver_for
from swing_gp.solvers.protocol import Estimate, Exact, Numerical, Solver
from swing_gp.solvers.sizes import MOST_DENSE, is_dense, num_probes
from swing_gp.utils.once import Once
from swing_gp.utils.validation import check_rhs

# Standard error of a log-determinant, in nats, from which on it may change what a likelihood is compared for.
VISIBLE_LOGDET = 0.5
LOGDETS_TOLD = Once()
ESTIMATED_LOGDET = (
    f"Second derivatives of a log-determinant above {MOST_DENSE} observations are not known, whose value is an estimate: those "
    "of products, solves and quadratic forms are. Use fewer observations, features='landmarks', or differences of gradients."
)


class Structured(Indexed):
    """An operator that says what it is. One that is not symmetric says so in ``asymmetry``, and is for products alone."""

    @abstractmethod
    def structure(self) -> Structure:
        """The structure of the matrix, without ``noise``. Its tensors carry the gradients of the operator's."""

    #: Noise on the diagonal that is not part of the structure, (n,).
    noise: Tensor | None = None

    @property
    def asymmetry(self) -> str | None:
        """Reason why the matrix is not symmetric, and a remedy; None where it is."""
        return None

    def check_symmetric(self) -> None:
        """Refuse matrices that conjugate gradients and Cholesky factors would get wrong without a word."""
        if self.is_square and self.asymmetry is not None:
            raise ValueError(f"Solves, log-determinants, roots and noise take a symmetric matrix, and {self.asymmetry}")

    def solver(self, *, fast: bool = True) -> Solver:
        """The solver of this matrix. It is kept, unless autograd has to follow it.

        :param fast: the switch of linear_operator for this kind of computation, such as ``fast_computations.solves.on()``.
        """
        return self._kept(fast, lambda: solver_for(self.structure(), self.noise, fast=fast))

    def dense_factor(self) -> Tensor:  # (n, n), float64
        """The Cholesky factor."""
        dense = self._kept("dense", lambda: dense_solver(self.structure(), self.noise))  # type: ignore[arg-type]
        return cast(Dense, dense).factor

    def _kept(self, name: Any, make: Any) -> Solver:
        solvers: dict[Any, Solver] = self.__dict__.setdefault("_solvers", {})
        follows = torch.is_inference_mode_enabled() or (torch.is_grad_enabled() and self.requires_grad)
        if name in solvers and not (follows and solvers[name].differentiable):
            return solvers[name]
        with nullcontext() if follows else torch.no_grad():
            solver = make()
        if not torch.is_inference_mode_enabled() and not (follows and solver.differentiable):
            solvers[name] = solver
        return solver

    @torch.no_grad()
    def logdet_with_error(self) -> tuple[float, float]:
        """The log-determinant of one matrix and its standard error over the probes of a quadrature; zero where it is exact."""
        self.check_symmetric()
        nothing = torch.empty(self.shape[-1], 0, dtype=self.dtype, device=self.device)
        found = Estimate.of_terms(self._terms(nothing, num_probes())[1])
        return float(found.value), float(found.error)

    def _terms(self, columns: Tensor, probes: int) -> tuple[Tensor, Tensor]:  # (*batch, n, k) -> (*batch, k), (*batch, m)
        """Quadratic forms of the inverse, and estimates of the log-determinant, with their gradients."""
        return followed_terms(self, self.solver(fast=settings.fast_computations.log_prob.on()), columns, probes)

    def __getstate__(self) -> dict:
        return {name: value for name, value in self.__dict__.items() if name != "_solvers"}


def followed_solve(operator: Structured, solver: Solver, columns: Tensor) -> Tensor:  # (n, k) -> (n, k)
    """The solution, with gradients in the right-hand side and in all that the operator is made of."""
    if solver.differentiable:
        return solver.solve(columns).solution
    return _followed(operator, solver, columns, 0)[0]


def followed_terms(operator: Structured, solver: Solver, columns: Tensor, probes: int) -> tuple[Tensor, Tensor]:
    """Quadratic forms of the inverse, (k,), and estimates of the log-determinant, (probes,) or (1,), with their gradients."""
    if solver.differentiable:
        return cast(Exact, solver).inv_quad_logdet(columns, probes)
    return _followed(operator, solver, columns, probes)[1:3]


def _followed(operator: Structured, solver: Solver, columns: Tensor, probes: int) -> tuple[Any, ...]:
    """Solutions that autograd follows through the products of the operator."""
    system, gradients = cast(Numerical, solver), partial(_gradients, operator)
    return implicit(system, gradients, columns, probes, operator.representation())


def _gradients(operator: Structured, one: Pair, two: Pair, logdet: Pair, weights: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients of bilinear forms in all that the operator is made of. Those of a log-determinant that are differentiated
    again come from the dense matrix, up to 2,000 rows."""
    if not wanted():
        left, right = (torch.cat(sides, dim=-1) for sides in ((logdet[0], -one[1]), (logdet[1], two[1])))
        return operator._bilinear_derivative(left, right)
    tree, tensors = operator.representation_tree(), operator.representation()
    quadratic = pulled_back(lambda *parts: tree(*parts)._matmul(two[1]), tensors, -one[1])
    if weights is None:
        return quadratic
    if len(logdet[0]) <= MOST_DENSE:
        found = pulled_back(lambda *parts: _dense_logdet(tree(*parts)), tensors, weights.sum())
    else:
        with torch.no_grad():
            found = operator._bilinear_derivative(*logdet)
        found = refused(ESTIMATED_LOGDET, found, (*tensors, weights))
    return tuple(b if a is None else a if b is None else a + b for a, b in zip(quadratic, found, strict=True))


def _dense_logdet(matrix: LinearOperator) -> Tensor:
    dense = matrix._matmul(torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)).double()
    return 2 * torch.linalg.cholesky(0.5 * (dense + dense.mT)).diagonal().log().sum()


class Solvable(Structured):
    """An operator without batch dimensions."""

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        columns = self._columns_of(right_tensor)
        solution = followed_solve(self, self.solver(fast=settings.fast_computations.solves.on()), columns)
        if right_tensor.dim() == 1:
            solution = solution.squeeze(-1)
        elif right_tensor.dim() > 2:
            solution = solution.unflatten(1, (*right_tensor.shape[:-2], -1)).movedim(0, -2)
        return solution if left_tensor is None else left_tensor @ solution

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        zero = torch.zeros((), dtype=self.dtype, device=self.device)
        columns = self._columns_of(zero.new_zeros(self.shape[-1], 0) if inv_quad_rhs is None else inv_quad_rhs)
        terms, estimates = self._terms(columns, num_probes() if logdet else 0)
        if logdet:
            self._warn_of_error(Estimate.of_terms(estimates.detach()))
        if inv_quad_rhs is not None and inv_quad_rhs.dim() > 2:
            terms = terms.reshape(*inv_quad_rhs.shape[:-2], inv_quad_rhs.shape[-1])
        terms = (terms.sum(-1) if reduce_inv_quad else terms).to(self.dtype)
        return zero if inv_quad_rhs is None else terms, estimates.mean().to(self.dtype) if logdet else zero

    def _warn_of_error(self, logdet: Estimate) -> None:
        """Warn once for every graph that a likelihood with this estimate of a log-determinant is uncertain."""
        if float(logdet.error) <= VISIBLE_LOGDET or not isinstance(structure := self.structure(), NodePrecision):
            return
        if LOGDETS_TOLD.first(structure.pattern):
            warnings.warn(
                "The log-determinant, and so the likelihood, is an estimate with a standard error of "
                f"{float(logdet.error):.2g} (logdet_with_error says it anywhere). For an exact one take a whole nu; for a "
                "smaller error raise gpytorch.settings.num_trace_samples.",
                AccuracyWarning,
                stacklevel=3,
            )

    def explicit(self) -> Tensor:  # (n, m)
        """All entries, by plain torch."""
        return self._matmul(torch.eye(self.shape[-1], dtype=self.dtype, device=self.device))

    def dense_root(self) -> Tensor:  # (n, n)
        """The Cholesky factor as a root for samples, where no other is known: up to 2,000 rows."""
        if self.shape[-1] > MOST_DENSE:
            raise ValueError(
                f"Samples off the graph take a dense root, of at most {MOST_DENSE} inputs, got {self.shape[-1]}. Sample at "
                "fewer inputs at once, give nodes as inputs, or use features='grid' or 'landmarks'."
            )
        return self.dense_factor().to(self.dtype)

    def cholesky(self, upper: bool = False) -> LinearOperator:
        self.check_symmetric()
        return super().cholesky(upper)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:  # (S, n)
        return self.samples(num_samples).mT

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return repeated(self, torch.Size(batch_shape))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self._expand_batch([1])

    def _columns_of(self, rhs: Tensor) -> Tensor:  # (*batch, n, k) or (n,) -> (n, columns)
        self.check_symmetric()
        check_rhs(rhs, self.dtype)
        rhs = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        if not self.is_square or rhs.shape[-2] != self.shape[-1]:
            raise RuntimeError(f"A matrix of shape {tuple(self.shape)} cannot be solved with for {tuple(rhs.shape)}.")
        return rhs.movedim(-2, 0).flatten(1)


class NoisyKernelLinearOperator(Solvable, AddedDiagLinearOperator):
    """A kernel plus noise on its diagonal. Made by adding one to the other.

    Results are the same at every call: the random signs of log-determinants are drawn from a seed of their own.
    """

    def structure(self) -> Structure:
        return self._linear_op.structure()

    @property
    def noise(self) -> Tensor:  # type: ignore[override]
        own = self._diag_tensor._diagonal()
        return own if self._linear_op.noise is None else self._linear_op.noise + own

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self._linear_op.part_of(self, row_index, col_index)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        return self._linear_op._mul_constant(other) + DiagLinearOperator(self.noise * other)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            return super().__add__(other)
        return self._linear_op + other + self._diag_tensor  # a sum with something else has no structure

    def repeat(self, *sizes: Any) -> LinearOperator:
        sizes = tuple(sizes[0]) if len(sizes) == 1 else sizes
        return self._expand_batch(torch.Size(sizes[:-2])) if tuple(sizes[-2:]) == (1, 1) else super().repeat(*sizes)

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        """Samples as columns."""
        if is_dense(self.shape[-1], settings.fast_computations.covar_root_decomposition):
            return self.dense_factor().to(self.dtype) @ white_noise(self, self.shape[-1], number, generator=generator)
        return self._linear_op.samples(number, generator) + self.noise_samples(number, generator)

    def noise_samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        """Samples of the noise alone."""
        return self.noise.sqrt().unsqueeze(-1) * white_noise(self, self.shape[-1], number, generator=generator)
