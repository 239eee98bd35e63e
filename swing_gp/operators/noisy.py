"""A matrix-free kernel plus noise: solves by conjugate gradients, log-determinants by Lanczos quadrature."""

from __future__ import annotations

from typing import Any

import torch
from linear_operator import settings, utils
from linear_operator.operators import AddedDiagLinearOperator, DiagLinearOperator, LinearOperator
from linear_operator.utils.lanczos import lanczos_tridiag
from torch import Tensor

from swing_gp.linear_algebra import frozen_signs

__all__ = ["NoisyKernelLinearOperator", "with_noise"]

# Relative residual of conjugate gradients. linear_operator's default, 1 in training and 0.01 otherwise, gives wrong gradients.
SOLVE_TOL = {torch.float32: 1e-4, torch.float64: 1e-6}
MAX_STEPS = 1000
TRACE_SAMPLES = 10
LANCZOS_STEPS = 40
# linear_cg takes a curvature p.Ap below its default of 1e-10 for zero, and then stands still at a residual of about 1e-5.
LEAST_CURVATURE = 1e-30


class NoisyKernelLinearOperator(AddedDiagLinearOperator):
    """Made by :func:`with_noise`.

    The landmark kernel preconditions where it is close enough to help. Probes are drawn from a seed of their own and are the
    same at every call. No global setting is changed, and tighter ones are respected.
    """

    def __init__(self, *linear_ops: LinearOperator, preconditioner_override: Any = None) -> None:
        super().__init__(*linear_ops, preconditioner_override=_precondition)

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
        return utils.linear_cg(
            self._matmul,
            rhs,
            n_tridiag=num_tridiag,
            tolerance=min(SOLVE_TOL[rhs.dtype], settings.cg_tolerance.value()),
            eps=LEAST_CURVATURE,
            max_iter=max(MAX_STEPS, settings.max_cg_iterations.value()),
            max_tridiag_iter=settings.max_lanczos_quadrature_iterations.value(),
            preconditioner=preconditioner,
        )

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        samples = max(TRACE_SAMPLES, settings.num_trace_samples.value())
        with settings.num_trace_samples(samples), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return super().inv_quad_logdet(inv_quad_rhs, logdet, reduce_inv_quad)

    @torch.no_grad()
    def logdet_with_error(self, samples: int = TRACE_SAMPLES) -> tuple[float, float]:
        """The log-determinant and its standard error over the probes of the quadrature."""
        _, close, logdet = self._preconditioner()
        action, offset = self._matmul, 0.0
        if close is not None:
            half = close.root_inv_decomposition().root
            offset = float(logdet)

            def action(v: Tensor) -> Tensor:
                return half.mT @ self._matmul(half @ v)

        signs = frozen_signs(self.shape[-1], samples, self.dtype)
        steps = min(LANCZOS_STEPS, self.shape[-1])
        _, tridiagonal = lanczos_tridiag(action, steps, self.dtype, self.device, self.shape, init_vecs=signs)
        values, vectors = torch.linalg.eigh(tridiagonal.double())
        terms = self.shape[-1] * (vectors[..., 0, :].square() * values.clamp_min(1e-300).log()).sum(-1)
        return offset + float(terms.mean()), float(terms.std() / samples**0.5)


def _precondition(noisy: NoisyKernelLinearOperator) -> tuple[Any, Any, Any]:
    with torch.no_grad():
        close = noisy._linear_op.precondition(noisy._diag_tensor._diagonal().detach())
        return (None, None, None) if close is None else (close.solver(), close, close.logdet())


def with_noise(kernel: LinearOperator, noise: Tensor) -> LinearOperator:
    """A square kernel plus a diagonal."""
    if noise.dim() > 1 or noise.shape[-1:] not in ((), (1,), (kernel.shape[-1],)):
        return LinearOperator.add_diagonal(kernel, noise)
    return NoisyKernelLinearOperator(kernel, DiagLinearOperator(noise.expand(kernel.shape[-1])))
