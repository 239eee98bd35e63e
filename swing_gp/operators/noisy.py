"""Operators that are known by their products: how they are solved with, and how they take noise."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator, LinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.memoize import cached
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import Iterations
from swing_gp.linalg.gram import white_noise
from swing_gp.operators import iterative
from swing_gp.operators.broadcast import BroadcastLinearOperator
from swing_gp.operators.indexing import Indexed
from swing_gp.solvers.sizes import MOST_DENSE, is_dense, num_probes
from swing_gp.utils.validation import check_rhs


class Solvable(Indexed):
    """Solves and log-determinants of an operator without batch dimensions: densely or iteratively, as
    :mod:`swing_gp.solvers.sizes` says. One that is not symmetric says so in ``asymmetry``, and is for products alone."""

    @property
    def asymmetry(self) -> str | None:
        """Why the matrix is not symmetric and what to use instead, or None."""
        return None

    def check_symmetric(self) -> None:
        """Refuse what conjugate gradients and Cholesky factors would get wrong without a word."""
        if self.is_square and self.asymmetry is not None:
            raise ValueError(f"Solves, log-determinants, roots and noise take a symmetric matrix, and {self.asymmetry}")

    def structured_solver(self) -> Any:
        """What solves with this matrix through the sparse inverse of a kernel, if there is one: numbers without gradients."""
        return None

    def iterate(self, rhs: Tensor) -> Iterations | None:  # (N, k)
        """A solve by :meth:`structured_solver`, if there is one."""
        solver = self.structured_solver()
        return None if solver is None else solver.iterate(rhs)

    def _is_dense(self, fast: Any) -> bool:
        return is_dense(self.shape[-1], fast)

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        columns = self._columns_of(right_tensor)
        if self._is_dense(settings.fast_computations.solves):
            solution = torch.cholesky_solve(columns.double(), self._dense_factor()).to(columns.dtype)
        else:
            solver = self.solver()
            solution = iterative.solve(self, columns) if solver is None else solver.solve(columns)
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
        if self._is_dense(settings.fast_computations.log_prob):
            factor, doubled = self._dense_factor(), columns.double()
            terms = (doubled * torch.cholesky_solve(doubled, factor)).sum(0)
            estimates = 2 * factor.diagonal().log().sum(-1, keepdim=True)
        else:
            terms, estimates = self._iterated(columns, num_probes() if logdet else 0)
        if inv_quad_rhs is not None and inv_quad_rhs.dim() > 2:
            terms = terms.reshape(*inv_quad_rhs.shape[:-2], inv_quad_rhs.shape[-1])
        terms = (terms.sum(-1) if reduce_inv_quad else terms).to(self.dtype)
        return zero if inv_quad_rhs is None else terms, estimates.mean().to(self.dtype) if logdet else zero

    @torch.no_grad()
    def logdet_with_error(self) -> tuple[float, float]:
        """The log-determinant and its standard error over the probes of the quadrature; zero where it is exact."""
        if self._is_dense(settings.fast_computations.log_prob):
            return float(self.logdet()), 0.0
        nothing = torch.empty(self.shape[-1], 0, dtype=self.dtype, device=self.device)
        estimates = self._iterated(self._columns_of(nothing), num_probes())[1]
        scatter = float(estimates.std()) if len(estimates) > 1 else 0.0
        return float(estimates.mean()), scatter / len(estimates) ** 0.5

    def solver(self) -> Any:
        """What solves in a system of its own, with gradients, by ``solve`` and ``inv_quad_logdet``; None to go by products."""
        return None

    def _iterated(self, columns: Tensor, probes: int) -> tuple[Tensor, Tensor]:  # (N, k) -> (k,), (probes,)
        solver = self.solver()
        if solver is None:
            return iterative.inv_quad_logdet(self, columns, probes)
        return solver.inv_quad_logdet(columns, probes)

    def dense_root(self) -> Tensor:  # (N, N)
        """The Cholesky factor as a root for samples, where no other is known: up to 2,000 rows."""
        if self.shape[-1] > MOST_DENSE:
            raise ValueError(
                f"Samples off the graph take a dense root, of at most {MOST_DENSE} inputs, got {self.shape[-1]}. Sample at "
                "fewer inputs at once, give nodes as inputs, or use features='grid' or 'landmarks'."
            )
        return self._dense_factor().to(self.dtype)

    def cholesky(self, upper: bool = False) -> LinearOperator:
        self.check_symmetric()
        return super().cholesky(upper)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:  # (S, N)
        return self.samples(num_samples).mT

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return BroadcastLinearOperator(self, repeats=torch.Size(batch_shape)) if len(batch_shape) else self

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self._expand_batch([1])

    def _columns_of(self, rhs: Tensor) -> Tensor:  # (*batch, N, k) or (N,) -> (N, columns)
        self.check_symmetric()
        check_rhs(rhs, self.dtype)
        rhs = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        if not self.is_square or rhs.shape[-2] != self.shape[-1]:
            raise RuntimeError(f"A matrix of shape {tuple(self.shape)} cannot be solved with for {tuple(rhs.shape)}.")
        return rhs.movedim(-2, 0).flatten(1)

    def _dense_factor(self) -> Tensor:  # (N, N), float64
        """The Cholesky factor, by plain torch: derivatives of every order are right. Kept where there are none."""
        if torch.is_inference_mode_enabled() or (torch.is_grad_enabled() and self.requires_grad):
            return self._factorize()
        return self._kept_factor

    @cached_property
    def _kept_factor(self) -> Tensor:
        with torch.no_grad():
            return self._factorize()

    def _factorize(self) -> Tensor:
        dense = self._matmul(torch.eye(self.shape[-1], dtype=self.dtype, device=self.device)).double()
        return psd_safe_cholesky(0.5 * (dense + dense.mT))


class TakesNoise(Solvable):
    """A kernel that becomes a :class:`NoisyKernelLinearOperator` once noise is added to it."""

    def precondition(self, noise: Tensor) -> Any:
        """A matrix close to the kernel plus the noise that is solved with in closed form, if there is one."""
        return None

    def precision_solver(self, noise: Tensor) -> Any:
        """What solves with the kernel plus the noise through its inverse, where that is sparse; or None."""
        return None

    def noisy_solver(self, noise: Tensor) -> Any:  # (N,)
        """What solves with the kernel plus the noise in a way of its own; None for conjugate gradients."""
        return None

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        self.check_symmetric()
        return with_noise(self, diag)

    def __add__(self, other: Any) -> LinearOperator:
        return self.add_diagonal(other._diagonal()) if isinstance(other, DiagLinearOperator) else super().__add__(other)


class NoisyKernelLinearOperator(Solvable, AddedDiagLinearOperator):
    """A kernel plus noise on its diagonal. Made by :func:`with_noise`.

    The landmark kernel preconditions where it is close enough to help. Results are the same at every call: the random signs of
    log-determinants are drawn from a seed of their own.
    """

    @cached(name="preconditioner")
    @torch.no_grad()
    def _preconditioner(self) -> tuple[Any, Any, Any]:
        """Solves with a matrix close to this one, the matrix, and its log-determinant; made once for all solves."""
        close = self._linear_op.precondition(self._diag_tensor._diagonal().detach())
        return (None, None, None) if close is None else (close.solver(), close, close.logdet())

    @cached(name="structured_solver")
    @torch.no_grad()
    def structured_solver(self) -> Any:
        """That of the kernel, made once for all solves."""
        return self._linear_op.precision_solver(self._diag_tensor._diagonal().detach())

    def _is_dense(self, fast: Any) -> bool:
        # Few observations on a large graph: a solver that knows the graph is cheaper than all their covariances.
        return super()._is_dense(fast) and self.structured_solver() is None

    def solver(self) -> Any:
        """Kept where there are no gradients."""
        if torch.is_inference_mode_enabled() or (torch.is_grad_enabled() and self.requires_grad):
            return self._linear_op.noisy_solver(self._diag_tensor._diagonal())
        return self._kept_solver

    def posterior_solver(self, rows: Any) -> Any:
        """The solver, where it knows means and variances at the rows of a block; None to go by solves."""
        if is_dense(self.shape[-1], settings.fast_computations.solves):
            return None
        solver: Any = self.solver()
        return solver if hasattr(solver, "reads") and solver.reads(rows) else None

    @cached_property
    def _kept_solver(self) -> Any:
        with torch.no_grad():
            return self._linear_op.noisy_solver(self._diag_tensor._diagonal())

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self._linear_op.part_of(self, row_index, col_index)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        return self._linear_op._mul_constant(other) + DiagLinearOperator(self._diag_tensor._diagonal() * other)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            return super().__add__(other)
        return self._linear_op + other + self._diag_tensor  # a sum with something else has no preconditioner

    def repeat(self, *sizes: Any) -> LinearOperator:
        sizes = tuple(sizes[0]) if len(sizes) == 1 else sizes
        return self._expand_batch(torch.Size(sizes[:-2])) if tuple(sizes[-2:]) == (1, 1) else super().repeat(*sizes)

    def samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        """Samples as columns."""
        if is_dense(self.shape[-1], settings.fast_computations.covar_root_decomposition):
            return self._dense_factor().to(self.dtype) @ white_noise(self, self.shape[-1], number, generator=generator)
        return self._linear_op.samples(number, generator) + self._noise_samples(number, generator)

    def _noise_samples(self, number: int, generator: torch.Generator | None = None) -> Tensor:  # (n, number)
        noise = white_noise(self, self.shape[-1], number, generator=generator)
        return self._diag_tensor._diagonal().sqrt().unsqueeze(-1) * noise


def with_noise(kernel: Any, noise: Tensor) -> LinearOperator:
    """A kernel plus a diagonal."""
    if not kernel.is_square or noise.dim() > 1 or noise.shape[-1:] not in ((), (1,), (kernel.shape[-1],)):
        return LinearOperator.add_diagonal(kernel, noise)
    return NoisyKernelLinearOperator(kernel, DiagLinearOperator(noise.expand(kernel.shape[-1])))
