r"""The posterior of the weights of modes, whose prior covariance is a function of a Toeplitz matrix.

With :math:`\hat T = B^{1/2} T B^{1/2}` and :math:`\hat G = B^{1/2} G B^{1/2}`, T and G Toeplitz, the weights have the prior
covariance :math:`H = h(\hat T)` and the precision that observations add is :math:`\hat G`:

.. math:: \Sigma = (H^{-1} + \hat G)^{-1} = H^{1/2} S^{-1} H^{1/2}, \qquad S = I + H^{1/2} \hat G H^{1/2} .

H is never inverted. All products are FFTs of the mode grid. S is solved with by conjugate gradients, preconditioned by the
dense block of the modes with the largest weights, which also takes most of the variance out of log-determinants. Up to some
1,500 modes everything is dense. Gradients are those of implicit functions,

.. math:: d\Sigma = (I - \Sigma \hat G)\, dH\, (I - \hat G \Sigma) - \Sigma\, d\hat G\, \Sigma, \qquad
          d \log|S| = E\, (S^{-1} b)^\top dS\, (P^{-1} b) ,

with random signs that are the same at every call.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from linear_operator import settings
from torch import Tensor

from swing_gp.linalg.conjugate_gradients import ConvergenceWarning, conjugate_gradients, lanczos_logarithm
from swing_gp.linalg.expansions import chebyshev_coefficients
from swing_gp.linalg.gram import frozen_signs, symmetric_function
from swing_gp.linalg.polynomial import clenshaw
from swing_gp.linalg.second_order import gradients as followed
from swing_gp.linalg.second_order import refused, wanted
from swing_gp.linalg.toeplitz import RealModes, toeplitz_product
from swing_gp.linalg.woodbury import Woodbury
from swing_gp.solvers.implicit import Pair, implicit
from swing_gp.solvers.protocol import Quadrature
from swing_gp.solvers.sizes import LEADING_MODES, solve_tolerance

# The most coefficients of the root of h; beyond, h comes too close to zero for one.
MOST_TERMS = 512
# Modes whose part of S differs from one by less than this need no preconditioner.
NEGLIGIBLE = 0.02
# Numbers that the polynomials of a backward pass may keep at once.
KEPT_NUMBERS = 2**26
REFINEMENTS = 4
LOGDET_OF_MODES = (
    "Second derivatives of a log-determinant among the modes of a Fourier grid are not known, whose value is an estimate: "
    "those of products, solves and quadratic forms are. Use at most 800 observations, features='landmarks', or differences of "
    "gradients."
)
# How much looser the solves of estimates are; what they leave is far below what random signs do.
ROUGH = 100.0


class Prior:
    r"""The weights of modes before any observation.

    :param modes: coordinates of the modes.
    :param root: :math:`B^{1/2}` on the kept half of the grid.
    :param symbol: of T, on the padded grid.
    :param coefficients: of h, in Chebyshev polynomials on the interval.
    """

    def __init__(
        self, modes: RealModes, root: Tensor, symbol: Tensor, coefficients: Tensor, interval: tuple[float, float]
    ) -> None:
        self.modes, self.root, self.symbol, self.coefficients, self.interval = modes, root, symbol, coefficients, interval

    def dense(self, symbol: Tensor, some: Tensor | slice = slice(None)) -> Tensor:  # (p, p)
        """The matrix of a symbol between the roots of weights, for some modes."""
        root = self.modes.spread(self.root)[some]
        return root.unsqueeze(-1) * self.modes.matrix(symbol, some) * root

    def through(self, symbol: Tensor, modes: Tensor) -> Tensor:  # (k, *modes) -> (k, *modes)
        """Products with that matrix of all modes, by FFTs."""
        return self.root * toeplitz_product(symbol, self.root * modes)

    def polynomial(self, coefficients: Tensor, modes: Tensor) -> Tensor:  # (k, *modes) -> (k, *modes)
        r"""A polynomial of :math:`\hat T`."""
        return clenshaw(lambda x: self.through(self.symbol, x), coefficients, self.interval, modes)

    def value(self, x: Tensor) -> Tensor:
        """h, elementwise."""
        return clenshaw(lambda y: x * y, self.coefficients, self.interval, torch.ones_like(x))

    def covariance(self, some: Tensor | slice = slice(None)) -> Tensor:  # (p, p)
        """H of a block, dense."""
        matrix = self.dense(self.symbol, some)
        matrix = 0.5 * (matrix + matrix.mT)
        return symmetric_function(matrix, self.value, torch.linalg.eigh(matrix.detach()))

    def root_coefficients(self, tol: float) -> Tensor | None:
        r"""Chebyshev coefficients of :math:`\sqrt h`; None where h has zeros, or nearly."""
        with torch.no_grad():
            values = self.value(torch.linspace(*self.interval, 257, dtype=torch.float64))
        if not float(values.min()) > 0:
            return None
        return chebyshev_coefficients(lambda x: self.value(x).clamp_min(0).sqrt(), self.interval, tol, MOST_TERMS)


class DenseModes:
    """Weights of modes by dense matrices; derivatives are those of plain torch.

    :param precision: the symbol of G.
    """

    method = "modes"

    def __init__(self, prior: Prior, precision: Tensor) -> None:
        self._woodbury = Woodbury(prior.covariance(), prior.dense(precision))

    def solve(self, projected: Tensor, sizes: Tensor) -> tuple[Tensor, tuple[float, ...]]:  # (P, k), (k,) -> (P, k)
        """The posterior means of the weights of modes, and the residuals of the steps."""
        return self._woodbury.solve(projected), ()

    def inv_quad_logdet(self, projected: Tensor, sizes: Tensor, probes: int) -> tuple[Tensor, Tensor]:
        quadratic = (projected * self._woodbury.solve(projected)).sum(0)
        return quadratic, self._woodbury.logdet().unsqueeze(0)

    def leading(self) -> tuple[Tensor | slice, Tensor, Tensor]:
        """All of the covariance."""
        core = self._woodbury.posterior_core()
        return slice(None), core, torch.zeros_like(core[0])


class IterativeModes:
    """Weights of modes by conjugate gradients, whose products are FFTs.

    :param precision: the symbol of G.
    :param root: coefficients of the root of h.
    """

    method = "modes-pcg"

    def __init__(self, prior: Prior, precision: Tensor, root: Tensor) -> None:
        self.prior, self.precision, self.root = prior, precision, root
        self.modes = prior.modes

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.prior.root, self.prior.symbol, self.prior.coefficients, self.precision, self.root

    def at(self, root: Tensor, symbol: Tensor, coefficients: Tensor, precision: Tensor, half: Tensor) -> IterativeModes:
        """This system, made of other tensors."""
        return IterativeModes(Prior(self.modes, root, symbol, coefficients, self.prior.interval), precision, half)

    # Products, of coordinates (P, k)

    def _half(self, x: Tensor) -> Tensor:
        """H^1/2 x."""
        return self.modes.from_modes(self.prior.polynomial(self.root, self.modes.to_modes(x)))

    def _covariance(self, x: Tensor) -> Tensor:
        """H x."""
        return self.modes.from_modes(self.prior.polynomial(self.prior.coefficients, self.modes.to_modes(x)))

    def _precision(self, x: Tensor) -> Tensor:
        """G x."""
        return self.modes.from_modes(self.prior.through(self.precision, self.modes.to_modes(x)))

    def _system(self, x: Tensor) -> Tensor:
        """S x."""
        modes = self.prior.through(self.precision, self.prior.polynomial(self.root, self.modes.to_modes(x)))
        return x + self.modes.from_modes(self.prior.polynomial(self.root, modes))

    @cached_property
    def preconditioner(self) -> LeadingBlock:
        with torch.no_grad():
            return LeadingBlock(self.prior, self.precision)

    # Solves

    def iterate(self, projected: Tensor, sizes: Tensor) -> tuple[Tensor, tuple[float, ...]]:  # (P, k), (k,) -> (P, k)
        r""":math:`\Sigma f` and the residuals of the steps, until those among the observations,
        :math:`|H^{1/2} \rho|_{\hat G}` for a residual :math:`\rho` of S, are small beside their sizes."""
        tol, most = solve_tolerance(torch.float64), settings.max_cg_iterations.value()
        rhs = left = self._half(projected)
        solution, wanted, before = torch.zeros_like(rhs), tol, 1.0
        residuals: list[float] = []
        for _ in range(REFINEMENTS):
            found = conjugate_gradients(
                self._system, left, tol=wanted, max_iterations=most - len(residuals), precondition=self.preconditioner.solve
            )
            solution = solution + found.solution
            residuals += [before * residual for residual in found.residuals]
            left = rhs - self._system(solution)
            image = self._half(left)
            residual = (image * self._precision(image)).sum(0).clamp_min(0).sqrt()
            over = float((residual / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)).max()) if residual.numel() else 0.0
            if over <= tol or len(residuals) >= most:
                break
            wanted, before = 0.5 * tol / over, before * found.residuals[-1]
        if not over <= tol:
            warnings.warn(
                f"Conjugate gradients reached a residual of {over:.2g} in {len(residuals)} steps, not {tol:g}. Raise the "
                "noise or gpytorch.settings.max_cg_iterations.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return self._half(solution), tuple(residuals)

    def solve(self, projected: Tensor, sizes: Tensor) -> tuple[Tensor, tuple[float, ...]]:
        solution, _, _, residuals = implicit(_Sized(self, sizes), self._gradients, projected, 0, self.tensors)
        return solution, residuals

    def inv_quad_logdet(self, projected: Tensor, sizes: Tensor, probes: int) -> tuple[Tensor, Tensor]:
        return implicit(_Sized(self, sizes), self._gradients, projected, probes, self.tensors)[1:3]

    def quadrature(self, probes: int) -> tuple[Tensor, Tensor, Tensor]:  # (probes,), (P, probes), (P, probes)
        """Estimates of log|S|, and the solutions and images of the probes."""
        close = self.preconditioner
        signs = frozen_signs(len(self.modes), probes, torch.float64, self.root.device)
        tol, most = ROUGH * solve_tolerance(torch.float64), settings.max_cg_iterations.value()
        image = close.root_inverse(signs)
        found = conjugate_gradients(self._system, close.root(signs), tol=tol, max_iterations=most, precondition=close.solve)
        terms = lanczos_logarithm(found, torch.full((probes,), float(len(signs)), dtype=torch.float64))
        return terms + close.logdet(), found.solution, image

    def leading(self) -> tuple[Tensor, Tensor, Tensor]:
        """A covariance close to this one: of the leading block, and the diagonal of the other modes."""
        return self.preconditioner.posterior()

    def beyond_leading(self, projected: Tensor) -> Tensor:  # (P, k) -> (P, k)
        r"""The part of :math:`\Sigma f` beyond :meth:`leading`, to the few digits that estimates need."""
        some, core, rest = self.leading()
        close = (rest.unsqueeze(-1) * projected).index_copy(0, some, core @ projected[some])
        return self.iterate(projected, ROUGH * self.size(projected))[0] - close

    def size(self, projected: Tensor) -> Tensor:  # (P, k) -> (k,)
        """Reference norm for residuals of a right-hand side that belongs to no observations."""
        image = self._covariance(projected)
        return (image * self._precision(image)).sum(0).clamp_min(0).sqrt()

    # Gradients

    def gradients(self, left: Tensor, right: Tensor, form: str) -> list[Any]:
        """The gradients in all tensors of the sum of a bilinear form over columns, a few of them at a time; all at once where
        they are differentiated again."""
        if wanted():
            return list(followed(lambda *tensors: getattr(self.at(*tensors), form)(right), self.tensors, left))
        terms = len(self.root) * self.prior.symbol.numel()
        totals: list[Any] = [None] * len(self.tensors)
        for one, two in zip(*(x.split(max(1, KEPT_NUMBERS // terms), dim=-1) for x in (left, right)), strict=True):
            with torch.enable_grad():
                tensors = [tensor.detach().requires_grad_() for tensor in self.tensors]
                value = (one * getattr(self.at(*tensors), form)(two)).sum()
                found = torch.autograd.grad(value, tensors, allow_unused=True)
            totals = [_sum(total, part) for total, part in zip(totals, found, strict=True)]
        return totals

    def _gradients(self, one: Pair, two: Pair, logdet: Pair, weights: Tensor | None) -> tuple[Tensor | None, ...]:
        posterior = self.gradients_of_posterior(one, two)
        if weights is None:
            return tuple(posterior)
        with torch.no_grad():
            found = tuple(self.gradients(*logdet, "_system"))
        found = refused(LOGDET_OF_MODES, found, (*self.tensors, weights))
        return tuple(_sum(a, b) for a, b in zip(posterior, found, strict=True))

    def gradients_of_posterior(self, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> list[Tensor]:
        r"""Differentiate :math:`\sum f^\top \Sigma g`, given f and :math:`\Sigma f`, g and :math:`\Sigma g`."""
        (f, solved_f), (g, solved_g) = one, two
        prior = self.gradients(f - self._precision(solved_f), g - self._precision(solved_g), "_covariance")
        return [_sum(a, b) for a, b in zip(prior, self.gradients(-solved_f, solved_g, "_precision"), strict=True)]


def _sum(one: Tensor | None, two: Tensor | None) -> Any:
    return two if one is None else one if two is None else one + two


@dataclass(frozen=True)
class _Sized:
    r""":math:`\Sigma` as a system: its right-hand sides come with the sizes that their residuals are measured by."""

    system: IterativeModes
    sizes: Tensor

    def quadrature(self, rhs: Tensor, probes: int) -> Quadrature:
        solution, residuals = self.system.iterate(rhs, self.sizes)
        if not probes:
            return Quadrature(solution, rhs.new_zeros(0), rhs[:, :0], rhs[:, :0], residuals)
        return Quadrature(solution, *self.system.quadrature(probes), residuals)

    @torch.no_grad()
    def for_adjoint(self, rhs: Tensor) -> _Sized:
        return _Sized(self.system, self.system.size(rhs))


class LeadingBlock:
    """A matrix close to S: dense between the modes of the largest weights, and diagonal beyond."""

    def __init__(self, prior: Prior, precision: Tensor) -> None:
        root = prior.modes.spread(prior.root)
        # What S would be if the observations were spread evenly.
        expected = prior.value(root.square() * prior.symbol.mean()).clamp_min(0)
        share = expected * root.square() * precision.mean()
        order = root.argsort(descending=True, stable=True)
        self.size = min(LEADING_MODES, int((share > NEGLIGIBLE).sum()))
        self.some = order[: self.size]
        values, vectors = torch.linalg.eigh(prior.dense(prior.symbol, self.some))
        half = (vectors * prior.value(values).clamp_min(0).sqrt()) @ vectors.mT
        system = half @ prior.dense(precision, self.some) @ half
        eye = torch.eye(self.size, dtype=torch.float64)
        self._factor = torch.linalg.cholesky(eye + 0.5 * (system + system.mT))
        self._half = half
        self._rest = (1 + share).index_fill(0, self.some, 1.0).unsqueeze(-1)
        self._expected = expected.index_fill(0, self.some, 0.0)

    def _split(self, x: Tensor, block: Any, rest: Tensor) -> Tensor:
        return rest.index_copy(0, self.some, block(x[self.some]))

    def solve(self, x: Tensor) -> Tensor:  # (P, k) -> (P, k)
        return self._split(x, lambda part: torch.cholesky_solve(part, self._factor), x / self._rest)

    def root(self, x: Tensor) -> Tensor:
        """L x, where this matrix is L L^T."""
        return self._split(x, lambda part: self._factor @ part, self._rest.sqrt() * x)

    def root_inverse(self, x: Tensor) -> Tensor:
        """L^-T x."""

        def block(part: Tensor) -> Tensor:
            return torch.linalg.solve_triangular(self._factor.mT, part, upper=True)

        return self._split(x, block, x / self._rest.sqrt())

    def logdet(self) -> Tensor:
        return 2 * self._factor.diagonal().log().sum() + self._rest.log().sum()

    def posterior(self) -> tuple[Tensor, Tensor, Tensor]:
        """The covariance of the weights of the leading modes, and the variances of the others, zero at the leading ones."""
        whitened = torch.linalg.solve_triangular(self._factor, self._half, upper=False)
        return self.some, whitened.mT @ whitened, self._expected / self._rest.squeeze(-1)
