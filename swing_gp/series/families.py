"""Named series, and polynomials given by their coefficients."""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from swing_gp.linalg.expansions import horner
from swing_gp.series.base import Inverse, Series
from swing_gp.utils.validation import as_parameter, as_real, check_count


class Diffusion(Series):
    r"""The heat kernel :math:`\exp(-t (I - A))` (Kondor & Lafferty, 2002).

    :param time: the diffusion time t, positive.
    """

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

    def coupling(self, loops: Tensor) -> Tensor:
        # The ratio is expm1(t l) / (t l). Its parts would underflow: h(0) = t exp(-t) from t = 745 on, and its square, which
        # gradients of the ratio take, from 370 on. Above e^500 other bounds on the coupling are smaller.
        y = (self.time.to(loops) * loops).clamp_max(500)
        small = y.abs() < 1e-3
        far = torch.where(small, torch.ones_like(y), y)
        return torch.where(small, 1 + y / 2 * (1 + y / 3 * (1 + y / 4 * (1 + y / 5))), torch.expm1(far) / far)

    def coefficients(self, number: int) -> Tensor:
        order = torch.arange(number, dtype=torch.float64, device=self.time.device)
        time = self.time.to(order)
        return torch.exp(order * time.log() - torch.lgamma(order + 1) - time)

    def modulation(self, number: int) -> Tensor:
        return Diffusion(self.time / 2).coefficients(number)


class _Binomial(Series):
    r"""The family :math:`g(\lambda) = (a + b \lambda)^p`; its modulation is the member with p/2."""

    @abstractmethod
    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Scalars a, b and p in float64: a + b may be much smaller than both."""

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

    def inverse(self) -> Inverse | None:
        a, b, power = self._terms()
        order = -power.item()
        if not (order > 0 and b.item() < 0):
            return None
        integer = math.floor(order + 1e-12)
        if power.requires_grad and order - integer < 1e-12:
            integer -= 1  # the fraction is then one: a factor with a power of zero would have no gradient
        fraction = -power - integer
        rest = _Power(a, b, fraction) if abs(fraction.item()) > 1e-12 else None
        return Inverse(torch.stack([a, b]), integer, rest, order, _Power(a, b, -power))

    def coefficients(self, number: int) -> Tensor:
        return _binomial(*self._terms(), number)

    def modulation(self, number: int) -> Tensor:
        a, b, power = self._terms()
        return _binomial(a, b, power / 2, number)


class _Power(_Binomial):
    """A binomial series given by a, b and p; the reciprocal of a binomial series is one."""

    def __init__(self, *terms: Tensor) -> None:
        self.terms = terms
        power = terms[-1].item()
        self.degree = int(power) if float(power).is_integer() and not terms[-1].requires_grad else None

    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        a, b, power = self.terms
        return a, b, power


def _binomial(a: Tensor, b: Tensor, power: Tensor, number: int) -> Tensor:
    """Coefficients of (a + b x)^power, (number,), float64."""
    order = torch.arange(number - 1, dtype=torch.float64, device=a.device)
    ratios = (power - order) / (order + 1) * (b / a)
    return torch.cat([a.new_ones(1), ratios.cumprod(0)]) * a.pow(power)


class RandomWalk(Series):
    r"""The p-step random walk :math:`(a I - L)^p = ((a - 1) I + A)^p`.

    :param steps: the number of steps p.
    :param laziness: a, at least 1. At 1 the walk never rests, and no modulation exists; at 2 the kernel is
        :math:`(I + A)^p`.
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

    radius = math.inf

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
        # The number of ways may overflow and the power underflow, while their product does neither.
        return (math.exp(math.log(ways) / power) * rest).pow(power)

    def modulation(self, number: int) -> Tensor:
        if self.laziness.item() <= 1:
            return super().modulation(number)  # raises, and says why
        if self.steps % 2 == 0:
            return RandomWalk(self.steps // 2, self.laziness).coefficients(number)
        rest = (self.laziness - 1).double()
        return _binomial(rest, torch.ones_like(rest), torch.full_like(rest, self.steps / 2), number)


class OneStep(RandomWalk):
    r"""One step of the walk, :math:`K = A`.

    On a raw graph (``normalization=None``) K is W itself: the covariance matrix of a plain Gaussian process whose covariance
    function is the edge function. There is no identity part, so K may be singular: solves need noise.
    """

    def __init__(self) -> None:
        super().__init__(1, 1.0)

    def __repr__(self) -> str:
        return "OneStep()"


class RegularizedLaplacian(_Binomial):
    r"""The regularised Laplacian :math:`(I + s L)^{-p}` (Smola & Kondor, 2003); the paper's "d-regularised" kernel.

    :param scale: s, positive.
    :param power: p, positive.
    """

    def __init__(self, scale: float | Tensor = 1.0, power: float | Tensor = 1.0) -> None:
        self.scale = as_parameter("scale", scale)
        self.power = as_parameter("power", power)

    def __repr__(self) -> str:
        return f"RegularizedLaplacian(scale={self.scale.item():g}, power={self.power.item():g})"

    def _terms(self) -> tuple[Tensor, Tensor, Tensor]:
        scale = self.scale.double()
        return 1 + scale, -scale, -self.power.double()


class Matern(_Binomial):
    r"""The graph Matérn kernel :math:`(2 \nu / \kappa^2 + L)^{-\nu}` (Borovitskiy et al., 2021).

    :param nu: the smoothness :math:`\nu`, positive.
    :param kappa: the lengthscale :math:`\kappa` along the graph, positive.
    """

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
    r"""The polynomial :math:`\sum_k \alpha_k A^k` with given coefficients.

    :param alpha: the coefficients, (number,), lowest order first; they may require gradients.
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
        """Distance of the nearest zero of g, a branch point of sqrt(g)."""
        roots = np.polynomial.polynomial.polyroots(np.trim_zeros(self.alpha.detach().cpu().numpy(), "b"))
        return float(np.abs(roots).min()) if roots.size else math.inf

    @property
    def nonnegative(self) -> tuple[float, float]:
        """Widest interval around [0, 1] without a sign change at sampled points of [-1e6, 1e6]."""
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
