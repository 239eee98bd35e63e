r"""Series: the kernel :math:`K = \sum_k \alpha_k A^k` of a graph matrix A, and its closed form :math:`g(\lambda)`.

Every series knows its coefficients :math:`\alpha`, its modulation :math:`\rho` with :math:`\rho * \rho = \alpha` (the
coefficients of :math:`\sqrt g`), where it converges, and where it is non-negative. All three are differentiable in the
parameters of the series. With L = I - A the Laplacian of a normalised graph,

======================================  ==============================================
``Diffusion(time)``                     :math:`\exp(-t L)`
``RandomWalk(steps, laziness)``         :math:`(a I - L)^p`
``RegularizedLaplacian(scale, power)``  :math:`(I + s L)^{-p}`
``InverseCosine()``                     :math:`\cos(\pi L / 4)`
``Matern(nu, kappa)``                   :math:`(2 \nu / \kappa^2 + L)^{-\nu}`
``PowerSeries(alpha)``                  :math:`\sum_k \alpha_k A^k`, a user's own
======================================  ==============================================

>>> series = Diffusion(2.0)
>>> rho = series.modulation(6)
>>> float((rho[0] * rho[2] * 2 + rho[1] ** 2 - series.coefficients(6)[2]).abs()) < 1e-12
True
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from swing_gp.linalg.expansions import chebyshev_coefficients, horner, series_root, truncation
from swing_gp.utils.validation import as_parameter, as_real, check_count

__all__ = [
    "Diffusion",
    "InverseCosine",
    "Matern",
    "PowerSeries",
    "RandomWalk",
    "RegularizedLaplacian",
    "Series",
]

# A walk or a truncated series longer than this is refused, with its length in the message.
MAX_HORIZON = 2000
MAX_CHEBYSHEV_DEGREE = 4096


class Series(ABC):
    r"""A power series with a closed form.

    :ivar degree: the degree where the series is a polynomial, else None.
    :ivar radius: the radius of convergence of the coefficients.
    :ivar nonnegative: the interval of eigenvalues on which g is non-negative, so that K is PSD there.
    :ivar least: where the closed form begins; above it g is smooth.
    :ivar steep: whether g changes so fast near zero that a small error of the graph is not a small error of the kernel.
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
        """The radius of convergence of the modulation."""

    @property
    @abstractmethod
    def nonnegative(self) -> tuple[float, float]: ...

    @abstractmethod
    def __call__(self, eigenvalues: Tensor) -> Tensor:
        r"""The closed form :math:`g(\lambda)`, elementwise."""

    @abstractmethod
    def coefficients(self, number: int) -> Tensor:
        r""":math:`\alpha_0, \dots, \alpha_{n-1}` in float64."""

    def modulation(self, number: int) -> Tensor:
        r""":math:`\rho_0, \dots, \rho_{n-1}` in float64, with :math:`\sum_j \rho_j \rho_{k-j} = \alpha_k`."""
        alpha = self.coefficients(number)
        if alpha[0].item() <= 0:
            raise ValueError(
                f"{self!r} has no real modulation: its coefficient alpha_0 = {alpha[0].item():g} is not positive. "
                "Use Walks(sides=1), or the collapsed kernel (walks=None)."
            )
        return series_root(alpha)

    def remainder(self, eigenvalues: Tensor) -> Tensor:
        r""":math:`h(\lambda) = (g(\lambda) - \alpha_0) / \lambda`, with full accuracy near zero; h(0) = alpha_1."""
        return self._divided(self, 1, eigenvalues)

    def second_remainder(self, eigenvalues: Tensor) -> Tensor:
        r""":math:`h_2(\lambda) = (h(\lambda) - \alpha_1) / \lambda`, with full accuracy near zero."""
        return self._divided(self.remainder, 2, eigenvalues)

    def coupling(self, loops: Tensor) -> Tensor | None:
        r"""By what a self-loop of its own scales the ties of a node to all others: :math:`h(\ell) / h(0)`, exact to first order
        in eigenvalues; None where h(0) = 0."""
        slope = self.coefficients(2)[1]
        return self.remainder(loops) / slope.to(loops) if slope.item() != 0 else None

    def _divided(self, before: Callable[[Tensor], Tensor], order: int, eigenvalues: Tensor) -> Tensor:
        """The function with coefficients from ``order`` on, given the one with one coefficient more."""
        if self.degree is not None:
            return horner(self.coefficients(max(self.degree, order) + 1)[order:].to(eigenvalues), eigenvalues)
        # 30 terms reach 0.3^30 = 2e-16 below the switch; above it the cancellation in the difference is harmless.
        alpha = self.coefficients(31).to(eigenvalues)
        ratio = abs((alpha[1] / alpha[0]).item()) if alpha[0].item() else 1e300  # underflown: growth beyond measure
        switch = 0.3 * min(1 / ratio if ratio else math.inf, self.radius, 1e6)
        small = eigenvalues.abs() < switch
        near = horner(alpha[order:], torch.where(small, eigenvalues, torch.zeros_like(eigenvalues)))
        safe = torch.where(small, torch.full_like(eigenvalues, switch), eigenvalues)
        return torch.where(small, near, (before(safe) - alpha[order - 1]) / safe)

    def horizon(self, tol: float, *, bound: float = 1.0, sides: int = 1) -> int:
        r"""The number of terms after which what remains, :math:`\sum_{k \ge n} |c_k| b^k`, is below ``tol`` of the whole.

        c is alpha for one-sided estimates and the modulation for two-sided ones; ``bound`` is a bound b on the spectrum.
        """
        degree = self.degree if sides == 1 else self.modulation_degree
        if degree is not None:
            return 1 + degree
        self.check_walks(bound, sides=sides)
        name = _carried(sides)

        @torch.no_grad()
        def terms(number: int) -> Tensor:
            values = self.coefficients(number) if sides == 1 else self.modulation(number)
            return values.abs() * bound ** torch.arange(number, dtype=torch.float64, device=values.device)

        needed = truncation(terms, tol, MAX_HORIZON)
        if needed > MAX_HORIZON:
            raise ValueError(
                f"The {name} of {self!r} decays so slowly that a tolerance of {tol:g} needs a horizon of about "
                f"{needed:.2g} steps; the limit is {MAX_HORIZON}. Use Walks(sides=1), a larger tol, Walks(halting=p), "
                "or the collapsed kernel (walks=None), which needs no horizon."
            )
        return int(needed)

    def check_walks(self, bound: float, *, sides: int) -> None:
        """Refuse walks, of a fixed or a random length, where what they carry diverges; a polynomial never does."""
        degree, radius = (self.degree, self.radius) if sides == 1 else (self.modulation_degree, self.modulation_radius)
        if degree is None and bound > radius:
            raise ValueError(
                f"The {_carried(sides)} of {self!r} diverges on this graph: it converges for eigenvalues up to {radius:g}, "
                f"the graph reaches {bound:g}. Use normalization='symmetric', or the collapsed kernel (walks=None)."
            )

    @property
    def modulation_degree(self) -> int | None:
        """The degree of the modulation where it is a polynomial, else None."""
        return 0 if self.degree == 0 else None

    def chebyshev(
        self, interval: tuple[float, float], tol: float, function: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Chebyshev coefficients of g on an interval, as many as ``tol`` (relative to the largest) asks for.

        They are a linear image of values of g, so gradients reach the parameters of the series.

        :param function: expand this function of the eigenvalues instead of g.
        """
        degree = self.degree if function is None else None
        found = chebyshev_coefficients(function or self, interval, tol, MAX_CHEBYSHEV_DEGREE, degree)
        if found is None:
            raise ValueError(
                f"{self!r} needs a polynomial of degree above {MAX_CHEBYSHEV_DEGREE} on [{interval[0]:g}, {interval[1]:g}] "
                f"for a tolerance of {tol:g}. Use normalization='symmetric', milder parameters, a larger tol, or "
                "features='landmarks'."
            )
        return found

    def check_spectrum(self, interval: tuple[float, float], *, psd: bool) -> None:
        """Refuse a spectrum on which the series diverges or, where ``psd`` is asked for, is negative."""
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
        with torch.no_grad():
            top = self(torch.tensor([low, high], dtype=torch.float64))
        if not bool(torch.isfinite(top).all()):
            raise ValueError(
                f"{self!r} overflows on this graph, whose eigenvalues reach {reach:.3g}. "
                "Use normalization='symmetric', or milder parameters."
            )


def _carried(sides: int) -> str:
    """What walks carry, by its name in messages."""
    return "series" if sides == 1 else "modulation"


class Diffusion(Series):
    r"""The heat kernel :math:`\exp(-t (I - A))` (Kondor & Lafferty, 2002)."""

    def __init__(self, time: float | Tensor = 1.0) -> None:
        self.time = as_parameter("time", time)

    def __repr__(self) -> str:
        return f"Diffusion(time={self.time.item():g})"

    radius = modulation_radius = math.inf
    nonnegative = (-math.inf, math.inf)

    def __call__(self, eigenvalues: Tensor) -> Tensor:
        return (self.time.to(eigenvalues) * (eigenvalues - 1)).exp()

    def remainder(self, eigenvalues: Tensor) -> Tensor:
        time = self.time.to(eigenvalues)
        small = (time * eigenvalues).abs() < 1e-3
        x = torch.where(small, torch.ones_like(eigenvalues), eigenvalues)
        # exp(-t) expm1(t x) / x, in a form in which no factor overflows at long times.
        far = torch.exp(time * (x.clamp_min(0) - 1)) * -torch.expm1(-time * x.abs()) / x.abs()
        y = torch.where(small, time * eigenvalues, torch.zeros_like(eigenvalues))
        near = torch.exp(-time) * time * (1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5 * (1 + y / 6)))))
        return torch.where(small, near, far)

    def coefficients(self, number: int) -> Tensor:
        return self._poisson(self.time, number)

    def modulation(self, number: int) -> Tensor:
        return self._poisson(self.time / 2, number)

    @staticmethod
    def _poisson(time: Tensor, number: int) -> Tensor:
        order = torch.arange(number, dtype=torch.float64, device=time.device)
        time = time.to(order)
        return torch.exp(order * time.log() - torch.lgamma(order + 1) - time)


class _Binomial(Series):
    r"""The family :math:`g(\lambda) = (a + b \lambda)^p`; its modulation is the same with p/2."""

    @abstractmethod
    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        """a, b and p, in float64: a + b may be small beside both."""

    @property
    def radius(self) -> float:
        a, b, _ = self._terms()
        return (a / b.abs()).item()

    modulation_radius = radius

    @property
    def nonnegative(self) -> tuple[float, float]:
        return (-self.radius, self.radius)

    def __call__(self, eigenvalues: Tensor) -> Tensor:
        a, b, power = (term.to(eigenvalues) for term in self._terms())
        return (a + b * eigenvalues).pow(power)

    def coefficients(self, number: int) -> Tensor:
        a, b, power = self._terms()
        return self._binomial(a, b, power, number)

    def modulation(self, number: int) -> Tensor:
        a, b, power = self._terms()
        return self._binomial(a, b, power / 2, number)

    @staticmethod
    def _binomial(a: Tensor, b: Tensor, power: Tensor, number: int) -> Tensor:
        order = torch.arange(number - 1, dtype=torch.float64, device=a.device)
        a, b, power = a.to(order), b.to(order), power.to(order)
        ratios = (power - order) / (order + 1) * (b / a)
        return torch.cat([a.new_ones(1), ratios.cumprod(0)]) * a.pow(power)


class RandomWalk(_Binomial):
    r"""The p-step random walk :math:`(a I - L)^p = ((a - 1) I + A)^p`.

    :param steps: the number of steps p.
    :param laziness: a; at 1 the walk never rests (and no modulation exists), at 2 the kernel is :math:`(I + A)^p`.
    """

    def __init__(self, steps: int = 2, laziness: float | Tensor = 2.0) -> None:
        self.steps = check_count("steps", steps)
        self.laziness = as_parameter("laziness", laziness)
        if self.laziness.item() < 1:
            raise ValueError(
                f"laziness must be at least 1, got {self.laziness.item():g}: below, the kernel (laziness I - L)^steps "
                "is negative on the spectrum of a graph."
            )
        self.degree = self.steps

    def __repr__(self) -> str:
        return f"RandomWalk(steps={self.steps}, laziness={self.laziness.item():g})"

    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        one = self.laziness.new_ones(())
        return self.laziness - 1, one, one * self.steps

    @property
    def radius(self) -> float:
        return math.inf

    @property
    def modulation_radius(self) -> float:
        return math.inf if self.steps % 2 == 0 else self.laziness.item() - 1

    @property
    def modulation_degree(self) -> int | None:
        return self.steps // 2 if self.steps % 2 == 0 else None

    @property
    def nonnegative(self) -> tuple[float, float]:
        return (-math.inf, math.inf) if self.steps % 2 == 0 else (1 - self.laziness.item(), math.inf)

    def __call__(self, eigenvalues: Tensor) -> Tensor:
        return (self.laziness.to(eigenvalues) - 1 + eigenvalues).pow(self.steps)

    def coefficients(self, number: int) -> Tensor:
        rest = (self.laziness - 1).to(torch.float64)
        terms = [self._term(rest, k) for k in range(min(number, self.steps + 1))]
        return torch.stack(terms + [rest.new_zeros(())] * (number - len(terms)))

    def _term(self, rest: Tensor, k: int) -> Tensor:
        ways, power = math.comb(self.steps, k), self.steps - k
        if ways < 2**53:
            return ways * rest.pow(power)
        # More ways than a float may hold, and a power that may underflow; their product need do neither.
        return (math.exp(math.log(ways) / power) * rest).pow(power)

    def modulation(self, number: int) -> Tensor:
        if self.laziness.item() <= 1:
            return Series.modulation(self, number)  # says why there is none
        if self.steps % 2 == 0:
            return RandomWalk(self.steps // 2, self.laziness).coefficients(number)
        return super().modulation(number)


class RegularizedLaplacian(_Binomial):
    r"""The regularised Laplacian :math:`(I + s L)^{-p}` (Smola & Kondor, 2003); the paper's "d-regularised" kernel."""

    def __init__(self, scale: float | Tensor = 1.0, power: float | Tensor = 1.0) -> None:
        self.scale = as_parameter("scale", scale)
        self.power = as_parameter("power", power)

    def __repr__(self) -> str:
        return f"RegularizedLaplacian(scale={self.scale.item():g}, power={self.power.item():g})"

    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        scale = self.scale.double()
        return 1 + scale, -scale, -self.power.double()


class Matern(_Binomial):
    r"""The graph Matérn kernel :math:`(2 \nu / \kappa^2 + L)^{-\nu}` (Borovitskiy et al., 2021)."""

    def __init__(self, nu: float | Tensor = 1.5, kappa: float | Tensor = 1.0) -> None:
        self.nu = as_parameter("nu", nu)
        self.kappa = as_parameter("kappa", kappa)

    def __repr__(self) -> str:
        return f"Matern(nu={self.nu.item():g}, kappa={self.kappa.item():g})"

    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        nu = self.nu.double()
        return 1 + 2 * nu / self.kappa.double().square(), -torch.ones_like(nu), -nu


class InverseCosine(Series):
    r"""The inverse cosine kernel :math:`\cos(\pi L / 4)` (Smola & Kondor, 2003).

    Its modulation has a branch point at :math:`\lambda = -1` and decays only like :math:`k^{-3/2}`.
    """

    radius = math.inf
    modulation_radius = 1.0
    nonnegative = (-1.0, 3.0)

    def __repr__(self) -> str:
        return "InverseCosine()"

    def __call__(self, eigenvalues: Tensor) -> Tensor:
        return torch.cos(math.pi / 4 * (1 - eigenvalues))

    def coefficients(self, number: int) -> Tensor:
        order = torch.arange(number, dtype=torch.float64)
        size = torch.exp(order * math.log(math.pi / 4) - torch.lgamma(order + 1))
        signs = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.float64).repeat(number // 4 + 1)[:number]
        return size * signs * math.sqrt(0.5)


class PowerSeries(Series):
    r"""A user's own polynomial :math:`\sum_k \alpha_k A^k`.

    :param alpha: the coefficients, lowest order first; may require gradients.
    """

    def __init__(self, alpha: Tensor | list[float]) -> None:
        tensor = as_real("alpha", alpha)
        if tensor.dim() != 1 or tensor.numel() == 0:
            raise ValueError(f"alpha must be a non-empty vector of coefficients, got shape {tuple(tensor.shape)}.")
        if not bool(torch.isfinite(tensor.detach()).all()):
            raise ValueError("alpha must be finite.")
        self.alpha = tensor.to(torch.float64)
        self.degree = tensor.numel() - 1

    def __repr__(self) -> str:
        return f"PowerSeries(alpha={[round(a, 6) for a in self.alpha.detach().tolist()]})"

    radius = math.inf

    @property
    def modulation_radius(self) -> float:
        """The distance to the nearest zero of g, where sqrt(g) has a branch point."""
        roots = np.polynomial.polynomial.polyroots(np.trim_zeros(self.alpha.detach().cpu().numpy(), "b"))
        return float(np.abs(roots).min()) if roots.size else math.inf

    @property
    def nonnegative(self) -> tuple[float, float]:
        """The widest interval around [0, 1], within [-1e6, 1e6], on which no sign change is seen (sampled)."""
        large = torch.logspace(0, 6, 4001, dtype=torch.float64)
        grid = torch.cat([-large, torch.linspace(-1, 1, 4001, dtype=torch.float64), large])
        with torch.no_grad():
            negative = self(grid.to(self.alpha.device)).cpu() < -1e-12 * float(self.alpha.detach().abs().sum())
        if bool(negative[(grid >= 0) & (grid <= 1)].any()):
            return (math.inf, -math.inf)
        below, above = grid[negative & (grid < 0)], grid[negative & (grid > 1)]
        return (float(below.max()) if below.numel() else -math.inf, float(above.min()) if above.numel() else math.inf)

    def __call__(self, eigenvalues: Tensor) -> Tensor:
        return horner(self.alpha.to(eigenvalues), eigenvalues)

    def coefficients(self, number: int) -> Tensor:
        padding = self.alpha.new_zeros(max(0, number - self.alpha.numel()))
        return torch.cat([self.alpha[:number], padding])
