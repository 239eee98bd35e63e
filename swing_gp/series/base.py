r"""Series: the kernel :math:`K = \sum_k \alpha_k A^k` of a graph matrix A, and its closed form :math:`g(\lambda)`.

Every series has coefficients :math:`\alpha`, a modulation :math:`\rho` with :math:`\rho * \rho = \alpha` (the coefficients
of :math:`\sqrt g`), its radius of convergence, and the interval on which it is non-negative. Coefficients,
modulation and closed form are differentiable in the parameters of the series. With the Laplacian L = I - A of a normalised
graph,

======================================  ==============================================
``Diffusion(time)``                     :math:`\exp(-t L)`
``RandomWalk(steps, laziness)``         :math:`(a I - L)^p`
``OneStep()``                           :math:`A`
``RegularizedLaplacian(scale, power)``  :math:`(I + s L)^{-p}`
``InverseCosine()``                     :math:`\cos(\pi L / 4)`
``Matern(nu, kappa)``                   :math:`(2 \nu / \kappa^2 + L)^{-\nu}`
``PowerSeries(alpha)``                  :math:`\sum_k \alpha_k A^k`
======================================  ==============================================

>>> from swing_gp import Diffusion
>>> series = Diffusion(2.0)
>>> rho = series.modulation(6)
>>> float((rho[0] * rho[2] * 2 + rho[1] ** 2 - series.coefficients(6)[2]).abs()) < 1e-12
True
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from swing_gp.linalg.expansions import chebyshev_coefficients, horner, series_root, truncation

# Most terms of a walk or of a truncated series; each is one step of every walker.
MAX_HORIZON = 2000
# Highest degree of a Chebyshev polynomial; each degree is one product with A.
MAX_CHEBYSHEV_DEGREE = 4096
# Ratio of the largest number of a dtype to the largest eigenvalue of a kernel: sums over a million nodes must not overflow.
OVERFLOW_MARGIN = 1e6


@dataclass(frozen=True)
class Inverse:
    r"""Factors of the inverse of a closed form, :math:`1/g = (a + b \lambda)^m \rho(\lambda)`, smooth on the spectrum.

    On a sparse graph the inverse of K is then a product of sparse matrices, the precision of a Gaussian process. That of a
    Matérn kernel is :math:`(1 + 2\nu/\kappa^2 - \lambda)^\nu`.

    :ivar linear: the coefficients a and b, (2,), float64; b < 0, and a + b > 0.
    :ivar whole: the integer power m.
    :ivar rest: the remaining factor :math:`\rho`, positive on the spectrum; None if it is one.
    :ivar order: the power of :math:`a + b \lambda` that is closest to :math:`1/g`; preconditioners use it.
    :ivar closed: :math:`1/g` as a series; its remainders extend K off the graph.
    """

    linear: Tensor
    whole: int
    rest: Callable[[Tensor], Tensor] | None
    order: float
    closed: Series


class Series(ABC):
    r"""A power series with a closed form.

    :ivar degree: the degree if the series is a polynomial, else None.
    :ivar radius: the radius of convergence of the coefficients.
    :ivar nonnegative: the interval of eigenvalues on which g is non-negative; K is PSD if it holds the spectrum.
    :ivar least: the lower end of the domain of g, which is smooth above it.
    :ivar steep: True if g changes so fast near zero that a small error of A becomes a large error of K.
    """

    degree: int | None = None
    least: float = -math.inf
    steep: bool = False

    @property
    @abstractmethod
    def radius(self) -> float: ...

    @property
    @abstractmethod
    def modulation_radius(self) -> float:
        """Radius of convergence of the modulation."""

    @property
    @abstractmethod
    def nonnegative(self) -> tuple[float, float]: ...

    @abstractmethod
    def __call__(self, eigenvalues: Tensor) -> Tensor:
        r"""Evaluate the closed form :math:`g(\lambda)`, elementwise, in the dtype of the eigenvalues."""

    @abstractmethod
    def coefficients(self, number: int) -> Tensor:
        r"""Coefficients :math:`\alpha_0, \dots, \alpha_{n-1}`, (number,), float64."""

    def inverse(self) -> Inverse | None:
        r"""Factors of :math:`1/g` if it is smooth on the spectrum, else None; solves on sparse graphs use them."""
        return None

    def modulation(self, number: int) -> Tensor:
        r"""Modulation :math:`\rho_0, \dots, \rho_{n-1}`, (number,), with :math:`\sum_j \rho_j \rho_{k-j} = \alpha_k`."""
        alpha = self.coefficients(number)
        if alpha[0].item() <= 0:
            raise ValueError(
                f"{self!r} has no real modulation: its coefficient alpha_0 = {alpha[0].item():g} is not positive. "
                "Use Walks(sides=1), or the collapsed kernel (walks=None)."
            )
        return series_root(alpha)

    def remainder(self, eigenvalues: Tensor) -> Tensor:
        r"""Remainder :math:`h(\lambda) = (g(\lambda) - \alpha_0) / \lambda`, with full accuracy near zero; h(0) = alpha_1."""
        return self._divided_difference(self, 1, eigenvalues)

    def second_remainder(self, eigenvalues: Tensor) -> Tensor:
        r"""Second remainder :math:`h_2(\lambda) = (h(\lambda) - \alpha_1) / \lambda`, with full accuracy near zero."""
        return self._divided_difference(self.remainder, 2, eigenvalues)

    def coupling(self, loops: Tensor) -> Tensor | None:
        r"""Self-loop rescaling factor :math:`h(\ell) / h(0)`, or None if h(0) = 0.

        A self-loop scales the kernel between its node and all others by this factor, exactly to first order in eigenvalues.

        :param loops: weights :math:`\ell` of self-loops in A, of any shape.
        """
        slope = self.coefficients(2)[1]
        return self.remainder(loops) / slope.to(loops) if slope.item() != 0 else None

    def _divided_difference(self, before: Callable[[Tensor], Tensor], order: int, eigenvalues: Tensor) -> Tensor:
        """Series with the coefficients from ``order`` on, without cancellation near zero.

        :param before: the series with the coefficients from ``order - 1`` on.
        """
        if self.degree is not None:
            return horner(self.coefficients(max(self.degree, order) + 1)[order:].to(eigenvalues), eigenvalues)
        # 30 terms reach 0.3^30 = 2e-16 below the switch; above it the cancellation in the difference is harmless.
        alpha = self.coefficients(31).to(eigenvalues)
        ratio = abs((alpha[1] / alpha[0]).item()) if alpha[0].item() else 1e300  # alpha_0 has underflowed
        switch = 0.3 * min(1 / ratio if ratio else math.inf, self.radius, 1e6)
        small = eigenvalues.abs() < switch
        near = horner(alpha[order:], torch.where(small, eigenvalues, torch.zeros_like(eigenvalues)))
        safe = torch.where(small, torch.full_like(eigenvalues, switch), eigenvalues)
        return torch.where(small, near, (before(safe) - alpha[order - 1]) / safe)

    def horizon(self, tol: float, *, bound: float = 1.0, sides: int = 1) -> int:
        r"""Number n of terms whose remainder :math:`\sum_{k \ge n} |c_k| b^k` is below ``tol`` times the sum of all terms.

        :param tol: the relative error.
        :param bound: the bound b on the absolute eigenvalues.
        :param sides: 1 for one-sided walks, whose coefficients c are alpha; 2 for two-sided ones, whose c is the modulation.
        """
        name, degree, _ = self._walk_coefficients(sides)
        if degree is not None:
            return 1 + degree
        self.check_walks(bound, sides=sides)

        @torch.no_grad()
        def terms(number: int) -> Tensor:
            values = self.coefficients(number) if sides == 1 else self.modulation(number)
            return values.abs() * bound ** torch.arange(number, dtype=torch.float64, device=values.device)

        number = truncation(terms, tol, MAX_HORIZON)
        if number > MAX_HORIZON:
            raise ValueError(
                f"The {name} of {self!r} decays so slowly that a tolerance of {tol:g} needs a horizon of about "
                f"{number:.2g} steps; the limit is {MAX_HORIZON}. Use Walks(sides=1), a larger tol, Walks(halting=p), "
                "or the collapsed kernel (walks=None), which needs no horizon."
            )
        return int(number)

    def check_walks(self, bound: float, *, sides: int) -> None:
        """Refuse walks of any length whose coefficients diverge; those of a polynomial never do."""
        name, degree, radius = self._walk_coefficients(sides)
        if degree is None and bound > radius:
            raise ValueError(
                f"The {name} of {self!r} diverges on this graph: it converges for eigenvalues up to {radius:g}, "
                f"the graph reaches {bound:g}. Use normalization='symmetric', or the collapsed kernel (walks=None)."
            )

    def _walk_coefficients(self, sides: int) -> tuple[str, int | None, float]:
        """Coefficients that walks use: their name for messages, their degree if finite, and their radius of convergence."""
        if sides == 1:
            return "series", self.degree, self.radius
        return "modulation", self.modulation_degree, self.modulation_radius

    @property
    def modulation_degree(self) -> int | None:
        """Degree of the modulation if it is a polynomial, else None."""
        return 0 if self.degree == 0 else None

    def chebyshev(
        self, interval: tuple[float, float], tol: float, function: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Chebyshev coefficients of g on an interval, (degree + 1,), float64.

        :param interval: the spectrum.
        :param tol: the relative error.
        :param function: a function of the eigenvalues to expand in place of g.
        """
        coefficients = self.expansion(interval, tol, function)
        if coefficients is None:
            raise ValueError(
                f"{self!r} needs a polynomial of degree above {MAX_CHEBYSHEV_DEGREE} on [{interval[0]:g}, {interval[1]:g}] "
                f"for a tolerance of {tol:g}. Use milder parameters (a shorter range), a whole nu, at most 2,000 nodes, "
                "normalization='symmetric' or, for an ImplicitGraph, features='landmarks', whichever is not yet so."
            )
        return coefficients

    def expansion(
        self, interval: tuple[float, float], tol: float, function: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor | None:
        """The coefficients of :meth:`chebyshev`; None where they would be too many."""
        self.check_smooth()
        degree = self.degree if function is None else None
        return chebyshev_coefficients(function or self, interval, tol, MAX_CHEBYSHEV_DEGREE, degree)

    def num_terms(self, interval: tuple[float, float], tol: float) -> float:
        """Number of Chebyshev terms of g for a relative error ``tol``; infinite if no polynomial reaches it."""
        try:
            with torch.no_grad():
                return len(self.chebyshev(interval, tol))
        except ValueError:
            return math.inf

    def share_beyond_identity(self, interval: tuple[float, float]) -> float:
        r"""Share of the kernel beyond its identity part, :math:`\max|g - \alpha_0| / \max|g|` over a spectrum."""
        with torch.no_grad():
            values = self(torch.linspace(*interval, 65, dtype=torch.float64))
            return float((values - self.coefficients(1)[0]).abs().max() / values.abs().max())

    def sensitivity(self, interval: tuple[float, float]) -> float:
        r"""Amplification of a relative error of A to one of the kernel beyond its identity part, at least one.

        It is :math:`b \max|g'| / \max|g - \alpha_0|` over a spectrum up to b; for a diffusion, its time.
        """
        low, high = interval
        with torch.enable_grad():
            cosines = torch.linspace(-math.pi, 0, 257, dtype=torch.float64).cos()
            nodes = (0.5 * (high + low) + 0.5 * (high - low) * cosines).requires_grad_()
            values = self(nodes)
            (slopes,) = torch.autograd.grad(values.sum(), nodes)
        slope, size = float(slopes.abs().max()), float((values - self.coefficients(1)[0]).detach().abs().max())
        return max(1.0, high * slope / size) if size > 0 and math.isfinite(slope) else 1.0

    def check_precision(self, dtype: torch.dtype) -> None:
        """Refuse a steep series at a precision that rounds away the eigenvalues it tells apart."""
        if self.steep and dtype == torch.float32:
            raise ValueError(
                f"{self!r} tells eigenvalues apart that float32 rounds away. Use float64 (points.double()), or a floor of at "
                "least 1e-4."
            )

    def check_smooth(self) -> None:
        """Refuse a steep series on routes that take polynomials, or whose weights have errors."""
        if self.steep:
            raise ValueError(
                f"{self!r} is too steep near zero for the polynomials and tolerances of lists, grids and exact weights. "
                "Use features='landmarks', or a larger floor."
            )

    def check_spectrum(self, interval: tuple[float, float], *, psd: bool, dtype: torch.dtype = torch.float64) -> None:
        """Refuse a spectrum on which the series diverges or overflows.

        :param interval: the interval that holds the spectrum.
        :param psd: refuse a spectrum on which the series is negative, too.
        :param dtype: the precision of products.
        """
        low, high = interval
        reach = max(abs(low), abs(high))
        if self.degree is None and reach >= self.radius:
            raise ValueError(
                f"{self!r} diverges on this graph: its power series converges for eigenvalues below {self.radius:g}, the "
                f"graph reaches {reach:g}. Use normalization='symmetric', or milder parameters."
            )
        slack = 1e-6 * max(1.0, reach)
        least, most = self.nonnegative
        if psd and (low < least - slack or high > most + slack):
            raise ValueError(
                f"{self!r} is negative on part of this graph's spectrum [{low:.3g}, {high:.3g}], so its kernel is no "
                f"covariance: it is non-negative on [{least:.3g}, {most:.3g}]. Use normalization='symmetric', or other "
                "parameters."
            )
        self.check_overflow(interval, dtype)

    def check_overflow(self, interval: tuple[float, float], dtype: torch.dtype) -> None:
        """Refuse a spectrum on which the series, or a sum in a product with it, leaves the range of a dtype."""
        reach = max(map(abs, interval))
        values = self(torch.tensor(interval, dtype=torch.float64)).detach().abs()
        if not bool((values < torch.finfo(dtype).max / OVERFLOW_MARGIN).all()):
            raise ValueError(
                f"{self!r} overflows on this graph, whose eigenvalues reach {reach:.3g}. "
                "Use normalization='symmetric', or milder parameters."
            )
