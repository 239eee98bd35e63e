"""A matrix-free kernel plus noise: solves by conjugate gradients, log-determinants by Lanczos quadrature."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator, LinearOperator
from linear_operator.utils.lanczos import lanczos_tridiag
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import ConvergenceWarning, conjugate_gradients
from swing_gp.linalg.gram import frozen_signs
from swing_gp.operators.broadcast import BroadcastLinearOperator
from swing_gp.operators.indexing import Indexed
from swing_gp.parallel.shards import is_sharded, refuse_shards, total

__all__ = ["NoisyKernelLinearOperator", "TakesNoise", "with_noise"]

# Relative residual of conjugate gradients. linear_operator's default, 1 in training and 0.01 otherwise, gives wrong gradients.
SOLVE_TOL = {torch.float32: 1e-4, torch.float64: 1e-6}
TRACE_SAMPLES = 10
LANCZOS_STEPS = 40
# Nodes above which nothing of their number squared is made, whatever global settings ask for.
MOST_DENSE = 2000


class NoisyKernelLinearOperator(Indexed, AddedDiagLinearOperator):
    """Made by :func:`with_noise`.

    The landmark kernel preconditions where it is close enough to help. Probes are drawn from a seed of their own and are the
    same at every call. No global setting is changed, and tighter ones are respected.
    """

    def __init__(self, *linear_ops: LinearOperator, preconditioner_override: Any = None) -> None:
        super().__init__(*linear_ops, preconditioner_override=_precondition)

    @cached_property
    def _preconditioning(self) -> tuple[Any, Any, Any]:
        """What :func:`_precondition` hands over, made once for all solves."""
        with torch.no_grad():
            close = self._linear_op.precondition(self._diag_tensor._diagonal().detach())
            return (None, None, None) if close is None else (close.solver(), close, close.logdet())

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        return self._linear_op.part_of(self, row_index, col_index)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        if torch.is_tensor(other) and other.numel() > 1:
            return super()._mul_constant(other)
        return self._linear_op._mul_constant(other) + DiagLinearOperator(self._diag_tensor._diagonal() * other)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LinearOperator:
        return BroadcastLinearOperator(self, repeats=torch.Size(batch_shape)) if len(batch_shape) else self

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return BroadcastLinearOperator(self, repeats=torch.Size((1,)))

    def repeat(self, *sizes: Any) -> LinearOperator:
        sizes = tuple(sizes[0]) if len(sizes) == 1 else sizes
        return self._expand_batch(torch.Size(sizes[:-2])) if tuple(sizes[-2:]) == (1, 1) else super().repeat(*sizes)

    @property
    def _only_iteratively(self) -> bool:
        """Whether a dense factor is out of the question, whatever switches ask for one."""
        return self.shape[-1] > MOST_DENSE or is_sharded()

    def _iteratively(self) -> AbstractContextManager:
        if not self._only_iteratively:
            return nullcontext()
        contexts = ExitStack()
        contexts.enter_context(settings.fast_computations(log_prob=True, solves=True))
        contexts.enter_context(settings.max_cholesky_size(MOST_DENSE))
        return contexts

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        if not self._only_iteratively:
            return super().solve(right_tensor, left_tensor)
        columns = right_tensor.unsqueeze(-1) if right_tensor.dim() == 1 else right_tensor
        solution = _Solve.apply(self, columns, *self.representation()).reshape(right_tensor.shape)
        return solution if left_tensor is None else left_tensor @ solution

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        if not self._only_iteratively:
            return super().inv_quad(inv_quad_rhs, reduce_inv_quad)
        rhs = inv_quad_rhs.unsqueeze(-1) if inv_quad_rhs.dim() == 1 else inv_quad_rhs
        terms = total((rhs * self.solve(rhs)).sum(-2), "inner products")
        return terms.sum(-1) if reduce_inv_quad else terms

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
        return solved(self, rhs, preconditioner, num_tridiag)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:  # (S, n)
        if self.shape[-1] <= settings.max_cholesky_size.value():
            return super().zero_mean_mvn_samples(num_samples)
        sample = self._linear_op.zero_mean_mvn_samples(num_samples)  # Lanczos would not see the noise
        return sample + self._diag_tensor._diagonal().sqrt() * torch.randn_like(sample)

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        if logdet:
            refuse_shards("The quadrature of a log-determinant", "use features='landmarks', where it is a closed form")
        if inv_quad_rhs is not None and inv_quad_rhs.dim() == 1:  # which linear_operator's Cholesky factor does not take
            inv_quad_rhs = inv_quad_rhs.unsqueeze(-1)
        samples = max(TRACE_SAMPLES, settings.num_trace_samples.value())
        with self._iteratively(), settings.num_trace_samples(samples), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return super().inv_quad_logdet(inv_quad_rhs, logdet, reduce_inv_quad)

    @torch.no_grad()
    def logdet_with_error(self, samples: int = TRACE_SAMPLES) -> tuple[float, float]:
        """The log-determinant and its standard error over the probes of the quadrature."""
        refuse_shards("The quadrature of a log-determinant", "use features='landmarks', where it is a closed form")
        _, close, logdet = self._preconditioner()
        action, offset = self._matmul, 0.0
        if close is not None:
            half = close.root_inv_decomposition().root
            offset = float(logdet)

            def action(v: Tensor) -> Tensor:
                return half.mT @ self._matmul(half @ v)

        signs = frozen_signs(self.shape[-1], samples, self.dtype, self.device)
        steps = min(LANCZOS_STEPS, self.shape[-1])
        _, tridiagonal = lanczos_tridiag(action, steps, self.dtype, self.device, self.shape, init_vecs=signs)
        values, vectors = torch.linalg.eigh(tridiagonal.double())
        terms = self.shape[-1] * (vectors[..., 0, :].square() * values.clamp_min(1e-300).log()).sum(-1)
        return offset + float(terms.mean()), float(terms.std() / samples**0.5)


def solved(operator: Any, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
    """What linear_operator calls ``_solve``: solutions, and Lanczos matrices of the first right-hand sides if asked for."""
    tol = min(SOLVE_TOL[rhs.dtype], settings.cg_tolerance.value())
    columns = rhs.movedim(-2, 0).flatten(1)
    found = conjugate_gradients(
        operator._matmul,
        columns,
        tol=tol,
        max_iterations=settings.max_cg_iterations.value(),
        precondition=preconditioner,
    )
    if not found.residuals[-1] <= tol:
        warnings.warn(
            f"Conjugate gradients reached a residual of {found.residuals[-1]:.2g} in {len(found.residuals)} steps, not "
            f"{tol:g}. Raise the noise or gpytorch.settings.max_cg_iterations, or use float64.",
            ConvergenceWarning,
            stacklevel=3,
        )
    solution = found.solution.unflatten(1, (*rhs.shape[:-2], rhs.shape[-1])).movedim(0, -2)
    return (solution, found.tridiagonal(num_tridiag)) if num_tridiag else solution


class _Solve(torch.autograd.Function):
    """A solve by conjugate gradients, and one more for the backward pass; linear_operator's asks global switches in both."""

    @staticmethod
    def forward(ctx: Any, noisy: NoisyKernelLinearOperator, rhs: Tensor, *tensors: Tensor) -> Tensor:
        ctx.noisy = noisy
        solution = noisy._solve(rhs, noisy._preconditioner()[0])
        ctx.save_for_backward(solution)
        return solution

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (solution,) = ctx.saved_tensors
        left = ctx.noisy._solve(grad, ctx.noisy._preconditioner()[0])
        return None, left, *ctx.noisy._bilinear_derivative(-left, solution)


def _precondition(noisy: NoisyKernelLinearOperator) -> tuple[Any, Any, Any]:
    return noisy._preconditioning


class TakesNoise:
    """An operator that is solved with by conjugate gradients to our tolerance, and as a :class:`NoisyKernelLinearOperator` once
    noise is added to it. One that is not symmetric says so in ``asymmetry``, and is for products alone."""

    @property
    def asymmetry(self) -> str | None:
        """Why the matrix is not symmetric and what to use instead, or None."""
        return None

    def check_symmetric(self) -> None:
        """Refuse what conjugate gradients and Cholesky factors would get wrong without a word."""
        if self.is_square and self.asymmetry is not None:  # type: ignore[attr-defined]
            raise ValueError(f"Solves, log-determinants, roots and noise take a symmetric matrix, and {self.asymmetry}")

    def precondition(self, noise: Tensor) -> Any:
        """A matrix close to the kernel plus the noise that is solved with in closed form, if there is one."""
        return None

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        self.check_symmetric()
        return with_noise(self, diag)

    def __add__(self, other: Any) -> LinearOperator:
        if isinstance(other, DiagLinearOperator):
            return self.add_diagonal(other._diagonal())
        return super().__add__(other)  # type: ignore[misc]

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        self.check_symmetric()
        return super().solve(right_tensor, left_tensor)  # type: ignore[misc]

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        self.check_symmetric()
        return super().inv_quad(inv_quad_rhs, reduce_inv_quad)  # type: ignore[misc]

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        self.check_symmetric()
        return super().inv_quad_logdet(inv_quad_rhs, logdet, reduce_inv_quad)  # type: ignore[misc]

    def cholesky(self, upper: bool = False) -> LinearOperator:
        self.check_symmetric()
        return super().cholesky(upper)  # type: ignore[misc]

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
        return solved(self, rhs, preconditioner, num_tridiag)


def with_noise(kernel: Any, noise: Tensor) -> LinearOperator:
    """A kernel plus a diagonal."""
    if not kernel.is_square or noise.dim() > 1 or noise.shape[-1:] not in ((), (1,), (kernel.shape[-1],)):
        return LinearOperator.add_diagonal(kernel, noise)
    return NoisyKernelLinearOperator(kernel, DiagLinearOperator(noise.expand(kernel.shape[-1])))
